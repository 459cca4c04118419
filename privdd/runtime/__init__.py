"""Backends of privdd.runtime.engine."""
