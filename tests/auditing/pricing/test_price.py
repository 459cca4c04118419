"""A price says CPU seconds by stage and the time on an engine's workers."""

from __future__ import annotations

import pytest

from privdd.auditing.pricing.price import LOADING, WORKER, Price, loading
from privdd.runtime.engine import Engine


def test_wall_is_shared_by_workers_but_for_the_longest_attack() -> None:
    stages = {"start": 4.0, "train": 6.0, "worlds": 10.0, "attacks": 20.0}
    assert Price(stages, 5.0, 1, 0, 0).wall == pytest.approx(40)
    assert Price(stages, 5.0, 4, 0, 0).wall == pytest.approx(4 + 36 / 4)
    assert Price(stages, 18.0, 4, 0, 0).wall == pytest.approx(4 + 36 / 4 + 18 - 20 / 4)
    assert Price(stages, 18.0, 2, 2 * 10**9, 10**6).lines()[-1] == (
        "about 30 s on 2 workers, 40 CPU s; memory 2 GB, disk 1 MB"
    )


def test_every_worker_has_to_load_the_program() -> None:
    assert loading(Engine()) == {}
    for kind in ("processes", "ray"):
        assert loading(Engine(kind, workers=3)) == {LOADING: 3 * WORKER}
        assert Price({"start": 4.0, **loading(Engine(kind, workers=3))}, 0.0, 3, 0, 0).wall == pytest.approx(4 + WORKER)
