"""Classes of one to three records: rows that are solved for, against rows that are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attacks.inversion.class_opening import ClassOpening, open_classes, open_pair, open_triple
from attacks.inversion.released_rows import (
    released_labels,
    released_rows,
)
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View
from tests.attacks.pictures import rng

SIZES = (1, 2, 3, 5)
SIDE = 6
WIDTH = SIDE**2
FLOAT32 = 1e-3  # of a row's length


def unit_rows(count: int, seed: int) -> Tensor:
    """Rows of norm 1 around one direction, in float32."""
    rows = 1 + torch.randn(count, WIDTH, generator=rng(seed))
    return rows / rows.norm(dim=1, keepdim=True)


def labels_of_sizes(*sizes: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def message(rows: Tensor, labels: Tensor, *, by_class: bool = True) -> dict[str, Tensor]:
    """Class sums, counts and second moments."""
    members = [rows[labels == label] for label in range(int(labels.max()) + 1)]
    second = torch.stack([own.T @ own for own in members])
    if not by_class:
        second = second.sum(0)
    count = torch.tensor([float(len(own)) for own in members])
    return {"sum": torch.stack([own.sum(0) for own in members]), "count": count, "second": second}


def largest_error(found: Tensor, rows: Tensor) -> float:
    """The largest distance from a row to the nearest one that was found."""
    assert found.shape == rows.shape
    return float(torch.cdist(rows.double(), found.double()).amin(1).max())


def test_two_rows_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert largest_error(open_pair(rows.sum(0), rows.T @ rows), rows) < 1e-6
    same = torch.tensor([[0.6, 0.8], [0.6, 0.8]])
    assert largest_error(open_pair(same.sum(0), same.T @ same), same) < FLOAT32


def test_three_rows_by_hand() -> None:
    """L = (2, 2/3) and g = (0, sqrt(2/3) / 3), so that A = B = 4/9."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = open_triple(rows.sum(0), rows.T @ rows)
    assert found is not None and largest_error(found, rows) < 1e-6


def test_three_rows_that_any_angle_fits_are_left() -> None:
    rows = torch.eye(3)
    assert open_triple(rows.sum(0), rows.T @ rows) is None


def test_three_rows_of_different_lengths_are_left() -> None:
    rows = unit_rows(3, 0) * torch.tensor([[1.0], [1.5], [0.5]])
    assert open_triple(rows.sum(0), rows.T @ rows) is None


def test_planted_records_are_found_in_nine_of_ten_seeds() -> None:
    """One setting for each size; rows in float32, as they are sent."""
    labels = labels_of_sizes(*SIZES)
    hits = dict.fromkeys((1, 2, 3), 0)
    for seed in range(10):
        rows = unit_rows(len(labels), seed)
        value = message(rows, labels)
        opened = open_classes(value["sum"], value["count"], value["second"])
        for size in hits:
            own = opened.rows[opened.sizes == size]
            known = rows[labels == SIZES.index(size)]
            hits[size] += own.shape == known.shape and largest_error(own, known) < FLOAT32
    assert min(hits.values()) >= 9, hits


@pytest.mark.parametrize(
    ("sizes", "opened"),
    [((1, 2, 1), (1, 2, 1)), ((3, 1, 0, 1), (3, 1, 1)), ((1, 2, 2), (1,)), ((1, 2, 9), (1,))],
)
def test_moments_of_all_records_open_one_class_beside_single_records(
    sizes: tuple[int, ...], opened: tuple[int, ...]
) -> None:
    labels = labels_of_sizes(*sizes)
    rows = unit_rows(len(labels), 3)
    value = message(rows, labels, by_class=False)
    found = open_classes(value["sum"], value["count"], value["second"])
    assert len(found.rows) == sum(opened)
    known = rows[torch.isin(labels, found.labels)]
    assert largest_error(found.rows, known) < FLOAT32
    assert found.sizes.unique().tolist() == sorted(set(opened))


def test_without_second_moments_single_records_are_open() -> None:
    labels = labels_of_sizes(2, 1, 3)
    rows = unit_rows(6, 1)
    value = message(rows, labels)
    found = open_classes(value["sum"], value["count"])
    assert found.labels.tolist() == [1] and torch.equal(found.rows[0], rows[2])


def as_images(rows: Tensor) -> Tensor:
    return rows.reshape(-1, 1, SIDE, SIDE)


def held(value: dict[str, Tensor], *, known_map: bool = True) -> View:
    maps = {"embedding": lambda x: x.flatten(1)} if known_map else {}
    public = as_images(unit_rows(20, 9))
    knowledge = Knowledge(
        (1, SIDE, SIDE), len(value["count"]), public, torch.zeros(20, dtype=torch.int64), maps=maps
    )
    captures = (Capture(0, 0, "prototypes", value),)
    return View(Surface.PROTOTYPES, Adversary.SERVER, captures, knowledge)


def truth_of(rows: Tensor, labels: Tensor) -> Truth:
    decoys = as_images(unit_rows(40, 8))
    classes = torch.arange(40) % 4
    return Truth(as_images(rows), labels, decoys, classes, labels.bincount())


def test_the_finding_says_which_classes_are_open() -> None:
    labels = labels_of_sizes(*SIZES)
    rows = unit_rows(len(labels), 5)
    view = held(message(rows, labels))
    attack = ClassOpening()
    assert attack.nothing_to_read(view) == ""
    finding = attack.judge(attack.run(view, rng()), view, truth_of(rows, labels))
    assert finding.measures.n == 6 and finding.measures.identified == 1
    assert finding.measures.identified_chance == pytest.approx(
        (1 / 11 + 2 * 2 / 12 + 3 * 3 / 13) / 6
    )
    assert "classes 0 (1 record), 1 (2 records), 2 (3 records) opened" in finding.measures.note


def test_rows_of_other_records_are_no_records_of_this_client() -> None:
    labels = labels_of_sizes(*SIZES)
    view = held(message(unit_rows(len(labels), 6), labels))
    attack = ClassOpening()
    truth = truth_of(unit_rows(len(labels), 7), labels)
    finding = attack.judge(attack.run(view, rng()), view, truth)
    assert finding.measures.identified < 0.5
    assert "of no class is every row" in finding.measures.note


def test_a_row_that_shows_its_class_alone_is_at_chance_level() -> None:
    """Members and decoys of a class lie around its centre, and the row is another draw."""
    generator = rng()
    hits = []
    chances = []
    for _ in range(60):
        labels = torch.arange(4)
        centres = 10 * torch.eye(SIDE * SIDE)[:4]
        draws = torch.randn(9, 4, SIDE * SIDE, generator=generator)
        members, row, *decoys = centres + draws
        known = Truth(
            as_images(members),
            labels,
            as_images(torch.cat(decoys)),
            labels.repeat(7),
            labels.bincount(),
        )
        view = held(message(row, labels))
        attack = ClassOpening()
        finding = attack.judge(attack.run(view, generator), view, known)
        hits.append(finding.measures.identified)
        chances.append(finding.measures.identified_chance)
    assert chances[0] == pytest.approx(1 / 8)
    # 240 rows at 1 / 8: a standard deviation of .021
    assert abs(sum(hits) / 60 - 1 / 8) < 0.065


def test_class_means_beside_marks_of_held_classes_are_at_chance_level() -> None:
    """A client sends 1 for each class that it has, of six records each: the mean of a class lies as
    near to a member as to one of as many decoys."""
    generator = rng()
    hits = []
    for _ in range(40):
        labels = labels_of_sizes(6, 6, 6, 6)
        centres = 10 * torch.eye(SIDE * SIDE)[:4]
        members, decoys = centres[labels] + torch.randn(2, 24, SIDE * SIDE, generator=generator)
        row = centres + torch.randn(4, SIDE * SIDE, generator=generator)
        known = Truth(as_images(members), labels, as_images(decoys), labels, labels.bincount())
        view = held({"mean": row, "count": torch.ones(4)})
        attack = ClassOpening()
        finding = attack.judge(attack.run(view, generator), view, known)
        assert finding.measures.identified_chance == pytest.approx(1 / 2)
        hits.append(finding.measures.identified)
    # 160 rows at 1 / 2: a standard deviation of .04
    assert abs(sum(hits) / 40 - 1 / 2) < 0.12


def test_it_says_why_there_is_nothing_to_open() -> None:
    labels = labels_of_sizes(4, 5)
    value = message(unit_rows(9, 2), labels)
    attack = ClassOpening()
    assert "no class of at most 3" in attack.nothing_to_read(held(value))
    assert "no map" in attack.nothing_to_read(held(value, known_map=False))
    noised = {**value, "count": value["count"] + 0.3}
    assert "whole numbers" in attack.nothing_to_read(held(noised))


def test_feature_inversion_inverts_the_rows_of_opened_classes() -> None:
    """Classes of 1, 2, 3 and 5 records: six rows of single records, and one mean."""
    labels = labels_of_sizes(*SIZES)
    rows = unit_rows(len(labels), 5)
    view = held(message(rows, labels))
    found = released_rows(view, view.captures[0], None)
    assert largest_error(found[:6], rows[:6]) < FLOAT32
    means = {key: part for key, part in message(rows, labels).items() if key != "sum"}
    means["mean"] = message(rows, labels)["sum"] / means["count"][:, None]
    by_means = held(means)
    torch.testing.assert_close(released_rows(by_means, by_means.captures[0], None), found)
    torch.testing.assert_close(found[6], rows[6:].mean(0))
    known = released_labels(view, len(found))
    assert known is not None and known.tolist() == [0, 1, 1, 2, 2, 2, 3]
