"""The order in which exposed records are named."""

from __future__ import annotations

import numpy as np
import torch

from attacks.membership.measures import _rank_by_exposure


def test_records_stand_by_their_rate_then_by_their_score_then_as_they_came() -> None:
    """Against numpy's sort by several keys, on rates and scores with many ties."""
    generator = torch.Generator().manual_seed(0)
    replays = 4
    records = 300
    scores = torch.randint(3, (replays, records), generator=generator).double()
    masks = torch.ones(replays, records, dtype=torch.bool)
    masks[0] = torch.rand(records, generator=generator) < 0.5
    is_flagged = torch.rand(replays, records, generator=generator) < 0.5
    members = masks.sum(0).numpy()
    rate = (is_flagged & masks).sum(0).numpy() / members
    mean = (scores * masks).sum(0).numpy() / members
    places = np.arange(records)
    expected = np.lexsort((places, -mean, -rate))  # the last key counts first
    found = _rank_by_exposure(scores, is_flagged, masks)
    assert found.tolist() == expected.tolist()
    assert len(np.unique(rate)) < 10 and len(np.unique(mean)) < 30


def test_a_record_that_is_in_no_replay_stands_last() -> None:
    scores = torch.tensor([[9.0, 1.0]])
    masks = torch.tensor([[False, True]])
    flagged = torch.tensor([[True, True]])
    assert _rank_by_exposure(scores, flagged, masks).tolist() == [1, 0]
