"""Attacks on what federated clients share: membership, reconstruction, inversion. Needs no training stack."""

import importlib
import sys
from types import ModuleType
from typing import Any

MOVED_MODULES = {  # names that can still be imported -> the module that holds the same today
    "attacks.arrays": "attacks.tensors",
    "attacks.gpu": "attacks.tensors",
    "attacks.lpips": "attacks.images",
    "attacks.one_run": "attacks.epsilon",
    "attacks.tradeoff": "attacks.epsilon",
    "attacks.membership.blind_baseline": "attacks.membership.attack",
    "attacks.inversion.reconstruction": "attacks.inversion.victim",
    "attacks.inversion.seethrough": "attacks.inversion.gradient",
}


class _MovedModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what looks through all modules must not import any
            raise AttributeError(name)
        return getattr(importlib.import_module(MOVED_MODULES[self.__name__]), name)


sys.modules |= {name: _MovedModule(name) for name in MOVED_MODULES}
