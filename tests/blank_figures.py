"""A plugin of pytest: the first suite draws a figure only for a test that looks at it.

To draw takes four fifths of the time of a page, and most tests that write one read its words. In
the first suite (``-m "not nightly"``) a figure that is saved is an empty drawing, unless the test
has the mark ``drawn``. Every other choice of tests draws all, the nightly run among them."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

FIRST_SUITE = "not nightly"
BLANK_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200"></svg>'

_draw = Figure.savefig


def blank_png() -> bytes:
    """One white pixel."""
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, np.ones((1, 1, 3)), format="png")
    return buffer.getvalue()


BLANK_FILES = {"svg": BLANK_SVG, "png": blank_png(), "pdf": b"%PDF-1.4\n%%EOF\n"}


def save_blank(figure: Figure, file: BinaryIO, *, format: str, **_options: Any) -> None:
    """In the place of ``Figure.savefig``."""
    file.write(BLANK_FILES[format])


@pytest.hookimpl(tryfirst=True)  # a fixture of a module draws for the test that asks first
def pytest_runtest_setup(item: pytest.Item) -> None:
    first_suite = item.config.getoption("markexpr") == FIRST_SUITE
    is_blank = first_suite and item.get_closest_marker("drawn") is None
    Figure.savefig = save_blank if is_blank else _draw  # type: ignore[method-assign]
