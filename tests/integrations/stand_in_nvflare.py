"""The part of NVFlare that its tap is written against, in a few classes, for machines without
NVFlare.

Names, calls and constants are those of NVFlare 2.6 (``nvflare.apis``); the same tests run against
NVFlare itself where it is installed (``extra("nvflare")``).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

VERSION = "2.6.0"
HEADERS = "__headers__"
CONTENT = "DXO"
RETURN_CODE = "__rc__"


class DataKind:
    WEIGHTS = "WEIGHTS"
    WEIGHT_DIFF = "WEIGHT_DIFF"
    METRICS = "METRICS"


class FilterChainType:
    TASK_DATA_CHAIN = "task_data"
    TASK_RESULT_CHAIN = "task_result"


class FilterContextKey:
    CHAIN_TYPE = "chain_type"


class ReturnCode:
    OK = "OK"


class ReservedKey:
    IDENTITY_NAME = "__identity_name__"


class Shareable(dict):
    """A dictionary with headers."""

    def __init__(self) -> None:
        super().__init__({HEADERS: {}})

    def set_header(self, name: str, value: Any) -> None:
        self[HEADERS][name] = value

    def get_header(self, name: str, default: Any = None) -> Any:
        return self[HEADERS].get(name, default)

    def get_return_code(self) -> str:
        return self.get_header(RETURN_CODE, ReturnCode.OK)


class DXO:
    """data: arrays by name; meta: numbers by name."""

    def __init__(
        self, data_kind: str, data: dict[str, Any], meta: dict[str, Any] | None = None
    ) -> None:
        self.data_kind = data_kind
        self.data = data
        self.meta = meta or {}

    def to_shareable(self) -> Shareable:
        shareable = Shareable()
        shareable[CONTENT] = {"kind": self.data_kind, "data": self.data, "meta": self.meta}
        return shareable


def from_shareable(shareable: Shareable) -> DXO:
    content = shareable[CONTENT]
    return DXO(content["kind"], content["data"], content["meta"])


class FLContext:
    def __init__(self) -> None:
        self.props: dict[str, Any] = {}

    def set_prop(self, key: str, value: Any, private: bool = True, sticky: bool = True) -> None:
        self.props[key] = value

    def get_identity_name(self) -> str:
        return self.props.get(ReservedKey.IDENTITY_NAME, "")


class Filter:
    def __init__(self) -> None:
        self.props: dict[str, Any] = {}

    def set_prop(self, key: str, value: Any) -> None:
        self.props[key] = value

    def get_prop(self, key: str) -> Any:
        return self.props.get(key)


PLACES: dict[str, tuple[type | Any, ...]] = {
    "dxo": (DXO, DataKind, from_shareable),
    "filter": (Filter, FilterChainType, FilterContextKey),
    "fl_constant": (ReservedKey, ReturnCode),
    "fl_context": (FLContext,),
    "shareable": (Shareable,),
}


def stand_in_modules() -> dict[str, ModuleType]:
    """For ``sys.modules``, by full name."""
    modules = {"nvflare": ModuleType("nvflare"), "nvflare.apis": ModuleType("nvflare.apis")}
    for place, members in PLACES.items():
        module = ModuleType(f"nvflare.apis.{place}")
        for member in members:
            setattr(module, member.__name__, member)
        modules[module.__name__] = module
    return modules
