"""``device=cuda`` is refused in one line where it would do nothing or be shared, and what runs
there is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from privdd.auditing.pipeline import audit_experiment
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.errors import explain_error
from privdd.cli.run import print_run_line
from privdd.core.device import CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACES, deterministic_kernels
from privdd.core.validation import BadConfig
from privdd.distillation import alexnet, distribution_matching, random_cosine
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.federated.trainer import measure_accuracy
from privdd.methods.fedavg import FedAvg
from privdd.models import networks
from privdd.runtime.run_folder import RunFolder
from tests.fake_device import fake_gpu
from tests.federations import equal, finished, tiny, tiny_config, trained

ON_GPU = {
    "fedavg": True,
    "fedproto": True,
    "fedfed": True,
    "feddm": True,
    "fedlgd_dp": True,
    "dp_means": False,
    "fedmd": True,
}


@pytest.mark.parametrize("algo", sorted(ON_GPU))
def test_a_method_that_places_nothing_on_the_gpu_is_refused(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = tiny_config(algo, "device=cuda")
    if ON_GPU[algo]:
        assert build_experiment(config).plan.problem.device == "cuda"
    else:
        with pytest.raises(
            BadConfig, match=r"^device=cuda: \w+ computes on the CPU alone; leave device=cpu$"
        ):
            build_experiment(config)


def test_without_a_gpu_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadConfig, match=r"^device=cuda: no GPU is present; must be cpu$"):
        build_experiment(tiny_config("fedavg", "device=cuda"))


@pytest.mark.parametrize(
    ("engine", "workers"), [("processes", 1), ("processes", 2), ("ray", 0), ("ray", 1)]
)
def test_processes_that_would_share_a_gpu_are_refused(
    engine: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = tiny_config("fedavg", "device=cuda", f"engine={engine}", f"engine.workers={workers}")
    with pytest.raises(
        BadConfig,
        match=rf"^device=cuda: engine={engine} would have several processes share one GPU; take "
        r"engine=serial",
    ):
        build_experiment(config)


@pytest.mark.parametrize("size", [":0:0", "", ":4096:8"])
def test_a_setting_of_the_machine_under_which_bits_change_is_refused(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(CUBLAS_WORKSPACE, size)
    config = tiny_config("fedavg", "device=cuda")
    if size in DETERMINISTIC_WORKSPACES:
        assert build_experiment(config).plan.problem.device == "cuda"
        return
    line = (
        rf"^device=cuda: with {CUBLAS_WORKSPACE}={size} a GPU gives other bits each time; "
        r"allowed are :4096:8 and :16:8, or unset it$"
    )
    with pytest.raises(BadConfig, match=line):
        build_experiment(config)
    assert build_experiment(tiny_config("fedavg")).plan.problem.device == "cpu"


def on_cuda(algo: str, *more: str) -> tuple[Experiment, Progress, float]:
    """An experiment, its state after all rounds with every problem's device a GPU, and the accuracy
    measured there."""
    experiment = tiny(algo, *more)
    plan = replace(experiment.plan, problem=replace(experiment.plan.problem, device="cuda"))
    with deterministic_kernels("cuda"):
        progress = finished(replace(experiment, plan=plan))
        return (
            experiment,
            progress,
            measure_accuracy(plan, progress, experiment.test_records, experiment.shards),
        )


def with_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own pooling and sampling, where a GPU takes other forms of them
    (tests/attacks/test_gpu.py)."""
    monkeypatch.setattr(
        distribution_matching,
        "sample_grid",
        lambda x, grid: F.grid_sample(x, grid.expand(len(x), -1, -1, -1), align_corners=False),
    )
    for module in (alexnet, random_cosine, networks):
        monkeypatch.setattr(module, "average_pool", F.adaptive_avg_pool2d)


@pytest.mark.nightly(but=["fedavg"])
@pytest.mark.parametrize("algo", ["fedavg", "fedproto", "fedfed", "fedrd", "fedlgd"])
def test_rounds_on_the_fake_gpu_give_the_bits_of_the_cpu(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kernels run there, so that all that may differ is where a tensor is, which the fake
    device refuses."""
    with_cpu_kernels(monkeypatch)
    with fake_gpu() as gpu:
        experiment, there, measured = on_cuda(algo)
    assert gpu.traffic.sent.total() > 0
    here = trained(algo)[0]
    assert equal(there.server, here.server) and equal(there.memories, here.memories)
    assert measured == measure_accuracy(
        experiment.plan, here, experiment.test_records, experiment.shards
    )


def test_protected_rounds_on_the_fake_gpu_give_the_bits_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_cpu_kernels(monkeypatch)
    with fake_gpu() as gpu:
        _, there, _ = on_cuda("feddm_dp", "algo.rounds=1")
    assert gpu.traffic.sent.total() > 0
    here = trained("feddm_dp", "algo.rounds=1")[0]
    assert equal(there.server, here.server) and there.ledger.releases == here.ledger.releases


@pytest.mark.nightly
def test_a_whole_audit_with_stand_in_images_on_the_fake_gpu(tmp_path: Path) -> None:
    """What an attack is compared with is where the attack is: gradient_inversion once failed here,
    on a GPU alone."""
    attack = [
        "attack=[gradient_inversion,lira,label_counts]",
        "attack.gradient_inversion.method.iterations=3",
    ]
    few = ["audit.records=10", "audit.worlds=4", "audit.victims=1", "audit.federations=0"]
    config = tiny_config("virtual_data", "device=cuda", *attack, *few, command="audit")
    config.audit.waive = dict.fromkeys(["global_model"], "not what is tested")
    with fake_gpu() as gpu:
        found = audit_experiment(
            build_experiment(config), build_attacks(config), RunFolder(tmp_path)
        ).findings
    assert gpu.traffic.sent.total() > 0
    inverted = [one for one in found if one.attack == "gradient_inversion"]
    assert any("psnr_to_virtual" in one.diagnostics for one in inverted)


@pytest.mark.extra("gpu")
@pytest.mark.parametrize("algo", ["fedavg", "fedfed", "fedrd", "fedlgd", "feddm_dp"])
def test_rounds_on_a_gpu_are_the_same_bits_twice(algo: str) -> None:
    first, second = (on_cuda(algo)[1] for _ in range(2))
    assert equal(first.server, second.server) and equal(first.memories, second.memories)


@pytest.mark.extra("gpu")
@pytest.mark.parametrize("algo", ["fedavg", "feddm", "feddm_dp"])
def test_rounds_on_a_gpu_give_the_results_of_the_cpu_up_to_rounding(algo: str) -> None:
    _, there, _ = on_cuda(algo)
    here = trained(algo)[0]
    for name, value in here.server.items():
        assert there.server[name].device.type == "cpu"
        assert torch.allclose(there.server[name], value, rtol=1e-2, atol=1e-3), name


def test_what_runs_on_the_gpu_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tiny("fedavg")
    print_run_line(experiment, Path("x"))
    assert "cuda" not in capsys.readouterr().err
    alone = replace(experiment, shards=experiment.shards[:1])
    print_run_line(alone, Path("x"))
    assert f", 1 client of {len(experiment.shards[0].train)} records," in capsys.readouterr().err
    on_gpu = SimpleNamespace(
        run=SimpleNamespace(device="cuda"),
        plan=experiment.plan,
        shards=experiment.shards,
        dataset=experiment.dataset,
        engine=experiment.engine,
    )
    print_run_line(on_gpu, Path("x"))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        f"privdd: on cuda: {FedAvg.on_gpu}; the server's work"
    ) and line.endswith("stay on the CPU")


def test_a_layer_without_a_repeatable_kernel_is_told_in_one_line() -> None:
    """What torch says is of a flag that the user never set."""
    said = (
        "grid_sampler_2d_backward_cuda does not have a deterministic implementation, but you "
        "set 'torch.use_deterministic_algorithms(True)'"
    )
    line = explain_error(RuntimeError(said))
    assert (
        line is not None
        and line.startswith("device=cuda: a layer has no GPU kernel")
        and "deterministic" not in line
    )
