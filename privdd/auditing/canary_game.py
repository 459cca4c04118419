"""The game of canaries: a bound on epsilon from the noised sums of one run.

For audits that cannot replay the client: crafted records that are in its data by fair, secret
bits, after its own records, chosen from a public pool so that what they add to a release points in
as many directions as there are. Each one's neighbouring data set lacks that record alone, so the
relation has to be add/remove."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.canaries import CanaryScores, draw_block_images, select_independent
from attacks.measures import GuaranteeMeasures
from attacks.membership.measures import guess_counts
from attacks.one_run import largest_refuted_parameter, one_run_bounds, right_guesses
from attacks.statistics import shared_confidence
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.dp_tests.contributions import single_contributions
from privdd.auditing.dp_tests.instrumentation import instrumented_context
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.observed_releases import (
    ObservedRelease,
    TranscriptReader,
    is_noised_sum,
    noised_sum_of_release,
)
from privdd.auditing.views import FinishedRun
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard, name_class_cell
from privdd.core.validation import BadConfig
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import ObservedRound
from privdd.federated.simulation import Plan
from privdd.privacy.accounting import epsilon_at
from privdd.privacy.clipping import count_records
from privdd.privacy.ledger import Ledger
from privdd.privacy.trade_off import trade_off

CANDIDATES_PER_CANARY = 4  # candidates for each canary
MAX_NOISE_SCALE = 64.0  # times the stated noise: no larger fault is distinguished


def score_canaries(
    plan: Plan, shard: Shard, canaries: Records, present: int, transcript: Sequence[ObservedRound]
) -> CanaryScores:
    """Scores of all canaries from the rounds of ``transcript``. shard: the client without canaries;
    present: how many of them were in, after its own records, which tells their sampling coins
        apart. Releases that are no noised sums are
    left out: that costs strength, not validity."""
    canary_scores = CanaryScores(len(canaries))
    base = shard.train
    shard_with_canaries = shard.with_train(Records.concat([base, canaries]))

    def add_observed(observed: ObservedRelease) -> None:
        mechanism = plan.mechanisms[observed.name]
        if not is_noised_sum(mechanism):
            return
        if observed.taken is not None and len(observed.taken) == len(base) + present:
            observed = replace(observed, taken=observed.taken[: len(base)])
        if release := noised_sum_of_release(mechanism, observed, base, canaries):
            canary_scores.add_release(*release)

    for observed in transcript:
        ctx = instrumented_context(plan, observed.round, TranscriptReader(observed, add_observed))
        plan.method.local(
            observed.broadcast, dict(observed.memory), shard_with_canaries.client_data, ctx
        )
    return canary_scores


@dataclass(frozen=True)
class CanaryGame:
    """records: all m canaries; inside: (m,) bool, which of them the client trains on."""

    records: Records
    inside: Tensor

    def add_to_shard(self, shard: Shard) -> Shard:
        """The client with the canaries that are in, after its own records."""
        return shard.with_train(Records.concat([shard.train, self.records.take(self.inside)]))


def check_playable(plan: Plan, unit: str) -> None:
    """Raises BadConfig where no query of the run can be played on."""
    if plan.relation != "add_remove" or unit != "record":
        raise BadConfig(
            "audit.canaries: a canary is one record more or less, and "
            f"privacy.relation={plan.relation}, unit={unit}; "
            "allowed are relation=add_remove and unit=record (a whole client is one inclusion bit "
            "in one run: the certificate "
            "of the whole run tests it better)"
        )
    if plan.trust.is_summed:
        raise BadConfig(
            "audit.canaries: not offered under trust=secagg, which hides each client's own releases"
        )
    if not any(n in plan.method.queries and is_noised_sum(m) for n, m in plan.mechanisms.items()):
        raise BadConfig(
            "audit.canaries: needs a mechanism that adds Gaussian noise to a sum over "
            "records; set privacy"
        )


def canary_game_of(experiment: Experiment) -> CanaryGame | None:
    """The canaries of ``audit.canaries``; None where there are none. Raises BadConfig where they
    cannot be played."""
    plan = experiment.plan
    count = experiment.audit_settings.canaries
    if not count:
        return None
    check_playable(plan, experiment.privacy.unit)
    return draw_canaries(
        plan,
        experiment.shards[plan.victim],
        count,
        plan.keys.fold("audit", plan.victim, "canaries"),
    )


def draw_canaries(plan: Plan, shard: Shard, count: int, keys: Keys) -> CanaryGame:
    """``count`` canaries of all classes in turn, chosen by what they would add to the client's
    first releases. The choice reads the initial public state alone, and no record of the client."""
    pool = draw_block_images(shard.shape, CANDIDATES_PER_CANARY * count, keys.fold("pool").torch())
    labels = torch.arange(CANDIDATES_PER_CANARY * count) % len(plan.problem.class_list)
    y = torch.tensor(plan.problem.class_list)[labels]
    first = int(shard.train.ids.max()) + 1
    candidates = Records(pool.to(shard.train.x), y.to(shard.train.y), torch.arange(len(y)) + first)
    chosen = candidates.take(_choose_spread(plan, shard, candidates, count))
    is_member = torch.rand(count, generator=keys.fold("secret", "canaries").torch()) < 0.5
    return CanaryGame(Records(chosen.x, chosen.y, torch.arange(count) + first), is_member)


def _choose_spread(plan: Plan, shard: Shard, candidates: Records, count: int) -> Tensor:
    """Positions of the chosen candidates, class by class, as their first contributions tell."""
    effects_by_cell: dict[str | None, Tensor] = {}

    def note_contributions(observed: ObservedRelease) -> None:
        mechanism = plan.mechanisms[observed.name]
        if is_noised_sum(mechanism) and count_records(observed.rows):
            single = single_contributions(mechanism, observed.rows).double()
            if (
                observed.partition not in effects_by_cell
                or single.shape[1] > effects_by_cell[observed.partition].shape[1]
            ):
                effects_by_cell[observed.partition] = single

    server = plan.method.init(plan.problem, plan.keys.fold("public", "init"))
    ctx = instrumented_context(plan, 0, TranscriptReader(None, note_contributions))
    plan.method.local(
        plan.method.broadcast(server), {}, shard.with_train(candidates).client_data, ctx
    )
    labels = candidates.y.unique().tolist()
    picked = []
    for number, label in enumerate(labels):
        here = (candidates.y == label).nonzero()[:, 0]
        share = count // len(labels) + (number < count % len(labels))
        effects = effects_by_cell.get(name_class_cell(label))
        if effects is None:
            effects = effects_by_cell[None][here.to(effects_by_cell[None].device)]
        picked.append(here[torch.as_tensor(select_independent(effects.cpu().numpy(), share))])
    return torch.cat(picked)


def worst_event(ledger: Ledger, client: int, delta: float) -> dpa.DpEvent:
    """The largest cost of one record of the client over the whole run: that of the most expensive
    partition cell."""
    cells: dict[str | None, list[dpa.DpEvent]] = {}
    for row in ledger.releases:
        if row.client == client and row.is_protected:
            cells.setdefault(row.partition, []).append(
                dpa.SelfComposedDpEvent(row.event, row.count)
            )
    common = cells.pop(None, [])
    events = [
        dpa.ComposedDpEvent([*common, *events_of_cell]) for events_of_cell in cells.values()
    ] or [dpa.ComposedDpEvent(common)]
    return max(
        events, key=lambda event: epsilon_at(event, delta, relation=ledger.relation, scale=1.0)
    )


def canary_findings(
    plan: Plan,
    shard: Shard,
    ledger: Ledger,
    game: CanaryGame,
    transcript: Sequence[ObservedRound],
    surface: Surface,
    *,
    delta: float,
    confidence: float,
    keys: Keys,
) -> Iterator[Finding]:
    """Bounds on epsilon at ``delta`` (Steinke's and the f-DP one), and the accountant's own curve
    in one run. shard: the client without canaries. The bounds hold for any mechanism; the curve's
    finding is above what is stated exactly where the accountant's curve for the whole run is
    refuted. Each is at ``confidence`` by itself."""
    canary_scores = score_canaries(plan, shard, game.records, int(game.inside.sum()), transcript)
    member = game.inside.numpy()
    counts = right_guesses(
        canary_scores.canary_scores(), member, guess_counts(len(member)), keys.numpy()
    )
    stated = ledger.epsilon(delta, client=plan.victim)
    m = len(member)
    best = one_run_bounds(m, counts, delta=delta, confidence=confidence)
    method = max(best, key=best.__getitem__)
    what = _describe_scores(canary_scores, counts, m, len(transcript), plan.method.rounds)
    terms = (surface, stated, confidence, what, m)
    yield _canary_finding(*terms, "one_run_canaries", best[method], method, "finite_sample")
    if math.isfinite(stated):
        value = _refuted_epsilon(
            worst_event(ledger, plan.victim, delta), ledger, stated, delta, m, counts, confidence
        )
        yield _canary_finding(*terms, "one_run_curve", value, "fdp_one_run_curve", "curve")


def canary_findings_of_run(
    run: FinishedRun, game: CanaryGame, transcript: Sequence[ObservedRound], confidence: float
) -> Iterator[Finding]:
    """``canary_findings`` of a finished run, on the surface that its first protected query ends up
    in. Raises ValueError where nothing of the run was observed: it was trained before, or by
    clients that run elsewhere."""
    if not transcript:
        raise ValueError(
            "audit.canaries: releases are kept in memory only, and this run was trained before"
        )
    plan = run.plan
    canaries = set(game.records.ids[game.inside].tolist())
    is_ordinary = torch.tensor([int(number) not in canaries for number in run.shard.train.ids])
    shard = run.shard.with_train(run.shard.train.take(is_ordinary))
    names = [n for n, m in plan.mechanisms.items() if n in plan.method.queries and is_noised_sum(m)]
    budget = run.experiment.audit_settings.guarantee
    keys = plan.keys.fold("audit", "canaries")
    delta = run.experiment.privacy.delta
    subject = GuaranteeSubject(
        plan, shard, {}, run.progress.ledger, delta, confidence, budget, keys
    )
    yield from canary_findings(
        plan,
        shard,
        run.progress.ledger,
        game,
        transcript,
        subject.surface_of(names[0]),
        delta=delta,
        confidence=confidence,
        keys=keys,
    )


def _refuted_epsilon(
    event: dpa.DpEvent,
    ledger: Ledger,
    stated: float,
    delta: float,
    m: int,
    counts: Sequence[tuple[int, int]],
    confidence: float,
) -> float:
    """The epsilon of the least noise, in the event's family, that is refuted; above ``stated``
    where its curve is."""
    each = shared_confidence(confidence, len(counts))
    relation = ledger.relation

    def curve_at_scale(scale: float) -> object:
        return trade_off(
            event, relation=relation, scale=min(max(scale, 1 / MAX_NOISE_SCALE), MAX_NOISE_SCALE)
        )

    scale = max(largest_refuted_parameter(m, *c, curve_at_scale, confidence=each) for c in counts)  # type: ignore[arg-type]
    value = 0.0
    if scale > 1 / MAX_NOISE_SCALE:
        value = epsilon_at(event, delta, relation=relation, scale=min(scale, MAX_NOISE_SCALE))
    if scale > 1:
        return max(value, stated * (1 + 1e-9))
    return min(value, stated)


def _describe_scores(
    scores: CanaryScores, counts: Sequence[tuple[int, int]], m: int, observed: int, rounds: int
) -> str:
    right = ", ".join(f"{correct} of {guesses}" for guesses, correct in counts)
    return (
        f"{m} canaries by fair coins, {scores.releases} noised sums of {observed} of "
        f"{rounds} rounds; guesses right: {right}; "
        "in all of them together a canary moves the sum by "
        f"{math.sqrt(scores.gain / m):.3g} noise scales if it is sampled"
    )


def _canary_finding(
    surface: Surface,
    stated: float,
    confidence: float,
    note: str,
    m: int,
    attack: str,
    value: float,
    method: str,
    validity: str,
) -> Finding:
    measures = GuaranteeMeasures(
        epsilon_shown=float(value),
        epsilon_method=method,
        epsilon_validity=validity,
        confidence=confidence,
        n=m,
        note=note,
    )
    if math.isfinite(stated):
        measures = replace(measures, epsilon_stated=stated)
    return Finding(surface, attack, Family.GUARANTEE, Adversary.ANALYST, measures)
