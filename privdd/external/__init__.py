"""Targets from outside: a trained model, a synthetic data set or captured updates that privdd did
not make."""
