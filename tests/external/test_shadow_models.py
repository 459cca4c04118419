"""Shadow updates: those of another world of the game, by plain SGD, by the owner's function, or as
gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attacks.types import Capture
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.client_updates import (
    LocalTraining,
    audit_client_updates,
    read_captured_updates,
)
from privdd.external.membership_game import draw_coin_game
from privdd.external.run_folder import GLOBAL_DRAWS, StatedLimit
from privdd.external.shadow_models import (
    PlainSGD,
    compute_shadow_updates,
    target_and_shadow_signals,
)
from privdd.external.trained_model import ExternalAuditSettings
from privdd.runtime.engine import Engine
from tests.external.test_client_updates import HELDOUT, LR, TRAIN, change, folder, measures, network

GAME = draw_coin_game(TRAIN, HELDOUT, 1000, 3, Keys(0))
START = {name: value.clone() for name, value in network().state_dict().items()}
SENT = Capture(0, 0, "update", {name: START[name] + d for name, d in change(TRAIN).items()}, START)


def shadows(fit: Any) -> list[tuple[Capture, ...]]:
    found, drew = compute_shadow_updates(fit, network(), [SENT], GAME, Keys(0), Engine())
    assert not drew
    return found


def test_one_whole_step_of_sgd_and_the_gradient_are_those_of_the_worlds_records() -> None:
    for k, (stepped, sloped) in enumerate(zip(shadows(PlainSGD(LR, 1)), shadows(None)), start=1):
        expected = change(GAME.shadow_set(k), gradient=True)
        for name, slope in expected.items():
            assert torch.allclose(sloped[0].value[name], slope, atol=1e-6)
            assert torch.allclose(stepped[0].value[name], START[name] - LR * slope, atol=1e-6)


def test_minibatches_go_through_all_records_before_any_comes_again() -> None:
    seen: list[float] = []

    class Tap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.extend(x[:, 0].tolist())
            return self.last(x)

    PlainSGD(0.1, 6, batch=4)(
        Tap(), torch.arange(12.0)[:, None], torch.zeros(12, dtype=torch.long), 5
    )
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12)) and seen[:12] != seen[12:]


def test_signals_of_many_worlds_are_those_of_each() -> None:
    worlds = [(SENT,), *shadows(PlainSGD(LR, 2))]
    together = target_and_shadow_signals(network(), worlds, GAME.records, 3, False)
    for k, world in enumerate(worlds):
        alone = target_and_shadow_signals(network(), [world], GAME.records, 3, False)
        assert all(torch.allclose(together[name][k], alone[name][0]) for name in alone)


def by_hand(model: nn.Module, x: Any, y: Any, seed: int) -> nn.Module:
    nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y)).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= LR * p.grad
    return model


def audited(path: Path, fit: Any, local: LocalTraining | None = None) -> dict[str, Any]:
    updates = read_captured_updates(folder(path, change(TRAIN)), network(), "update")
    run = audit_client_updates(
        network(),
        updates,
        0,
        TRAIN,
        HELDOUT,
        local or LocalTraining(),
        StatedLimit(),
        ExternalAuditSettings(shadows=8),
        {},
        fit,
    )
    return measures(run)


def test_with_a_function_or_known_steps_lira_and_rmia_run_and_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privdd.external.client_updates.INVERSION_BUDGET", 20)
    own = audited(tmp_path / "a", by_hand)
    assert own["lira"]["auc_ci"][0] > 0.6 and own["rmia"]["auc"] > 0.6
    assert own["lira"]["auc"] == pytest.approx(
        audited(tmp_path / "b", "sgd", LocalTraining(LR, 1))["lira"]["auc"], abs=1e-3
    )


def test_a_number_of_steps_that_is_written_as_a_real_one_is_whole() -> None:
    known = LocalTraining(LR, 2.0, 8.0)  # type: ignore[arg-type]
    for one in shadows(PlainSGD(LR, known.steps, known.batch)):  # type: ignore[arg-type]
        assert one[0].value.keys() == START.keys()


def test_of_a_gradient_a_function_is_refused_and_the_word_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privdd.external.client_updates.INVERSION_BUDGET", 20)
    updates = read_captured_updates(
        folder(tmp_path, change(TRAIN, gradient=True)), network(), "gradient"
    )
    given = (
        network(),
        updates,
        0,
        TRAIN,
        HELDOUT,
        LocalTraining(),
        StatedLimit(),
        ExternalAuditSettings(shadows=8),
        {},
    )
    with pytest.raises(BadConfig, match="of a captured gradient only sgd is read"):
        audit_client_updates(*given, "net:train")
    assert measures(audit_client_updates(*given, "sgd"))["lira"]["auc_ci"][0] > 0.6


def test_shadow_updates_that_no_seed_repeats_are_said_to_be_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(*list(network())[:3], nn.Dropout(0.5), nn.Linear(24, 3))
    start = {name: value.clone() for name, value in net.state_dict().items()}
    drew = compute_shadow_updates(
        PlainSGD(LR, 1), net, [Capture(0, 0, "update", start, start)], GAME, Keys(0), Engine()
    )[1]
    assert (
        drew
        and not compute_shadow_updates(
            None, net, [Capture(0, 0, "update", start, start)], GAME, Keys(0), Engine()
        )[1]
    )
    monkeypatch.setattr("privdd.external.client_updates.INVERSION_BUDGET", 20)
    updates = read_captured_updates(folder(tmp_path, change(TRAIN)), network(), "update")
    for fit, said in (
        (by_hand, False),
        (lambda model, x, y, seed: model if torch.rand(1) < 2 else None, True),
    ):
        run = audit_client_updates(
            network(),
            updates,
            0,
            TRAIN,
            HELDOUT,
            LocalTraining(),
            StatedLimit(),
            ExternalAuditSettings(shadows=4),
            {},
            fit,
        )
        assert (run.about.get("note") == GLOBAL_DRAWS.format("training function")) == said


def test_without_one_the_page_says_what_is_missing(tmp_path: Path) -> None:
    found = audited(tmp_path, None)
    assert (
        found["lira"]["status"] == found["rmia"]["status"] == "not_attacked"
        and "target.training" in found["lira"]["note"]
    )


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ("sgd", "needs target.lr and target.steps"),
        (lambda x, y, seed: None, r"a function \(model, x, y, seed\) is needed"),
        (lambda model, x, y, seed: None, "returned a NoneType"),
        (lambda model, x, y, seed: nn.Linear(2, 2), "has no 1.bias"),
        (lambda model, x, y, seed: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_training_function_that_does_not_fit_is_one_line(
    tmp_path: Path, fit: Any, said: str
) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        audited(tmp_path, fit)
    assert "\n" not in str(caught.value)
