"""Privdd on other federated learning systems; each needs an optional extra."""
