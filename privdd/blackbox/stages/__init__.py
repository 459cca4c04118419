"""Stages of a check: each is one function of a ``CheckRun``."""
