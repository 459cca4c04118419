"""FedMIA against the one-tailed Gaussian test, and a planted record among the uploads of other
clients."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from attacks.membership.fedmia import FedMIA, fedmia, stack_other_clients
from attacks.membership.source_inference import SourceInference
from attacks.types import Adversary, Knowledge, Surface, View, Worlds

RECORDS = 30
OTHERS = 9
ROUNDS = 4
NOBODY = torch.zeros(1, 1, 2, 2)


def view_of(signals: Tensor, mask: Tensor, others: Tensor | None) -> View:
    """signals (n, R) of the audited client, others (M, n, R)."""
    count = len(mask)
    worlds = Worlds(
        {"confidence": signals[None, :, -1]},
        mask[None],
        torch.zeros(count),
        torch.zeros(count, dtype=torch.long),
        rounds={"confidence": signals[None]},
        other_clients={} if others is None else {"confidence": others},
    )
    knowledge = Knowledge(
        (1, 2, 2), 2, NOBODY, torch.zeros(1, dtype=torch.long), settings={"delta": 1e-5}
    )
    return View(Surface.UPDATE, Adversary.SERVER, (), knowledge, worlds)


def test_the_published_score_is_the_one_tailed_gaussian_test() -> None:
    g = torch.Generator().manual_seed(0)
    others = torch.randn(OTHERS, RECORDS, generator=g, dtype=torch.float64)
    target = torch.randn(RECORDS, generator=g, dtype=torch.float64)
    law = norm(others.mean(0).numpy(), others.std(0, correction=0).numpy())
    expected = torch.from_numpy(-law.logsf(target.numpy()))
    torch.testing.assert_close(fedmia(target, others, variance="per_record"), expected)


@pytest.mark.parametrize("variance", ["auto", "per_record", "pooled"])
def test_one_planted_record_stands_above_all_in_nine_of_ten_seeds(variance: str) -> None:
    """Each round moves its signal by 3 standard deviations of what clients send without it; records
    differ by far more than that from each other."""
    hits = 0
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        level = 20 * torch.randn(RECORDS, 1, generator=g)
        others = level + torch.randn(OTHERS, RECORDS, ROUNDS, generator=g)
        signals = level + torch.randn(RECORDS, ROUNDS, generator=g)
        signals[seed] += 3
        mask = torch.zeros(RECORDS, dtype=torch.bool)
        attack = FedMIA(variance=variance)  # type: ignore[arg-type]
        evidence = attack.run(view_of(signals, mask, others), g)
        assert evidence.scores is not None and evidence.notes["rounds"] == ROUNDS
        hits += int(evidence.scores[0].argmax()) == seed
    assert hits >= 9


def test_rounds_add_up() -> None:
    g = torch.Generator().manual_seed(0)
    others = torch.randn(OTHERS, RECORDS, ROUNDS, generator=g)
    signals = torch.randn(RECORDS, ROUNDS, generator=g)
    mask = torch.rand(RECORDS, generator=g) < 0.5
    evidence = FedMIA().run(view_of(signals, mask, others), g)
    total = sum(fedmia(signals[:, r], others[..., r]) for r in range(ROUNDS))
    torch.testing.assert_close(evidence.scores[0], total)  # type: ignore[index]


@pytest.mark.parametrize(("clients", "named"), [(None, "not known"), (1, "1 other client")])
def test_nothing_is_read_without_other_clients(clients: int | None, named: str) -> None:
    g = torch.Generator().manual_seed(0)
    others = None if clients is None else torch.randn(clients, RECORDS, ROUNDS, generator=g)
    signals = torch.randn(RECORDS, ROUNDS, generator=g)
    view = view_of(signals, torch.rand(RECORDS, generator=g) < 0.5, others)
    assert named in FedMIA().nothing_to_read(view)


def test_rounds_with_too_few_other_clients_leave_the_others_compared() -> None:
    g = torch.Generator().manual_seed(0)
    sent = torch.randn(OTHERS, RECORDS, ROUNDS, generator=g)
    counts = [OTHERS, 0, 1, OTHERS - 1]
    by_round = [list(sent[:count, :, r]) for r, count in enumerate(counts)]
    others = stack_other_clients(by_round)
    assert others is not None
    kept = torch.tensor([0, 3])
    torch.testing.assert_close(others[..., kept], sent[: OTHERS - 1, :, kept])
    assert others[..., 1:3].isnan().all()
    signals = torch.randn(RECORDS, ROUNDS, generator=g)
    view = view_of(signals, torch.rand(RECORDS, generator=g) < 0.5, others)
    evidence = FedMIA().run(view, g)
    assert FedMIA().nothing_to_read(view) == "" and evidence.notes["rounds"] == 2
    total = sum(fedmia(signals[:, r], others[..., r]) for r in kept)
    torch.testing.assert_close(evidence.scores[0], total)  # type: ignore[index]
    assert SourceInference().nothing_to_read(view) == ""


def test_source_inference_has_nothing_to_compare_in_a_lonely_audited_round() -> None:
    g = torch.Generator().manual_seed(0)
    others = torch.randn(OTHERS, RECORDS, ROUNDS, generator=g)
    others[..., -1] = torch.nan
    signals = torch.randn(RECORDS, ROUNDS, generator=g)
    view = view_of(signals, torch.rand(RECORDS, generator=g) < 0.5, others)
    assert "fewer than 2 other clients" in SourceInference().nothing_to_read(view)
    assert FedMIA().nothing_to_read(view) == ""


def test_rounds_with_one_other_client_are_kept_if_none_has_more() -> None:
    one = torch.ones(3)
    stacked = stack_other_clients([[one], []])
    assert stacked is not None and stacked.shape == (1, 3, 2)
    assert stack_other_clients([[], []]) is None


def test_one_other_client_has_no_spread() -> None:
    with pytest.raises(ValueError, match="1 other clients, 2 are needed"):
        fedmia(torch.zeros(3), torch.zeros(1, 3))


def test_others_of_another_number_of_records_are_refused() -> None:
    with pytest.raises(ValueError, match="other_clients of 'confidence'"):
        view_of(torch.zeros(3, 2), torch.tensor([True, False, True]), torch.zeros(OTHERS, 4, 2))
