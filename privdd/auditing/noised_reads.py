"""What the noised sums of a run say of the audited records, where all that the client sends is computed from such sums.

Replaying the client gives images or models, which say no more of a record than the sums behind them (data processing).
So the sums of all rounds are attacked themselves, in closed form and with as many coins as one likes, and a few replays
are kept for what is sent. What the server sends is computed from them too, so the federation may be replayed less as well
(``audit.processed_federations``). See ``attacks.membership.noised_reads``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.membership.noised_reads import SIGNAL, NoisedSums
from attacks.types import Adversary, Attack, Family, View, Worlds
from privdd.auditing.canary_transcripts import Overheard, contributed, onlooker, readable
from privdd.auditing.coverage import uncovered
from privdd.auditing.game import Game
from privdd.auditing.guarantees.tiers import subject_of
from privdd.auditing.views import Scene, blind_scores
from privdd.core.types import Records, Shard
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.experiment import Experiment
from privdd.federated.heard import Heard
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger
from privdd.training.dp_sgd import QUERY

LOG = logging.getLogger("privdd")
NOTE = (
    "the analyst of the guarantee sees every noised release of all rounds, from which all that this client sends is "
    "computed, and knows the client's other records; one transcript is what was released, and the coins and noise of the "
    "others are drawn by the mechanism's law along its queries"
)


def in_closed_form(plan: Plan) -> bool:
    """Whether a run's mechanisms are all noised sums over records that local work asks for, a few a round.

    Not DP-SGD, whose many steps would each be gone through with every record.
    """
    asked = plan.mechanisms.keys() <= plan.method.queries.keys() and all(map(readable, plan.mechanisms.values()))
    single = plan.relation == "add_remove" and not plan.trust.summed
    return bool(plan.mechanisms) and asked and QUERY not in plan.mechanisms and single


def wanted(experiment: Experiment, attacks: Mapping[str, Attack]) -> bool:
    """Whether the audit listens to the audited client's releases: an attack reads them, and they can be read."""
    by_record = experiment.privacy.unit == "record" and in_closed_form(experiment.plan)
    return by_record and any(Adversary.ANALYST in attack.adversaries for attack in attacks.values())


def replays(experiment: Experiment, attacks: Mapping[str, Attack]) -> int:
    """How many replays of the client an audit takes: all, or beside the closed form as few as attacks can run on."""
    if not wanted(experiment, attacks):
        return experiment.audit.worlds
    shadow = [a for a in attacks.values() if a.family == Family.MEMBERSHIP and a.adversaries - {Adversary.ANALYST}]
    return min(experiment.audit.worlds, max([experiment.audit.processed_worlds, *(a.least_worlds for a in shadow)]))


def federations(experiment: Experiment, attacks: Mapping[str, Attack]) -> int:
    """How many replays of the whole federation an audit takes: fewer beside the closed form, if attacks cover all without."""
    audit = experiment.audit
    fewer = replace(audit, federations=min(audit.federations, audit.processed_federations))
    if not wanted(experiment, attacks) or uncovered(experiment.plan.method, attacks, fewer):
        return audit.federations
    return fewer.federations


@dataclass(frozen=True)
class Reads:
    """The closed form on one run. masks: (K, n) bool, row 0 the run; scores: (K, n) log likelihood ratios; as_stated:
    whether the run's sums are, as far as can be seen, its records' contributions and noise of the stated size.
    """

    masks: Tensor
    scores: Tensor
    as_stated: bool = True


def reads_of(scene: Scene, whole: Shard, transcript: Sequence[Heard]) -> Reads | None:
    """The closed form on what the audited client released; None where that is not all that its uploads come from.

    whole: the client's data before any coin flip. None also where rounds are missing, because they were trained
    elsewhere or before with noise that nobody can draw again, and where a method's contributions are not its records.
    """
    plan, game, audit = scene.plan, scene.game, scene.experiment.audit
    if not _complete(scene.progress.ledger, plan.victim, transcript):
        return None
    try:
        sums = sums_of(plan, whole, game, scene.shard.train, transcript)
    except NotByRecord as problem:
        LOG.warning("noised sums are not read (%s): all replays are run instead", problem)
        return None
    keys = plan.keys.fold("audit", plan.victim, "noised_reads")
    coins = torch.rand(audit.transcripts, len(game.audited), generator=keys.fold("secret", "coins").torch()) < 0.5
    masks = torch.cat([game.masks[:1], coins[1:]])
    return Reads(masks, torch.from_numpy(sums.scores(masks.numpy(), keys.numpy())), sums.as_stated)


def _complete(ledger: Ledger, victim: int, transcript: Sequence[Heard]) -> bool:
    """Whether all that the client sent is post-processing of its releases, and all of these were heard."""
    own = [row for row in ledger.releases if row.client == victim]
    inner = [row for row in own if row.visible_to == ("analyst",)]
    sent = [row for row in own if row.visible_to != ("analyst",)]
    heard = {one.round: len(one.outputs) for one in transcript if one.outputs}
    count = {t: sum(row.count for row in inner if row.round == t) for t in {row.round for row in inner}}
    return bool(inner) and all(row.why == POST_PROCESSING for row in sent) and count == heard


class NotByRecord(ValueError):
    """A release's contributions are not one for each record of its class."""


class _Heard(Exception):
    """The last release of a round was gone through: what local work does next is post-processing."""


def sums_of(plan: Plan, whole: Shard, game: Game, trained: Records, transcript: Sequence[Heard]) -> NoisedSums:
    """All noised sums of the transcript, by the method's own local work with every audited record in.

    trained: what the client trained on, in its order, which tells its sampling coins apart. Raises NotByRecord.
    """
    found, kept = NoisedSums(len(game.audited)), torch.ones(len(game.whole), dtype=torch.bool)
    kept[game.audited] = False
    base, candidates = game.whole.take(kept), game.candidates
    everyone = whole.with_train(Records.concat([base, candidates]))
    place = torch.isin(trained.ids, base.ids)
    for heard in sorted(transcript, key=lambda one: one.round):
        if heard.outputs:
            note = _Listener(found, plan, base, candidates, place, len(heard.outputs))
            ctx = onlooker(plan, heard.round, heard, note)
            try:
                plan.method.local(heard.broadcast, dict(heard.memory), everyone, ctx)
            except _Heard:
                continue
            except (ValueError, RuntimeError) as problem:  # of a method whose queries depend on which records it has
                raise NotByRecord(
                    f"round {heard.round} cannot be gone through with all audited records: {problem}"
                ) from problem
            raise NotByRecord(
                f"round {heard.round}: {note.left} of {len(heard.outputs)} releases are not asked for again"
            )
    return found


@dataclass
class _Listener:
    """Adds one round's releases to ``found``. place: (trained,) bool, which of the sampling coins are of ``base``;
    left: releases until the round is over."""

    found: NoisedSums
    plan: Plan
    base: Records
    candidates: Records
    place: Tensor
    left: int

    def __call__(self, asked: Overheard) -> None:
        coins, place = asked.taken, self.place
        if coins is not None and len(coins) != len(place):
            raise NotByRecord(f"{asked.name}: {len(coins)} records sampled of {len(place)}")
        asked = replace(asked, taken=None if coins is None else coins[place])
        try:
            release = contributed(self.plan.mechanisms[asked.name], asked, self.base, self.candidates)
        except ValueError as problem:
            raise NotByRecord(str(problem)) from problem
        if release is not None:
            self.found.add(asked.name, *release)
        self.left -= 1
        if not self.left:
            raise _Heard


def analyst_view(scene: Scene, reads: Reads, round: int) -> View:
    """The audited records as the analyst holds them, on the surface that the first query ends up in (of several, the
    first that is sent). round: the latest."""
    game, public = scene.game, scene.public
    name = next(n for n in scene.plan.mechanisms if n in scene.plan.method.queries)
    candidates = game.candidates
    signals: Mapping[str, Tensor] = {SIGNAL: reads.scores.float()}
    worlds = Worlds(
        signals, reads.masks, blind_scores(candidates, public), candidates.y, records=candidates.x, kinds=game.kinds
    )
    surface, sent = subject_of(scene, scene.experiment.audit.confidence).surface(name), scene.plan.method.uploads
    surface = surface if surface in sent.values() else next(iter(sent.values()))
    return View(surface, Adversary.ANALYST, (), scene.knowledge(round), worlds)
