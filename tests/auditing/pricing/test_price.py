"""A price says CPU seconds by stage and the time on an engine's workers."""

from __future__ import annotations

import sys

import pytest

from privdd.auditing.pricing.price import FORKED, LOADED, LOADING, WORKER, Price, loading
from privdd.runtime.engine import Engine


def test_wall_is_shared_by_workers_but_for_the_longest_attack() -> None:
    stages = {"start": 4.0, "train": 6.0, "worlds": 10.0, "attacks": 20.0}
    assert Price(stages, 5.0, 1, 0, 0).wall == pytest.approx(40)
    assert Price(stages, 5.0, 4, 0, 0).wall == pytest.approx(4 + 36 / 4)
    assert Price(stages, 18.0, 4, 0, 0).wall == pytest.approx(4 + 36 / 4 + 18 - 20 / 4)
    assert Price(stages, 18.0, 2, 2 * 10**9, 10**6).lines()[-1] == (
        "about 30 s on 2 workers, 40 CPU s; memory 2 GB, disk 1 MB"
    )


def test_workers_load_the_program_each_or_are_forked_from_one_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert loading(Engine(), "cpu") == {}
    forked = {LOADING: LOADED + 3 * FORKED}
    assert loading(Engine("processes", workers=3), "cpu") == forked
    assert Price({"start": 4.0, **forked}, 0.0, 3, 0, 0).wall == pytest.approx(4 + LOADED / 3 + FORKED)
    for kind, device in (("processes", "cuda"), ("ray", "cpu")):
        assert loading(Engine(kind, workers=3), device) == {LOADING: 3 * WORKER}
        assert Price({"start": 4.0, **loading(Engine(kind, workers=3), device)}, 0.0, 3, 0, 0).wall == pytest.approx(4 + WORKER)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert loading(Engine("processes", workers=3), "cpu") == {LOADING: 3 * WORKER}
