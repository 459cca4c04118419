"""What the components of a recorded federation claim, as the limit that an audit compares with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attacks.types import Surface
from privdd.auditing.targets.stated_limit import StatedLimit, stated_limit
from privdd.privacy.ledger import Ledger
from privdd.tapping.recording import Recording
from privdd.tapping.tapped_ledger import ledger_of

OF_ALL = "the aggregates of all rounds; updates before them are not covered, so no bound here is compared with it"
OF_UPDATES = "the arrays of this client's updates of all recorded rounds"


@dataclass(frozen=True)
class ClaimedLimit(StatedLimit):
    """source: the component whose claim this is; also: claims that are shown and not compared with anything."""

    source: str = ""
    also: tuple[Mapping[str, Any], ...] = ()

    def claims(self) -> list[dict[str, Any]]:
        mine = [
            {**claim, "source": self.source, "why": f"{OF_UPDATES}; claimed, not proven here"}
            for claim in super().claims()
        ]
        return mine + [dict(claim) for claim in self.also]


def claimed_limit(recording: Recording, node: int, stated: Mapping[str, Any]) -> StatedLimit:
    """What was typed as ``stated.*``, else what a component claims of the client's updates, else nothing."""
    if stated:
        return stated_limit(stated)
    ledger = ledger_of(recording)
    also = tuple(_shown(ledger, row.why) for row in ledger.releases if row.surface == Surface.GLOBAL_MODEL)
    epsilon = ledger.epsilon(surfaces=[Surface.UPDATE], client=node)
    why = next(
        (row.why for row in ledger.releases if row.surface == Surface.UPDATE and row.client == node and row.why), ""
    )
    if not math.isfinite(epsilon) or not epsilon > 0 or not why:
        return ClaimedLimit(delta=ledger.delta, also=also)
    try:
        return ClaimedLimit(epsilon, ledger.delta, "zero_out", "client", _source(why), also)
    except ValueError:  # so large that nothing can contradict it
        return ClaimedLimit(delta=ledger.delta, also=(*also, _entry(epsilon, ledger.delta, _source(why), OF_UPDATES)))


def _shown(ledger: Ledger, why: str) -> dict[str, Any]:
    return _entry(ledger.epsilon(surfaces=[Surface.GLOBAL_MODEL]), ledger.delta, _source(why), OF_ALL)


def _entry(epsilon: float, delta: float, source: str, why: str) -> dict[str, Any]:
    told = "inf" if math.isinf(epsilon) else epsilon
    return {"source": source, "epsilon": told, "sound": False, "why": why, "delta": delta}


def _source(why: str) -> str:
    return why.removeprefix("claimed by ").removesuffix(", not checked here")
