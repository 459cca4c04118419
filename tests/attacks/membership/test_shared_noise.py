"""Membership from noise that a batch shares, against a brute-force search and against independent noise."""

import itertools
import math

import pytest
import torch

from attacks.membership.shared_noise import FLOOR, SharedNoise, noise_coincidence
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, View, Worlds

BATCH, WIDTH = 8, 12


def release(seed: int, shared: bool = True):
    """40 candidates of 4 classes, half of them released in batches of 8 with one noise vector each."""
    g = torch.Generator().manual_seed(seed)
    clean, y = torch.randn(40, WIDTH, generator=g), torch.arange(40) % 4
    members = torch.randperm(40, generator=g)[:24].sort().values
    noise = torch.randn(3 if shared else 24, WIDTH, generator=g)
    rows = clean[members] + (noise.repeat_interleave(BATCH, 0) if shared else noise)
    return rows, y[members], clean, y, torch.isin(torch.arange(40), members)


def brute_force(rows, labels, clean, y):
    """Every pair of candidates over every pair of rows of a batch, one by one."""
    best = [math.inf] * len(clean)
    for a, b in itertools.permutations(range(len(clean)), 2):
        for j, k in itertools.permutations(range(len(rows)), 2):
            if j // BATCH == k // BATCH and labels[j] == y[a] and labels[k] == y[b]:
                gap = (rows[j].double() - clean[a].double()) - (rows[k].double() - clean[b].double())
                best[a] = min(best[a], float(gap.square().mean()))
    return torch.tensor([-math.log(max(value, FLOOR)) / 2 for value in best], dtype=torch.float64)


def test_scores_are_those_of_a_search_over_all_pairs():
    rows, labels, clean, y, _ = release(0)
    torch.testing.assert_close(noise_coincidence(rows, labels, clean, y, BATCH), brute_force(rows, labels, clean, y))


def test_members_coincide_and_others_do_not():
    rows, labels, clean, y, member = release(1)
    scores = noise_coincidence(rows, labels, clean, y, BATCH)
    assert scores[member].min() > scores[~member].max() + 5  # e^5 times nearer


def test_coins_that_say_nothing_are_not_found():
    """Rows of other records of the same distribution: no candidate was released, whatever its coin says."""
    aucs = []
    for seed in range(40):
        rows, labels, _, _, _ = release(seed)
        _, _, clean, y, member = release(seed + 1000)
        aucs.append(roc(noise_coincidence(rows, labels, clean, y, BATCH), member.numpy()).auc)
    assert abs(sum(aucs) / len(aucs) - 0.5) < 0.05  # 3.3 standard errors: .095 / sqrt(40) each


def test_a_candidate_of_an_absent_class_gets_the_lowest_score():
    rows, labels, clean, y, _ = release(2)
    y = torch.where(torch.arange(40) == 5, 9, y)
    scores = noise_coincidence(rows, labels, clean, y, BATCH)
    assert scores[5] == scores.min()


def test_an_empty_release_and_bad_batches():
    clean, y = torch.randn(3, WIDTH), torch.zeros(3, dtype=torch.long)
    assert noise_coincidence(torch.zeros(0, WIDTH), y[:0], clean, y, BATCH).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="batch"):
        noise_coincidence(clean, y, clean, y, 0)


def test_the_attack_says_where_noise_is_not_shared():
    masks = torch.tensor([[True, False]])
    worlds = Worlds({"matched_filter": torch.zeros(1, 2)}, masks, torch.zeros(2), torch.zeros(2))
    knowledge = Knowledge((1, 2, 2), 10, torch.zeros(1, 1, 2, 2), torch.zeros(1))
    view = View(Surface.FEATURES, Adversary.SERVER, (), knowledge, worlds)
    assert "own noise" in SharedNoise(signal="shared_noise").nothing_to_read(view)
