"""Running the worlds (replays of the audited client, one shadow model each) on the engine.

Every world is cached on its own, so that an audit that was killed can go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from privdd.auditing.autotune import Choice, Trial, choose, key_of
from privdd.auditing.game import Game
from privdd.auditing.readers import Signals, read_signals
from privdd.auditing.replay import Replay, Sent, chain_to, chunks, content_key
from privdd.auditing.seen_sums import Uploads, of_others
from privdd.auditing.signals import Lens
from privdd.core.types import Shard, Tensors
from privdd.federated.channel import shapes
from privdd.federated.simulation import Plan, Snapshot
from privdd.runtime.engine import Engine
from privdd.runtime.files import DamagedRun
from privdd.runtime.progress import Bar
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors
from privdd.runtime.workers import threads

LATER = ("joint", "public_logits", "gradient_", "shared_noise")  # signals that earlier versions did not keep


@dataclass(frozen=True)
class ReplayTask:
    """Replays some worlds and reads their signals; the artifacts themselves are not kept."""

    replay: Replay
    lens: Lens
    passing: Mapping[int, Lens] = field(default_factory=dict)

    def run(self) -> list[Signals] | None:
        found, last = self.replay.by_round(), self.replay.chain[-1].round
        return None if found is None else [read_all(self.lens, self.passing, sent.pop(last), sent) for sent in found]


def read_all(lens: Lens, passing: Mapping[int, Lens], last: Mapping[str, Tensors], earlier: Sent) -> Signals:
    """The signals of the audited round, and as "round@surface|signal" those of rounds that its replay passes."""
    more = {f"{t}@{key}": v for t, at in passing.items() for key, v in read_signals(at, earlier[t]).items()}
    return read_signals(lens, last) | more


def run_task(task: ReplayTask) -> list[Signals] | None:
    return task.run()


@dataclass(frozen=True)
class Stage:
    """All worlds of one audited round.

    passing: earlier rounds that its replays pass and that are read as well; like: replayed as that stage is, without
    a trial of its own.
    """

    plan: Plan
    snapshots: Mapping[int, Snapshot]
    round: int
    shard: Shard  # the client's data before any coin flip
    game: Game
    lens: Lens
    folder: RunFolder
    engine: Engine
    config: str
    training: str = "auto"  # auto | loop | vectorised
    passing: Mapping[int, Lens] = field(default_factory=dict)
    like: Stage | None = None
    crowd: Sequence[Shard] = ()  # all clients' data, where the server sees sums

    @property
    def snapshot(self) -> Snapshot:
        return self.snapshots[self.round]

    @cached_property
    def chain(self) -> tuple[Snapshot, ...]:
        return chain_to(self.plan, self.snapshots, self.round)

    @cached_property
    def groups(self) -> list[range]:
        """The worlds of each batched replay."""
        return chunks(len(self.game.masks), self.plan.method.worlds_per_pass)

    @cached_property
    def choice(self) -> Choice:
        """How the worlds are replayed; stored in the run folder, so that a resumed run does the same."""
        if self.like is not None and not self.plan.method.shares_work:  # a method that shares work has no choice
            return self.like.choice
        if self.plan.method.shares_work and len(self._cached(self._place(), self._real)) == len(self.game.masks):
            return Choice("loop", "nothing to replay: all shadow models are kept from an earlier start")
        record = self.folder.path / "worlds" / f"{self._key(self.config)}.json"
        with threads(self.engine.threads):
            return choose(self.training, self.trial(), record)

    def trial(self) -> Trial:
        """One world against a group, to be timed before choosing between them."""
        plan, group = self.plan, self.groups[0] if self.groups else range(0)
        records = len(self.game.shard(self.shard, group[0]).train) if group else 0
        settings = plan.method.settings(records)
        steps = settings.get("local_steps")
        return Trial(
            alone=self.task(group[:1], batched=False).run,
            first=lambda: self.first_group,
            again=self.task(group, batched=True).run,
            group=len(group),
            worlds=len(self.game.masks) - 1,
            steps=None if steps is None else int(steps) * len(self.chain),
            key=key_of(plan.method, plan.problem, settings, records, len(group)),
            device=plan.problem.device,
            always=plan.method.shares_work,
        )

    @cached_property
    def first_group(self) -> list[Signals] | None:
        """The first group's signals from one batched replay; None where the method has no such form."""
        with threads(self.engine.threads):
            return self.task(self.groups[0], batched=True).run() if self.groups else None

    def task(self, worlds: Sequence[int], *, batched: bool) -> ReplayTask:
        held = (worlds, batched, frozenset(self.passing), self.others)
        replay = Replay(self.plan, self.chain, self.shard, self.game, *held)
        return ReplayTask(replay, self.lens, self.passing)

    @cached_property
    def others(self) -> dict[int, Uploads]:
        """Round -> what the other clients add to the sum that the server sees."""
        return {s.round: of_others(self.plan, s.round, s.broadcast, self.crowd) for s in self.chain if self.crowd}

    @cached_property
    def _real(self) -> Signals:
        """World 0: what was really sent."""
        return read_all(self.lens, self.passing, self.snapshot.sent, {t: self.snapshots[t].sent for t in self.passing})

    def _place(self, *, apart: bool = False) -> Path:
        return self.folder.path / "worlds" / self._key(f"{self.config} vectorised" if apart else self.config)

    def _key(self, config: str) -> str:
        return content_key(self.plan, self.chain, self.game, config)

    def signals(self, bar: Bar) -> dict[str, Tensor]:
        """ "surface|signal" -> (K, n, ...); world 0 is read off what was really sent."""
        batched = self.choice.training == "vectorised"
        # batched and looped replays may round differently, so they are cached apart, unless the method always batches
        place = self._place(apart=batched and not self.plan.method.shares_work)
        real = self._real
        found = self._cached(place, real)
        if 0 not in found:
            self._keep(place, 0, real)
        found[0] = real
        bar.advance(by=len(found))
        missing = [w for w in range(len(self.game.masks)) if w not in found]
        for world, signals in self._replayed(missing, batched):
            if world not in found:  # a group is always replayed as a whole; known worlds come out the same
                found[world] = self._keep(place, world, signals)
                bar.advance()
        common = [key for key in real if all(key in signals for signals in found.values())]
        return {key: torch.stack([found[w][key] for w in sorted(found)]) for key in common}

    def lacking(self, stacked: Mapping[str, Tensor]) -> set[str]:
        """What is read off the real upload, but was not kept by replays of an earlier version: not in ``stacked``."""
        return {key.split("@")[-1] for key in self._real if key not in stacked}

    def _replayed(self, missing: Sequence[int], batched: bool) -> Iterator[tuple[int, Signals]]:
        """(world, signals) of the missing worlds, and of others in the same groups."""
        groups: list[Sequence[int]] = [[w] for w in missing]
        if batched:
            groups = [group for group in self.groups if set(group) & set(missing)]
            if groups and groups[0] == self.groups[0] and self.first_group is not None:
                yield from zip(groups.pop(0), self.first_group)
        tasks = [self.task(group, batched=batched) for group in groups]
        for group, done in zip(groups, self.engine.map(run_task, tasks)):
            if done is None:
                raise ValueError(f"{type(self.plan.method).__name__}: local_batched did some replays and not others")
            yield from zip(group, done)

    def _cached(self, place: Path, real: Signals) -> dict[int, Signals]:
        """Worlds that an earlier start finished; a file that does not fit these worlds is ignored."""
        found = {}
        for world in range(len(self.game.masks)):
            with contextlib.suppress(DamagedRun):
                signals = read_tensors(self._file(place, world))
                kept = {key: signals[key] for key in real if key in signals}
                # a file of an earlier version lacks later signals: the run is attacked without them
                needed = {
                    key: value for key, value in real.items() if key in kept or not key.split("|")[-1].startswith(LATER)
                }
                if shapes(needed) == shapes(kept):
                    found[world] = kept
        return found

    def _file(self, place: Path, world: int) -> Path:
        return place / f"world_{world:04d}.safetensors"

    def _keep(self, place: Path, world: int, signals: Signals) -> Signals:
        bad = sorted(key for key, value in signals.items() if not torch.isfinite(value).all())
        if bad:
            raise DamagedRun(
                f"world {world}: {', '.join(bad)} not finite; did training diverge? (lower the learning rate)"
            )
        write_tensors(self._file(place, world), signals)
        return signals


def audited_rounds(snapshots: Mapping[int, Snapshot]) -> list[int]:
    """The latest round of every phase and kind of upload."""
    latest: dict[tuple[str, frozenset[str]], int] = {}
    for t in sorted(snapshots):
        latest[(snapshots[t].phase, frozenset(snapshots[t].sent))] = t
    return sorted(latest.values())


def used_without(surface: str, lacking: Collection[str]) -> str:
    """For a finding's note: the signals that kept shadow models of an earlier version lack; "" where they lack none.

    lacking: as "surface|signal".
    """
    names = sorted(key.partition("|")[2] for key in lacking if key.partition("|")[0] == surface)
    if not names:
        return ""
    return f"shadow models of an earlier version are used, which lack {', '.join(names)}; remove the folder worlds/ for new ones"
