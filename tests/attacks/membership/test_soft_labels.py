"""Soft labels: a linear student is its teacher, and knows what the teacher memorised (Behrens and
Zdeborova 2025)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.membership.signals import logit_scaled, ridge_readout
from attacks.membership.soft_labels import SoftLabels, soft_label_student
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, View, Worlds

CLASSES = 5
FEATURES = 40
RECORDS = 40  # half of them are members
RELEASED = 120  # rows of the set, none of them a record
TEMPERATURE = 2.0
STEPS = 400


def memorised(seed: int) -> dict[str, Tensor]:
    """A linear teacher of members with random labels, and its soft labels of other random rows."""
    g = torch.Generator().manual_seed(seed)
    records = torch.randn(RECORDS, FEATURES, generator=g, dtype=torch.float64)
    labels = torch.randint(CLASSES, (RECORDS,), generator=g)
    weight = torch.zeros(FEATURES, CLASSES, dtype=torch.float64)
    members = slice(0, RECORDS // 2)
    for _ in range(STEPS):
        residual = F.one_hot(labels[members], CLASSES) - (records[members] @ weight).softmax(1)
        weight += 0.05 * records[members].T @ residual
    rows = torch.randn(RELEASED, FEATURES, generator=g, dtype=torch.float64)
    soft = (rows @ weight / TEMPERATURE).softmax(1)
    return {"records": records, "labels": labels, "weight": weight, "rows": rows, "soft": soft}


def member_auc(scores: Tensor) -> float:
    return roc(scores, torch.arange(RECORDS) < RECORDS // 2).auc


def test_a_student_of_enough_soft_labels_is_the_teacher_over_its_temperature() -> None:
    case = memorised(0)
    student = soft_label_student(case["rows"], case["soft"], case["records"], ridge=1e-9)
    teacher = case["records"] @ case["weight"] / TEMPERATURE
    centred = teacher - teacher.mean(1, keepdim=True)
    torch.testing.assert_close(student, centred, rtol=1e-4, atol=1e-4)


def test_fewer_rows_than_features_are_solved_by_their_inner_products() -> None:
    """The same ridge solution by the other side of its normal equations."""
    case = memorised(0)
    few = soft_label_student(case["rows"][:30], case["soft"][:30], case["records"], ridge=1e-9)
    x = case["rows"][:30] - case["rows"][:30].mean(0)
    logarithms = case["soft"][:30].log()
    taught = logarithms - logarithms.mean(1, keepdim=True)
    weights = torch.linalg.pinv(x, rtol=1e-6) @ (taught - taught.mean(0))
    known = (case["records"] - case["rows"][:30].mean(0)) @ weights + taught.mean(0)
    torch.testing.assert_close(few, known, rtol=1e-4, atol=1e-4)


def test_memories_are_read_off_soft_labels_in_nine_of_ten_seeds_and_less_off_hard_ones() -> None:
    found = 0
    by_soft, by_hard = [], []
    for seed in range(10):
        case = memorised(seed)
        student = soft_label_student(case["rows"], case["soft"], case["records"])
        hard = ridge_readout(
            case["rows"].float(), case["soft"].argmax(1), case["records"].float(), CLASSES
        )
        right = (student.argmax(1) == case["labels"])[: RECORDS // 2]
        by_soft.append(member_auc(logit_scaled(student, case["labels"])))
        by_hard.append(member_auc(logit_scaled(hard, case["labels"])))
        found += bool(right.double().mean() >= 0.95 and by_soft[-1] >= 0.95)
    assert found >= 9, by_soft
    assert sum(soft > hard for soft, hard in zip(by_soft, by_hard)) >= 9, by_hard


def test_no_memory_is_found_where_the_teacher_has_none() -> None:
    """Ten teachers of the other ten records: the area is one half within four deviations."""
    areas = []
    for seed in range(10):
        case = memorised(seed)
        g = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(RECORDS, generator=g)
        student = soft_label_student(case["rows"], case["soft"], case["records"])
        scores = logit_scaled(student, case["labels"])
        areas.append(member_auc(scores[shuffled]))
    # of one area without a leak: sqrt((m + n + 1) / (12 m n))
    deviation = ((RECORDS + 1) / (12 * (RECORDS // 2) ** 2) / len(areas)) ** 0.5
    assert abs(sum(areas) / len(areas) - 0.5) < 4 * deviation


@pytest.mark.parametrize(("rows", "soft"), [((0, 4), (0, 3)), ((5, 4), (6, 3)), ((5, 7), (5, 3))])
def test_shapes_that_do_not_fit_are_refused(rows: tuple[int, int], soft: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="are needed"):
        soft_label_student(torch.zeros(rows), torch.zeros(soft), torch.zeros(2, 4))


def test_hard_labels_leave_nothing_to_read() -> None:
    masks = torch.rand(6, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    signals = {"confidence": torch.randn(6, 8, generator=torch.Generator().manual_seed(1))}
    worlds = Worlds(signals, masks, torch.zeros(8), torch.zeros(8))
    knowledge = Knowledge((1, 2, 2), 2, torch.zeros(1, 1, 2, 2), torch.zeros(1))
    view = View(Surface.SYNTHETIC_IMAGES, Adversary.SERVER, (), knowledge, worlds)
    assert SoftLabels().nothing_to_read(view) == "no soft labels were released with these rows"
