"""What the noised sums that a client released say of its records: of canaries in one run, and of
the audited records.

Canaries, for audits that cannot replay the client: crafted records that are in its data by fair,
secret coins, after its own records, chosen from a public pool so that what they add to a release
points in as many directions as there are. Each one's neighbouring data set lacks that record alone,
so the relation has to be add/remove.

The closed form: where all that a client sends is computed from such sums, replaying it gives images
or models, which say no more of a record than the sums (data processing). So the sums of all
rounds are attacked themselves, with as many coins as
one likes, and few replays are kept, of the client and of the federation. See
``attacks.membership.noised_sums``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from attacks.canaries import CanaryScores, draw_block_images, select_independent
from attacks.membership.measures import guess_counts
from attacks.membership.noised_sums import RATIO_SIGNAL, NoisedSums
from attacks.one_run import largest_refuted_parameter, one_run_bounds, right_guesses
from attacks.statistics import shared_confidence
from attacks.types import Adversary, Attack, Family, Finding, Surface, Truth, View, Worlds
from privdd.auditing.coverage import uncovered_surfaces
from privdd.auditing.dp_tests.clean_values import clean_numbers, flatten_tensors
from privdd.auditing.dp_tests.contributions import single_contributions
from privdd.auditing.dp_tests.instrumentation import instrumented_context
from privdd.auditing.dp_tests.runner import guarantee_subject
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.replay import MembershipGame
from privdd.auditing.views import FinishedRun, blind_scores
from privdd.core.rng import Keys
from privdd.core.types import UNKNOWN_CELL, Records, Shard, Tensors, class_of_cell, name_class_cell
from privdd.core.validation import BadConfig
from privdd.federated.channel import POST_PROCESSING, device_of
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import ObservedRound
from privdd.federated.simulation import Plan
from privdd.privacy.accounting import epsilon_at
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import ZERO_NOISE
from privdd.privacy.trade_off import trade_off
from privdd.training.dp_sgd import QUERY

CANDIDATES_PER_CANARY = 4  # candidates for each canary
MAX_NOISE_SCALE = 64.0  # times the stated noise: no larger fault is distinguished
LOG = logging.getLogger("privdd")
ANALYST_NOTE = (
    "the analyst of the guarantee sees every noised release of all rounds, from which "
    "all that this client sends is "
    "computed, and knows the client's other records; one transcript is what was "
    "released, and the coins and noise of the "
    "others are drawn by the mechanism's law along its queries"
)

# The onlooker knows all that the analyst of the guarantee knows: the client's other records and
# which of them were sampled, every canary, the public maps, and every released output. It runs the
# method's local work with all canaries present, is handed the real outputs in turn, and notes for
# each release what each canary would have added.


@dataclass(frozen=True)
class ObservedRelease:
    """One release. rows: contributions, the canaries' last; taken: (n,) bool of the client that
    really ran, or None where nothing was sampled; value: what was released."""

    name: str
    partition: str | None
    rows: Tensors
    taken: Tensor | None
    value: Tensors


@dataclass
class TranscriptReader:
    """Answers with the outputs of a run that is over (noiseless ones without a run), and tells
    ``note`` what was asked for them."""

    observed: ObservedRound | None
    note: Callable[[ObservedRelease], None]
    drawn: dict[str, Tensor] = field(default_factory=dict)
    answered: int = 0

    def __post_init__(self) -> None:
        self._coins: Iterator[tuple[str, Tensor]] = iter(
            self.observed.samples if self.observed else ()
        )

    def on_sample(self, name: str, probability: float, taken: Tensor) -> None:
        if self.observed is not None:
            expected, coins = next(self._coins, ("nothing", torch.zeros(0)))
            if expected != name:
                raise ValueError(
                    f"{expected} was sampled in the run and {name} in its repetition: local "
                    "work must repeat"
                )
            self.drawn[name] = coins

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *asked: Any
    ) -> Tensors:
        partition, rows = asked
        if self.observed is None:
            value = mechanism(rows, ZERO_NOISE).value
        else:
            value = self.observed.outputs[self.answered]
        self.note(ObservedRelease(name, partition, rows, self.drawn.get(name), value))
        self.answered += 1
        return value


def is_noised_sum(mechanism: Mechanism) -> bool:
    """Whether its releases are sums over records with Gaussian noise, which the regression is
    for."""
    if not mechanism.per_record:  # it may have no event
        return False
    event = mechanism.event
    if isinstance(event, dpa.PoissonSampledDpEvent):
        inner = event.event
    else:
        inner = event
    return isinstance(inner, dpa.GaussianDpEvent)


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

    def add_observed(asked: ObservedRelease) -> None:
        mechanism = plan.mechanisms[asked.name]
        if not is_noised_sum(mechanism):
            return
        if asked.taken is not None and len(asked.taken) == len(base) + present:
            asked = replace(asked, taken=asked.taken[: len(base)])
        if release := noised_sum_of_release(mechanism, asked, base, canaries):
            canary_scores.add_release(*release)

    for observed in transcript:
        ctx = instrumented_context(plan, observed.round, TranscriptReader(observed, add_observed))
        plan.method.local(
            observed.broadcast, dict(observed.memory), shard_with_canaries.client_data, ctx
        )
    return canary_scores


NoisedSumRelease = tuple[np.ndarray, np.ndarray, np.ndarray, float, float]


def noised_sum_of_release(
    mechanism: Mechanism, asked: ObservedRelease, base: Records, candidates: Records
) -> NoisedSumRelease | None:
    """One release as a noised sum over candidates; None where none of them is in its class.

    asked.taken: of ``base``, or of its records in this partition first. (which candidates (g,),
        what each adds (g, p), the release less what ``base`` adds (p,), noise scale, chance to be
        sampled.) Raises ValueError where contributions are not
    one a record, ``base`` first.
    """
    label = class_of_cell(asked.partition)
    if label == UNKNOWN_CELL:
        raise ValueError(
            f"{asked.name}: the cell {asked.partition!r} is no class: which records are "
            "in it is not known"
        )
    if label is None:
        base_positions = torch.ones(len(base), dtype=torch.bool)
    else:
        base_positions = (base.y == label).cpu()
    if label is None:
        theirs = torch.ones(len(candidates), dtype=torch.bool)
    else:
        theirs = (candidates.y == label).cpu()
    positions = theirs.nonzero()[:, 0].numpy()
    rows = asked.rows
    size = int(base_positions.sum())
    if not len(positions):
        return None
    if count_records(rows) != size + len(positions):
        raise ValueError(
            f"{asked.name}: {count_records(rows)} contributions of {size} + "
            f"{len(positions)} records"
        )
    sampled = torch.ones(size, dtype=torch.bool)
    if (
        asked.taken is not None
    ):  # one coin for each of the client's records, or for each of this partition
        if len(asked.taken) == len(base):
            sampled = asked.taken[base_positions]
        else:
            sampled = asked.taken[:size]
    silent = mechanism(take_records(rows, sampled.nonzero()[:, 0].to(device_of(rows))), ZERO_NOISE)
    effects = [
        clean_numbers(mechanism, take_records(rows, slice(size + i, size + i + 1)))
        for i in range(len(positions))
    ]
    observed = flatten_tensors(asked.value).double() - flatten_tensors(silent.exact or {}).double()
    stack: np.ndarray = torch.stack(effects).double().cpu().numpy()
    return (
        positions,
        stack,
        observed.cpu().numpy(),
        silent.noise_std,
        float(mechanism.sampling_probability),
    )


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
            "allowed are relation=add_remove and unit=record (a whole client is one coin "
            "in one run: of it the certificate "
            "of the whole run tells more)"
        )
    if plan.trust.is_summed:
        raise BadConfig(
            "audit.canaries: not offered under trust=secagg, where no client's own "
            "releases are seen"
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

    def note_contributions(asked: ObservedRelease) -> None:
        mechanism = plan.mechanisms[asked.name]
        if is_noised_sum(mechanism) and count_records(asked.rows):
            single = single_contributions(mechanism, asked.rows).double()
            if (
                asked.partition not in effects_by_cell
                or single.shape[1] > effects_by_cell[asked.partition].shape[1]
            ):
                effects_by_cell[asked.partition] = single

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
            "audit.canaries: what was released is kept in memory only, and this run was "
            "trained before"
        )
    plan = run.plan
    out = set(game.records.ids[game.inside].tolist())
    is_member = torch.tensor([int(record_id) not in out for record_id in run.shard.train.ids])
    shard = run.shard.with_train(run.shard.train.take(is_member))
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
    found: CanaryScores, counts: Sequence[tuple[int, int]], m: int, observed: int, rounds: int
) -> str:
    right = ", ".join(f"{correct} of {guesses}" for guesses, correct in counts)
    return (
        f"{m} canaries by fair coins, {found.releases} noised sums of {observed} of "
        f"{rounds} rounds; guesses right: {right}; "
        "in all of them together a canary moves the sum by "
        f"{math.sqrt(found.gain / m):.3g} noise scales if it is sampled"
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
    measures = {
        "epsilon_shown": float(value),
        **({"epsilon_stated": stated} if math.isfinite(stated) else {}),
        "epsilon_method": method,
        "epsilon_validity": validity,
        "confidence": confidence,
        "n": m,
        "note": note,
    }
    return Finding(surface, attack, Family.GUARANTEE, Adversary.ANALYST, measures)


def is_closed_form(plan: Plan) -> bool:
    """Whether a run's mechanisms are all noised sums over records that local work asks for, a few a
    round: not DP-SGD, whose many steps would each be gone through with every record."""
    reads_queries = plan.mechanisms.keys() <= plan.method.queries.keys() and all(
        map(is_noised_sum, plan.mechanisms.values())
    )
    single = plan.relation == "add_remove" and not plan.trust.is_summed
    return bool(plan.mechanisms) and reads_queries and QUERY not in plan.mechanisms and single


def needs_releases(experiment: Experiment, attacks: Mapping[str, Attack]) -> bool:
    """Whether the audit listens to the audited client's releases: an attack reads them, and they
    can be read."""
    by_record = experiment.privacy.unit == "record" and is_closed_form(experiment.plan)
    return by_record and any(Adversary.ANALYST in attack.adversaries for attack in attacks.values())


def replay_count(experiment: Experiment, attacks: Mapping[str, Attack]) -> int:
    """How many replays of the client an audit takes: all, or beside the closed form as few as
    attacks can run on."""
    if not needs_releases(experiment, attacks):
        return experiment.audit_settings.worlds
    shadow = [
        a
        for a in attacks.values()
        if a.family == Family.MEMBERSHIP and a.adversaries - {Adversary.ANALYST}
    ]
    least = max([experiment.audit_settings.processed_worlds, *(a.least_worlds for a in shadow)])
    return min(experiment.audit_settings.worlds, least)


def federation_count(experiment: Experiment, attacks: Mapping[str, Attack]) -> int:
    """How many replays of the whole federation an audit takes: fewer beside the closed form, if
    attacks cover all without."""
    audit = experiment.audit_settings
    fewer = replace(audit, federations=min(audit.federations, audit.processed_federations))
    if not needs_releases(experiment, attacks) or uncovered_surfaces(
        experiment.plan.method, attacks, fewer
    ):
        return audit.federations
    return fewer.federations


@dataclass(frozen=True)
class NoisedSumScores:
    """The closed form on one run. masks: (K, n) bool, row 0 the run; scores: (K, n) log likelihood
    ratios; has_stated_noise: whether the run's sums are, as far as can be seen, its records'
    contributions and noise of the stated size."""

    masks: Tensor
    scores: Tensor
    has_stated_noise: bool = True


def score_noised_sums(
    run: FinishedRun, whole: Shard, transcript: Sequence[ObservedRound]
) -> NoisedSumScores | None:
    """The closed form on what the audited client released; None where that is not all that its
    uploads come from, rounds are missing (trained elsewhere, or with noise that nobody can draw
    again), or contributions are not one a
    record. whole: the client's data before any coin flip."""
    plan = run.plan
    game = run.game
    audit = run.experiment.audit_settings
    if not _is_complete(run.progress.ledger, plan.victim, transcript):
        return None
    try:
        sums = collect_noised_sums(plan, whole, game, run.shard.train, transcript)
    except NotPerRecord as problem:
        LOG.warning("noised sums are not read (%s): all replays are run instead", problem)
        return None
    keys = plan.keys.fold("audit", plan.victim, "noised_reads")
    coins = (
        torch.rand(
            audit.transcripts, len(game.audited), generator=keys.fold("secret", "coins").torch()
        )
        < 0.5
    )
    masks = torch.cat([game.masks[:1], coins[1:]])
    ratios = torch.from_numpy(sums.log_likelihood_ratios(masks.numpy(), keys.numpy()))
    return NoisedSumScores(masks, ratios, sums.has_stated_noise)


def _is_complete(ledger: Ledger, victim: int, transcript: Sequence[ObservedRound]) -> bool:
    """Whether all that the client sent is post-processing of its releases, and all of these are in
    the transcript."""
    releases = [row for row in ledger.releases if row.client == victim]
    inner = [row for row in releases if row.visible_to == ("analyst",)]
    sent = [row for row in releases if row.visible_to != ("analyst",)]
    observed = {
        observed_round.round: len(observed_round.outputs)
        for observed_round in transcript
        if observed_round.outputs
    }
    count = {
        t: sum(row.count for row in inner if row.round == t) for t in {row.round for row in inner}
    }
    return bool(inner) and all(row.why == POST_PROCESSING for row in sent) and count == observed


class NotPerRecord(ValueError):
    """A release's contributions are not one for each record of its class."""


class _AllReleasesSeen(Exception):
    """The last release of a round was gone through: what local work does next is
    post-processing."""


def collect_noised_sums(
    plan: Plan,
    whole: Shard,
    game: MembershipGame,
    trained: Records,
    transcript: Sequence[ObservedRound],
) -> NoisedSums:
    """All noised sums of the transcript, by the method's own local work with every audited record
    in. trained: what the client trained on, in its order, which tells its sampling coins apart.
    Raises NotPerRecord."""
    sums = NoisedSums(len(game.audited))
    is_kept = torch.ones(len(game.whole), dtype=torch.bool)
    is_kept[game.audited] = False
    base = game.whole.take(is_kept)
    candidates = game.audited_records
    everyone = whole.with_train(Records.concat([base, candidates]))
    place = torch.isin(trained.ids, base.ids)
    for observed in sorted(transcript, key=lambda one: one.round):
        if observed.outputs:
            note = _SumCollector(
                sums, plan, base, candidates, place, trained.y.cpu(), len(observed.outputs)
            )
            ctx = instrumented_context(plan, observed.round, TranscriptReader(observed, note))
            try:
                plan.method.local(
                    observed.broadcast, dict(observed.memory), everyone.client_data, ctx
                )
            except _AllReleasesSeen:
                continue
            except (
                ValueError,
                RuntimeError,
            ) as problem:  # of a method whose queries depend on which records it has
                why = (
                    f"round {observed.round} cannot be gone through with all audited records: "
                    f"{problem}"
                )
                raise NotPerRecord(why) from problem
            lost = f"{note.left} of {len(observed.outputs)} releases"
            raise NotPerRecord(f"round {observed.round}: {lost} are not asked for again")
    return sums


@dataclass
class _SumCollector:
    """Adds one round's releases to ``found``. place: (trained,) bool, which of the sampling coins
    are of ``base``; labels: (trained,), for coins that are tossed class by class; left: releases
    until the round is over."""

    found: NoisedSums
    plan: Plan
    base: Records
    candidates: Records
    place: Tensor
    labels: Tensor
    left: int

    def __call__(self, asked: ObservedRelease) -> None:
        coins = asked.taken
        place = self.place
        if coins is not None and asked.partition is not None and len(coins) != len(place):
            place = place[self.labels == class_of_cell(asked.partition)]
        if coins is not None and len(coins) != len(place):
            raise NotPerRecord(f"{asked.name}: {len(coins)} records sampled of {len(place)}")
        asked = replace(asked, taken=None if coins is None else coins[place])
        try:
            release = noised_sum_of_release(
                self.plan.mechanisms[asked.name], asked, self.base, self.candidates
            )
        except ValueError as problem:
            raise NotPerRecord(str(problem)) from problem
        if release is not None:
            self.found.add_release(asked.name, *release)
        self.left -= 1
        if not self.left:
            raise _AllReleasesSeen


def analyst_view(run: FinishedRun, reads: NoisedSumScores, round: int) -> tuple[View, Truth, str]:
    """View, truth and note: the audited records as the analyst holds them, on the surface that the
    first query ends up in (of several, the first that is sent). round: the latest."""
    game = run.game
    public = run.public_records
    name = next(n for n in run.plan.mechanisms if n in run.plan.method.queries)
    candidates = game.audited_records
    signals: Mapping[str, Tensor] = {RATIO_SIGNAL: reads.scores.float()}
    blind = blind_scores(candidates, public)
    worlds = Worlds(
        signals, reads.masks, blind, candidates.y, records=candidates.x, kinds=game.kinds
    )
    surface = guarantee_subject(run, run.experiment.audit_settings.confidence).surface_of(name)
    queries = ", ".join(n for n in run.plan.mechanisms if n in run.plan.method.queries)
    view = View(
        surface, Adversary.ANALYST, (), run.adversary_knowledge(round), worlds, message=queries
    )
    return view, run.ground_truth(), ANALYST_NOTE
