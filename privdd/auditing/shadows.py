"""Running the worlds: on the engine, cached world by world, so that a killed audit goes on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from privdd.auditing.autotune import TOGETHER, Choice, choose
from privdd.auditing.game import Game
from privdd.auditing.replay import Replay, chain_to, chunks, content_key, fast_worlds, replay_together, turns_in
from privdd.auditing.signals import Lens, Signals
from privdd.core.types import Shard
from privdd.federated.channel import shapes
from privdd.federated.simulation import Plan, Snapshot
from privdd.runtime.engine import Engine
from privdd.runtime.progress import Bar
from privdd.runtime.run_folder import DamagedRun, RunFolder, read_tensors, write_tensors
from privdd.runtime.workers import threads

CHUNK = 16  # worlds per pass where the method replays all of them at once


@dataclass(frozen=True)
class WorldTask:
    """One world: replay, then read its signals (the artifacts themselves are not kept)."""

    replay: Replay
    lens: Lens

    def run(self) -> Signals:
        return self.lens.signals(self.replay.run())


def run_task(task: WorldTask) -> Signals:
    return task.run()


@dataclass(frozen=True)
class ChunkTask:
    """Some worlds trained as one wide network, then read."""

    plan: Plan
    chain: tuple[Snapshot, ...]
    shard: Shard
    game: Game
    worlds: range
    lens: Lens

    def run(self) -> list[Signals]:
        sent = replay_together(self.plan, self.chain, self.shard, self.game, self.worlds)
        return [self.lens.signals(values) for values in sent]


def run_chunk(task: ChunkTask) -> list[Signals]:
    return task.run()


@dataclass(frozen=True)
class Stage:
    """All worlds of one audited round."""

    plan: Plan
    snapshots: Mapping[int, Snapshot]
    round: int
    shard: Shard  # the client before any coin was thrown
    game: Game
    lens: Lens
    folder: RunFolder
    engine: Engine
    config: str
    training: str = "auto"  # auto | loop | vectorised

    @property
    def snapshot(self) -> Snapshot:
        return self.snapshots[self.round]

    @cached_property
    def chain(self) -> tuple[Snapshot, ...]:
        return chain_to(self.plan, self.snapshots, self.round)

    @cached_property
    def choice(self) -> Choice:
        """How the worlds are trained; what was measured stands in the run folder, so that a resumed run keeps it."""
        count = len(self.game.masks) - 1
        first = range(1, 1 + min(TOGETHER, count))
        turns = turns_in(self.plan, self.chain, self.shard, self.game, first)
        record = self.folder.path / "worlds" / f"{self._key(self.config)}.json"
        with threads(self.engine.threads):
            return choose(self.training, self.plan.method, turns, count, len(self.chain), record)

    def _key(self, config: str) -> str:
        return content_key(self.plan, self.chain, self.game, config)

    def signals(self, bar: Bar) -> dict[str, Tensor]:
        """ "surface|signal" -> (K, n, ...); world 0 is read off what was really sent."""
        wide = self.choice.training == "vectorised"
        place = self.folder.path / "worlds" / self._key(f"{self.config} vectorised" if wide else self.config)
        real = self.lens.signals(self.snapshot.sent)
        found = self._cached(place, real)
        if 0 not in found:
            self._keep(place, 0, real)
        found[0] = real
        bar.advance(by=len(found))
        missing = [w for w in range(len(self.game.masks)) if w not in found]
        for world, signals in self._replayed(missing, wide) if missing else ():
            if world not in found:  # a chunk is replayed whole, to the same bits
                found[world] = self._keep(place, world, signals)
                bar.advance()
        return {key: torch.stack([found[w][key] for w in sorted(found)]) for key in real}

    def _replayed(self, missing: Sequence[int], wide: bool) -> Iterator[tuple[int, Signals]]:
        """(world, signals) of the missing worlds, and of others that are replayed with them."""
        passes = self._one_pass(missing)
        if passes is not None:
            yield from passes
        elif wide:
            groups = [group for group in chunks(len(self.game.masks), TOGETHER) if set(group) & set(missing)]
            tasks = [ChunkTask(self.plan, self.chain, self.shard, self.game, group, self.lens) for group in groups]
            for group, done in zip(groups, self.engine.map(run_chunk, tasks)):
                yield from zip(group, done)
        else:
            replays = [Replay(self.plan, self.chain, self.game.shard(self.shard, w), w) for w in missing]
            yield from zip(missing, self.engine.map(run_task, [WorldTask(one, self.lens) for one in replays]))

    def _one_pass(self, missing: Sequence[int]) -> Iterator[tuple[int, Signals]] | None:
        """The same where the method replays a whole group in one pass, else None."""
        groups = [group for group in chunks(len(self.game.masks), CHUNK) if set(group) & set(missing)]
        sent = map(self._passed, groups)
        first = next(sent)
        if first is None:
            return None
        done = itertools.chain([first], sent)
        return ((w, self.lens.signals(v)) for group, values in zip(groups, done) for w, v in zip(group, values or ()))

    def _passed(self, group: Sequence[int]) -> list[Mapping[str, Mapping[str, Tensor]]] | None:
        with threads(self.engine.threads):
            return fast_worlds(self.plan, self.snapshot, self.shard, self.game, group)

    def _cached(self, place: Path, real: Signals) -> dict[int, Signals]:
        """Worlds that an earlier start finished; a file that is not one of these worlds is as good as absent."""
        found = {}
        for world in range(len(self.game.masks)):
            with contextlib.suppress(DamagedRun):
                signals = read_tensors(self._file(place, world))
                if shapes(signals) == shapes(real):
                    found[world] = signals
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
