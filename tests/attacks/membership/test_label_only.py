"""Label-only membership against a model whose decisions are known, and on a null."""

from dataclasses import replace

import torch
from torch import nn

from attacks.membership.label_only import NOISE_LEVELS, PIXEL_SHIFTS, LabelOnly, label_robustness
from attacks.roc import roc
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View, Worlds

N = 60


class Nearest(nn.Module):
    """Label 1 within ``radius`` of a remembered picture, else 0."""

    def __init__(self, kept: torch.Tensor, radius: float) -> None:
        super().__init__()
        self.kept = nn.Parameter(kept.flatten(1).clone())
        self.radius = radius

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(x.flatten(1), self.kept).amin(1) < self.radius
        return torch.stack([(~near).float(), near.float()], 1)


def test_the_score_is_the_share_of_copies_with_the_right_label() -> None:
    """A model that says "bright" above a mean of 0.5: shifts keep the mean, noise moves it by its
    own mean."""
    x = torch.tensor([0.52, 0.9, 0.1]).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    y = torch.tensor([1, 1, 1])
    scores = label_robustness(
        lambda z: (z.mean((1, 2, 3)) > 0.5).long(), x, y, 8, torch.Generator().manual_seed(0)
    )
    noise = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)).mean((1, 2, 3))
    kept = sum(int((0.52 + level * noise > 0.5).sum()) for level in NOISE_LEVELS)
    expected = (len(PIXEL_SHIFTS) + kept) / (len(PIXEL_SHIFTS) + 8 * len(NOISE_LEVELS))
    torch.testing.assert_close(scores, torch.tensor([expected, 1.0, 0.0], dtype=torch.float64))


def view(remembered: torch.Tensor, masks: torch.Tensor, x: torch.Tensor) -> View:
    model = Nearest(remembered, 2.0)
    labels = torch.ones(N, dtype=torch.long)
    worlds = Worlds({"confidence": torch.zeros(2, N)}, masks, torch.zeros(N), labels, records=x)
    knowledge = Knowledge((1, 5, 5), 2, x, labels, model, settings={"delta": 1e-5})
    sent = Capture(0, 0, "update", {"kept": model.kept.detach().clone()})
    return View(Surface.UPDATE, Adversary.SERVER, (sent,), knowledge, worlds)


def test_it_finds_what_the_sent_model_remembers_and_nothing_in_one_that_remembers_others() -> None:
    x = torch.rand(N, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    masks = torch.rand(2, N, generator=torch.Generator().manual_seed(1)) < 0.5
    seen = view(x[masks[0]], masks, x)
    evidence = LabelOnly().run(seen, torch.Generator().manual_seed(2))
    finding = LabelOnly().judge(evidence, seen, Truth(*[torch.zeros(1)] * 5))
    assert finding.measures.auc > 0.9 and finding.measures.worlds == 1 and finding.measures.n == N
    assert finding.diagnostics["queries_per_record"] == len(PIXEL_SHIFTS) + 8 * len(NOISE_LEVELS)
    found = []
    for seed in range(20):
        coins = torch.rand(2, N, generator=torch.Generator().manual_seed(10 + seed)) < 0.5
        scores = (
            LabelOnly().run(view(x[coins[1]], coins, x), torch.Generator().manual_seed(2)).scores
        )
        found.append(roc(scores[0], coins[0].numpy()).auc)
    assert abs(sum(found) / 20 - 0.5) < 0.05


def test_of_several_networks_that_were_sent_it_reads_the_one_whose_shapes_are_the_models() -> None:
    x = torch.rand(N, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    masks = torch.rand(2, N, generator=torch.Generator().manual_seed(1)) < 0.5
    seen = view(x[masks[0]], masks, x)
    other = Capture(0, -1, "network", {"kept": torch.zeros(3, 4), "body.weight": torch.zeros(2)})
    expected = LabelOnly().run(seen, torch.Generator().manual_seed(2)).scores
    for sent in ((*seen.captures, other), (other, *seen.captures)):
        found = (
            LabelOnly().run(replace(seen, captures=sent), torch.Generator().manual_seed(2)).scores
        )
        assert torch.equal(found, expected)
    assert "not a model" in LabelOnly().nothing_to_read(replace(seen, captures=(other,)))


def test_it_reads_the_model_that_was_sent_and_not_the_one_before() -> None:
    x = torch.rand(N, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    masks = torch.rand(2, N, generator=torch.Generator().manual_seed(1)) < 0.5
    seen = view(x[masks[0]], masks, x)
    seen.knowledge.model.kept.data.zero_()
    assert LabelOnly().run(seen, torch.Generator().manual_seed(2)).scores.max() > 0.5
    nothing = View(seen.surface, seen.adversary, (), seen.knowledge, seen.worlds)
    assert (
        "not a model" in LabelOnly().nothing_to_read(nothing)
        and LabelOnly().nothing_to_read(seen) == ""
    )
