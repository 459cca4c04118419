"""The page on paper, printed by a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from attacks.machine import BARE_VARIABLE, is_bare
from privdd.runtime.files import write_bytes

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
# Nothing is asked of any network: the page loads nothing, and the browser's own errands are off.
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)
PATIENCE = 300  # seconds


class NoBrowser(OSError):
    """There is no browser that prints, or it printed nothing; one line."""


def find_browser() -> str:
    """The command of the first Chromium relative on the PATH, or what ``PRIVDD_BROWSER`` names.
    Raises NoBrowser."""
    named = os.environ.get("PRIVDD_BROWSER")
    if named:
        searched: tuple[str, ...] = (named,)
        missing = f"PRIVDD_BROWSER={named}: no such command"
    elif is_bare():
        searched = ()
        missing = f"{BARE_VARIABLE}=1 hides those on the PATH: set PRIVDD_BROWSER"
    else:
        searched = BROWSERS
        missing = f"none of {', '.join(BROWSERS)} is on the PATH"
    for name in searched:
        if path := shutil.which(name):
            return path
    raise NoBrowser(
        f"a PDF needs a browser, and {missing}; or open the page in any browser and print it"
    )


def browser_command(profile: Path | str) -> list[str]:
    """A browser without a window and with a new, empty profile folder. Raises NoBrowser."""
    # as root, which containers run as, it has no sandbox
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    sandbox = ["--no-sandbox"] if is_root else []
    return [
        find_browser(),
        *FLAGS,
        *sandbox,
        f"--user-data-dir={profile}",
    ]


def print_pdf(page: Path) -> Path:
    """Print a page as PDF beside it, under its own name.

    Args:
        page: An HTML file.

    Returns:
        The path of the PDF.

    Raises:
        NoBrowser: There is no browser, or it printed nothing in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        paper = Path(folder) / "page.pdf"
        command = [
            *browser_command(Path(folder) / "profile"),
            "--no-pdf-header-footer",
            f"--print-to-pdf={paper}",
            page.resolve().as_uri(),
        ]
        browser = command[0]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise NoBrowser(f"{browser} did not print {page} within {PATIENCE} seconds") from None
        if not paper.is_file():
            messages = process.stderr.strip().splitlines() or ["no word"]
            raise NoBrowser(
                f"{browser} did not print {page} (exit status {process.returncode}): "
                f"{messages[-1][:200]}"
            )
        printed = page.with_suffix(".pdf")
        write_bytes(printed, paper.read_bytes())
    return printed
