"""Importing torchvision where its compiled operators do not load.

Beside a CPU build of torch, a CUDA build of torchvision cannot register its operators, and the import
fails on ``torchvision::nms`` although data sets and transforms need none of them. Declaring the
missing operators (without an implementation) lets the rest of torchvision work; calling
``torchvision.ops.nms`` still fails.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept: list[torch.library.Library] = []  # a Library that is collected takes its operators with it


def torchvision(module: str = "torchvision") -> ModuleType:
    """``import torchvision[.module]``, declaring missing operators where the plain import fails.

    module: "torchvision" or a dotted name below it. Raises ImportError as usual where torchvision is
    not installed, and RuntimeError where it fails for another reason.
    """
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]
    _declare()
    return importlib.import_module(module)


def _declare() -> None:
    if _kept:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _kept.append(library)
