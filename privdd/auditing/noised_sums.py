"""What the noised sums that a client released say of the audited records: the closed form.

If all that a client sends is computed from such sums, replaying it gives images or models, which
say no more of a record than the sums (data processing). So the sums of all rounds are attacked
themselves, with as many inclusion bits as one likes, and few replays are kept, of the client and of
the federation. See ``attacks.membership.noised_sums``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.membership.noised_sums import RATIO_SIGNAL, NoisedSums
from attacks.types import Adversary, Attack, Family, Truth, View, Worlds
from privdd.auditing.coverage import uncovered_surfaces
from privdd.auditing.dp_tests.instrumentation import instrumented_context
from privdd.auditing.dp_tests.runner import guarantee_subject
from privdd.auditing.observed_releases import (
    ObservedRelease,
    TranscriptReader,
    is_noised_sum,
    noised_sum_of_release,
)
from privdd.auditing.replay import MembershipGame
from privdd.auditing.views import FinishedRun, blind_scores
from privdd.core.types import Records, Shard, class_of_cell
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import ObservedRound
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger
from privdd.training.dp_sgd import QUERY

LOG = logging.getLogger("privdd")

ANALYST_NOTE = (
    "the analyst of the guarantee sees every noised release of all rounds, from which "
    "all messages of this client are "
    "computed, and knows the client's other records; one transcript is the run's own "
    "releases, and the sampling bits and noise of the "
    "others are drawn by the mechanism's law along its queries"
)


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
    recorded: dict[int, int] = {}
    for row in inner:
        recorded[row.round] = recorded.get(row.round, 0) + row.count
    return bool(inner) and all(row.why == POST_PROCESSING for row in sent) and recorded == observed


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
    for observed in sorted(transcript, key=lambda release_round: release_round.round):
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

    def __call__(self, observed: ObservedRelease) -> None:
        coins = observed.taken
        place = self.place
        if coins is not None and observed.partition is not None and len(coins) != len(place):
            place = place[self.labels == class_of_cell(observed.partition)]
        if coins is not None and len(coins) != len(place):
            raise NotPerRecord(f"{observed.name}: {len(coins)} records sampled of {len(place)}")
        observed = replace(observed, taken=None if coins is None else coins[place])
        try:
            release = noised_sum_of_release(
                self.plan.mechanisms[observed.name], observed, self.base, self.candidates
            )
        except ValueError as problem:
            raise NotPerRecord(str(problem)) from problem
        if release is not None:
            self.found.add_release(observed.name, *release)
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
