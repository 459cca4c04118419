"""``device=cuda`` is refused in one line where a method would ignore it, and what runs there is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from privdd.cli.assemble import assemble
from privdd.cli.runs import say
from privdd.core.errors import BadConfig
from privdd.core.types import Records
from privdd.federated.simulation import start
from privdd.methods.fedavg import FedAvg
from tests.federations import tiny, tiny_config

ON_GPU = {"fedavg": True, "scaffold": True, "fedproto": True, "fedfed": True, "feddm": False, "fedrd": False, "fedlgd": False}


@pytest.mark.parametrize("algo", ON_GPU)
def test_a_method_that_places_nothing_on_the_gpu_is_refused(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = tiny_config(algo, "device=cuda")
    if ON_GPU[algo]:
        assert assemble(config).plan.problem.device == "cuda"
    else:
        with pytest.raises(BadConfig, match=r"^device=cuda: \w+ computes on the CPU alone; leave device=cpu$"):
            assemble(config)


def test_without_a_gpu_the_line_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is present")
    with pytest.raises(BadConfig, match=r"^device=cuda: allowed are cpu, and cuda where a GPU is present$"):
        assemble(tiny_config("fedavg", "device=cuda"))


@pytest.mark.parametrize("algo", ["fedavg", "scaffold", "fedproto"])
def test_who_claims_a_gpu_places_the_records_there_once_a_round(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that torch here does not have: what is placed on it is counted, and stays where it was."""
    placed: list[int] = []
    real = Records.to

    def counted(self: Records, device: Any) -> Records:
        placed.extend([len(self)] * (str(device) == "cuda"))
        return real(self, "cpu")

    tensor_to = torch.Tensor.to
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Records, "to", counted)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda t, *a, **k: tensor_to(t, *("cpu" if str(v) == "cuda" else v for v in a), **k)
    )
    experiment = assemble(tiny_config(algo, "device=cuda"))
    plan, shard = experiment.plan, experiment.shards[0]
    first = start(plan, experiment.ledger())
    plan.method.local(plan.method.broadcast(first.server), {}, shard, plan.context(0, 0))
    assert placed == [len(shard.train)]


def test_what_runs_on_the_gpu_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tiny("fedavg")
    say(experiment, Path("x"))
    assert "cuda" not in capsys.readouterr().err
    on_gpu = SimpleNamespace(run=SimpleNamespace(device="cuda"), plan=experiment.plan, shards=experiment.shards, dataset=experiment.dataset)
    say(on_gpu, Path("x"))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"privdd: on cuda: {FedAvg.on_gpu}; the server, attacks and guarantee tests run on the CPU"
