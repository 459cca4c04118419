"""The training loop: rounds, progress, accuracy, kept artifacts, checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from privdd.core.errors import BadConfig
from privdd.core.state import marked
from privdd.core.types import Records, Shard
from privdd.federated import checkpoint
from privdd.federated.capture import Capture
from privdd.federated.heard import Heard
from privdd.federated.measured import accuracy, finite, words
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.simulation import Plan, Progress, finish, start, step
from privdd.privacy.ledger import Ledger
from privdd.runtime import computed_with
from privdd.runtime.engine import Engine
from privdd.runtime.progress import stage
from privdd.runtime.run_folder import RunFolder

LOG = logging.getLogger("privdd")
CHECKPOINT_EVERY = 5.0  # seconds; a run of short rounds must not spend its time on the disk
CHECKPOINT_SHARE = 0.05  # at most this share of the time: the ledger of a long run takes long to write


@dataclass(frozen=True)
class Trainer:
    """Everything that a run needs besides its state. measure: accuracy after a round, in [0, 1]."""

    plan: Plan
    shards: Sequence[Shard]
    test: Records
    engine: Engine
    folder: RunFolder
    ledger: Ledger
    capture: Capture = field(default_factory=Capture)
    measure: Callable[[Plan, Progress, Records, Sequence[Shard]], float] = accuracy
    transcript: list[Heard] | None = None  # of an audit: is given what the audited client releases while it trains here
    record: NoiseRecord | None = None  # of an audit: is given what the clients' noise was, as far as it is trained here

    def run(self) -> Progress:
        """All rounds, from the last whole checkpoint if there is one. Raises BadConfig: see ``computed_with.note``."""
        if self.plan.trust.summed and self.engine.clients_remember:
            raise BadConfig(
                "trust=secagg: a simulation of what a server would see; real clients need a protocol such as Flower's SecAgg+"
            )
        progress = checkpoint.load(self.folder, self.plan) or start(self.plan, self.ledger)
        total = self.plan.method.rounds
        begun = 0 < progress.round < total or (progress.round >= total and self.folder.half_audited)
        computed_with.note(self.folder, goes_on=begun)
        if len(progress.accuracy) < total:
            self._check_memories(progress)
            progress = self._rounds(progress, total)
        checkpoint.write_ledger(self.folder.ledger, progress.ledger)
        return progress

    @property
    def _clients_remember(self) -> bool:
        """Whether memories stay with real clients, who can repeat their latest round but go back no further."""
        return self.engine.clients_remember

    def _check_memories(self, progress: Progress) -> None:
        away = [k for k, memory in progress.memories.items() if marked(memory)]
        if away and not self._clients_remember:
            raise ValueError(
                f"{self.folder.path}: stopped after round {progress.round - 1} of a real federation, whose clients keep "
                "their own memory; start the federation again with this folder, and audit it when it is done"
            )

    def _rounds(self, progress: Progress, total: int) -> Progress:
        broadcast, due = None, time.monotonic() + CHECKPOINT_EVERY
        if len(progress.accuracy) < progress.round:  # real clients were away when they were asked for it
            progress = self._measured(progress)
            checkpoint.save(self.folder, progress)
        with stage("train", total - progress.round) as bar:
            while progress.round < total:
                progress, inbox, broadcast = step(
                    self.plan, progress, self.shards, self.engine, broadcast, self.transcript, self.record
                )
                self.capture.keep(self.folder, self.plan, inbox)
                last = progress.round == total
                if last:
                    progress = finish(self.plan, progress)
                if self._clients_remember:  # a round of real clients is kept before anything else can fail
                    checkpoint.save(self.folder, progress)
                progress = self._measured(progress)
                began = time.monotonic()
                if last or began >= due or self._clients_remember:
                    checkpoint.save(self.folder, progress)
                    took = time.monotonic() - began
                    due = time.monotonic() + (
                        max(CHECKPOINT_EVERY, took / CHECKPOINT_SHARE) if CHECKPOINT_EVERY else 0.0
                    )
                bar.advance(f"accuracy {progress.accuracy[-1]:.3f}")
        return progress

    def _measured(self, progress: Progress) -> Progress:
        return noted(progress, self.measure(self.plan, progress, self.test, self.shards))


def noted(progress: Progress, value: float) -> Progress:
    """``progress`` with the accuracy after its latest round; ``diverged`` names the first round without a model.

    value: NaN where the model predicts nothing, which is kept as 0: nothing it says is right.
    """
    gone = math.isnan(value) or not finite(progress.server)
    kept = replace(progress, accuracy=(*progress.accuracy, 0.0 if gone else value))
    if not gone or progress.diverged is not None:
        return kept
    LOG.warning("%s", words(progress.round - 1))
    return replace(kept, diverged=progress.round - 1)
