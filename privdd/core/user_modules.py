"""Modules of the user and torchvision, which they often use, imported beside any build of torch."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# Beside a CPU build of torch, a CUDA build of torchvision cannot register its operators, and the
# import fails although data sets and transforms need none of them: they are declared without an
# implementation.

MISSING_OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_operator_libraries: list[Any] = []  # a Library that is collected takes its operators with it


def import_torchvision(module: str = "torchvision") -> ModuleType:
    """``import torchvision[.module]``, declaring missing operators where the plain import fails.
    Raises ImportError where it is not installed, and RuntimeError where it fails for another
    reason."""
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]
    _declare_operators()
    return importlib.import_module(module)


def _declare_operators() -> None:
    if _operator_libraries:
        return
    import torch  # commands that need no torch import this module too

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in MISSING_OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _operator_libraries.append(library)


def import_user_module(name: str) -> ModuleType:
    """``importlib.import_module``, tried again where torchvision was what failed. Raises whatever
    the module raises."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    import_torchvision()
    return importlib.import_module(name)
