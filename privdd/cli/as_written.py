"""The overrides of one run as its user wrote them, for the command that its pages show."""

from __future__ import annotations

from collections.abc import Sequence

from privdd.cli.config import expand


def as_written(composed: Sequence[str], given: Sequence[str]) -> list[str]:
    """composed: the overrides that Hydra ran, one value of each sweep; given: the arguments before ``expand``.

    What ``expand`` spelled out (every attack that "all" means, and ``audit.require``) goes again; what it stands for
    comes back. A swept attack is the one of this run.
    """
    spelled = {item for item in expand(given, "audit") if item not in given}
    kept = [item for item in composed if not (item in spelled and item.startswith(("attack=", "audit.require=")))]
    replaced = len(kept) < len(composed) and not any(item.startswith("attack=") for item in kept)
    return [*kept, *(item for item in given if replaced and item.startswith("attack="))]
