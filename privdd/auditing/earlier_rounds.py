"""Replays of more than one round: what the server saw in all of them, for attacks that combine rounds.

Every world keeps its coins in all rounds. Where clients remember, one replay passes all rounds and is read in each;
elsewhere each round is replayed from its own broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from privdd.auditing.shadows import Stage, audited_rounds
from privdd.auditing.signals import Lens
from privdd.federated.simulation import Snapshot

Stacked = Mapping[str, Tensor]  # "surface|signal" -> (K, n, ...)


def rounds_of(snapshots: Mapping[int, Snapshot], most: int) -> dict[int, tuple[int, ...]]:
    """Audited round -> at most ``most`` rounds of its phase and kind of upload, evenly spaced, itself the last.

    most = 1: the audited round alone.
    """
    found = {}
    for last in audited_rounds(snapshots):
        kind = (snapshots[last].phase, frozenset(snapshots[last].sent))
        alike = sorted(t for t, s in snapshots.items() if (s.phase, frozenset(s.sent)) == kind)
        at = np.linspace(len(alike) - 1, 0, min(most, len(alike))).round().astype(int)
        found[last] = tuple(sorted(alike[i] for i in at))
    return found


def stages_of(
    make: Callable[[int], Stage], lens: Callable[[int], Lens], grouped: Mapping[int, Sequence[int]]
) -> dict[int, Stage]:
    """The replays of every round of ``grouped`` (audited round -> its rounds), not yet run; ``make`` starts one."""
    stages: dict[int, Stage] = {}
    for last, rounds in grouped.items():
        stage, earlier = make(last), rounds[:-1]
        on_the_way = {s.round for s in stage.chain} & set(earlier)
        stages[last] = replace(stage, passing={t: lens(t) for t in sorted(on_the_way)})
        stages |= {t: replace(make(t), like=stages[last]) for t in earlier if t not in on_the_way}
    return stages


def over_rounds(stacked: Mapping[int, Stacked], grouped: Mapping[int, Sequence[int]]) -> dict[int, dict[str, Tensor]]:
    """Audited round -> its signals in all its rounds: (K, n, R) by "surface|signal", the audited round the last."""
    found = {}
    for last, rounds in grouped.items():
        by_round = [_of_round(stacked, last, t) for t in rounds]
        keys = [key for key, value in by_round[-1].items() if value.ndim == 2 and all(key in one for one in by_round)]
        found[last] = {key: torch.stack([one[key] for one in by_round], -1) for key in keys}
    return found


def _of_round(stacked: Mapping[int, Stacked], last: int, t: int) -> Stacked:
    if t in stacked:
        return stacked[t]
    mark = f"{t}@"
    return {key.removeprefix(mark): value for key, value in stacked[last].items() if key.startswith(mark)}


def own_round(stacked: Mapping[int, Stacked], audited: Iterable[int]) -> dict[int, dict[str, Tensor]]:
    """The signals of the audited rounds themselves, which single-round attacks read."""
    return {t: {key: value for key, value in stacked[t].items() if "@" not in key} for t in audited}
