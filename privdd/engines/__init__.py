"""Backends of privdd.engine."""
