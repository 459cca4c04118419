"""``blind_scores`` and ``signals_to_worlds``: the control that never sees an artifact or a coin, and fair coins."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from scipy.stats import binomtest
from torch import Tensor

from attacks.roc import roc
from privdd.auditing.replay import MembershipGame, draw_membership_game
from privdd.auditing.views import blind_scores, signals_to_worlds
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard

CLASSES, SHAPE = 3, (1, 3, 3)


def records(count: int, seed: int, first: int = 0) -> Records:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=g)
    return Records(torch.rand(count, *SHAPE, generator=g) + y.reshape(-1, 1, 1, 1), y, torch.arange(first, first + count))


PUBLIC = records(60, 1, 1000)


def shard(count: int = 80) -> Shard:
    return Shard(0, records(count, 0), records(5, 2, 2000), records(5, 3, 3000), CLASSES)


def game(seed: int = 0, worlds: int = 6) -> MembershipGame:
    return draw_membership_game(shard(), 40, worlds, Keys(seed))


def stacked(now: MembershipGame, seed: int) -> dict[str, Tensor]:
    """Signals of two surfaces; that of "update" is the membership bit itself, as an artifact could betray it."""
    g = torch.Generator().manual_seed(seed)
    rows, count = now.masks.shape
    return {
        "update|confidence": now.masks.float() + seed,
        "update|logits": torch.randn(rows, count, CLASSES, generator=g),
        "labels|count": torch.randn(rows, count, generator=g),
    }


def test_the_blind_control_is_equal_whatever_was_sent_and_whoever_was_in() -> None:
    """The same numbers for other artifacts, other coins, other worlds and another surface."""
    now = game()
    control = signals_to_worlds(stacked(now, 0), "update", now, PUBLIC).blind
    assert control.shape == (40,) and control.std() > 0.01 and torch.equal(control, blind_scores(now.audited_records, PUBLIC))
    others = [now.masks.flip(0), ~now.masks, torch.zeros_like(now.masks), torch.ones_like(now.masks)]
    for seed, masks in enumerate(others):
        other = replace(now, masks=masks)
        for surface in ("update", "labels"):
            worlds = signals_to_worlds(stacked(other, seed + 1), surface, other, PUBLIC)
            assert torch.equal(worlds.blind, control) and torch.equal(worlds.masks, masks)


def test_blind_scores_are_the_distance_to_the_public_mean_of_the_class() -> None:
    own = records(12, 5)
    held = Records(PUBLIC.x[PUBLIC.y != 2], PUBLIC.y[PUBLIC.y != 2], PUBLIC.ids[PUBLIC.y != 2])  # nobody of class 2
    for x, y, score in zip(own.x, own.y, blind_scores(own, held), strict=True):
        of = held.x[held.y == y] if int(y) != 2 else held.x
        assert math.isclose(float(score), -float((x - of.sum(0) / len(of)).square().sum().sqrt()), rel_tol=1e-5)


def test_the_blind_controls_auc_over_many_draws_of_coins_is_a_half() -> None:
    """400 games: the mean AUC within five standard errors of 0.5, and the spread that fair coins give."""
    found = []
    for seed in range(400):
        now = game(seed, worlds=2)
        worlds = signals_to_worlds(stacked(now, seed), "update", now, PUBLIC)
        found.append(roc(worlds.blind, worlds.masks[0].numpy()).auc)
    aucs = torch.tensor(found)
    spread = math.sqrt(41 / (12 * 20 * 20))  # Mann-Whitney: (n + 1) / (12 n1 n0), about 20 in and 20 out
    assert abs(float(aucs.mean()) - 0.5) < 5 * spread / 20
    assert 0.8 * spread < float(aucs.std()) < 1.25 * spread


def test_coins_are_fair_and_independent() -> None:
    """Over worlds, records and seeds: a share of a half; agreement of neighbours, of worlds and of seeds by chance."""
    drawn = torch.stack([game(seed, worlds=40).masks for seed in range(25)])  # (seeds, worlds, records)
    pairs = [drawn[:, :, 1:] ^ drawn[:, :, :-1], drawn[:, 1:] ^ drawn[:, :-1], drawn[1:] ^ drawn[:-1]]
    for bits in (drawn, *pairs):
        assert binomtest(int(bits.sum()), bits.numel(), 0.5).pvalue > 1e-6
    totals = drawn.float().sum(-1)  # not a fixed number of members: its variance is that of 40 coins
    assert 8 < float(totals.var()) < 12.5


def test_the_game_keeps_and_removes_the_records_of_the_coins() -> None:
    """Record by record: in where the coin says so, else held out; zero_out leaves a black image with its label."""
    for relation in ("add_remove", "zero_out"):
        now = draw_membership_game(shard(), 40, 3, Keys(0), relation)
        for world in range(3):
            client, audited = now.shard_of_replay(shard(), world), now.audited
            members = set(now.whole.ids[audited[now.masks[world]]].tolist())
            gone = set(now.whole.ids[audited].tolist()) - members
            assert members <= set(client.train.ids.tolist()) and not gone & set(client.train.ids.tolist())
            assert gone == set(client.heldout.ids.tolist()) - set(shard().heldout.ids.tolist())
            if relation == "add_remove":
                assert client.nulls is None
                continue
            assert client.nulls is not None and set(client.nulls.ids.tolist()) == gone and not client.nulls.x.any()
            labels = dict(zip(now.whole.ids.tolist(), now.whole.y.tolist()))
            assert [labels[i] for i in client.nulls.ids.tolist()] == client.nulls.y.tolist()


def test_as_worlds_takes_one_surface_and_its_logits() -> None:
    now = game()
    signals = stacked(now, 0)
    worlds = signals_to_worlds(signals, "update", now, PUBLIC)
    assert set(worlds.signals) == {"confidence"} and torch.equal(worlds.labels, now.audited_records.y)
    assert worlds.logits is not None and torch.equal(worlds.logits, signals["update|logits"])
    real = signals_to_worlds({name: value[:1] for name, value in signals.items()}, "labels", now, PUBLIC)
    assert set(real.signals) == {"count"} and real.logits is None and torch.equal(real.masks, now.masks[:1])
