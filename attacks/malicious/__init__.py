"""Attacks by a server that breaks the protocol: it chooses the model that clients train."""
