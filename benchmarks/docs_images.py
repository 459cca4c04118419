"""The images of the documentation, from runs with seed 0.

    python -m benchmarks.docs_images [--only report roc frontier] [--runs outputs/docs_images]

``docs/report.png`` is the first screen of ``privdd.audit algo=fedfed``; ``docs/roc.png``
and ``docs/frontier.png`` are figures of two sweeps. A finished run or sweep in
``--runs`` is not run again: delete its folder to make its image anew. The report needs a browser.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attacks.command_line import CommandParser
from privdd.reporting.browser import PATIENCE, browser_command
from privdd.reporting.page import write_report

ROOT = Path(__file__).parents[1]
# image -> options of the audit or of the sweep
OPTIONS = {
    "report": ("algo=fedfed",),
    "roc": ("-m", "algo=dp_means,feddm,fedfed"),
    "frontier": ("-m", "algo=dp_head", "privacy.noise_multiplier=0.5,1,2", "preset=smoke"),
}
SCREEN = (1400, 1194)  # pixels: the first screen down to the decisions


def image_command(name: str) -> str:
    """The command of ``privdd.audit`` that an image comes from, as a reader types it."""
    return " ".join(["python -m privdd.audit", *OPTIONS[name]])


def write_image(name: str, runs: Path, docs: Path) -> Path:
    """Make one image.

    Args:
        name: Of ``OPTIONS``.
        runs: The folder with a folder of each image's runs.
        docs: The folder that the image is written to, as ``NAME.png``.

    Returns:
        The image.

    Raises:
        CalledProcessError: the audit or the sweep failed.
        NoBrowser: there is none for the screenshot.
    """
    folder = (runs / name).resolve()
    is_report = name == "report"
    source = folder / ("report.html" if is_report else f"figures/{name}.png")
    if not source.is_file():
        key = "hydra.run.dir" if is_report else "hydra.sweep.dir"
        command = [sys.executable, "-m", "privdd.audit", *OPTIONS[name], f"{key}={folder}"]
        done = subprocess.run(command, cwd=ROOT)
        if done.returncode not in (0, 2):  # 2: a stated guarantee is contradicted
            raise subprocess.CalledProcessError(done.returncode, command)
    target = docs / f"{name}.png"
    if is_report:
        take_screenshot(write_report(folder), target)
    else:
        shutil.copyfile(source, target)
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
    parser.add_argument("--only", nargs="+", choices=[*OPTIONS], default=[*OPTIONS])
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "docs_images")
    arguments = parser.parse_args(argv)
    for name in arguments.only:
        print(write_image(name, arguments.runs, ROOT / "docs"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
