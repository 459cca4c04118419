"""Where text for a reader is written: a terminal, or a pipe in which no width is known. Imports no
torch."""

from __future__ import annotations

from typing import IO, cast

from rich.console import Console

PIPE_WIDTH = 132
SPELLED = str.maketrans(
    {"ε": "epsilon", "δ": "delta", "∞": "inf", "≥": ">=", "≤": "<=", "–": "-", "\u00a0": " "}
)


def console_for(file: IO[str], width: int | None = None) -> Console:
    """Writes to ``file``: colours on a terminal, elsewhere plain text in ``PIPE_WIDTH`` columns."""
    is_terminal = file.isatty()
    width = width or (None if is_terminal else PIPE_WIDTH)
    # else FORCE_COLOR=1, which many CI jobs set, puts bold and italic into files
    force = None if is_terminal else False
    return Console(
        file=_writable_stream(file),
        width=width,
        force_terminal=force,
        no_color=not is_terminal,
        highlight=False,
    )


class _Plain:
    """A stream that spells out the signs which the stream below cannot encode."""

    def __init__(self, below: IO[str]) -> None:
        self.below = below
        self.encoding = "ascii"

    def write(self, text: str) -> int:
        plain = text.translate(SPELLED)
        return self.below.write(plain.encode("ascii", "backslashreplace").decode("ascii"))

    def flush(self) -> None:
        self.below.flush()

    def isatty(self) -> bool:
        return self.below.isatty()


def _writable_stream(file: IO[str]) -> IO[str]:
    try:
        "ε∞≥–\u00a0━".encode(getattr(file, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return cast(IO[str], _Plain(file))
    return file
