"""A recorded federation of someone else's, audited by ``privdd.audit recording=DIR``: leaks are
found, whole recordings only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privdd.cli import main as cli
from privdd.external.recorded_federation import (
    find_claimed_limit,
    run_recorded_audit,
)
from privdd.recording import is_recording_folder
from privdd.recording.recording import (
    MessageHeading,
    MessageRecorder,
    read_recording,
    read_recordings,
)
from privdd.reporting.schema import load_findings
from privdd.verification.run_folder import verify_run

PIXELS = 256
CLASSES = 3
EACH = 120


def net() -> torch.nn.Module:
    """Named on the command line as this file's."""
    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(PIXELS, CLASSES))
    with torch.no_grad():
        for p in made.parameters():
            p.zero_()
    return made


def records(seed: int, count: int = EACH) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, 1, 16, 16)).astype(np.float32), draw.integers(0, CLASSES, count)


def step(state: dict[str, torch.Tensor], x: np.ndarray, y: np.ndarray) -> dict[str, torch.Tensor]:
    """Ten full-batch steps of a client."""
    model = net()
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(10):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(
            model(torch.from_numpy(x)), torch.from_numpy(y)
        ).backward()
        optimiser.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


LOCAL = {
    "component": "LocalDpMod",
    "settings": {"epsilon": 0.05, "delta": 1e-5},
    "covers": "reply",
    "noise_multiplier": 96.9,
}


def federation(
    folder: Path,
    own: tuple[np.ndarray, np.ndarray],
    rounds: int = 3,
    claims: tuple[Any, ...] = (),
    end: str = "complete",
    others: tuple[int, ...] = (6,),
    alone: int = 0,
) -> None:
    """FedAvg of node 5, with records ``own``, and other nodes, which leave out round ``alone``;
    recorded as a server would."""
    recorder = MessageRecorder(folder, "server", {"library": "test"})
    recorder.write_head()
    state = net().state_dict()
    told = lambda state: {name: value.numpy() for name, value in state.items()}  # noqa: E731
    for round in range(1, rounds + 1):
        recorder.record_message(MessageHeading(round, -1, "train", "broadcast"), told(state))
        replies = {5: step(state, *own)}
        if round != alone:
            replies |= {node: step(state, *records(3 + node)) for node in others}
        for node, reply in replies.items():
            recorder.record_message(
                MessageHeading(
                    round, node, "train", "reply", metrics={"m/loss": 0.1}, claims=claims
                ),
                told(reply),
            )
        state = {
            name: torch.stack([reply[name] for reply in replies.values()]).mean(0) for name in state
        }
        recorder.record_message(MessageHeading(round, -1, "train", "final"), told(state))
    recorder.close_recording(end)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("train", 1), ("out", 2)):
        x, y = records(seed)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return tmp_path


def typed(*more: str) -> list[str]:
    return [
        "recording=run",
        f"target.model={__file__}:net",
        "target.train=train.npz",
        "target.heldout=out.npz",
        *more,
    ]


STATED = ("stated.epsilon=8", "stated.delta=1e-8", "stated.relation=add_remove")


def asked(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["privdd-audit", *argv])
    return cli.main("audit", lambda *a: 77)


def measured(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(f.surface, f.attack): f.model_dump() for f in load_findings(folder).findings}


def test_a_leaking_client_is_found_out_and_the_folder_agrees_with_itself(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    federation(here / "run", records(1))
    assert (
        asked(typed("target.client=5", "out=audit", *STATED, "fail_on.auc=0.6"), monkeypatch) == 3
    )
    first, *_, last = capsys.readouterr().out.splitlines()
    answer = (
        "epsilon 8 at delta 1e-8 (stated, add/remove; 16 at 3e-5 for an exchange) is not "
        "contradicted, and not proven either"
    )
    assert first.startswith(f"{answer}: shown at least ")
    assert last.startswith("policy: broken: auc: AUC of membership: between 0.")
    found = measured(here / "audit")
    assert set(found) == {
        ("update", a)
        for a in (
            "loss_threshold",
            "tracing",
            "fedmia",
            "source_inference",
            "quantile_regression",
        )
    } | {("global_model", a) for a in ("loss_threshold", "quantile_regression")}
    assert (
        found["update", "tracing"]["auc"] > 0.9 and found["update", "loss_threshold"]["auc"] > 0.85
    )
    assert found["update", "tracing"]["epsilon_shown"] > 0.5
    result = load_findings(here / "audit")
    assert result.verdict != "contradiction" and {s.surface: s.rounds for s in result.surfaces} == {
        "update": 3,
        "global_model": 1,
    }
    assert result.privacy.epsilon.pld == float("inf")
    assert not verify_run(here / "audit", None).disagreements


def test_records_that_were_never_there_are_not_seen(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation(here / "run", records(3))
    assert asked(typed("target.client=5", "out=audit"), monkeypatch) == 0
    rows = measured(here / "audit")
    for name in ("fedmia", "source_inference"):
        alone = rows.pop(("update", name))
        assert alone["status"] == "nothing_to_read" and "1 other client took part" in alone["note"]
    for row in rows.values():
        low, high = row["auc_ci"]
        assert low < 0.62 and high > 0.38 and row["epsilon_shown"] < 0.5


def found_by_comparison(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """FedMIA and source inference on four clients, of which node 5 has the records of this seed."""
    federation(folder / "run", records(seed), rounds=2, others=(6, 7, 8))
    assert asked(typed("target.client=5", "out=audit"), monkeypatch) == 0
    rows = measured(folder / "audit")
    return rows["update", "fedmia"], rows["update", "source_inference"]


def test_other_clients_updates_are_the_law_of_non_members(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, source = found_by_comparison(here, 1, monkeypatch)
    assert row["rounds"] == 2 and "3 others" in row["note"]
    assert row["auc"] > 0.9 and row["epsilon_shown"] > 0.5
    shares = source["diagnostics"]["source"]
    assert shares["members"] > 0.6 and shares["non_members"] < 0.45 and shares["clients"] == 4


def test_comparing_clients_finds_no_records_that_were_never_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in found_by_comparison(here, 3, monkeypatch):
        low, high = row["auc_ci"]
        assert low < 0.5 < high and row["epsilon_shown"] < 0.5


def test_a_claim_that_the_updates_break_is_contradicted(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where of so many parameters only every other one is read."""
    monkeypatch.setattr("privdd.recording.network.MAX_KEPT_NUMBERS", 100 * 771)
    federation(here / "run", records(1), claims=(LOCAL,))
    assert asked(typed("target.client=5", "out=audit"), monkeypatch) == 2
    (claim,) = load_findings(here / "audit").privacy.claims
    assert (
        claim.source == "LocalDpMod(epsilon=0.05, delta=1e-05)"
        and "claimed, not proven here" in claim.why
    )
    rows = (here / "audit" / "ledger.json").read_text()
    assert "protected as LocalDpMod claims; nothing here proves it" in rows


def test_a_claim_about_aggregates_is_shown_and_not_compared_with_updates(here: Path) -> None:
    federation(here / "run", records(1), claims=({**LOCAL, "covers": "final"},))
    recorder = MessageRecorder(here / "other", "server", {})
    recorder.write_head()
    recorder.record_message(MessageHeading(1, 5, "train", "reply"), {"w": np.ones(2)})
    recorder.record_message(
        MessageHeading(1, -1, "train", "final", claims=({**LOCAL, "covers": "final"},)),
        {"w": np.ones(2)},
    )
    recorder.close_recording("complete")
    limit = find_claimed_limit(read_recording(here / "other"), 5, {})
    assert (
        limit.epsilon is None
        and "updates before them are not covered" in limit.claim_entries()[0]["why"]
    )
    assert find_claimed_limit(read_recording(here / "other"), 5, {"epsilon": 2.0}).epsilon == 2.0


def test_a_claim_of_almost_no_noise_is_shown_and_not_compared(here: Path) -> None:
    federation(
        here / "run",
        records(1),
        rounds=1,
        claims=({**LOCAL, "noise_multiplier": 0.01, "settings": {"a": 10**400}},),
    )
    limit = find_claimed_limit(read_recording(here / "run"), 5, {})
    assert limit.epsilon is None and limit.claim_entries()[0]["epsilon"] > 1000


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["recording=run"], "a whole recording of clients 5, 6; to audit it, give target.model"),
        (typed(), "target.client=None: one of 5, 6 is needed"),
        (typed("target.client=4"), "target.client=4"),
        (typed("target.client=5", "target.rounds=3"), "target.rounds"),
        ([*typed()[:3], "target.client=5"], "target.heldout"),
        (typed("target.client=5", "target.shadows=4"), "target.shadows: not read of a recording"),
        (typed("target.client=5", "confidence=0"), "confidence=0: a number in (0, 1)"),
        (typed("target.client=5", "out=run"), "run: holds files of something else"),
        (["recording=run", "target.model=json:loads", *typed()[2:], "target.client=5"], "model="),
    ],
)
def test_what_cannot_be_audited_is_said_in_one_line(
    argv: list[str], said: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    federation(here / "run", records(1), rounds=1)
    (here / "run" / "findings.json").write_text("{}")
    assert asked(argv, monkeypatch) == 1
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("fault", ["recording", "stopped", "lost"])
def test_an_incomplete_recording_fails_the_audit(
    fault: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    federation(here / "run", records(1), rounds=1, end=fault if fault != "lost" else "complete")
    if fault == "lost":
        (here / "run" / "failed-1.json").write_text('{"what": "round 1", "error": "no space"}')
    assert asked(typed("target.client=5"), monkeypatch) == 1
    assert "incomplete recording" in capsys.readouterr().err


def test_a_run_of_privdd_s_own_is_no_recording(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (here / "own").mkdir()
    federation(here / "run", records(1), rounds=1)
    assert is_recording_folder(here / "run") and not is_recording_folder(here / "own")
    assert read_recordings(here / "run")[0].client_nodes == (5, 6) and callable(run_recorded_audit)
    assert asked(["run=run"], monkeypatch) == 1
    assert "this is a recording; did you mean recording=run?" in capsys.readouterr().err


def test_a_last_round_without_other_clients_leaves_the_earlier_ones_compared(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation(here / "run", records(1), rounds=3, others=(6, 7, 8), alone=3)
    assert asked(typed("target.client=5", "out=audit"), monkeypatch) == 0
    rows = measured(here / "audit")
    assert rows["update", "fedmia"]["rounds"] == 2 and rows["update", "fedmia"]["auc"] > 0.9
    alone = rows["update", "source_inference"]
    assert alone["status"] == "nothing_to_read"
    assert "fewer than 2 other clients took part" in alone["note"]
