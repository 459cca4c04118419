"""Shadow models: replays of the audited client for a server, and of the whole federation for those
who see only its broadcasts.

Every replay is cached on its own, so that an audit that was killed can go on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from attacks.membership import signals as sig
from attacks.types import Adversary, Family, Surface, View
from privdd.auditing.adversary_view import POPULATION_RECORDS, AdversaryView, Signals
from privdd.auditing.replay import (
    ClientReplay,
    MembershipGame,
    ReplayedRound,
    Uploads,
    group_replays,
    other_uploads,
    replay_cache_key,
    round_chain,
)
from privdd.auditing.signal_extraction import SIGNAL_READERS, UnreadableUpload, extract_signals
from privdd.auditing.upload_schema import CLIENT_SURFACES, LABELS_NAME, unreadable_broadcasts
from privdd.auditing.views import FinishedRun, describe_granted_knowledge, describe_other_networks
from privdd.core.device import to_device
from privdd.core.types import Problem, Shard, State, Tensors
from privdd.federated.channel import tensor_shapes
from privdd.federated.method import Method
from privdd.federated.simulation import Plan, Progress, Snapshot, run_round, start_training
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine, torch_threads
from privdd.runtime.files import DamagedRun
from privdd.runtime.progress import ProgressBar, show_progress
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors

# numbers of an image, up to which eight networks train faster as a wide one on a CPU: measured
MAX_WIDE_NUMBERS = 256
# Each replayed federation (a world) flips the coins of the audited records anew. Where only the
# last rounds are replayed, the rounds before them are played once for all worlds, with coins of
# their own: not those of the run, of which such an adversary saw less than its replays would then
# know.
FEWER_REPLAYS_NOTE = (
    "the ledger says that this is computed from noised sums alone; noised_reads attacks "
    "these, so there were only"
)


@dataclass(frozen=True)
class TrainingChoice:
    """How replays are trained, and why so."""

    training: Literal["loop", "vectorised"]
    why: str


def prefers_wide_network(method: Method, problem: Problem, replays: int) -> bool:
    """The rule of ``audit.training=auto`` where replays share no work: small images or a GPU, and
    more than one wide network. The engine does not count, or it would change the last bits."""
    small = problem.device.startswith("cuda") or math.prod(problem.shape) <= MAX_WIDE_NUMBERS
    return small and replays > method.audit_hooks.worlds_per_pass


@dataclass(frozen=True)
class ReplayTask:
    """Replays some worlds and reads their signals; the artifacts themselves are not kept."""

    replay: ClientReplay
    adversary: AdversaryView
    passing: Mapping[int, AdversaryView] = field(default_factory=dict)

    def run(self) -> list[Signals] | None:
        results = self.replay.run_by_round()
        last = self.replay.chain[-1].round
        if results is None:
            return None
        return [
            extract_all_signals(self.adversary, self.passing, rounds.pop(last), rounds)
            for rounds in results
        ]


def extract_all_signals(
    adversary: AdversaryView,
    passing: Mapping[int, AdversaryView],
    last: ReplayedRound,
    earlier: Mapping[int, ReplayedRound],
) -> Signals:
    """The signals of the audited round, and as "round@surface|signal" those of rounds that its
    replay passes."""
    signals = _read_round(adversary, last)
    for t, view_then in passing.items():
        signals |= {
            f"{t}@{key}": value for key, value in _read_round(view_then, earlier[t]).items()
        }
    return signals


def _read_round(adversary: AdversaryView, replayed: ReplayedRound) -> Signals:
    """Where the adversary is granted what the client keeps, it is what the client of this very
    replay keeps."""
    surfaces = {adversary.method.uploads[name] for name in replayed.sent}
    if any(adversary.method.audit_hooks.granted_knowledge(surface) for surface in surfaces):
        adversary = replace(adversary, memory=replayed.memory)
    return extract_signals(adversary, replayed.sent)


def run_replay_task(task: ReplayTask) -> list[Signals] | None:
    return task.run()


@dataclass(frozen=True)
class ShadowTraining:
    """All worlds of one audited round. passing: earlier rounds that its replays pass and that are
    read as well; like: replayed as that one is."""

    plan: Plan
    snapshots: Mapping[int, Snapshot]
    round: int
    shard: Shard  # the client's data before any coin flip
    game: MembershipGame
    adversary: AdversaryView
    folder: RunFolder
    engine: Engine
    config: str
    training: str = "auto"  # auto | loop | vectorised
    passing: Mapping[int, AdversaryView] = field(default_factory=dict)
    like: ShadowTraining | None = None
    crowd: Sequence[Shard] = ()  # all clients' data, where the server sees sums

    @cached_property
    def round_chain(self) -> tuple[Snapshot, ...]:
        return round_chain(self.plan, self.snapshots, self.round)

    @cached_property
    def replay_groups(self) -> list[range]:
        """The worlds of each batched replay."""
        return group_replays(len(self.game.masks), self.plan.method.audit_hooks.worlds_per_pass)

    @cached_property
    def training_choice(self) -> TrainingChoice:
        """How the worlds are replayed: by the settings alone, so that a resumed run, on any engine,
        does the same."""
        hooks = self.plan.method.audit_hooks
        if (
            self.like is not None and not hooks.shares_work
        ):  # a method that shares work has no choice
            return self.like.training_choice
        if self.training == "loop" or not self.replay_groups:
            return TrainingChoice(
                "loop", "as asked for" if self.replay_groups else "nothing to replay"
            )
        is_vectorised = self.training == "vectorised"
        replays = len(self.game.masks) - 1
        if not (
            hooks.shares_work
            or is_vectorised
            or prefers_wide_network(self.plan.method, self.plan.problem, replays)
        ):
            return TrainingChoice(
                "loop", "too few worlds, or images too large, for one wide network to be faster"
            )
        if (
            len(
                self._read_cached(
                    self._cache_folder(apart=not hooks.shares_work), self._real_signals
                )
            )
            > replays
        ):
            return TrainingChoice(
                "vectorised", "nothing to replay: all shadow models are kept from an earlier start"
            )
        if self.first_group is None:
            return TrainingChoice(
                "loop", "the method, its network or this round has no batched form"
            )
        if hooks.shares_work:
            shared = "replays share their work"
        else:
            shared = ""
        return TrainingChoice(
            "vectorised",
            shared or ("as asked for" if is_vectorised else "many worlds of small images"),
        )

    @cached_property
    def first_group(self) -> list[Signals] | None:
        """The first group's signals from one batched replay; None where the method has no such
        form."""
        with torch_threads(self.engine.threads):
            if self.replay_groups:
                return self.replay_task(self.replay_groups[0], batched=True).run()
            return None

    def replay_task(self, worlds: Sequence[int], *, batched: bool) -> ReplayTask:
        held = (worlds, batched, frozenset(self.passing), self.uploads_of_others)
        replay = ClientReplay(self.plan, self.round_chain, self.shard, self.game, *held)
        return ReplayTask(replay, self.adversary, self.passing)

    @cached_property
    def uploads_of_others(self) -> dict[int, Uploads]:
        """Round -> what the other clients add to the sum that the server sees."""
        chain = self.round_chain if self.crowd else ()
        return {s.round: other_uploads(self.plan, s.round, s.broadcast, self.crowd) for s in chain}

    @cached_property
    def _real_signals(self) -> Signals:
        """Signals of what was really sent, which is world 0."""
        passed = {
            t: ReplayedRound(self.snapshots[t].sent, view_then.memory)
            for t, view_then in self.passing.items()
        }
        last = ReplayedRound(self.snapshots[self.round].sent, self.adversary.memory)
        return extract_all_signals(self.adversary, self.passing, last, passed)

    def _cache_folder(self, *, apart: bool = False) -> Path:
        config = f"{self.config} vectorised" if apart else self.config
        return (
            self.folder.path
            / "worlds"
            / replay_cache_key(self.plan, self.round_chain, self.game, config)
        )

    def collect_signals(self, bar: ProgressBar) -> dict[str, Tensor]:
        """ "surface|signal" -> (K, n, ...); world 0 is read off what was really sent."""
        batched = self.training_choice.training == "vectorised"
        # batched and looped replays may round differently, so they are cached apart, unless the
        # method always batches
        place = self._cache_folder(apart=batched and not self.plan.method.audit_hooks.shares_work)
        real = self._real_signals
        cached = self._read_cached(place, real)
        if 0 not in cached:
            self._write_signals(place, 0, real)
        cached[0] = real
        bar.advance(by=len(cached))
        missing = [w for w in range(len(self.game.masks)) if w not in cached]
        for world, signals in self._replay_missing(missing, batched):
            if (
                world not in cached
            ):  # a group is always replayed as a whole; known worlds come out the same
                cached[world] = self._write_signals(place, world, signals)
                bar.advance()
        for view in (self.adversary, *self.passing.values()):
            view.drop_derived_values()
        return _stack_replays(cached, real)

    def _replay_missing(
        self, missing: Sequence[int], batched: bool
    ) -> Iterator[tuple[int, Signals]]:
        """(world, signals) of the missing worlds, and of others in the same groups."""
        groups: list[Sequence[int]] = [[w] for w in missing]
        if batched:
            groups = [group for group in self.replay_groups if set(group) & set(missing)]
            if groups and groups[0] == self.replay_groups[0] and self.first_group is not None:
                yield from zip(groups.pop(0), self.first_group)
        tasks = [self.replay_task(group, batched=batched) for group in groups]
        for group, done in zip(groups, self.engine.map(run_replay_task, tasks)):
            if done is None:
                raise ValueError(
                    f"{type(self.plan.method).__name__}: local_batched did some replays "
                    "and not others"
                )
            yield from zip(group, done)

    def _read_cached(self, place: Path, real: Signals) -> dict[int, Signals]:
        """Worlds that an earlier start finished; a file that does not fit these worlds is
        ignored."""
        cached = {}
        for world in range(len(self.game.masks)):
            with contextlib.suppress(DamagedRun):
                signals = read_tensors(_replay_file(place, world))
                known_signals = {key: signals[key] for key in real if key in signals}
                if tensor_shapes(known_signals) == tensor_shapes(real):
                    cached[world] = known_signals
        return cached

    def _write_signals(self, place: Path, world: int, signals: Signals) -> Signals:
        bad = sorted(key for key, value in signals.items() if not torch.isfinite(value).all())
        if bad:
            why = "not finite; did training diverge? (lower the learning rate)"
            raise DamagedRun(f"world {world}: {', '.join(bad)} {why}")
        # a damaged file is computed again
        write_tensors(_replay_file(place, world), signals, durable=False)
        return signals


def audited_rounds(snapshots: Mapping[int, Snapshot]) -> list[int]:
    """The latest round of every phase and kind of upload."""
    latest: dict[tuple[str, frozenset[str]], int] = {}
    for t in sorted(snapshots):
        latest[(snapshots[t].phase, frozenset(snapshots[t].sent))] = t
    return sorted(latest.values())


# Every world keeps its coins in all rounds. Where clients remember, one replay passes all rounds
# and is read in each; elsewhere each round is replayed from its own broadcast.
StackedSignals = Mapping[str, Tensor]  # "surface|signal" -> (K, n, ...)


def rounds_to_combine(snapshots: Mapping[int, Snapshot], most: int) -> dict[int, tuple[int, ...]]:
    """Audited round -> at most ``most`` rounds of its phase and kind of upload, evenly spaced,
    itself the last."""
    rounds_by_kind = {}
    for last in audited_rounds(snapshots):
        kind = (snapshots[last].phase, frozenset(snapshots[last].sent))
        same_kind = sorted(t for t, s in snapshots.items() if (s.phase, frozenset(s.sent)) == kind)
        places = np.linspace(len(same_kind) - 1, 0, min(most, len(same_kind))).round().astype(int)
        rounds_by_kind[last] = tuple(sorted(same_kind[i] for i in places))
    return rounds_by_kind


def plan_shadow_trainings(
    make: Callable[[int], ShadowTraining],
    adversary: Callable[[int], AdversaryView],
    grouped: Mapping[int, Sequence[int]],
) -> dict[int, ShadowTraining]:
    """The replays of every round of ``grouped`` (audited round -> its rounds), not yet run;
    ``make`` starts one."""
    trainings: dict[int, ShadowTraining] = {}
    for last, rounds in grouped.items():
        training = make(last)
        earlier = rounds[:-1]
        on_the_way = {s.round for s in training.round_chain} & set(earlier)
        trainings[last] = replace(training, passing={t: adversary(t) for t in sorted(on_the_way)})
        trainings |= {
            t: replace(make(t), like=trainings[last]) for t in earlier if t not in on_the_way
        }
    return trainings


def stack_over_rounds(
    stacked: Mapping[int, StackedSignals], grouped: Mapping[int, Sequence[int]]
) -> dict[int, dict[str, Tensor]]:
    """Audited round -> its signals in all its rounds: (K, n, R) by "surface|signal", the audited
    round the last."""
    signals_by_round = {}
    for last, rounds in grouped.items():
        by_round = [_signals_of_round(stacked, last, t) for t in rounds]
        signals_by_round[last] = _stack_common_signals(by_round)
    return signals_by_round


def _stack_common_signals(by_round: Sequence[StackedSignals]) -> dict[str, Tensor]:
    """(K, n, R) of each signal (K, n) that all of the rounds have."""
    stacked = {}
    for key, value in by_round[-1].items():
        if value.ndim == 2 and all(key in signals for signals in by_round):
            stacked[key] = torch.stack([signals[key] for signals in by_round], -1)
    return stacked


def _signals_of_round(stacked: Mapping[int, StackedSignals], last: int, t: int) -> StackedSignals:
    if t in stacked:
        return stacked[t]
    mark = f"{t}@"
    return {
        key.removeprefix(mark): value
        for key, value in stacked[last].items()
        if key.startswith(mark)
    }


def signals_of_audited_rounds(
    stacked: Mapping[int, StackedSignals], audited: Iterable[int]
) -> dict[int, dict[str, Tensor]]:
    """The signals of the audited rounds themselves, which single-round attacks read."""
    return {t: {key: value for key, value in stacked[t].items() if "@" not in key} for t in audited}


@dataclass(frozen=True)
class ShadowSignals:
    """Signals of the audited records in all replays, by "surface|signal".

    by_round: audited round -> (K, n, ...) of what the client sent in it; over_rounds: audited round
        -> (K, n, R), in several rounds; of_server: (K, n) of what the server sends at the end;
    training: audited round -> how its replays were trained; of_others: audited round -> (M, n, R)
        of what M other clients sent.
    """

    by_round: Mapping[int, StackedSignals] = field(default_factory=dict)
    over_rounds: Mapping[int, StackedSignals] = field(default_factory=dict)
    of_server: StackedSignals = field(default_factory=dict)
    training: Mapping[int, TrainingChoice] = field(default_factory=dict)
    of_others: Mapping[int, StackedSignals] = field(default_factory=dict)


def train_shadow_models(
    run: FinishedRun, whole: Shard, folder: RunFolder, replays: int | None, federations: int
) -> ShadowSignals:
    """Replay the audited client, so many times (None: all that were drawn), and the whole
    federation ``federations`` times."""
    grouped = rounds_to_combine(run.progress.snapshots, run.experiment.audit_settings.rounds)
    trainings = shadow_trainings_at(run, whole, folder, grouped, replays)
    with show_progress(
        "shadow models", sum(len(training.game.masks) for training in trainings.values())
    ) as bar:
        stacked = {t: training.collect_signals(bar) for t, training in trainings.items()}
    sent = stack_server_signals(run, whole, folder, federations)
    client_signals = signals_of_audited_rounds(stacked, grouped)
    over = stack_over_rounds(stacked, grouped)
    return ShadowSignals(
        client_signals, over, sent, {t: trainings[t].training_choice for t in grouped}
    )


def shadow_trainings_at(
    run: FinishedRun,
    whole: Shard,
    folder: RunFolder,
    grouped: Mapping[int, Sequence[int]],
    few: int | None = None,
) -> dict[int, ShadowTraining]:
    """The replays of every round of ``grouped`` (audited round -> its rounds), not yet run. few: so
    many instead of all."""
    experiment = run.experiment
    snapshots = run.progress.snapshots
    training = experiment.audit_settings.training
    game = replace(run.game, masks=run.game.masks[:few])
    crowd = experiment.shards if run.plan.trust.is_summed else ()

    def training_of_round(t: int) -> ShadowTraining:
        held = (
            game,
            run.adversary_view(t),
            folder,
            experiment.engine,
            experiment.run.fingerprint,
            training,
        )
        return ShadowTraining(run.plan, snapshots, t, whole, *held, crowd=crowd)

    return plan_shadow_trainings(training_of_round, run.adversary_view, grouped)


def stack_server_signals(
    run: FinishedRun, whole: Shard, folder: RunFolder, federations: int
) -> dict[str, Tensor]:
    """Signals of what the server sends at the end: the run's own, then those of replays.

    Args:
        run: the run that is audited.
        whole: the audited client's data before any inclusion bit was drawn.
        folder: where the replays are kept.
        federations: how many replays of the whole federation are made.

    Returns:
        Each signal (K, n); K = 1 below two ``federations``.
    """
    plan = run.plan
    experiment = run.experiment
    game = run.game
    memory = run.progress.memories.get(plan.victim, {})  # after the last round, as in every replay
    adversary = replace(run.adversary_view(max(run.progress.snapshots)), memory=memory)
    real = server_signals(
        plan, run.progress.server, adversary, plan.method.broadcast(run.progress.server)
    )
    replays = min(federations, len(game.masks))
    if replays < 2:
        return {key: value[None] for key, value in real.items()}
    shared = count_shared_rounds(plan.method, experiment.audit_settings.federation_rounds)
    config = f"{experiment.run.fingerprint}{f' from round {shared}' if shared else ''}"
    place = (
        folder.path
        / "worlds"
        / f"federation-{replay_cache_key(plan, (adversary.snapshot,), game, config)}"
    )
    signals_by_replay: dict[int, Signals] = {0: real}
    for world in range(1, replays):
        with contextlib.suppress(DamagedRun):  # a damaged file is computed again
            signals = read_tensors(_replay_file(place, world))
            if tensor_shapes(signals) == tensor_shapes(real):
                signals_by_replay[world] = signals
    missing = [w for w in range(1, replays) if w not in signals_by_replay]
    with show_progress("shadow federations", replays) as bar:
        bar.advance(by=len(signals_by_replay))
        first = shared if missing else 0
        held = (plan, experiment.new_ledger(), experiment.shards, whole, game)
        begun = _run_shared_rounds(*held, first, experiment.engine)
        shards = {
            w: _with_shard(experiment.shards, plan, game.shard_of_replay(whole, w)) for w in missing
        }
        tasks = [FederationReplay(plan, shards[w], adversary, w, begun) for w in missing]
        for w, signals in zip(missing, experiment.engine.map(run_federation_replay, tasks)):
            write_tensors(_replay_file(place, w), signals, durable=False)
            signals_by_replay[w] = signals
            bar.advance()
    return _stack_replays(signals_by_replay, real)


def _stack_replays(
    signals_by_replay: Mapping[int, Mapping[str, Tensor]], names: Iterable[str]
) -> dict[str, Tensor]:
    """Each named signal (K, ...), in the order of the replays."""
    in_order = [signals_by_replay[replay] for replay in sorted(signals_by_replay)]
    return {name: torch.stack([signals[name] for signals in in_order]) for name in names}


def _replay_file(place: Path, world: int) -> Path:
    return place / f"world_{world:04d}.safetensors"


def _with_shard(shards: Sequence[Shard], plan: Plan, own: Shard) -> list[Shard]:
    """All clients' data, the audited client's replaced."""
    return [own if client == plan.victim else shard for client, shard in enumerate(shards)]


def describe_view(run: FinishedRun, view: View, family: Family) -> list[str]:
    """The text of a finding's note on how its view was obtained."""
    sentences = [describe_granted_knowledge(run.plan, view, family)]
    if family == Family.MEMBERSHIP:
        rounds = run.experiment.audit_settings.rounds
        sentences.append(describe_replays(run, view))
        sentences.append(describe_read_rounds(run.plan, view, rounds))
    sentences.append(describe_other_networks(view))
    return sentences


def describe_replays(run: FinishedRun, view: View) -> str:
    """For a finding's note: how many replays there are where some were left out, or in how many
    rounds replayed federations differ from the run; else ""."""
    method = run.plan.method
    audit = run.experiment.audit_settings
    apart = audit.federation_rounds
    federations = min(audit.federations, audit.worlds)
    if view.worlds is None:
        return ""
    sent = (
        view.adversary in (Adversary.PEER, Adversary.PUBLIC)
        and view.surface != Surface.SHARED_FEATURES
    )
    if not sent:
        is_client_read = view.adversary in (Adversary.SERVER, Adversary.PEER)
        count = len(view.worlds.masks)
        if is_client_read and count < audit.worlds:
            return (
                f"{FEWER_REPLAYS_NOTE} {count} of {audit.worlds} replays (audit.processed_worlds)"
            )
        return ""
    if len(view.worlds.masks) < federations:
        # one is the run itself
        if len(view.worlds.masks) > 1:
            count = len(view.worlds.masks)
        else:
            count = 0
        return (
            f"{FEWER_REPLAYS_NOTE} {count} of {federations} replays of the federation "
            "(audit.processed_federations)"
        )
    if len(view.worlds.masks) < 2 or not count_shared_rounds(method, apart):
        return ""
    return (
        f"replayed federations differ in the last {apart} of {method.rounds} rounds: replays "
        "of all rounds may show more"
    )


def describe_read_rounds(plan: Plan, view: View, count: int) -> str:
    """For a finding's note: how many rounds of a phase are replayed, if it had more; else "".

    count: ``audit.rounds``; fewer are read if fewer were kept."""
    if view.worlds is None or not view.worlds.rounds:
        return ""
    phase_of = plan.method.audit_hooks.phase
    phase = phase_of(view.captures[0].round)
    own_rounds = [t for t in range(plan.method.rounds) if plan.victim in plan.participants(t)]
    total = sum(phase_of(t) == phase for t in own_rounds)
    read = next(iter(view.worlds.rounds.values())).shape[-1]
    if read >= total:
        return ""
    if read < count:
        return f"{read} of {total} rounds of the phase are read: no more are kept"
    return (
        f"{read} of {total} rounds of the phase are read (audit.replays or audit.rounds): more may "
        "show more"
    )


def server_signals(
    plan: Plan, server: State, adversary: AdversaryView, final: Mapping[str, Tensors]
) -> Signals:
    """ "surface|signal" -> (n,) of everything that the server sends at the end.

    A model that cannot predict without a client's own part gets the audited client's: the most that
    this adversary could hold. Shared features are left out: they are rows that the clients sent
    themselves, through a map that was broadcast earlier, so the signals of the round that released
    them are used.
    """
    adversary, (server, final) = (
        adversary.on_device,
        to_device((server, final), adversary.problem.device),
    )
    signals_by_name: Signals = {}
    unreadable = unreadable_broadcasts(plan.method, plan.problem, final)
    with torch.no_grad():
        for name, value in final.items():
            surface = plan.method.broadcasts[name]
            if surface == Surface.GLOBAL_MODEL and f"{surface}|confidence" in signals_by_name:
                # of several networks: the method predicts with one, whichever names they have
                continue
            if surface == Surface.GLOBAL_MODEL:
                predict = partial(plan.method.predict, server, adversary.memory)
                logits = predict(adversary.candidates.x)
                public = predict(adversary.public.x[:POPULATION_RECORDS])
                confidence = sig.logit_scaled(logits, adversary.candidates.y)
                signals = {"confidence": confidence, "logits": logits, "public_logits": public}
                signals |= adversary.query_copies(confidence, predict)
            elif name in unreadable or name == LABELS_NAME or surface == Surface.SHARED_FEATURES:
                continue
            else:
                reader = SIGNAL_READERS[CLIENT_SURFACES.get(surface, surface)]
                try:
                    signals = dict(reader(adversary, name, value, final))
                except UnreadableUpload:  # a hook is missing: the message stays untested
                    continue
            signals_by_name |= {
                f"{surface}|{signal}": scores.float() for signal, scores in signals.items()
            }
    return to_device(signals_by_name, "cpu")


@dataclass(frozen=True)
class FederationReplay:
    """One world: the rounds from ``begun`` on of every client, the audited client on the records
    that are in. The public initial model is the run's own; everything drawn later comes from the
    world's own streams."""

    plan: Plan
    shards: Sequence[Shard]
    adversary: AdversaryView
    world: int
    begun: Progress

    def run(self) -> Signals:
        plan = replace(self.plan, keys=self.plan.keys.fold("world", self.world))
        here = Engine(threads=torch.get_num_threads())
        # the other worlds begin with it too
        begun = replace(self.begun, ledger=self.begun.ledger.copy_rows())
        progress = run_rounds_until(plan, begun, self.shards, plan.method.rounds, here)
        final = plan.method.broadcast(progress.server)
        adversary = replace(self.adversary, memory=progress.memories.get(plan.victim, {}))
        return server_signals(plan, progress.server, adversary, final)


def run_rounds_until(
    plan: Plan, progress: Progress, shards: Sequence[Shard], rounds: int, engine: Engine
) -> Progress:
    """``progress`` after all rounds before ``rounds``."""
    sent = None
    while progress.round < rounds:
        progress, _, sent = run_round(plan, progress, shards, engine, sent)
    return progress


def count_shared_rounds(method: Method, replayed: int) -> int:
    """How many first rounds all worlds have in common, if the last ``replayed`` are each world's
    own; 0 = all are."""
    return max(0, method.rounds - replayed) if replayed else 0


def _run_shared_rounds(
    plan: Plan,
    ledger: Ledger,
    shards: Sequence[Shard],
    whole: Shard,
    game: MembershipGame,
    rounds: int,
    engine: Engine,
) -> Progress:
    """The rounds that all worlds share, with fresh coins; before the first round where there are
    none. ledger: an empty one of the run's own relation, unit and delta."""
    begun = start_training(plan, ledger)
    if not rounds:
        return begun
    keys = plan.keys.fold("world", "shared")
    coins = torch.rand(1, game.masks.shape[1], generator=keys.fold("secret", "coins").torch()) < 0.5
    shard = replace(game, masks=coins).shard_of_replay(whole, 0)
    return run_rounds_until(
        replace(plan, keys=keys), begun, _with_shard(shards, plan, shard), rounds, engine
    )


def run_federation_replay(task: FederationReplay) -> Signals:
    return task.run()
