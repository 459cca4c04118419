"""Paths on the command line: Hydra's grammar takes plain letters only, so others are quoted for it, and for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

PATHS = ("data.root", "run", "resume", "scores", "hydra.run.dir", "hydra.sweep.dir")


def quoted(argv: Sequence[str]) -> list[str]:
    """The arguments, each path that Hydra cannot read (``data.root=/home/rené/x.npz``) in Hydra's quotes."""
    parts = [(item, *item.partition("=")[::2]) for item in argv]
    return [assignment(key, value) if key in PATHS and not _reads(item) else item for item, key, value in parts]


def _reads(item: str) -> bool:
    try:
        OverridesParser.create().parse_override(item)
    except HydraException:
        return False
    return True


def value_of(override: str) -> str:
    """What Hydra reads from ``key=value``, its quotes taken off. Raises HydraException where it cannot."""
    return str(OverridesParser.create().parse_override(override).value())


def assignment(key: str, value: str) -> str:
    """``key=value`` as Hydra reads it back: quoted where it has to be."""
    plain = f"{key}={value}"
    try:
        if value_of(plain) == value:
            return plain
    except (HydraException, ValueError):
        pass
    within = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"{key}='{within}'"


def typeable(key: str, value: str) -> str:
    """``key=value`` as it can be pasted into a shell."""
    return shlex.quote(assignment(key, value))


def as_overrides(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Python values as overrides: {"privacy": {"epsilon": 3}} -> "privacy.epsilon=3"; texts are quoted as needed."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from as_overrides(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield f"{name}=[{','.join(assignment(name, _text(v)).partition('=')[2] for v in value)}]"
        else:
            yield assignment(name, _text(value)) if isinstance(value, str) else f"{name}={_text(value)}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
