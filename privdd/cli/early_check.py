"""What can be told of a typed value before anything slow is imported: its type, and the range that its class checks.

Every refusal here is one that the full check would make too, in the same words: types are read from the source
(``written_types``) and ranges are checked by the class's own ``__post_init__`` (``source_twins``). What neither can tell
is left to the full check.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from privdd.cli.number_bounds import check_numbers
from privdd.cli.read_settings import leaves, plain
from privdd.cli.secret import KEY as SECRET
from privdd.cli.source_twins import NeedsImport, Twins
from privdd.cli.type_check import OF_HYDRA, TypeCheck, fits, needed
from privdd.cli.written_types import OURS, declared
from privdd.core.checks import refused

Leaves = dict[str, Any]
MADE = {  # groups without a _target_, and what is called with their settings
    "partition": "privdd.data.partition.Partition",
    "engine": "privdd.runtime.engine.Engine",
    "capture": "privdd.federated.capture.Capture",
    "trust": "privdd.federated.trust.Trust",
    "data": "privdd.data.sources.load",
}
CHECKED_BY = {**MADE, "data": "privdd.data.sources.check_asked"}
TARGET = OF_HYDRA[0]


def check_changed(config: DictConfig, base: DictConfig) -> None:
    """Raises BadConfig or the class's own ValueError for the first value of ``config`` that cannot be used.

    base: the same choices of files with nothing else typed: what is as in there is not looked at.
    """
    try:
        now, before = plain(config), plain(base)
    except OmegaConfBaseException:  # a value that is missing, or points nowhere
        return
    known = dict(leaves(before))
    changed = {key: value for key, value in leaves(now) if key not in known or not _same(known[key], value)}
    changed.pop(SECRET, None)  # no message may hold it
    check = TypeCheck(config)
    for key, value in changed.items():
        _check_type(check, now, key, value)
    if any(now.get(word) is not None for word in ("run", "resume", "scores")):
        return  # these make nothing of it
    twins = Twins()
    for place in _places(changed):
        _check_range(twins, place, _at(now, place))


def _check_type(check: TypeCheck, config: Mapping[str, Any], key: str, value: Any) -> None:
    check_numbers(key, value, check.key_of(key))
    place, _, name = key.rpartition(".")
    node = _at(config, place)
    target = MADE.get(place) or (node.get(TARGET) if isinstance(node, dict) else None)
    kind = declared(target, name) if isinstance(target, str) else None
    if kind is not None and not fits(value, kind):
        raise refused(check.key_of(key), value, needed(kind))


def _check_range(twins: Twins, place: str, node: Any) -> None:
    try:
        if place in CHECKED_BY:
            made, named = twins.of(CHECKED_BY[place]), node
        else:
            made, named = _made, {"twins": twins, "node": node}
        made(**named)
    except ValueError:
        raise
    except Exception:  # NeedsImport, or an error that the full check will meet, and say what it means
        return


def _made(twins: Twins, node: Any) -> Any:
    """A node as Hydra would build it, of twins. Raises what its class raises, and NeedsImport where a part has no twin."""
    if isinstance(node, list):
        return [_made(twins, one) for one in node]
    if not isinstance(node, dict):
        return node
    if TARGET not in node:
        return {name: _made(twins, one) for name, one in node.items()}
    ours = str(node[TARGET]).split(".")[0] in OURS  # whether others may be called at all, the full check decides
    if not ours or any(name in node for name in (*OF_HYDRA[1:], "_args_")):
        raise NeedsImport(str(node[TARGET]))
    kind: Any = twins.of(node[TARGET])
    if not isinstance(kind, type):
        raise NeedsImport(str(node[TARGET]))
    parts = {name: _made(twins, one) for name, one in node.items() if name != TARGET}
    made: Any = object.__new__(kind)
    with suppress(NameError):  # a check that cannot come to its end, since it reads a file say: the whole has its own
        kind.__init__(made, **parts)  # type: ignore[misc]
    return made


def _places(changed: Leaves) -> list[str]:
    """The nodes that are built by themselves, of those in which something changed."""
    depths = {"algo": 1, "attack": 2, **dict.fromkeys(MADE, 1)}
    found = []
    for key in changed:
        parts = key.split(".")
        depth = 3 if parts[:2] == ["privacy", "mechanisms"] else depths.get(parts[0], len(parts))
        if depth < len(parts):
            found.append(".".join(parts[:depth]))
    return list(dict.fromkeys(found))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _at(config: Any, place: str) -> Any:
    for part in place.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config
