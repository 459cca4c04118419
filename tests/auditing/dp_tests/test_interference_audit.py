"""What leaves beside the releases: the same for other records, or told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from privdd.auditing.dp_tests.interference_audit import interference_findings
from privdd.auditing.dp_tests.query_audit import query_findings
from privdd.core.types import Artifact, Shard
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import Coupled, subject


@dataclass(frozen=True)
class Leaking(Coupled):
    """Beside the release, as post-processing of it, a trace of the first record."""

    coupled: bool = False

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, kept = super().local(broadcast, memory, shard, ctx)
        rows = upload["prototypes"].value["rows"] + 1e-5 * shard.train.x[0].mean()
        return {"prototypes": Artifact({"rows": rows}, private=True)}, kept


@dataclass(frozen=True)
class Telling(ClippedSum):
    def __call__(self, value: Any, noise: Any) -> Output:
        return replace(super().__call__(value, noise), why=f"of {len(value['rows'])} records")


@pytest.mark.parametrize(
    ("method", "mechanism", "says"),
    [
        (Coupled(coupled=False), ClippedSum, ""),
        (Leaking(), ClippedSum, "'prototypes' claims to be private and depends on the records"),
        (Coupled(coupled=False), Telling, "'embedding' depends on the records, in why"),
    ],
)
def test_only_what_depends_on_the_records_is_told(method: Any, mechanism: Any, says: str) -> None:
    found = [
        f.measures.to_row()
        for f in interference_findings(
            subject(method, {"embedding": mechanism(5.0, 1.0, 1.0, 10.0)})
        )
    ]
    assert [m["diagnostics"].get("refuted", False) for m in found] == [bool(says)]
    assert says in found[0]["note"] and "round 0" in found[0]["note"]


# round, memory, data, released -> rows that are sent
Tells = Callable[[int, Any, Shard, dict[str, Any]], Any]


@dataclass(frozen=True)
class Messages(Coupled):
    """Sends what ``tells`` makes of its release, and remembers the mean record of its first
    round."""

    coupled: bool = False
    rounds: int = 5
    tells: Tells = lambda t, memory, shard, sent: sent

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, _ = super().local(broadcast, memory, shard, ctx)
        sent = self.tells(ctx.round, memory, shard, dict(upload["prototypes"].value))
        kept = memory if memory else {"mean": shard.train.x.mean().reshape(1)}
        return {"prototypes": Artifact(sent, private=True)}, kept

    def phase(self, round: int) -> str:
        return "start" if round < 2 else "train"


def _added(sent: dict[str, Any], told: Any) -> dict[str, Any]:
    return {n: t + 1e-6 * told for n, t in sent.items()}


def _plain_in(round: int) -> Tells:
    return lambda t, memory, shard, sent: _added(sent, shard.train.x.mean()) if t == round else sent


def _remembered_until(round: int) -> Tells:
    return lambda t, memory, shard, sent: _added(sent, memory["mean"]) if t == round else sent


def _ordered(t: int, memory: Any, shard: Shard, sent: dict[str, Any]) -> dict[str, Any]:
    both = {"rows": sent["rows"], "more": sent["rows"]}
    return (
        both
        if torch.bincount(shard.train.y, minlength=3).argmin() == 2
        else dict(reversed(both.items()))
    )


def _typed(t: int, memory: Any, shard: Shard, sent: dict[str, Any]) -> dict[str, Any]:
    return {n: v.double() if len(shard.train) % 2 else v for n, v in sent.items()}


def _sized(t: int, memory: Any, shard: Shard, sent: dict[str, Any]) -> dict[str, Any]:
    return {n: torch.cat([v, v.new_zeros(len(shard.train) // 20)]) for n, v in sent.items()}


def _named(t: int, memory: Any, shard: Shard, sent: dict[str, Any]) -> dict[str, Any]:
    return {f"rows{int(shard.train.y[0])}": sent["rows"]}


def _middle(t: int, memory: Any, shard: Shard, sent: dict[str, Any]) -> dict[str, Any]:
    return _added(sent, shard.train.x[len(shard.train) // 2, 0, 4, 4])


def _bright(t: int, memory: Any, shard: Shard, sent: dict[str, Any]) -> dict[str, Any]:
    return _added(sent, float(shard.train.x.mean() > 0.95))


PLAIN = {f"plain in round {t}": _plain_in(t) for t in range(5)}
KEPT = {f"remembered until round {t}": _remembered_until(t) for t in (1, 2, 4)}
FORMS = {
    "order": _ordered,
    "type": _typed,
    "size": _sized,
    "name": _named,
    "a middle record": _middle,
    "a threshold": _bright,
}


@pytest.mark.parametrize(
    "tells", [*PLAIN.values(), *KEPT.values(), *FORMS.values()], ids=[*PLAIN, *KEPT, *FORMS]
)
def test_whatever_a_message_tells_is_seen_in_whichever_round(tells: Tells) -> None:
    (found,) = interference_findings(
        subject(Messages(tells=tells), {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)})
    )
    assert found.diagnostics["refuted"]


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace"])
@pytest.mark.parametrize(
    "tells",
    [Messages().tells, lambda t, memory, shard, sent: {n: v.half() for n, v in sent.items()}],
)
def test_what_is_computed_from_releases_alone_is_not(tells: Tells, relation: str) -> None:
    """That the client remembers its mean record, and tells nobody, is no fault."""
    (found,) = interference_findings(
        subject(
            Messages(tells=tells), {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)}, relation=relation
        )
    )
    assert "refuted" not in found.diagnostics and found.measures.n >= 3
    assert (
        found.diagnostics["covers"]["messages"] == [0, 1, 2, 3, 4]
        and "rounds 0 to 4" in found.measures.note
    )


def test_rounds_that_were_not_kept_are_named() -> None:
    whole = subject(Messages(), {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)})
    (found,) = interference_findings(
        replace(whole, snapshots={t: whole.snapshots[t] for t in (0, 1, 4)})
    )
    assert "rounds 0, 1, 4; not tested: 2, 3" in found.measures.note


@dataclass(frozen=True)
class Scaled(Messages):
    """Its rows are scaled by the mean of its first round, in round ``scaled`` alone."""

    scaled: int = -1

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        scale = 1 + float(memory["mean"]) ** 4 if memory and ctx.round == self.scaled else 1.0
        data = replace(shard, train=replace(shard.train, x=(shard.train.x - 0.5) * scale / 8 + 0.5))
        upload, _ = super().local(broadcast, memory, data, ctx)
        return upload, memory or {"mean": shard.train.x.mean().reshape(1)}


@pytest.mark.nightly(cases=["4"])
@pytest.mark.parametrize("round", [-1, 2, 4])
def test_contributions_that_lean_on_what_is_remembered_are_seen(round: int) -> None:
    (found, *_) = query_findings(
        subject(Scaled(scaled=round), {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)}), ["embedding"]
    )
    kappa = found.measures.kappa
    assert kappa <= 1.0001 if round < 0 else kappa > 1.001
    assert found.diagnostics["covers"]["sensitivity"] == [0, 1, 2, 3, 4]
