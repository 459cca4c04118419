"""Which public names a subclass may define: the hooks that its role declares, its own settings, nothing else.

A hook that is not declared is never called, and an audit that skips it would under-report the leak.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator

ALIKE = 0.8  # similarity (difflib's ratio) from which a setting's name is taken for a misspelt hook


def check_names(cls: type, role: str, hooks: Collection[str]) -> None:
    """Refuse a public name of ``cls`` that is no known hook, and a setting whose name is nearly one.

    Settings are annotated fields (not ClassVar); names with a leading underscore are the class's own.
    Raises TypeError, one line with a suggestion.
    """
    for name, setting in _public(cls):
        close = difflib.get_close_matches(name, hooks, 1, ALIKE if setting else 0.6)
        if name in hooks or (setting and not close):
            continue
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(hooks))}"
        own = "" if setting else "; a name of its own starts with an underscore"
        raise TypeError(f"{cls.__name__}.{name}: no hook of {role}; {hint}{own}")


def _public(cls: type) -> Iterator[tuple[str, bool]]:
    """(name, whether it is a setting) of every public name that the class itself defines."""
    annotations = {name: str(kind) for name, kind in vars(cls).get("__annotations__", {}).items()}
    settings = {name for name, kind in annotations.items() if "ClassVar" not in kind}
    for name in dict.fromkeys((*vars(cls), *annotations)):
        if not name.startswith("_"):
            yield name, name in settings


def declared(cls: type) -> frozenset[str]:
    """The public names that a role's base class defines or annotates: its hooks."""
    return frozenset(name for name, _ in _public(cls))
