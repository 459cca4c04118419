"""Captured updates: one step's members are found, another client's are not, and every file that
does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from attacks.types import Capture, Surface
from privdd.core.validation import BadConfig
from privdd.external.client_updates import (
    LocalTraining,
    audit_client_updates,
    read_captured_updates,
)
from privdd.external.records import LabelledRecords, records_from_arrays
from privdd.external.run_folder import StatedLimit, write_audit_folder
from privdd.external.shadow_models import iterate_record_gradients, target_and_shadow_signals
from privdd.external.trained_model import ExternalAuditSettings
from privdd.reporting.schema import load_findings
from privdd.verification.run_folder import verify_run

LR = 0.5
STEPS = 1
State = dict[str, torch.Tensor]


def pictures(count: int, seed: int) -> LabelledRecords:
    rng = np.random.default_rng(seed)
    return records_from_arrays(
        "x", rng.random((count, 1, 5, 5)).astype(np.float32), rng.integers(0, 3, count)
    )


TRAIN = pictures(60, 1)
HELDOUT = pictures(120, 2)


def network() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 24), nn.Tanh(), nn.Linear(24, 3))
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=g))
    return net


def change(records: LabelledRecords, *, gradient: bool = False) -> State:
    """What one step of SGD on all records changes the weights by; or the gradient itself."""
    net = network()
    nn.functional.cross_entropy(net(records.x), records.y).backward()
    return {name: p.grad * (1 if gradient else -LR) for name, p in net.named_parameters()}  # type: ignore[operator]


def folder(path: Path, *values: State) -> Path:
    for client, value in enumerate(values):
        (path / "round_000").mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(value, path / "round_000" / f"client_{client}.safetensors")
    return path


def run(
    path: Path, kind: str = "update", client: int = 0, local: LocalTraining | None = None
) -> Any:
    net = network()
    updates = read_captured_updates(path, net, kind)
    return audit_client_updates(
        net,
        updates,
        client,
        TRAIN,
        HELDOUT,
        local or LocalTraining(),
        StatedLimit(),
        ExternalAuditSettings(),
        {},
    )


def measures(found: Any) -> dict[str, Any]:
    return {one.finding.attack: one.finding.measures.to_row() for one in found.judged}


def test_members_of_one_step_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the folder of the run verifies; without the client's learning rate nothing is rebuilt,
    and that is said."""
    # other tests draw pages
    monkeypatch.setattr("privdd.external.run_folder.write_report", lambda path: path)
    found = run(folder(tmp_path / "captured", change(TRAIN)))
    by = measures(found)
    assert by["joint_gradients"]["auc_ci"][0] > 0.6
    for name in ("update_inversion", "analytic_inversion", "label_counts"):
        assert by[name]["status"] == "not_attacked" and "target.lr" in by[name]["note"], name
    write_audit_folder(found, tmp_path / "run", [])
    assert (
        load_findings(tmp_path / "run").run.clients == 1
        and verify_run(tmp_path / "run").disagreements == ()
    )


def test_another_clients_update_says_nothing(tmp_path: Path) -> None:
    found = measures(run(folder(tmp_path, change(pictures(60, 5)))))
    for name in ("gradient_alignment", "joint_gradients", "confidence_gain"):
        low, high = found[name]["auc_ci"]
        assert abs(found[name]["auc"] - 0.5) < (high - low) / 2 * 1.7, name


def test_weights_updates_and_the_servers_model_are_one_thing(tmp_path: Path) -> None:
    """The client's weights, or their change, or the change of another model that the server is
    known to have sent."""
    step = change(TRAIN)
    start = network().state_dict()
    ends = {name: start[name] + step[name] for name in step}
    one = read_captured_updates(folder(tmp_path / "a", step), network(), "update").captures[0]
    other = read_captured_updates(folder(tmp_path / "b", ends), network(), "model").captures[0]
    assert all(torch.allclose(one.value[name], other.value[name]) for name in step)
    safetensors.torch.save_file(
        {"3.bias": torch.ones(3)}, folder(tmp_path / "c", step) / "round_000" / "server.safetensors"
    )
    moved = read_captured_updates(tmp_path / "c", network(), "update").captures[0]
    assert torch.allclose(moved.broadcast["3.bias"], torch.ones(3)) and torch.allclose(
        moved.value["3.bias"], 1 + step["3.bias"]
    )


def test_a_gradient_gives_the_counts_of_its_labels_away(tmp_path: Path) -> None:
    """And of 60 records behind one gradient no pixels are sought, which the page says."""
    found = run(folder(tmp_path, change(TRAIN, gradient=True)), "gradient")
    by = measures(found)
    assert {one.finding.surface for one in found.judged} == {Surface.GRADIENT}
    assert by["label_counts"]["label_accuracy"] > 0.9 and by["joint_gradients"]["auc_ci"][0] > 0.6
    assert (
        "60 records stand behind one gradient" in by["gradient_inversion"]["note"]
        and "confidence_gain" not in by
    )


def test_signals_against_gradients_one_by_one() -> None:
    """Each record's gradient by plain autograd, and its cosine with the change."""
    few = TRAIN.select_rows(torch.arange(5))
    start = network().state_dict()
    step = change(TRAIN)
    one = Capture(0, 0, "update", {name: start[name] + step[name] for name in step}, start)
    rows = torch.cat(list(iterate_record_gradients(network(), one, few)))
    moved = torch.cat([step[name].flatten() for name, _ in network().named_parameters()])
    for x, y, row in zip(few.x, few.y, rows):
        net = network()
        nn.functional.cross_entropy(net(x[None]), y[None]).backward()
        own = torch.cat([p.grad.flatten() for p in net.parameters()])  # type: ignore[union-attr]
        assert torch.allclose(row, own, atol=1e-6)
    found = target_and_shadow_signals(network(), [[one]], few, 3, False)
    known = torch.nn.functional.cosine_similarity(moved[None], -rows)
    assert torch.allclose(found["alignment"][0].float(), known, atol=1e-4) and len(found) == 3


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": torch.ones(2)}, r"client_0.safetensors: a \(2,\): the model has none of this name"),
        ({"3.bias": torch.ones(2)}, r"3.bias \(2,\): the model's is \(3,\)"),
        ({"3.bias": torch.ones(3)}, "lacks 1.bias, 1.weight, 3.weight"),
        ({"3.bias": torch.full((3,), torch.nan)}, "NaN or infinity in 3.bias"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path: Path, value: State, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        read_captured_updates(folder(tmp_path, value), network(), "update")
    assert "\n" not in str(caught.value)


def test_folders_and_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no such folder"):
        read_captured_updates(tmp_path / "none", network(), "update")
    with pytest.raises(BadConfig, match=r"holds no round_000/client_0.safetensors"):
        read_captured_updates(tmp_path, network(), "update")
    folder(tmp_path / "long", change(TRAIN))
    (tmp_path / "long" / "round_001").mkdir()
    for name in ("round_000/server", "round_001/client_0"):
        safetensors.torch.save_file(
            network().state_dict(), tmp_path / "long" / f"{name}.safetensors"
        )
    with pytest.raises(BadConfig, match=r"round_001/server.safetensors is needed"):
        read_captured_updates(tmp_path / "long", network(), "model")
    safetensors.torch.save_file({}, tmp_path / "long" / "round_001" / "server.safetensors")
    assert [
        one.round for one in read_captured_updates(tmp_path / "long", network(), "update").captures
    ] == [0, 1]
    with pytest.raises(BadConfig, match=r"target.kind=delta: allowed are update, model, gradient"):
        read_captured_updates(tmp_path, network(), "delta")
    with pytest.raises(
        BadConfig, match=r"target.client=4: nothing was captured of it; there are 0, 1"
    ):
        read_captured_updates(
            folder(tmp_path / "two", change(TRAIN), change(TRAIN)), network(), "update"
        ).captures_of_client(4)
    (tmp_path / "two" / "round_000" / "client_2.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(BadConfig, match="is a link"):
        read_captured_updates(tmp_path / "two", network(), "update")
    with pytest.raises(BadConfig, match=r"target.lr=-1"):
        LocalTraining(lr=-1)
    with pytest.raises(BadConfig, match=r"target.momentum=1"):
        LocalTraining(momentum=1)
    with pytest.raises(BadConfig, match=r"target.steps=0"):
        LocalTraining(steps=0)


def test_known_steps_let_records_be_sought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privdd.external.client_updates.INVERSION_BUDGET", 600)
    found = measures(run(folder(tmp_path, change(TRAIN)), local=LocalTraining(LR, STEPS)))
    assert found["update_inversion"]["psnr"] > 9 and found["label_counts"]["n"] == 60
    assert "local steps simulated" in found["update_inversion"]["note"]


def test_tied_weights_have_one_gradient() -> None:
    net = network()
    net.append(nn.Linear(3, 3)).append(nn.Linear(3, 3))
    net[5].weight = net[4].weight
    sent = {name: value.detach().clone() for name, value in net.state_dict().items()}
    rows = torch.cat([*iterate_record_gradients(net, Capture(0, 0, "update", sent, sent), TRAIN)])
    for i in (0, 7):
        net.zero_grad()
        nn.functional.cross_entropy(net(TRAIN.x[i : i + 1]), TRAIN.y[i : i + 1]).backward()
        by_hand = torch.cat([value.grad.flatten() for value in net.parameters()])
        torch.testing.assert_close(rows[i], by_hand)


def test_a_network_of_one_output_or_labels_of_text_are_one_line(tmp_path: Path) -> None:
    """Their cross-entropy would be 0 for every record, and every gradient with it."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 1))
    two = LabelledRecords(TRAIN.x, TRAIN.y % 2)
    state = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    updates = read_captured_updates(folder(tmp_path, state), net, "update")
    given = LocalTraining(), StatedLimit(), ExternalAuditSettings(), {}
    with pytest.raises(BadConfig, match=r"target.model: gives one number for each record"):
        audit_client_updates(
            net, updates, 0, two, LabelledRecords(HELDOUT.x, HELDOUT.y % 2), *given
        )
    text = records_from_arrays("a", TRAIN.x.numpy(), np.array(["a", "b", "c"])[TRAIN.y])
    with pytest.raises(
        BadConfig, match=r"target.train: y holds 'a', 'b', 'c'; whole numbers from 0"
    ):
        audit_client_updates(net, updates, 0, text, HELDOUT, *given)
