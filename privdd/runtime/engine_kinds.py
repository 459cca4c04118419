"""The kinds of engine, and the settings that each of them reads. Imports no torch."""

from __future__ import annotations

SETTINGS_BY_KIND = {
    "auto": ("workers", "threads", "retries"),
    "serial": ("threads",),
    "processes": ("workers", "threads", "retries"),
    "ray": ("workers", "threads", "retries", "address", "mixed", "timeout"),
}
