"""Indirect queries: a record is found by outputs on public images, of which none is a record."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.membership.indirect_queries import IndirectQueries
from attacks.membership.signals import LogitInfluence
from attacks.types import Adversary, Knowledge, Surface, Truth, View, Worlds

CLASSES = 4
FEATURES = 40
IMAGES = 60  # public, none of them a record
RECORDS = 12
REPLAYS = 12
PICTURE = torch.zeros(1, 1, 2, 2)
NOBODY = Truth(*[PICTURE, torch.zeros(1, dtype=torch.long)] * 2, torch.zeros(CLASSES))


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coins(seed: int) -> Tensor:
    return drawn(1000 + seed, REPLAYS, RECORDS) > 0


def view_of(held: Tensor, masks: Tensor, seed: int, noise: float = 0.5) -> View:
    """Logits of clients that take one step of a last layer, which knows nothing, on the records
    that they hold, in noise; ``masks`` are the members as the game has them."""
    own = drawn(seed, RECORDS, FEATURES)
    rows = drawn(100 + seed, IMAGES, FEATURES)
    labels = torch.arange(RECORDS) % CLASSES
    residual = F.one_hot(labels, CLASSES).double() - 1 / CLASSES
    influence = LogitInfluence(own @ rows.T + 1, residual)
    signals = []
    for k, inside in enumerate(held):
        step = own[inside].T @ residual[inside]
        change = rows @ step + residual[inside].sum(0)
        change = change + noise * change.std() * drawn(200 + 50 * seed + k, *change.shape)
        signals.append(influence.signals(change - change.mean(1, keepdim=True)))
    stacked = {name: torch.stack([one[name] for one in signals]) for name in signals[0]}
    worlds = Worlds(stacked, masks, torch.zeros(RECORDS), labels)
    knowledge = Knowledge((1, 2, 2), CLASSES, PICTURE, labels[:1], settings={"delta": 1e-5})
    return View(Surface.LOGITS, Adversary.SERVER, (), knowledge, worlds)


@pytest.mark.parametrize("signal", ["joint", "alignment"])
def test_a_planted_record_is_found_in_nine_of_ten_seeds(signal: str) -> None:
    """In the run itself one record is in, and no query is ever made of it."""
    hits = 0
    for seed in range(10):
        held = coins(seed)
        held[0] = False
        held[0, seed] = True
        evidence = IndirectQueries(signal=signal).run(view_of(held, held, seed), torch.Generator())
        assert evidence.scores is not None
        hits += int(evidence.scores[0].argmax()) == seed
    assert hits >= 9


def test_nobody_is_found_where_the_members_are_of_other_coins() -> None:
    attack = IndirectQueries()
    for seed in range(10):
        view = view_of(coins(50 + seed), coins(seed), seed)
        finding = attack.judge(attack.run(view, torch.Generator()), view, NOBODY)
        assert finding.measures.auc_ci is not None
        assert finding.measures.auc_ci[0] <= 0.5


def test_a_surface_without_public_images_has_nothing_to_read() -> None:
    signals = {"confidence": drawn(0, REPLAYS, RECORDS)}
    worlds = Worlds(signals, coins(0), torch.zeros(RECORDS), torch.zeros(RECORDS))
    knowledge = Knowledge((1, 2, 2), CLASSES, PICTURE, torch.zeros(1))
    view = View(Surface.LOGITS, Adversary.SERVER, (), knowledge, worlds)
    assert "no signal joint" in IndirectQueries().nothing_to_read(view)
