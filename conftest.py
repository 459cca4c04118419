"""Every test of this repository runs as on a bare machine; see ``tests/bare_machine.py``."""

pytest_plugins = ["tests.bare_machine"]
