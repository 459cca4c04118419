"""RMIA with few shadow models that lack the record, against the closed form and on a null."""

import pytest
import torch

from attacks.membership.rmia import OfflineRmia, rmia, shadow_indices
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, View, Worlds


def view(gap: float, seed: int = 0, worlds: int = 12, n: int = 200) -> View:
    g = torch.Generator().manual_seed(seed)
    masks = torch.rand(worlds, n, generator=g) < 0.5
    signal = 2 * torch.randn(n, generator=g) + torch.randn(worlds, n, generator=g) + gap * masks
    held = Worlds({"confidence": signal}, masks, torch.zeros(n), torch.zeros(n, dtype=torch.long))
    public = torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.long)
    return View(Surface.UPDATE, Adversary.SERVER, (), Knowledge((1, 2, 2), 2, *public, settings={"delta": 1e-5}), held)


def auc(seen: View, attack: OfflineRmia) -> float:
    scores = attack.run(seen, torch.Generator().manual_seed(1)).scores
    return roc(scores.flatten(), seen.worlds.masks.flatten().numpy()).auc


def test_the_score_is_the_offline_ratio_of_the_shadows_chosen() -> None:
    seen = view(1.0)
    scores = OfflineRmia(shadows=3).run(seen, torch.Generator().manual_seed(1)).scores
    chosen, probs = [6, 7, 8], seen.worlds.signals["confidence"].double().sigmoid()
    expected = rmia(probs[chosen], seen.worlds.masks[chosen], probs[5], a=0.3, online=False)
    torch.testing.assert_close(scores[5], expected)
    record = int((~seen.worlds.masks[chosen]).all(0).nonzero()[0])  # p = ((1 + a) p_out + 1 - a) / 2 by hand
    torch.testing.assert_close(scores[5][record], probs[5][record] / ((1.3 * probs[chosen][:, record].mean() + 0.7) / 2))


@pytest.mark.parametrize(("target", "worlds", "count", "expected"), [(0, 12, 3, [1, 2, 3]), (10, 12, 3, [11, 0, 1]), (1, 3, 9, [2, 0])])
def test_shadows_are_the_worlds_after_the_target_and_never_itself(target, worlds, count, expected) -> None:
    assert shadow_indices(target, worlds, count).tolist() == expected


def test_it_finds_a_leak_and_no_more_shadows_are_used_than_are_paid_for() -> None:
    assert auc(view(1.5), OfflineRmia()) > 0.65
    seen = view(1.5)
    changed = seen.worlds.signals["confidence"].clone()
    changed[7:] = 0.1  # worlds that the first target does not use
    other = View(seen.surface, seen.adversary, (), seen.knowledge, Worlds({"confidence": changed}, *(seen.worlds.masks, seen.worlds.blind, seen.worlds.labels)))
    first, again = (OfflineRmia().run(v, torch.Generator().manual_seed(1)).scores[0] for v in (seen, other))
    torch.testing.assert_close(first, again)


def test_on_a_null_it_guesses() -> None:
    found = [auc(view(0.0, seed), OfflineRmia()) for seed in range(20)]
    assert abs(sum(found) / 20 - 0.5) < 0.01
