"""Running the worlds: on the engine, cached world by world, so that a killed audit goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks.types import Worlds
from privdd.channel import shapes
from privdd.core import Records, Shard
from privdd.engine import Engine
from privdd.federation import Plan, Snapshot
from privdd.progress import Bar
from privdd.store import DamagedRun, RunFolder, read_tensors, write_tensors
from privdd.surfaces import Lens, Signals
from privdd.worlds import Game, Replay, chain_to, content_key, fast_worlds

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

    @property
    def snapshot(self) -> Snapshot:
        return self.snapshots[self.round]

    def signals(self, bar: Bar) -> dict[str, Tensor]:
        """"surface|signal" -> (K, n, ...); world 0 is read off what was really sent."""
        chain = chain_to(self.plan, self.snapshots, self.round)
        place = self.folder.path / "worlds" / content_key(self.plan, chain, self.game, self.config)
        found = self._cached(place)
        if 0 not in found:
            found[0] = self._keep(place, 0, self.lens.signals(self.snapshot.sent))
        found = {w: one for w, one in found.items() if shapes(one) == shapes(found[0])}
        missing = [w for w in range(len(self.game.masks)) if w not in found]
        bar.advance(by=len(found))
        if missing and not self._one_pass(place, missing, found, bar):
            tasks = [WorldTask(Replay(self.plan, chain, self.game.shard(self.shard, w), w), self.lens) for w in missing]
            for world, signals in zip(missing, self.engine.map(run_task, tasks)):
                found[world] = self._keep(place, world, signals)
                bar.advance()
        return {key: torch.stack([found[w][key] for w in sorted(found)]) for key in found[0]}

    def _one_pass(self, place: Path, missing: Sequence[int], found: dict[int, Signals], bar: Bar) -> bool:
        for at in range(0, len(missing), CHUNK):
            worlds = missing[at : at + CHUNK]
            sent = fast_worlds(self.plan, self.snapshot, self.shard, self.game, worlds)
            if sent is None:
                return False
            for world, values in zip(worlds, sent):
                found[world] = self._keep(place, world, self.lens.signals(values))
                bar.advance()
        return True

    def _cached(self, place: Path) -> dict[int, Signals]:
        """Worlds that an earlier start finished; a file that cannot be read is as good as absent."""
        found = {}
        for world in range(len(self.game.masks)):
            with contextlib.suppress(DamagedRun):
                found[world] = read_tensors(self._file(place, world))
        return found

    def _file(self, place: Path, world: int) -> Path:
        return place / f"world_{world:04d}.safetensors"

    def _keep(self, place: Path, world: int, signals: Signals) -> Signals:
        bad = sorted(key for key, value in signals.items() if not torch.isfinite(value).all())
        if bad:
            raise DamagedRun(f"world {world}: {', '.join(bad)} not finite; did training diverge? (lower the learning rate)")
        write_tensors(self._file(place, world), signals)
        return signals


def as_worlds(stacked: Mapping[str, Tensor], surface: str, game: Game, public: Records) -> Worlds:
    """The (K, n) signals of one surface, with its coins and a control that never sees the artifact."""
    mine = {key.split("|", 1)[1]: value for key, value in stacked.items() if key.split("|", 1)[0] == surface}
    logits = mine.pop("logits", None)
    candidates = game.candidates
    count = len(next(iter(mine.values())))
    return Worlds(mine, game.masks[:count], blind_scores(candidates, public), candidates.y, logits)


def blind_scores(candidates: Records, public: Records) -> Tensor:
    """(n,) how typical each record is of its class, by public records alone: must sit at AUC 0.5."""
    means = {int(c): public.x[public.y == c].mean(0) for c in public.y.unique()}
    overall = public.x.mean(0)
    gaps = [(x - means.get(int(c), overall)).norm() for x, c in zip(candidates.x, candidates.y)]
    return -torch.stack(gaps)


def audited_rounds(snapshots: Mapping[int, Snapshot]) -> list[int]:
    """The latest round of every phase and kind of upload."""
    latest: dict[tuple[str, frozenset[str]], int] = {}
    for t in sorted(snapshots):
        latest[(snapshots[t].phase, frozenset(snapshots[t].sent))] = t
    return sorted(latest.values())
