"""One run, many canaries: crafted records that are in the audited client's data by fair coins of their own.

For audits that cannot replay the client. Canaries are chosen from a public pool so that what they add to a release
points in as many directions as there are, and come after the client's own records. Their coins are secret; each
canary's neighbouring data set lacks that record alone, so the relation has to be add/remove.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.canaries import independent, patches
from attacks.epsilon import fdp_one_run, one_run, right_guesses
from attacks.fdp_one_run import refuted_parameter
from attacks.membership.attack import guess_counts
from attacks.one_run_canaries import CanaryScores
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.canary_transcripts import Overheard, onlooker, readable, scored
from privdd.auditing.guarantees.recording_context import exact, flat
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.views import Scene
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard
from privdd.federated.heard import Heard
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger
from privdd.privacy.tradeoff import epsilon_at, trade_off

POOL = 4  # candidates for each canary
MOST = 64.0  # times the stated noise: no larger fault is distinguished


@dataclass(frozen=True)
class CanaryGame:
    """records: all m canaries; inside: (m,) bool, which of them the client trains on."""

    records: Records
    inside: Tensor

    def added(self, shard: Shard) -> Shard:
        """The client with the canaries that are in, after its own records."""
        return shard.with_train(Records.concat([shard.train, self.records.take(self.inside)]))


def check_playable(plan: Plan, unit: str) -> None:
    """Raises BadConfig where no query of the run can be played on."""
    if plan.relation != "add_remove" or unit != "record":
        raise BadConfig(
            f"audit.canaries: a canary is one record more or less, and privacy.relation={plan.relation}, unit={unit}; "
            "allowed are relation=add_remove and unit=record (a whole client is one coin in one run: of it the certificate "
            "of the whole run tells more)"
        )
    if plan.trust.summed:
        raise BadConfig("audit.canaries: not offered under trust=secagg, where no client's own releases are seen")
    if not any(n in plan.method.queries and readable(m) for n, m in plan.mechanisms.items()):
        raise BadConfig("audit.canaries: needs a mechanism that adds Gaussian noise to a sum over records; set privacy")


def draw_canaries(plan: Plan, shard: Shard, count: int, keys: Keys) -> CanaryGame:
    """``count`` canaries of all classes in turn, chosen by what they would add to the client's first releases.

    The choice reads the initial public state alone, and no record of the client.
    """
    pool = patches(shard.shape, POOL * count, keys.fold("pool").torch())
    labels = torch.arange(POOL * count) % len(plan.problem.class_list)
    y = torch.tensor(plan.problem.class_list)[labels]
    first = int(shard.train.ids.max()) + 1
    candidates = Records(pool.to(shard.train.x), y.to(shard.train.y), torch.arange(len(y)) + first)
    chosen = candidates.take(_spread(plan, shard, candidates, count))
    inside = torch.rand(count, generator=keys.fold("secret", "canaries").torch()) < 0.5
    return CanaryGame(Records(chosen.x, chosen.y, torch.arange(count) + first), inside)


def _spread(plan: Plan, shard: Shard, candidates: Records, count: int) -> Tensor:
    """Positions of the chosen candidates, class by class, as their first contributions tell."""
    seen: dict[str | None, Tensor] = {}

    def note(asked: Overheard) -> None:
        mechanism = plan.mechanisms[asked.name]
        if readable(mechanism) and len(next(iter(asked.rows.values()))):
            size = len(next(iter(asked.rows.values())))
            rows = [flat(exact(mechanism, {n: t[i : i + 1] for n, t in asked.rows.items()})) for i in range(size)]
            made = torch.stack(rows).double()
            if asked.partition not in seen or made.shape[1] > seen[asked.partition].shape[1]:
                seen[asked.partition] = made

    server = plan.method.init(plan.problem, plan.keys.fold("public", "init"))
    ctx = onlooker(plan, 0, None, note)
    plan.method.local(plan.method.broadcast(server), {}, shard.with_train(candidates), ctx)
    labels = candidates.y.unique().tolist()
    picked = []
    for number, label in enumerate(labels):
        here = (candidates.y == label).nonzero()[:, 0]
        share = count // len(labels) + (number < count % len(labels))
        effects = seen[f"label:{label}"] if f"label:{label}" in seen else seen[None][here.to(seen[None].device)]
        picked.append(here[torch.as_tensor(independent(effects.cpu().numpy(), share))])
    return torch.cat(picked)


def worst_event(ledger: Ledger, client: int, delta: float) -> dpa.DpEvent:
    """What one record of the client costs at most over the whole run: the dearest partition cell."""
    cells: dict[str | None, list[dpa.DpEvent]] = {}
    for row in ledger.releases:
        if row.client == client and row.protected:
            cells.setdefault(row.partition, []).append(dpa.SelfComposedDpEvent(row.event, row.count))
    common = cells.pop(None, [])
    events = [dpa.ComposedDpEvent([*common, *own]) for own in cells.values()] or [dpa.ComposedDpEvent(common)]
    return max(events, key=lambda event: epsilon_at(event, delta, relation=ledger.relation, scale=1.0))


def canary_findings(
    plan: Plan, shard: Shard, ledger: Ledger, game: CanaryGame, transcript: Sequence[Heard], surface: Surface,
    *, delta: float, confidence: float, keys: Keys,
) -> Iterator[Finding]:  # fmt: skip
    """Bounds on epsilon at ``delta`` (Steinke's and the f-DP one), and the accountant's own curve in one run.

    shard: the client without canaries. The bounds hold for any mechanism; the curve's finding is above what is stated
    exactly where the accountant's curve for the whole run is refuted. Each is at ``confidence`` by itself.
    """
    found = scored(plan, shard, game.records, int(game.inside.sum()), transcript)
    member = game.inside.numpy()
    counts = right_guesses(found.scores(), member, guess_counts(len(member)), keys.numpy())
    stated = ledger.epsilon(delta, client=plan.victim)
    m, each, bounds = len(member), _each(confidence, 2 * len(counts)), {"one_run": one_run, "fdp_one_run": fdp_one_run}
    best = {name: max(of(m, *c, delta=delta, confidence=each) for c in counts) for name, of in bounds.items()}
    method = max(best, key=best.__getitem__)
    what = _words(found, counts, m, len(transcript), plan.method.rounds)
    yield _finding(surface, "one_run_canaries", stated, best[method], method, "finite_sample", confidence, what, m)
    if math.isfinite(stated):
        value = _curve(worst_event(ledger, plan.victim, delta), ledger, stated, delta, m, counts, confidence)
        yield _finding(surface, "one_run_curve", stated, value, "fdp_one_run_curve", "curve", confidence, what, m)


def findings_of_canaries(
    scene: Scene, game: CanaryGame, transcript: Sequence[Heard], confidence: float
) -> Iterator[Finding]:
    """``canary_findings`` of a finished run, on the surface that its first protected query ends up in.

    Raises ValueError where nothing of the run was heard: it was trained before, or by clients that run elsewhere.
    """
    if not transcript:
        raise ValueError("audit.canaries: what was released is kept in memory only, and this run was trained before")
    plan = scene.plan
    out = set(game.records.ids[game.inside].tolist())
    own = torch.tensor([int(one) not in out for one in scene.shard.train.ids])
    shard = scene.shard.with_train(scene.shard.train.take(own))
    names = [n for n, m in plan.mechanisms.items() if n in plan.method.queries and readable(m)]
    budget = scene.experiment.audit.guarantee
    keys, delta = plan.keys.fold("audit", "canaries"), scene.experiment.privacy.delta
    told = Subject(plan, shard, {}, scene.progress.ledger, delta, confidence, budget, keys)
    yield from canary_findings(
        plan, shard, scene.progress.ledger, game, transcript, told.surface(names[0]),
        delta=delta, confidence=confidence, keys=keys,
    )  # fmt: skip


def _each(confidence: float, tests: int) -> float:
    return 1 - (1 - confidence) / tests


def _curve(
    event: dpa.DpEvent, ledger: Ledger, stated: float, delta: float, m: int, counts: Sequence[tuple[int, int]], confidence: float
) -> float:  # fmt: skip
    """The epsilon of the least noise, in the event's family, that is refuted; above ``stated`` where its curve is."""
    each, relation = _each(confidence, len(counts)), ledger.relation

    def family(scale: float) -> object:
        return trade_off(event, relation=relation, scale=min(max(scale, 1 / MOST), MOST))

    scale = max(refuted_parameter(m, *c, family, confidence=each) for c in counts)  # type: ignore[arg-type]
    value = epsilon_at(event, delta, relation=relation, scale=min(scale, MOST)) if scale > 1 / MOST else 0.0
    return max(value, stated * (1 + 1e-9)) if scale > 1 else min(value, stated)


def _words(found: CanaryScores, counts: Sequence[tuple[int, int]], m: int, heard: int, rounds: int) -> str:
    right = ", ".join(f"{correct} of {made}" for made, correct in counts)
    return (
        f"{m} canaries by fair coins, {found.releases} noised sums of {heard} of {rounds} rounds; guesses right: {right}; "
        f"in all of them together a canary moves the sum by {math.sqrt(found.gain / m):.3g} noise scales if it is sampled"
    )


def _finding(
    surface: Surface, attack: str, stated: float, value: float, method: str, validity: str, confidence: float, note: str, m: int
) -> Finding:  # fmt: skip
    measures = {
        "epsilon_measured": float(value),
        "epsilon_stated": stated if math.isfinite(stated) else None,
        "epsilon_method": method,
        "epsilon_validity": validity,
        "confidence": confidence,
        "n": m,
        "note": note,
    }
    there = {name: value for name, value in measures.items() if value is not None}
    return Finding(surface, attack, Family.GUARANTEE, Adversary.ANALYST, there)
