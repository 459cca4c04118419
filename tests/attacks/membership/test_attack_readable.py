"""What counts as nothing to read, and that an attack then says so instead of failing."""

from dataclasses import replace

import pytest
import torch

from attacks.membership.attack import (
    SAME_FOR_ALL_RECORDS,
    SAME_IN_ALL_REPLAYS,
    MembershipAttack,
    why_all_uninformative,
    why_uninformative,
)
from attacks.membership.density import GradientDensity
from attacks.membership.lira import Lira
from attacks.membership.shadow_classifier import ShadowClassifier
from tests.attacks.membership.test_attack import truth, view, worlds

NOISE = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (NOISE, ""),
        (NOISE[:, :1].expand(5, 7), SAME_FOR_ALL_RECORDS),
        (NOISE[:1].expand(5, 7), SAME_IN_ALL_REPLAYS),
        (torch.zeros(5, 7), SAME_FOR_ALL_RECORDS),
        (NOISE[:1], ""),  # one replay: nothing to compare with
        (NOISE[:, :1], ""),  # one record: its replays differ
        (NOISE[:1, :1].expand(5, 1), SAME_IN_ALL_REPLAYS),
        (NOISE[:, :1, None].expand(5, 7, 3), SAME_FOR_ALL_RECORDS),
        (torch.stack([NOISE, NOISE[:1].expand(5, 7)], -1), ""),  # one of two numbers may say something
    ],
)
def test_constant_over_records_or_over_replays(values, why):
    assert why_uninformative(values) == why


def test_one_value_of_one_record_in_one_replay_that_differs_is_enough():
    for flat in (NOISE[:, :1].expand(5, 7), NOISE[:1].expand(5, 7)):
        moved = flat.clone()
        moved[3, 4] += 1e-6
        assert why_uninformative(moved) == ""


def test_of_several_signals_one_that_speaks_is_enough():
    flat = torch.zeros(5, 7)
    assert why_all_uninformative([flat, NOISE]) == "" and why_all_uninformative([flat, NOISE[:1].expand(5, 7)]) == SAME_FOR_ALL_RECORDS
    assert why_all_uninformative([]) == ""


def test_each_attack_is_asked_about_what_it_reads():
    """The shadow classifier reads logits, the density attack gradients, LiRA the confidence."""
    w = worlds(logits=True)
    flat = {"confidence": torch.zeros(16, 80), "gradient_norm": w.signals["confidence"]}
    seen = view(replace(w, signals=flat))
    assert SAME_FOR_ALL_RECORDS in Lira().nothing_to_read(seen)
    assert ShadowClassifier().nothing_to_read(seen) == GradientDensity().nothing_to_read(seen) == ""
    other = view(replace(w, signals={"confidence": w.signals["confidence"], "gradient_norm": torch.zeros(16, 80)}))
    assert Lira().nothing_to_read(other) == "" and GradientDensity().nothing_to_read(other) == SAME_FOR_ALL_RECORDS
    still = view(replace(w, logits=torch.zeros(16, 80, 3)))
    assert ShadowClassifier().nothing_to_read(still) == SAME_FOR_ALL_RECORDS


def test_scores_that_are_all_alike_get_no_rate():
    class Mute(MembershipAttack):
        name = "mute"

        def score(self, view, name, seed):
            return torch.zeros(view.worlds.masks.shape, dtype=torch.float64)

    seen = view(worlds())
    measures = Mute().judge(Mute().run(seen, torch.Generator().manual_seed(0)), seen, truth()).measures
    assert measures["status"] == "nothing_to_read" and "scores" in measures["note"]
    assert (measures["n"], measures["worlds"]) == (80, 16) and not {"auc", "epsilon_measured"} & set(measures)
