"""What a stopped run was computed with. Another torch or numpy rounds or draws otherwise, so it may not go on with it.

Those two can be installed again, so a difference is refused. Another processor may round otherwise too, but whoever
resumes on a cluster cannot choose it, and the results agree up to rounding: a difference is said, not refused.
"""

from __future__ import annotations

import logging
import platform

import numpy as np
import torch

from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.run_folder import RunFolder

LOG = logging.getLogger("privdd")
DECIDING = ("torch", "numpy")


def computed_with() -> dict[str, str]:
    """Of this process. processor: with the instructions that torch's kernels use."""
    kernels = torch.backends.cpu.get_cpu_capability()
    return {
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "processor": f"{platform.machine()} {kernels}",
    }


def note(folder: RunFolder, *, goes_on: bool) -> None:
    """Keep in the folder what it is computed with from now on.

    goes_on: results that are there already will be joined by others. Raises BadConfig, one line, where torch or numpy
    is another than theirs. Folders of earlier versions do not say theirs, and go on.
    """
    file, now = folder.path / "state" / "computed_with.json", computed_with()
    before = read_json(file) if file.exists() else None
    if before is not None and not (isinstance(before, dict) and all(isinstance(v, str) for v in before.values())):
        raise DamagedRun(f"{file}: not what privdd writes")
    if before == now:
        return
    if before is not None and goes_on:
        _check(folder, before, now)
    write_json(file, now)


def _check(folder: RunFolder, before: dict[str, str], now: dict[str, str]) -> None:
    for name in DECIDING:
        if (then := before.get(name, now[name])) != now[name]:
            raise BadConfig(
                f"{folder.path}: was begun with {name} {then[:40]}, and {now[name]} would give other bits; "
                f"install {name} {then[:40]}, or start it again in another folder"
            )
    then = before.get("processor", now["processor"])
    if then != now["processor"]:
        LOG.warning(
            "begun on another processor (%s, here %s): what follows may round otherwise", then[:40], now["processor"]
        )
