"""A page on paper: printed by a browser that is at hand, with the page's own print style."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from privdd.runtime.files import write_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
# Nothing is asked of any network: the page loads nothing, and the browser's own errands are off.
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions",
)  # fmt: skip
PATIENCE = 300  # seconds


class NoBrowser(OSError):
    """There is no browser that prints, or it printed nothing; one line."""


def browser() -> str:
    """The command of the first Chromium relative on the PATH, or what ``PRIVDD_BROWSER`` names. Raises NoBrowser."""
    named = os.environ.get("PRIVDD_BROWSER")
    found = next((path for name in ((named,) if named else BROWSERS) if (path := shutil.which(name))), None)
    if found is None:
        what = f"PRIVDD_BROWSER={named}: no such command" if named else f"none of {', '.join(BROWSERS)} is on the PATH"
        raise NoBrowser(f"a PDF needs a browser, and {what}; or open the page in any browser and print it")
    return found


def command(profile: Path | str) -> list[str]:
    """A browser without a window and with a new, empty profile folder. Raises NoBrowser."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # as root, which containers run as, it has no sandbox
    return [browser(), *FLAGS, *(["--no-sandbox"] if root else []), f"--user-data-dir={profile}"]


def print_pdf(page: Path) -> Path:
    """The page as PDF beside it, under its own name; returns its path. Raises NoBrowser."""
    made = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as folder:
        paper = Path(folder) / "page.pdf"
        call = [*command(Path(folder) / "profile"), "--no-pdf-header-footer", f"--print-to-pdf={paper}"]
        try:
            done = subprocess.run(
                [*call, page.resolve().as_uri()], capture_output=True, text=True, errors="replace", timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise NoBrowser(f"{call[0]} did not print {page} within {PATIENCE} seconds") from None
        if not paper.is_file():
            said = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
            raise NoBrowser(f"{call[0]} did not print {page} (exit status {done.returncode}): {said}")
        write_bytes(made, paper.read_bytes())
    return made
