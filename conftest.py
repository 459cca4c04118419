"""Every test of this repository runs as on a bare machine (``tests/bare_machine.py``), and draws a
figure only where it looks at one (``tests/blank_figures.py``)."""

pytest_plugins = ["tests.bare_machine", "tests.blank_figures"]
