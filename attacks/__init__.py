"""Attacks on what federated clients share: membership, reconstruction, inversion. Needs no training stack."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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


class _MovedFinder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED_MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_MovedFinder())
