"""Errors that the user can fix."""

from __future__ import annotations


class BadConfig(ValueError):
    """A config that cannot be run; the message is one line for the user."""
