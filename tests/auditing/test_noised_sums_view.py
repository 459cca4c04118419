"""What the analyst of the noised sums is said to hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attacks.types import Surface
from privdd.auditing import noised_sums
from privdd.auditing.noised_sums import NoisedSumScores, analyst_view
from privdd.auditing.replay import MembershipGame
from privdd.core.types import Records


def test_the_analyst_s_view_names_the_queries_and_no_upload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three mechanisms two answer queries; the surface is that of the first of these."""
    surfaces = {"sums": Surface.PROTOTYPES, "counts": Surface.COUNTS, "upload": Surface.UPDATE}
    subject = SimpleNamespace(surface_of=surfaces.__getitem__)
    monkeypatch.setattr(noised_sums, "guarantee_subject", lambda run, confidence: subject)
    x = torch.rand(6, 1, 2, 2)
    records = Records(x, torch.arange(6) % 2, torch.arange(6))
    masks = torch.tensor([[True, False, True], [False, True, True]])
    game = MembershipGame(records, torch.tensor([0, 2, 5]), masks)
    method = SimpleNamespace(queries={"sums": Surface.PROTOTYPES, "counts": Surface.COUNTS})
    run: Any = SimpleNamespace(
        game=game,
        public_records=records,
        plan=SimpleNamespace(mechanisms=dict.fromkeys(("upload", "sums", "counts")), method=method),
        experiment=SimpleNamespace(audit_settings=SimpleNamespace(confidence=0.95)),
        adversary_knowledge=lambda round: SimpleNamespace(round=round),
        ground_truth=lambda: "the truth",
    )
    scores = NoisedSumScores(masks, torch.rand(2, 3))
    view, truth, note = analyst_view(run, scores, 4)
    assert view.message == "sums, counts"
    assert view.surface == Surface.PROTOTYPES
    assert view.worlds is not None and torch.equal(view.worlds.labels, torch.tensor([0, 0, 1]))
    assert truth == "the truth" and note == noised_sums.ANALYST_NOTE
