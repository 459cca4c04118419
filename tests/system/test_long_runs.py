"""What a run of many rounds and clients writes: the same ledger in parts, without a copy of it in
memory."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import dp_accounting as dpa
import pytest

from privdd.federated.checkpoint import write_ledger
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.runtime.files import to_plain_json

FREE = LedgerRow(
    0,
    3,
    "update",
    "update",
    ("server",),
    {"w": (3, 2), "b": ()},
    "ab" * 16,
    dpa.NonPrivateDpEvent(),
    nonprivate_reason='no "mechanism" ü',
)
NOISY = LedgerRow(
    1,
    3,
    "dpsgd",
    "gradient",
    ("analyst",),
    {"w": (3, 2)},
    "cd" * 16,
    dpa.PoissonSampledDpEvent(0.25, dpa.GaussianDpEvent(1.5)),
    count=9,
    partition="label:3",
    clip_norm=1.0,
    sensitivity=1.0,
    noise_std=1.5,
    flags={"poisson": True},
)
POST = LedgerRow(
    1,
    3,
    "update",
    "update",
    ("server",),
    {"w": (3, 2)},
    "ef" * 16,
    dpa.NoOpDpEvent(),
    why="post",
    post_of=(1,),
)


def ledger_of(rows: list[LedgerRow]) -> Ledger:
    ledger = Ledger("zero_out", delta=1e-3)
    ledger.append(rows, absolute=True)
    return ledger


def test_the_parts_are_the_whole() -> None:
    for rows in ([], [FREE], [FREE, NOISY, POST]):
        ledger = ledger_of(rows)
        text = "".join(ledger.text())
        assert text == json.dumps(to_plain_json(ledger.to_json()), allow_nan=False) + "\n"
        assert Ledger.from_json(text).to_json() == ledger.to_json()


@pytest.mark.nightly
def test_writing_a_long_ledger_takes_no_copy_of_it(tmp_path) -> None:
    ledger = ledger_of([replace(FREE, client=k) for k in range(4_000)])
    peaks = []
    for write in (
        lambda: json.dumps(to_plain_json(ledger.to_json())),
        lambda: write_ledger(tmp_path / "ledger.json", ledger),
    ):
        tracemalloc.start()
        write()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] / 20
    assert len(json.loads((tmp_path / "ledger.json").read_text())["releases"]) == 4_000
