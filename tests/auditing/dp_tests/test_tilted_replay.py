"""Runs in lockstep: each gets its own answer, and code that branches on what it computed is
refused."""

from __future__ import annotations

import pytest
import torch

from privdd.auditing.dp_tests.instrumentation import InstrumentedContext, instrumented_context
from privdd.auditing.dp_tests.run_script import RunScript, ScriptPlayer, run_in_lockstep
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import fedavg, subject


def context(runs: int) -> tuple[InstrumentedContext, ScriptPlayer]:
    plan = subject(fedavg(), {"dpsgd": ClippedSum(1.0, 0.02, 1.0, 20.0)}).plan
    scripts = [RunScript(1, torch.Generator().manual_seed(at)) for at in range(runs)]
    player = ScriptPlayer(scripts[0], [0], scripts=scripts)
    return instrumented_context(plan, 0, player), player


def test_each_run_has_noise_of_its_own_and_carries_it_on() -> None:
    ctx, player = context(3)

    def local(sent: dict) -> None:
        first = ctx.mechanism("dpsgd", {"w": sent["model"]["w"].unsqueeze(0)})["w"]
        ctx.mechanism("dpsgd", {"w": (first + 1).unsqueeze(0)})

    run_in_lockstep(local, {"model": {"w": torch.ones(5)}}, player)
    assert [len(script.steps[0]) for script in player.scripts] == [2, 2, 2]
    assert len({round(float(script.losses[0]), 6) for script in player.scripts}) == 3


def test_code_that_branches_on_a_release_is_refused() -> None:
    ctx, player = context(2)

    def local(sent: dict) -> None:
        if float(ctx.mechanism("dpsgd", {"w": sent["model"]["w"].unsqueeze(0)})["w"].sum()) > 0:
            raise AssertionError("one branch for all runs")

    with pytest.raises(RuntimeError):
        run_in_lockstep(local, {"model": {"w": torch.ones(5)}}, player)
