"""Attacks on what federated clients share: membership, reconstruction, inversion. Needs no training stack."""
