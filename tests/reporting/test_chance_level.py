"""What says nothing beats nothing: nulls of every shape, from scores to the first sentence;
families that outrank others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attacks.inversion.labels import LabelCounts
from attacks.membership.measures import membership_measures
from attacks.types import Adversary, Evidence, Knowledge, Surface, Truth, View, Worlds
from privdd.reporting.finding_selection import (
    exceeds_chance,
    is_above_chance,
    ranked_memberships,
    simultaneous_lower_end,
)
from privdd.reporting.leaks import rank_leaks
from privdd.reporting.schema import FindingRow, Scope
from privdd.reporting.summary import verdict_headline
from privdd.runtime.files import to_plain_json
from tests.reporting.test_decision import NOTHING, STRONG, judged, row, run

ALONE = Scope(looks=1)
RECORDS = 400


def draw_masks(replays: int, records: int) -> torch.Tensor:
    return torch.rand(replays, records, generator=torch.Generator().manual_seed(5)) < 0.5


def null_scores(kind: str, masks: torch.Tensor) -> torch.Tensor:
    """Scores (K, n) that do not depend on the masks."""
    generator = torch.Generator().manual_seed(8)
    drawn = torch.rand(masks.shape, generator=generator, dtype=torch.float64)
    shapes = {
        "all equal": torch.zeros_like(drawn),
        "two values": (drawn < 0.5).double(),
        "ties": (drawn * 4).floor(),
    }
    return shapes.get(kind, drawn)


def measured(scores: torch.Tensor, masks: torch.Tensor) -> dict[str, Any]:
    """The finding of an attack with these scores, as its file holds it."""
    worlds = Worlds(
        {}, masks, torch.zeros(masks.shape[1]), torch.zeros(masks.shape[1], dtype=torch.long)
    )
    measures, _ = membership_measures(
        scores, worlds, delta=1e-5, generator=np.random.default_rng(0)
    )
    head = {
        "surface": "features",
        "attack": "lira",
        "family": "membership",
        "adversary": "server",
        "status": "measured",
    }
    return head | to_plain_json(measures.to_row())


@pytest.mark.parametrize("kind", ["all equal", "two values", "ties", "continuous"])
@pytest.mark.parametrize(
    "shape", [(1, RECORDS), (16, 60), (16, 1)], ids=["one model", "replays", "one record"]
)
def test_nothing_beats_chance_in_a_null(kind: str, shape: tuple[int, int]) -> None:
    masks = draw_masks(*shape)
    findings = run([measured(null_scores(kind, masks), masks)], "unprotected", "inf")
    assert not any(one.beats_chance for one in ranked_memberships(*judged(findings)))
    assert rank_leaks(*judged(findings)) == []
    assert not any(" can " in sentence for sentence in verdict_headline(findings).sentences)


def test_a_member_that_always_scores_highest_beats_chance() -> None:
    """The same way through, with scores that reveal every coin."""
    masks = draw_masks(1, RECORDS)
    findings = run([measured(masks.double(), masks)], "unprotected", "inf")
    assert "can identify 100" in verdict_headline(findings).sentences[0]


@pytest.mark.parametrize("rate", [1e-3, 0.01, 0.1, 1 / 3, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("looks", [1, 6, 80])
def test_an_interval_without_width_at_the_chance_level_is_not_above_it(
    rate: float, looks: int
) -> None:
    """The way over the arcsine and back rounds 0.5 up."""
    assert not exceeds_chance(rate, rate, rate, looks)
    assert simultaneous_lower_end(rate, rate, looks) <= rate
    assert exceeds_chance(rate + 1e-6, rate + 1e-6, rate, looks)


@pytest.mark.parametrize("ties", [1, 3, 12])
def test_a_tie_is_half_a_hit_and_half_a_hit_is_none(ties: int) -> None:
    assert not is_above_chance(0.5, 0.5, ties) and not is_above_chance(0.5, 0.4999, ties)


def test_a_bound_above_zero_beats_chance_and_its_attack_is_the_one_that_is_named() -> None:
    shown = row(NOTHING, attack="label_only", epsilon_shown=0.538, epsilon_validity="finite_sample")
    findings = run([row(NOTHING, attack="quantile"), shown], "unprotected", "inf")
    said = verdict_headline(findings).sentences
    assert (
        said[0] == "From the released features, the server can distinguish training records from "
        "non-members (ε of at least 0.538)."
    )
    assert not any("not shown" in sentence for sentence in said)
    assert ranked_memberships(*judged(findings))[0].row.attack == "label_only"
    assumed = row(NOTHING, epsilon_shown=0.5, epsilon_validity="gaussian_only")
    assert rank_leaks(*judged(run([assumed], "unprotected", "inf"))) == []


# One row of every family, each above chance; of nearly all, another that is not.

COPIES = {
    "exact_copies": 50,
    "exact_copies_of_heldout": 0,
    "near_copies": 50,
    "near_copies_of_heldout": 0,
}
NO_COPIES = {
    "exact_copies": 0,
    "exact_copies_of_heldout": 0,
    "near_copies": 3,
    "near_copies_of_heldout": 4,
}
IMAGES = {
    "n": 100,
    "median": 20.0,
    "guess": 12.0,
    "clear": 40,
    "best": 31.0,
    "best_guess": 14.0,
    "chance": 0.01,
}
NO_IMAGES = {**IMAGES, "median": 12.1, "clear": 1}
HEAD = {"surface": "synthetic_images", "adversary": "server", "family": "reconstruction", "n": 50}


def other(attack: str, **more: Any) -> dict[str, Any]:
    return HEAD | {"attack": attack} | more


def nearest(identified: int, p_value: float) -> dict[str, Any]:
    counts = {"identified": identified, "false_alarms": 0, "p_value": p_value}
    test = {"members": 281, "nonmembers": 101, "ranks": [{"rank": 1} | counts]} | counts
    return row(NOTHING, attack="nearest_row", surface="synthetic_images", copy_test=test)


FAMILIES = {
    "copies": other("copy_detection", identified=1.0, identified_chance=0.5, diagnostics=COPIES),
    "reconstruction": other("feature_inversion", psnr=20.0, n=100, pictures=IMAGES),
    "membership": row(STRONG, surface="synthetic_images"),
    "nearest": nearest(111, 1e-18),
    "matched": other("feature_inversion", identified=1.0, identified_chance=0.02),
    "singling out": other("singling_out", identified=0.9, identified_chance=0.2, n=100),
    "linkability": other("linkability", identified=0.9, identified_chance=0.2, n=100),
    "labels": other(
        "label_counts",
        family="label",
        label_accuracy=1.0,
        n=300,
        baselines={"label_accuracy_chance": 0.5},
    ),
}
SAYS = {
    "copies": "50 of 50 released images are exact copies of training images (synthetic images).",
    "reconstruction": "the server can reconstruct 40 of 100 images",
    "membership": "the server can identify 50 % of the training records at 0.1 % FPR",
    "nearest": "the server can identify 111 of 281 training records, and wrongly 0 of 101 "
    "non-members, by the nearest row",
    "matched": "the server can match 50 of 50 reconstructions to the right record (chance 2 %)",
    "singling out": "singling out singles out a training record with 90 of 100 predicates",
    "linkability": "linkability links the two halves of 90 of 100 training records",
    "labels": "the server can read exactly how many records of each class the client holds",
}
UNSHOWN = {
    "copies": other("copy_detection", identified=0.5, identified_chance=0.5, diagnostics=NO_COPIES),
    "reconstruction": other("feature_inversion", psnr=12.1, n=100, pictures=NO_IMAGES),
    "membership": row(NOTHING, surface="synthetic_images"),
    "nearest": nearest(5, 0.01),
    "matched": other("feature_inversion", identified=0.04, identified_chance=0.02),
    "singling out": other("singling_out", identified=0.2, identified_chance=0.2, n=100),
    "labels": other(
        "label_counts",
        family="label",
        label_accuracy=0.5,
        n=300,
        baselines={"label_accuracy_chance": 0.5},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_sentence_on_the_first_screen(family: str) -> None:
    findings = run([FAMILIES[family]], "unprotected", "inf", surface="synthetic_images")
    assert SAYS[family] in verdict_headline(findings).sentences[0].replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (1 - 1e-8, "can read exactly which share of the last round's records each class has"),
        (0.9, "can read the class shares of the last round's 300 records, which overlap by 90 %"),
    ],
)
def test_class_shares_are_those_of_the_clients_that_took_part(rate: float, says: str) -> None:
    """With a generator travel the shares of a round, in which not every client need take part."""
    shares = {**FAMILIES["labels"], "surface": "generator", "label_accuracy": rate}
    (leak,) = rank_leaks(*judged(run([shares], "unprotected", "inf", surface="generator")))
    assert says in leak.phrase.replace("\u00a0", " ")


@pytest.mark.parametrize("family", UNSHOWN)
def test_what_was_not_shown_is_no_leak_of_any_family(family: str) -> None:
    assert (
        rank_leaks(
            *judged(run([UNSHOWN[family]], "unprotected", "inf", surface="synthetic_images"))
        )
        == []
    )


def test_a_copy_outranks_an_image_and_an_image_a_rate() -> None:
    rows = [
        FAMILIES[name]
        for name in ("labels", "linkability", "membership", "reconstruction", "copies")
    ]
    kinds = [
        leak.kind
        for leak in rank_leaks(*judged(run(rows, "unprotected", "inf", surface="synthetic_images")))
    ]
    assert kinds == [
        "copy",
        "reconstruction",
        "membership",
        "identification",
        "identification",
        "labels",
    ]


def test_two_attacks_that_match_the_same_reconstructions_are_told_once() -> None:
    rows = [
        other(attack, identified=1.0, identified_chance=0.25, n=4, surface="update")
        for attack in ("gradient_inversion", "update_inversion")
    ]
    headline = verdict_headline(run(rows, "unprotected", "inf", surface="update"))
    told = [one for one in headline.sentences if "match 4 of 4 reconstructions" in one]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("sent", "leaks"), [([6] * 10, False), ([30, 15, 9, 6, 0, 0, 0, 0, 0, 0], True)]
)
def test_a_class_list_that_is_the_same_for_all_clients_reads_no_labels(
    sent: list[int], leaks: bool
) -> None:
    """A uniform list overlaps any client's classes: as much as the guess that all classes are
    alike."""
    counts = torch.tensor([30, 15, 9, 6, 0, 0, 0, 0, 0, 0])
    nothing = torch.zeros(0, 1, 2, 2)
    no_labels = torch.zeros(0, dtype=torch.long)
    view = View(Surface.LABELS, Adversary.SERVER, (), Knowledge((1, 2, 2), 10, nothing, no_labels))
    truth = Truth(nothing, no_labels, nothing, no_labels, counts)
    finding = LabelCounts().judge(Evidence(extra={"counts": torch.tensor(sent)}), view, truth)
    head = {"surface": "labels", "attack": "label_counts", "family": "label", "adversary": "server"}
    measured = FindingRow.model_validate(head | to_plain_json(finding.measures.to_row()))
    assert bool(rank_leaks([measured], ALONE)) is leaks


@pytest.mark.parametrize(
    ("exact", "control", "surface", "copies"),
    [
        (1, 0, "synthetic_images", True),
        (1, 0, "synthetic_representations", False),
        (12, 12, "synthetic_representations", False),
        (40, 1, "synthetic_representations", True),
        (2, 2, "synthetic_images", False),
    ],
)
def test_copies_count_against_those_of_held_out_records(
    exact: int, control: int, surface: str, copies: bool
) -> None:
    """In a table of few values rows are equal by chance, as often to held-out ones; an image that
    is equal is a copy."""
    counts = {"exact_copies": exact, "near_copies": exact, "near_copies_of_heldout": control}
    finding = FindingRow.model_validate(
        other("copy_detection", surface=surface, n=60, diagnostics=counts)
    )
    assert bool(rank_leaks([finding], ALONE)) is copies


@pytest.mark.parametrize(("control", "copies"), [(4, False), (0, True)])
def test_copies_of_many_training_records_are_held_against_few_held_out_ones(
    control: int, copies: bool
) -> None:
    """Of ten times as many training records ten times as many are near by chance: 40 beside 4 are
    no copies."""
    counts = {
        "exact_copies": 0,
        "near_copies": 40,
        "near_copies_of_heldout": control,
        "training": 5000,
        "heldout": 500,
    }
    counts |= {"near_copies": 40 if control else 400}
    finding = FindingRow.model_validate(other("copy_detection", n=600, diagnostics=counts))
    assert bool(rank_leaks([finding], ALONE)) is copies


def test_members_that_are_named_by_what_was_sent_outrank_a_rate() -> None:
    rows = [FAMILIES["membership"], FAMILIES["nearest"]]
    leaks = rank_leaks(*judged(run(rows, "unprotected", "inf", surface="synthetic_images")))
    assert [leak.row.attack for leak in leaks] == ["nearest_row"]
