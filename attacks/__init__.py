"""Attacks on what federated clients share: membership, reconstruction, inversion. Needs no training stack."""

MARKER = "privdd-attacks"  # lets privdd notice a foreign package of the same name
