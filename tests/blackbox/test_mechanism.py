"""Black boxes: what goes in, and that everything that comes out is seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from privdd.blackbox.budgets import CallBudget, OutOfTime
from privdd.blackbox.mechanism import BlackBox, InputRefused
from privdd.blackbox.transcripts import draw_transcripts


@dataclass
class Answer:
    w: np.ndarray
    loss: float


@pytest.mark.parametrize(
    ("value", "numbers", "says"),
    [
        ([np.ones(2), np.float32(3)], [1, 1, 3], "float64(2,)"),
        ({"w": torch.ones(1, 2), "n": 5}, [1, 1, 5], "n"),
        (Answer(np.zeros(1), 0.5), [0, 0.5], "Answer"),
        (([np.arange(3)], "four"), [0, 1, 2], "'four'"),
        (np.array([1.0, np.nan, np.inf]), [1, 0, 0], "1 NaN, 1 infinite"),
        ({}, [], "dict[]"),
        ([np.complex128(1 + 2j), 3j], [1, 2, 0, 3], "complex128"),
    ],
)
def test_every_number_and_every_word_is_released(
    value: object, numbers: list[float], says: str
) -> None:
    release = BlackBox(lambda: lambda update: value, "update").transcript([[np.ones(1)]])
    assert release.numbers.tolist() == numbers and says in release.signature


def test_the_end_of_a_long_text_counts() -> None:
    sent = [
        BlackBox(lambda end=end: lambda x: [1.0, "a" * 5000 + end], "records").transcript(
            [np.ones((1, 1))]
        )
        for end in "bc"
    ]
    assert sent[0].signature != sent[1].signature and max(len(one.signature) for one in sent) < 1000


def test_inputs_are_copies_and_errors_are_answers() -> None:
    def spoils(update):
        update[0] += 1
        if update[0][0] > 2:
            raise ZeroDivisionError("two")
        return update

    mechanism = BlackBox(lambda: spoils, "update")
    data = [np.ones(2)]
    assert mechanism.transcript([data, data]).numbers.tolist() == [2, 2, 2, 2]
    assert data[0].tolist() == [1, 1] and mechanism.calls == 2
    with pytest.raises(InputRefused, match="ZeroDivisionError: two"):
        mechanism.transcript([[np.full(2, 2.0)]])


def test_a_class_is_made_anew_for_each_transcript() -> None:
    class Counts:
        def __init__(self) -> None:
            self.n = 0

        def __call__(self, x):
            self.n += 1
            return self.n

    block = draw_transcripts(
        BlackBox(Counts, "records"), [np.ones((1, 1))] * 2, 3, CallBudget(10, 1000)
    )
    assert block.rows[:, :, 0].tolist() == [[1, 2]] * 3


def test_a_spent_budget_is_said() -> None:
    mechanism = BlackBox(lambda: lambda x: x, "records", calls=10)
    with pytest.raises(OutOfTime):
        draw_transcripts(mechanism, [np.ones((1, 1))], 1, CallBudget(10, 10))
