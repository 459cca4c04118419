"""Checks of what was typed: unknown keys, wrong types and values out of range, one clear line each."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from privdd.cli.config import GROUPS, composed, one_line, own_folders
from privdd.core.errors import BadConfig

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


# What a key whose default is null takes, by its last part.
NULL_KINDS: dict[type, tuple[str, ...]] = {
    str: ("root", "name", "run", "resume", "scores", "tracking", "address"),
    int: ("size", "limit", "test_limit"),
    float: ("epsilon", "noise_multiplier", "clip_norm", "rho", "delta"),
}
TINY = 1e-300
RANGES = {  # of values that no object of their own checks
    "audit.records": (1, math.inf, "at least 1 is needed"),
    "audit.worlds": (1, math.inf, "at least 1 is needed (world 0 is the run itself)"),
    "audit.federations": (0, math.inf, "0 or more is needed"),
    "audit.victims": (1, math.inf, "at least 1 is needed"),
    "audit.client": (0, math.inf, "auto, or a client's number from 0, is needed"),
    "audit.confidence": (TINY, 1 - 1e-9, "a number in (0, 1) is needed"),
    "audit.guarantee.runs": (20, math.inf, "at least 20 is needed"),
    "audit.guarantee.slow_runs": (20, math.inf, "at least 20 is needed"),
    "audit.guarantee.images": (1, math.inf, "at least 1 is needed"),
    "privacy.delta": (TINY, 1 - 1e-9, "a number in (0, 1) is needed"),
    "partition.clients": (1, 10**6, "from 1 to 1000000 clients are needed"),
    "data.size": (1, 4096, "from 1 to 4096 pixels are needed"),
}


def check_overrides(command: str, argv: Sequence[str]) -> DictConfig:
    """Compose what was typed (first value of each sweep) and refuse unknown keys with a suggestion."""
    folders = own_folders(argv)
    typed = [a for a in argv if "=" in a and not a.startswith(("-", "hydra"))]
    for item in argv:
        if item.startswith(("+", "~")):
            raise BadConfig(
                f"{item}: adding or deleting keys is not supported; put new parts into yaml files (--config-dir)"
            )
        if "=" not in item and not item.startswith("-") and item not in folders:
            raise BadConfig(f"{item}: an override has the form key=value")
    parser = OverridesParser.create()
    try:
        parsed = parser.parse_overrides(typed)
    except HydraException as error:
        raise BadConfig(one_line(error)) from None
    group = [o for o in parsed if o.key_or_group.split("@")[0] in GROUPS and "." not in o.key_or_group]
    plain = [o for o in parsed if o not in group]
    base = composed(command, [_first_value(o) for o in group], folders)
    for override in plain:
        _known(base, override.key_or_group)
    return composed(command, [_first_value(o) for o in parsed], folders)


def _first_value(override: Any) -> str:
    if override.is_sweep_override():
        return f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
    return override.input_line


def _known(config: DictConfig, key: str) -> None:
    node: Any = config
    for depth, part in enumerate(key.split(".")):
        names = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if part not in names:
            where = ".".join(key.split(".")[:depth])
            close = difflib.get_close_matches(part, names, 1)
            hint = (
                f"did you mean {'.'.join(filter(None, [where, close[0]]))}?"
                if close
                else f"known there: {', '.join(names) or 'nothing'}"
            )
            raise BadConfig(f"{key}: unknown key; {hint}")
        node = OmegaConf.select(config, ".".join(key.split(".")[: depth + 1]), throw_on_missing=False)


def check_types(config: DictConfig, defaults: DictConfig) -> None:
    """Every value has the type of its default (an integer may stand for a float) and lies in its range.

    Raises BadConfig, naming key, value and what is allowed.
    """
    before, after = _leaves(defaults), _leaves(config)
    for key, value in sorted(
        after.items(), key=lambda pair: pair[0].count(".")
    ):  # what was typed before what repeats it
        if key not in before:
            _whole_leaf(key, before)
        elif value is not None or not _may_be_null(key, before[key]):
            _typed(key, value, before[key])
        if isinstance(value, int | float) and not isinstance(value, bool):
            _in_range(key, value)


def _whole_leaf(key: str, before: Mapping[str, Any]) -> None:
    """A mapping typed where a single value belongs."""
    for leaf, default in before.items():
        if key.startswith(f"{leaf}."):
            raise BadConfig(f"{leaf}={{...}}: a value like the default {default!r} ({_kind(default)}) is needed")


def _may_be_null(key: str, default: Any) -> bool:
    return default is None or key in {"data.limit", "data.test_limit"} or key.startswith(("model.", "attack."))


def _typed(key: str, value: Any, default: Any) -> None:
    kind = (
        type(default)
        if default is not None
        else next((k for k, names in NULL_KINDS.items() if key.rsplit(".")[-1] in names), None)
    )
    kind = str if key.startswith("audit.waive.") else kind
    if kind is None or type(value) is kind or key == "audit.client" or key.startswith(("capture.", "attack.")):
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind not in (int, float) or not number:
        like = f"a value like the default {default!r}, that is," if default is not None else ""
        raise BadConfig(f"{key}={value!r}: {like} {KINDS.get(kind, kind.__name__)} is needed".replace(":  ", ": "))
    if kind is int and not float(value).is_integer() and math.isfinite(value) and not _fractional(key):
        raise BadConfig(f"{key}={value}: a whole number is needed (the default is {default})")


def _in_range(key: str, value: float) -> None:
    if not math.isfinite(value) or abs(value) >= 2**63:
        raise BadConfig(f"{key}={value:g}: a finite number below 2**63 is needed")
    least, most, why = RANGES.get(key, (-math.inf, math.inf, ""))
    if not least <= value <= most:
        raise BadConfig(f"{key}={value}: {why}")


def _fractional(key: str) -> bool:
    """Whole-numbered by default, yet any number makes sense."""
    return not re.search(
        r"(rounds|steps|size|clients|workers|threads|records|worlds|victims|seed|width|depth|epochs|ipc|limit|iterations|restarts)$",
        key,
    )


def _kind(value: Any) -> str:
    return KINDS.get(type(value), type(value).__name__)


def _leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True) if not prefix else node
    if isinstance(plain, dict):
        return {k: v for name, part in plain.items() for k, v in _walk(f"{prefix}{name!s}", part)}
    return {}


def _walk(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for name, part in value.items() for pair in _walk(f"{key}.{name}", part)]
    return [(key, value)]
