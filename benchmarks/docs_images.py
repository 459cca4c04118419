"""The images of the documentation, from runs with seed 0.

    python -m benchmarks.docs_images [--only report roc frontier] [--runs outputs/docs_images]

``docs/report.png`` is the first screen of ``privdd.audit algo=fedfed``; ``docs/roc.png``
and ``docs/frontier.png`` are figures of two sweeps at ``preset=smoke``. A finished run or sweep in
``--runs`` is not run again: delete its folder to make its image anew. The report needs a browser.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attacks.command_line import CommandParser
from privdd.reporting.browser import PATIENCE, browser_command
from privdd.reporting.page import write_report

ROOT = Path(__file__).parents[1]
SCREEN = (1400, 1194)  # pixels: the first screen down to the decisions


@dataclass(frozen=True)
class DocsImage:
    """An image of the documentation.

    Attributes:
        options: Of the ``privdd.audit`` that makes it, without its folder.
        drawing: The file in that folder that is the image, or "" for a screenshot of the report.
    """

    options: tuple[str, ...]
    drawing: str = ""

    @property
    def command(self) -> str:
        """As a reader types it."""
        return " ".join(["python -m privdd.audit", *self.options])

    def is_finished(self, folder: Path) -> bool:
        return (folder / (self.drawing or "report.html")).is_file()

    def run_audit(self, folder: Path) -> None:
        """Run the audit or the sweep into a folder. Raises CalledProcessError if it fails."""
        key = "hydra.sweep.dir" if "-m" in self.options else "hydra.run.dir"
        command = [sys.executable, "-m", "privdd.audit", *self.options, f"{key}={folder}"]
        done = subprocess.run(command, cwd=ROOT)
        if done.returncode not in (0, 2):  # 2: a stated guarantee is contradicted
            raise subprocess.CalledProcessError(done.returncode, command)


IMAGES = {
    "report": DocsImage(("algo=fedfed",)),
    "roc": DocsImage(
        ("-m", "algo=fedavg,feddm,fedrd,fedfed,fedlgd", "preset=smoke", "attack=[lira,rmia]"),
        "figures/roc.png",
    ),
    "frontier": DocsImage(
        ("-m", "algo=dp_head", "privacy.noise_multiplier=0.5,1,2,4", "preset=smoke"),
        "figures/frontier.png",
    ),
}


def write_image(name: str, runs: Path, docs: Path) -> Path:
    """Make one image.

    Args:
        name: Of ``IMAGES``.
        runs: The folder with a folder of each image's runs.
        docs: The folder that the image is written to, as ``NAME.png``.

    Returns:
        The image.
    """
    image = IMAGES[name]
    folder = (runs / name).resolve()
    if not image.is_finished(folder):
        image.run_audit(folder)
    target = docs / f"{name}.png"
    if image.drawing:
        shutil.copyfile(folder / image.drawing, target)
    else:
        take_screenshot(write_report(folder), target)
    return target


def take_screenshot(page: Path, target: Path) -> None:
    """The upper part of a page as PNG, in light colours. Raises NoBrowser, CalledProcessError."""
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={SCREEN[0]},{SCREEN[1]}"
        options = ("--hide-scrollbars", size, f"--screenshot={target.resolve()}")
        command = [*browser_command(profile), *options, page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m benchmarks.docs_images", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*IMAGES], default=[*IMAGES])
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "docs_images")
    arguments = parser.parse_args(argv)
    for name in arguments.only:
        print(write_image(name, arguments.runs, ROOT / "docs"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
