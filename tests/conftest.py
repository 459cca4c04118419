"""What all tests share: one thread, a repeatable hypothesis profile, and small audits made once a
session."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import random
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Read by numpy as it is imported, and by what a test starts. With two workers on two cores, each of
# which multiplies matrices on both, most of the time is spent in waiting for one another: ten times
# and more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# engine=auto has one process: two workers of pytest have the cores
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

import hypothesis
import numpy as np
import pytest
import torch

from tests import quick_configs

torch.set_num_threads(1)
gc.disable()  # until all tests are collected
# 15 ms for each of ten thousand files, and no test cuts the power
REAL_FSYNC, os.fsync = (os.fsync, lambda handle: None)
quick_configs.install()
hypothesis.settings.register_profile(
    "privdd", deadline=None, max_examples=25, derandomize=True, database=None
)
hypothesis.settings.load_profile("privdd")

SMALL_AUDIT = [
    "preset=smoke",
    "data=digits",
    "data.limit=200",
    "data.test_limit=80",
    "partition=iid",
    "partition.clients=3",
    "audit.records=40",
    "audit.worlds=6",
    "audit.victims=1",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
    "attack.gradient_inversion.method.iterations=5",
    "attack=[lira,loss_threshold,label_counts,known_neighbour,gradient_inversion]",
]
LONGEST = (
    "test_noise_and_sampling_audits.py",
    "test_unusual_sound_mechanisms.py",
    "test_client_outputs.py",
    "test_run_folder.py",
)
FEDAVG = ["algo=fedavg", "algo.rounds=2", "algo.local_epochs=3"]
FEDFED = ["algo.distill_rounds=2", "algo.base.rounds=1"]
# the last of two lists counts
PICTURES = "attack=[lira,loss_threshold,label_counts,gradient_inversion,copy_detection]"
# Of DP-SGD few steps of narrow networks: T1 plays each some hundred times over.
AUDITS = {
    "fedavg": FEDAVG,
    "fedavg_seed1": [*FEDAVG, "seed=1"],
    "fedavg_dpsgd": [
        *FEDAVG,
        "privacy=dpsgd",
        "privacy.sampling_probability=0.5",
        "algo.local_epochs=1",
        "model.width=4",
    ],
    "fedavg_client": [*FEDAVG, "privacy=client"],
    "feddm": ["algo=feddm", "algo.rounds=1", PICTURES],
    "feddm_dp": ["algo=feddm_dp", "algo.rounds=1", PICTURES],
    "fedfed": ["algo=fedfed", *FEDFED],
    "fedfed_released": ["algo=fedfed_released", *FEDFED],
    "fedfed_dp": [
        "algo=fedfed_dp",
        "algo.distill_rounds=1",
        "algo.base.rounds=1",
        "algo.generator.width=4",
        "privacy.sampling_probability=0.5",
    ],
}


def is_nightly(mark: pytest.Mark, case: str) -> bool:
    """Whether the mark means this case of its test: ``nightly`` means all, ``nightly(cases=[...])``
    these alone, ``nightly(but=[...])`` all others."""
    if "cases" in mark.kwargs:
        return case in mark.kwargs["cases"]
    return case not in mark.kwargs.get("but", ())


def check_nightly_cases(items: Iterable[pytest.Item]) -> None:
    """Raises CollectError if a ``nightly`` mark names a case that its test does not have.

    items: all cases of one test.
    """
    cases = set()
    named = set()
    for item in items:
        cases.add(item.callspec.id if hasattr(item, "callspec") else "")
        for mark in item.own_markers:
            if mark.name == "nightly":
                named |= {*mark.kwargs.get("cases", ()), *mark.kwargs.get("but", ())}
    unknown = sorted(named - cases)
    if unknown:
        raise pytest.Collector.CollectError(
            f"nightly names {', '.join(map(repr, unknown))}; cases are: {', '.join(sorted(cases))}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> Generator[None, Any, Any]:
    """Here all cases of a test are there, also if the command names one of them."""
    made = yield
    if isinstance(made, list):
        check_nightly_cases(made)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unmarks the cases that stay in the first suite, and takes the largest files first: else one
    of them runs on while the other worker has nothing left. PRIVDD_TEST_ORDER=SEED: files in random
    order, and the tests of each file too; =given: as they were named."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
        case = item.callspec.id if hasattr(item, "callspec") else ""
        item.own_markers = [
            mark for mark in item.own_markers if mark.name != "nightly" or is_nightly(mark, case)
        ]
    order = list(files.values())
    seed = os.environ.get("PRIVDD_TEST_ORDER")
    if seed is None:
        order.sort(key=lambda tests: tests[0].path.name not in LONGEST)
    elif seed != "given":
        shuffled = random.Random(int(seed))
        shuffled.shuffle(order)
        for tests in order:
            shuffled.shuffle(tests)
    items[:] = [item for tests in order for item in tests]


def freeze_heap() -> None:
    """Leave what lives now out of the search for cycles, and out of ``gc.get_objects``."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Modules and collected tests live as long as their worker: to search these 700,000 objects for
    cycles again and again takes a tenth of its time. What tests make is searched as usual."""
    freeze_heap()
    gc.enable()


@pytest.hookimpl(trylast=True)  # after fixtures of the file have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file leaves behind (modules that it imported, federations that are kept) lives on
    too."""
    if nextitem is None or nextitem.path != item.path:
        freeze_heap()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws from torch's global generator does not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture
def system_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator stands in for the operating system's bits, so that a statistical test repeats
    itself."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(5).bytes)


def pytest_report_header() -> str | None:
    seed = os.environ.get("PRIVDD_TEST_ORDER")
    return None if seed is None else f"order of tests: PRIVDD_TEST_ORDER={seed}"


@dataclass(frozen=True)
class SmallAudit:
    """A finished run folder, its exit status, and the global random states before and after it
    (digests)."""

    name: str
    overrides: tuple[str, ...]
    path: Path
    status: int
    printed: str
    random_states: tuple[tuple[str, ...], tuple[str, ...]]


def global_random_states() -> tuple[str, ...]:
    """Of torch's, numpy's and Python's global generators: different digests for different
    states."""
    kind, words, *rest = np.random.get_state()  # noqa: NPY002
    states = torch.get_rng_state().tolist(), (kind, words.tolist(), rest), random.getstate()  # type: ignore[attr-defined]
    return tuple(sha256(repr(state).encode()).hexdigest() for state in states)


def small_audit(name: str, path: Path) -> SmallAudit:
    """Run one of ``AUDITS`` into ``path``, in this process; only "fedfed" draws its page, the slow
    part."""
    from privdd.cli.compose import compose_config
    from privdd.cli.run import run_audit

    overrides = [*SMALL_AUDIT, *AUDITS[name]]
    config = compose_config("audit", [*overrides, f"name={name}"])
    out = StringIO()
    before = global_random_states()
    drawing = (
        nullcontext()
        if name == "fedfed"
        else patch("privdd.reporting.page.write_report", return_value=path / "report.html")
    )
    with redirect_stdout(out), drawing:
        status = run_audit(config, path, ["python", "-m", "privdd.audit", *overrides])
    return SmallAudit(
        name, tuple(overrides), path, status, out.getvalue(), (before, global_random_states())
    )


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the workers of this session have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def audited(shared: Path) -> Callable[[str], SmallAudit]:
    """name -> that small audit, run on first use by one worker, read by the tests of all and
    changed by none."""

    @cache
    def get(name: str) -> SmallAudit:
        path = shared / "audits" / name
        told = shared / "audits" / f"{name}.json"
        with alone(shared / "audits" / f"{name}.lock"):
            if not told.is_file():
                shutil.rmtree(path, ignore_errors=True)  # of a worker that failed half-way
                made = small_audit(name, path)
                told.write_text(
                    json.dumps([made.overrides, made.status, made.printed, made.random_states])
                )
        overrides, status, printed, (before, after) = json.loads(told.read_text())
        return SmallAudit(
            name, tuple(overrides), path, status, printed, (tuple(before), tuple(after))
        )

    return get


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One worker at a time; another one waits."""
    file.parent.mkdir(exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed
        yield


@pytest.fixture(scope="session")
def run_small_audit() -> Callable[[str, Path], SmallAudit]:
    """A fresh small audit into a folder of the test's own."""
    return small_audit
