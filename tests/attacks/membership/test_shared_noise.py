"""Membership from noise that a batch shares, against a brute-force search and against independent
noise."""

import itertools
import math

import pytest
import torch

from attacks.membership.shared_noise import (
    COINCIDENCE_LIMIT,
    MIN_SQUARED_GAP,
    SharedNoise,
    noise_coincidence,
)
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, View, Worlds

BATCH = 8
WIDTH = 12


def release(seed: int, shared: bool = True):
    """40 candidates of 4 classes, half of them released in batches of 8 with one noise vector
    each."""
    g = torch.Generator().manual_seed(seed)
    clean = torch.randn(40, WIDTH, generator=g)
    y = torch.arange(40) % 4
    members = torch.randperm(40, generator=g)[:24].sort().values
    noise = torch.randn(3 if shared else 24, WIDTH, generator=g)
    rows = clean[members] + (noise.repeat_interleave(BATCH, 0) if shared else noise)
    return rows, y[members], clean, y, torch.isin(torch.arange(40), members)


def brute_force(rows, labels, clean, y, std):
    """Every pair of candidates over every pair of rows of a batch, one by one."""
    gaps = [math.inf] * len(clean)
    energies = [math.inf] * len(clean)
    for a in range(len(clean)):
        for j in (j for j in range(len(rows)) if labels[j] == y[a]):
            mine = rows[j].double() - clean[a].double()
            energies[a] = min(energies[a], float(mine.square().mean()) / std**2)
            for b, k in itertools.product(range(len(clean)), range(len(rows))):
                if a != b and j != k and j // BATCH == k // BATCH and labels[k] == y[b]:
                    gap = mine - (rows[k].double() - clean[b].double())
                    gaps[a] = min(
                        gaps[a], max(float(gap.square().mean()), MIN_SQUARED_GAP) ** 0.5 / std
                    )
    scores = [
        -math.log(gap) if gap < COINCIDENCE_LIMIT else -energy
        for gap, energy in zip(gaps, energies)
    ]
    return torch.tensor(scores, dtype=torch.float64)


def test_scores_are_those_of_a_search_over_all_pairs():
    rows, labels, clean, y, _ = release(0)
    expected = brute_force(rows, labels, clean, y, 1.0)
    torch.testing.assert_close(noise_coincidence(rows, labels, clean, y, BATCH, 1.0), expected)


def test_a_member_alone_in_its_batch_is_told_by_the_size_of_its_implied_noise():
    """32 candidates, of whom at most one is in each batch of 8; the other rows are strangers'. The
    rows' noise is half as large as the differences of records, so a member's implied noise is that
    of the batch and others' is larger."""
    g = torch.Generator().manual_seed(3)
    clean = torch.randn(32, WIDTH, generator=g)
    strangers = torch.randn(16 * 7, WIDTH, generator=g)
    noise = 0.5 * torch.randn(16, WIDTH, generator=g)
    rows = torch.cat(
        [torch.cat([clean[i : i + 1], strangers[7 * i : 7 * i + 7]]) + noise[i] for i in range(16)]
    )
    one = torch.zeros(16 * 8, dtype=torch.long)
    scores = noise_coincidence(rows, one, clean, one[:32], BATCH, 0.5)
    assert scores.max() < 0  # nothing coincides
    assert roc(scores, (torch.arange(32) < 16).numpy()).auc > 0.9
    # two more in one batch: they coincide, so they rank first
    joined = torch.cat([rows, clean[30:32] + noise[:1]])
    again = noise_coincidence(
        joined, torch.zeros(len(joined), dtype=torch.long), clean, one[:32], BATCH, 0.5
    )
    assert again.topk(2).indices.sort().values.tolist() == [30, 31] and again[:30].max() < 0


def test_members_coincide_and_others_do_not():
    rows, labels, clean, y, member = release(1)
    scores = noise_coincidence(rows, labels, clean, y, BATCH, 1.0)
    assert scores[member].min() > scores[~member].max() + 5  # e^5 times nearer


def test_coins_that_say_nothing_are_not_found():
    """Rows of other records of the same distribution: no candidate was released, whatever its coin
    says."""
    aucs = []
    for seed in range(40):
        rows, labels, _, _, _ = release(seed)
        _, _, clean, y, member = release(seed + 1000)
        aucs.append(roc(noise_coincidence(rows, labels, clean, y, BATCH, 1.0), member.numpy()).auc)
    assert abs(sum(aucs) / len(aucs) - 0.5) < 0.05  # 3.3 standard errors: .095 / sqrt(40) each


def test_a_candidate_of_an_absent_class_gets_the_lowest_score():
    rows, labels, clean, y, _ = release(2)
    y = torch.where(torch.arange(40) == 5, 9, y)
    scores = noise_coincidence(rows, labels, clean, y, BATCH, 1.0)
    assert scores[5] == scores.min()


def test_an_empty_release_and_bad_batches():
    clean = torch.randn(3, WIDTH)
    y = torch.zeros(3, dtype=torch.long)
    assert noise_coincidence(torch.zeros(0, WIDTH), y[:0], clean, y, BATCH, 1.0).tolist() == [
        0,
        0,
        0,
    ]
    with pytest.raises(ValueError, match="batch"):
        noise_coincidence(clean, y, clean, y, 0, 1.0)
    with pytest.raises(ValueError, match="std"):
        noise_coincidence(clean, y, clean, y, BATCH, 0.0)


def test_the_attack_says_where_noise_is_not_shared():
    masks = torch.tensor([[True, False]])
    worlds = Worlds({"matched_filter": torch.zeros(1, 2)}, masks, torch.zeros(2), torch.zeros(2))
    knowledge = Knowledge((1, 2, 2), 10, torch.zeros(1, 1, 2, 2), torch.zeros(1))
    view = View(Surface.FEATURES, Adversary.SERVER, (), knowledge, worlds)
    assert "own noise" in SharedNoise(signal="shared_noise").nothing_to_read(view)
