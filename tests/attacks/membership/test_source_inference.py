"""Source inference: the client with the smallest loss."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.membership.source_inference import SourceInference, source_margin
from attacks.types import Truth
from tests.attacks.membership.test_fedmia import NOBODY, OTHERS, RECORDS, view_of

TRUTH = Truth(NOBODY, torch.zeros(1), NOBODY, torch.zeros(1), torch.zeros(2))


def losses(seed: int, pull: float) -> tuple[Tensor, Tensor, Tensor]:
    """Minus the losses of records (n, 1) by the audited client's model and (M, n, 1) by others',
    and who is its member: of these the audited client's is larger by ``pull``."""
    g = torch.Generator().manual_seed(seed)
    level = 20 * torch.randn(RECORDS, 1, generator=g)
    others = level + torch.randn(OTHERS, RECORDS, 1, generator=g)
    member = torch.rand(RECORDS, generator=g) < 0.5
    own = level + torch.randn(RECORDS, 1, generator=g) + pull * member[:, None]
    return own, others, member


def test_the_margin_is_positive_for_the_client_of_the_smallest_loss() -> None:
    own, others, _ = losses(0, 2.0)
    everyone = torch.cat([own[None], others])[..., 0]
    margin = source_margin(own[:, 0], others[..., 0])
    assert torch.equal(margin > 0, everyone.argmax(0) == 0)


def test_the_owner_is_named_in_nine_of_ten_seeds() -> None:
    hits = 0
    for seed in range(10):
        own, others, member = losses(seed, 6.0)
        view = view_of(own, member, others)
        attack = SourceInference()
        finding = attack.judge(attack.run(view, torch.Generator().manual_seed(seed)), view, TRUTH)
        source = finding.diagnostics["source"]
        assert source["clients"] == OTHERS + 1 and source["chance"] == 1 / (OTHERS + 1)
        hits += source["members"] >= 0.9
    assert hits >= 9


def test_without_a_leak_the_owner_is_named_at_chance_level() -> None:
    rates = []
    for seed in range(40):
        own, others, member = losses(seed, 0.0)
        rates.append(source_margin(own[:, 0], others[..., 0])[member] > 0)
    rate = float(torch.cat(rates).double().mean())
    chance = 1 / (OTHERS + 1)
    assert 2 / 3 * chance < rate < 3 / 2 * chance
