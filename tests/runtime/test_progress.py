"""The time that is left, by hand: three quarters of the work takes three times as long as the first
quarter."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from privdd.runtime import progress
from privdd.runtime.progress import ProgressBar, format_seconds


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (5.4, "5 s"),
        (59.6, "1 min 00 s"),
        (75, "1 min 15 s"),
        (3599.6, "1 h 00 min"),
        (4000, "1 h 06 min"),
        (-3, "0 s"),
    ],
)
def test_seconds_in_words(seconds: float, said: str) -> None:
    assert format_seconds(seconds) == said


def test_what_is_left_is_told_from_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    out = io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    bar = ProgressBar("stage", 4, out, began=100.0, spoke=100.0)
    for at, note in ((105.0, "silent"), (130.0, ""), (140.0, "silent"), (160.0, "note")):
        now[0] = at
        bar.advance(note)
    assert out.getvalue().splitlines() == [
        "stage: 2/4, about 30 s left",
        "stage: 4/4, done in 1 min 00 s, note",
    ]


def test_what_is_left_is_told_from_the_work_where_tasks_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first task of 30 parts in 34 took 30 seconds: the other four take one each."""
    now = [0.0]
    out = io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    bar = ProgressBar("attack", 5, out, work=34.0, began=0.0, spoke=0.0)
    now[0] = 30.0
    bar.advance("search", work=30.0)
    assert out.getvalue() == "attack: 1/5, about 4 s left, search\n"
