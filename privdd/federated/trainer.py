"""The training loop: rounds, progress, accuracy (on the test set or on each client's own), kept
artifacts, checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privdd.core.device import to_device
from privdd.core.types import Records, Shard, State, is_remote_memory
from privdd.core.validation import BadConfig
from privdd.federated import checkpoint
from privdd.federated.budget import BudgetExceeded, check_round_budget
from privdd.federated.experiment import CaptureSettings
from privdd.federated.noise_log import NoiseLog, ObservedRound
from privdd.federated.simulation import (
    Plan,
    Progress,
    publish_final_state,
    run_round,
    start_training,
)
from privdd.privacy.ledger import Ledger
from privdd.runtime import run_folder
from privdd.runtime.engine import Engine
from privdd.runtime.progress import show_progress
from privdd.runtime.run_folder import RunFolder

LOG = logging.getLogger("privdd")
CHECKPOINT_EVERY = 5.0  # seconds; a run of short rounds must not spend its time on the disk
# at most this share of the time: the ledger of a long run takes long to write
CHECKPOINT_SHARE = 0.05


def predict_in_batches(predict: Callable[[Tensor], Tensor], x: Tensor, batch: int = 500) -> Tensor:
    with torch.no_grad():
        return torch.cat([predict(part) for part in x.split(batch)])


def measure_accuracy(
    plan: Plan, progress: Progress, test: Records, shards: Sequence[Shard]
) -> float:
    """Global: on the test set; personal: mean over clients of their own test split, with their
    memory.

    NaN where a model's output is not finite.
    """
    method = plan.method
    device = plan.problem.device
    progress = replace(progress, server=to_device(progress.server, device))

    def predict_logits(memory: State | None, x: Tensor) -> Tensor:
        held = to_device(memory, device)
        return predict_in_batches(
            lambda part: method.predict(progress.server, held, part.to(device)), x
        ).cpu()

    if method.audit_hooks.accuracy_kind == "global":
        return accuracy_of_logits(predict_logits(None, test.x), test.y)
    values = []
    for k, shard in enumerate(shards):
        memory = progress.memories.get(k)
        if memory and len(shard.test):
            values.append(accuracy_of_logits(predict_logits(memory, shard.test.x), shard.test.y))
    return sum(values) / len(values) if values else 0.0


def is_finite_state(state: State) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


def accuracy_of_logits(logits: Tensor, y: Tensor) -> float:
    """Accuracy in [0, 1] of logits (n, C) for labels y (n,); NaN where they are none, and so the
    loss is not finite.

    A logit of minus infinity is one: a class that the model rules out (FedProto before it has seen
    all)."""
    if bool((logits.isnan() | logits.isposinf()).any()):
        return math.nan
    return float((logits.argmax(1) == y).float().mean())


def divergence_message(round: int) -> str:
    """One line for the user."""
    return (
        f"training diverged in round {round}: the model is not finite and has no accuracy "
        "(lower the learning rate)"
    )


@dataclass(frozen=True)
class Trainer:
    """Everything that a run needs besides its state.

    measure: accuracy after a round, in [0, 1]; transcript, record: of an audit, are given what the
    audited client releases, and what the clients' noise was, as far as it is trained here. budget:
    the largest epsilon allowed; a round that would exceed it is refused before it runs, and those
    that ran are kept.
    """

    plan: Plan
    shards: Sequence[Shard]
    test: Records
    engine: Engine
    folder: RunFolder
    ledger: Ledger
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    measure: Callable[[Plan, Progress, Records, Sequence[Shard]], float] = measure_accuracy
    transcript: list[ObservedRound] | None = None
    record: NoiseLog | None = None
    budget: float | None = None

    def run(self) -> Progress:
        """All rounds, from the last whole checkpoint if there is one. Raises BadConfig: see
        ``run_folder.record_library_versions``."""
        if self.plan.trust.is_summed and self.engine.clients_remember:
            raise BadConfig(
                "trust=secagg: simulates a server's view of the sum; real clients "
                "need a protocol such as Flower's SecAgg+"
            )
        progress = checkpoint.load_checkpoint(self.folder, self.plan) or start_training(
            self.plan, self.ledger
        )
        total = self.plan.method.rounds
        begun = 0 < progress.round < total or (
            progress.round >= total and self.folder.is_half_audited
        )
        run_folder.record_library_versions(self.folder, goes_on=begun)
        if len(progress.accuracy) < total:
            is_away = any(map(is_remote_memory, progress.memories.values()))
            if is_away and not self.engine.clients_remember:
                raise ValueError(
                    f"{self.folder.path}: stopped after round {progress.round - 1} of a "
                    "real federation, whose clients keep "
                    "their own memory; start the federation again with this folder, and "
                    "audit it when it is done"
                )
            progress = self._train_rounds(progress, total)
        checkpoint.write_ledger(self.folder.ledger_file, progress.ledger)
        return progress

    def _train_rounds(self, progress: Progress, total: int) -> Progress:
        broadcast = None
        due = time.monotonic() + CHECKPOINT_EVERY
        if (
            len(progress.accuracy) < progress.round
        ):  # real clients were away when they were asked for it
            progress = self._measure_accuracy(progress)
            checkpoint.save_checkpoint(self.folder, progress, self.plan.data)
        with show_progress("train", total - progress.round) as bar:
            while progress.round < total:
                if self.budget is not None:
                    self._check_budget(self.budget, progress)
                progress, inbox, broadcast = run_round(
                    self.plan,
                    progress,
                    self.shards,
                    self.engine,
                    broadcast,
                    self.transcript,
                    self.record,
                )
                self.capture.write_uploads(self.folder, self.plan, inbox)
                last = progress.round == total
                if last:
                    progress = publish_final_state(self.plan, progress)
                if (
                    self.engine.clients_remember
                ):  # a round of real clients is kept before anything else can fail
                    checkpoint.save_checkpoint(self.folder, progress, self.plan.data)
                progress = self._measure_accuracy(progress)
                began = time.monotonic()
                if last or began >= due or self.engine.clients_remember:
                    checkpoint.save_checkpoint(self.folder, progress, self.plan.data)
                    took = time.monotonic() - began
                    if CHECKPOINT_EVERY:
                        wait = max(CHECKPOINT_EVERY, took / CHECKPOINT_SHARE)
                    else:
                        wait = 0.0
                    due = time.monotonic() + wait
                bar.advance(f"accuracy {progress.accuracy[-1]:.3f}")
        return progress

    def _check_budget(self, budget: float, progress: Progress) -> None:
        """Keep the rounds that ran, and raise BudgetExceeded, if the next one costs too much."""
        try:
            check_round_budget(budget, self.plan, progress.ledger, progress.round)
        except BudgetExceeded:
            if progress.round:
                checkpoint.save_checkpoint(self.folder, progress)
            raise

    def _measure_accuracy(self, progress: Progress) -> Progress:
        return record_accuracy(progress, self.measure(self.plan, progress, self.test, self.shards))


def record_accuracy(progress: Progress, value: float) -> Progress:
    """``progress`` with the accuracy after its latest round; ``diverged`` names the first round
    without a model.

    value: NaN where the model predicts nothing, which is kept as 0: nothing it says is right.
    """
    gone = math.isnan(value) or not is_finite_state(progress.server)
    recorded = replace(progress, accuracy=(*progress.accuracy, 0.0 if gone else value))
    if not gone or progress.diverged is not None:
        return recorded
    LOG.warning("%s", divergence_message(progress.round - 1))
    return replace(recorded, diverged=progress.round - 1)
