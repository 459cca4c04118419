"""Many runs in lockstep: the method's own local code, once for all of them, each with its own coins and noise.

``torch.func.vmap`` runs the code on the states of R runs at a time; where it asks a mechanism, the R answers are made
one by one, by the mechanism itself. Code that branches on what it computed cannot be run so, and is played run by run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privdd.auditing.guarantees.tilted_context import RoundPlayed, Script, TiltedContext, release
from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism

Answer = Callable[[Sequence[Tensor]], list[Tensor]]  # tensors (R, ...) of all runs -> released tensors (R, ...)


class _Ask(torch.autograd.Function):
    """Leaves ``vmap`` for one call: ``answer`` sees the tensors of all runs."""

    @staticmethod
    def forward(answer: Answer, lane: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("outside of lockstep")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: a release has no gradient."""

    @staticmethod
    def vmap(info: Any, dims: Any, answer: Answer, lane: Tensor, *tensors: Tensor) -> tuple[Any, Any]:
        runs = info.batch_size
        moved = [t.expand(runs, *t.shape) if at is None else t.movedim(at, 0) for t, at in zip(tensors, dims[2:])]
        answers = tuple(answer(moved))
        return answers, (0,) * len(answers)


@dataclass
class LockstepContext(TiltedContext):
    """scripts: of the R runs, one record each; lane: () as the local code sees it, one number a run."""

    scripts: Sequence[Script] = ()
    lane: Tensor = field(default_factory=lambda: torch.zeros(()))

    def answered(self, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]) -> Tensors:
        names, released = list(contributions), list[str]()

        def answer(tensors: Sequence[Tensor]) -> list[Tensor]:
            each = zip(*(tensor.unbind() for tensor in tensors))  # the tensors of one run
            made = [release(script, mechanism, dict(zip(names, of)), hosts) for script, of in zip(self.scripts, each)]
            released.extend(made[0])
            return [torch.stack([one[n] for one in made]) for n in made[0]]

        answers = _Ask.apply(answer, self.lane, *contributions.values())
        return dict(zip(released, answers))


def in_lockstep(
    local: Callable[[Mapping[str, Tensors]], Any], broadcast: Mapping[str, Tensors], ctx: LockstepContext
) -> None:
    """Run ``local`` on what was sent, for every script of ``ctx``, until it ends or ``RoundPlayed`` is raised."""
    runs = len(ctx.scripts)
    wide = {g: {n: t.expand(runs, *t.shape) for n, t in group.items()} for g, group in broadcast.items()}

    def one(lane: Tensor, sent: Mapping[str, Tensors]) -> Tensor:
        ctx.lane = lane
        local(sent)
        return lane

    with suppress(RoundPlayed):
        torch.func.vmap(one, randomness="same")(torch.arange(runs), wide)
