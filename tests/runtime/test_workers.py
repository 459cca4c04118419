"""How tasks travel to workers: exact values, few messages for small tasks, order and results under
any loss."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privdd.runtime import startup as memory
from privdd.runtime.engine import Engine
from privdd.runtime.task_messages import (
    answer_call,
    decode_call,
    decode_value,
    digest_bytes,
    encode_value,
)
from privdd.runtime.worker_pool import (
    NO_PARTS,
    SECONDS_PER_MESSAGE,
    LostWorker,
    TooManyLostWorkers,
    WorkerTraceback,
    chunk_size,
    map_in_chunks,
)
from tests.runtime import crash_tasks
from tests.runtime.crash_tasks import Deadly

GRID = torch.arange(24.0).reshape(2, 3, 2, 2)
TENSORS = {
    "float": GRID,
    "double": GRID.double(),
    "int": GRID.long(),
    "bool": GRID > 5,
    "bfloat16": GRID.bfloat16(),
    "complex": GRID + 1j * GRID,
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
    "row": GRID[1],
    "strided": GRID[..., 0],
    "transposed": GRID.transpose(0, 1),
    "channels_last": GRID.contiguous(memory_format=torch.channels_last),
    "conjugate": (GRID + 1j).conj(),
    "nan": torch.tensor([float("nan"), -0.0]),
    "leaf": GRID.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(GRID.clone()),
    "meta": torch.empty(3, device="meta"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was(name: str) -> None:
    sent = TENSORS[name]
    got = decode_value(encode_value({"value": [sent]}))["value"][0]
    assert (type(got), got.dtype, got.shape, got.stride(), got.device) == (
        type(sent),
        sent.dtype,
        sent.shape,
        sent.stride(),
        sent.device,
    )
    assert got.requires_grad == sent.requires_grad
    if sent.device.type != "meta":
        assert (
            got.resolve_conj().contiguous().detach().numpy(force=True).tobytes()
            == sent.resolve_conj().contiguous().detach().numpy(force=True).tobytes()
            if sent.dtype != torch.bfloat16
            else torch.equal(got, sent)
        )


def test_what_arrives_is_aligned_writable_and_shared_as_it_was() -> None:
    x = torch.rand(50, 7, generator=torch.Generator().manual_seed(1))
    first, again, other = decode_value(encode_value([x, x, x.clone()]))
    assert first is again and first is not other
    assert first.data_ptr() % 64 == 0  # as torch allocates: kernels may round otherwise elsewhere
    first.zero_()
    assert torch.equal(other, x)


def test_a_view_travels_without_its_storage_and_a_shared_tensor_once() -> None:
    whole = torch.zeros(100_000)
    assert len(encode_value(whole[:10])) < 1_000
    assert len(encode_value([Deadly(0, ""), whole] * 5)) < 1.1 * len(
        encode_value([Deadly(0, ""), whole])
    )


@given(st.integers(1, 10_000), st.integers(1, 64), st.none() | st.floats(0, 1e4))
def test_a_message_is_a_fifth_of_a_second_and_leaves_work_for_the_others(
    left: int, workers: int, seconds: float | None
) -> None:
    size = chunk_size(left, workers, seconds)
    assert 1 <= size <= left
    if size > 1:
        assert seconds is not None and size * seconds <= SECONDS_PER_MESSAGE * (1 + 1e-9)
        assert (size - 1) * workers * 2 < left
    elif seconds is not None and left >= 3 * workers + 1:
        assert 2 * seconds > SECONDS_PER_MESSAGE * (1 - 1e-9)


def encode_alone(fn: Any, items: Any, threads: int) -> bytes:
    """A message of tasks that share nothing."""
    return NO_PARTS.encode_call(fn, items, threads, locks_secrets=False)


def answer_alone(payload: bytes) -> Any:
    parts = NO_PARTS.encode_parts(locks_secrets=False)
    return decode_value(answer_call(payload, parts, digest_bytes(parts)))


@dataclass
class Fake:
    """A pool in this process that answers in any order, loses messages, and says how long a task
    took."""

    order: random.Random
    seconds: float = 0.001
    lossy: float = 0.0
    workers: int = 2
    in_flight: int = 4
    held: dict[int, bytes] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def encode(self, fn: Any, items: Any, threads: int) -> bytes:
        return encode_alone(fn, items, threads)

    def send(self, payload: bytes) -> int:
        assert len(self.held) < self.in_flight
        self.sizes.append(len(decode_call(payload, ())[1]))
        self.held[len(self.sizes)] = payload
        return len(self.sizes)

    def wait(self, handles: Collection[int]) -> int:
        assert set(handles) == set(self.held)
        return self.order.choice(sorted(handles))

    def receive(self, handle: int) -> Any:
        payload = self.held.pop(handle)
        if self.order.random() < self.lossy:
            raise LostWorker
        results, error, _ = answer_alone(payload)
        return encode_value((results, error, self.seconds * len(results)))

    def stop(self, handles: Collection[int]) -> None:
        self.stopped = sorted(handles)


@given(
    st.integers(0, 60),
    st.sampled_from([1e-4, 0.03, 5.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 10**6),
)
def test_any_order_and_any_loss_give_the_results_of_a_loop(
    count: int, seconds: float, lossy: float, seed: int
) -> None:
    pool = Fake(random.Random(seed), seconds, lossy)
    found = list(map_in_chunks(pool, square, range(count), retries=50))
    assert found == [k * k for k in range(count)] and pool.held == {} and pool.stopped == []
    if not lossy:
        assert sum(pool.sizes) == count


def square(k: int) -> int:
    return k * k


def halt_at_7(k: int) -> int:
    if k == 7:
        raise KeyError("seven")
    return k


def test_small_tasks_travel_together_and_long_ones_alone() -> None:
    messages = {}
    for seconds in (0.001, 1.0):
        pool = Fake(random.Random(0), seconds)
        list(map_in_chunks(pool, square, range(100)))
        messages[seconds] = len(pool.sizes)
    assert messages[0.001] <= 30 and messages[1.0] == 100


def test_a_message_that_is_always_lost_ends_after_the_retries() -> None:
    pool = Fake(random.Random(0), lossy=1.0, in_flight=1)
    with pytest.raises(TooManyLostWorkers, match="died 3 times"):
        list(map_in_chunks(pool, square, range(9), retries=2))
    assert len(pool.sizes) == 3


def test_results_before_an_error_come_first_and_its_traceback_with_it() -> None:
    pool = Fake(random.Random(0))
    found = []
    with pytest.raises(KeyError, match="seven") as caught:
        for value in map_in_chunks(pool, halt_at_7, range(40)):
            found.append(value)
    assert found == list(range(7))
    assert isinstance(caught.value.__cause__, WorkerTraceback) and "halt_at_7" in str(
        caught.value.__cause__
    )
    assert pool.stopped == sorted(pool.held)


class Pair(Exception):
    """An error that pickle writes and cannot read."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def fail_untransportably(item: int) -> int:
    if item:
        raise Pair("this", "that")
    return item


def test_an_error_that_cannot_travel_arrives_in_words() -> None:
    results, error, _ = answer_alone(encode_alone(fail_untransportably, [0, 1], 1))
    assert results == [0] and isinstance(error[0], RuntimeError)
    assert str(error[0]) == "Pair: this and that" and "fail_untransportably" in error[1]


def test_a_reader_that_leaves_stops_what_is_under_way() -> None:
    pool = Fake(random.Random(0))
    results = map_in_chunks(pool, square, range(40))
    next(results)
    results.close()
    assert pool.stopped == sorted(pool.held) and pool.stopped


def test_hundreds_of_small_tasks_give_the_bits_of_a_loop() -> None:
    tasks = [Deadly(i, "") for i in range(300)]
    found = list(Engine("processes", workers=2).map(crash_tasks.run, tasks))
    assert len(found) == 300 and all(torch.equal(a, task.run()) for a, task in zip(found, tasks))


def test_a_worker_computes_once_what_its_tasks_share() -> None:
    engine = Engine("processes", workers=2)
    for call in range(2):
        table = crash_tasks.Table(torch.full((5,), float(call)))
        stamps: dict[int, set[int]] = {}
        for worker, stamp, total in engine.map(
            crash_tasks.read_table, [(table, k) for k in range(40)]
        ):
            stamps.setdefault(worker, set()).add(stamp)
            assert total == 5 * call, "a table of the call before"
        assert all(len(of_worker) == 1 for of_worker in stamps.values())


def test_threads_are_set_for_the_tasks_and_put_back() -> None:
    before = torch.get_num_threads()
    message = encode_alone(crash_tasks.thread_count, [Deadly(0, "")], 3)
    assert answer_alone(message)[0] == [3]
    assert torch.get_num_threads() == before


FAULTS = """
import ctypes, json, resource, torch
from privdd.runtime.startup import MAP, keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(2**20) for _ in range(8)]  # 32 MiB, as one step's activations
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
    # where glibc begins; it moves with what was freed before
    ctypes.CDLL(None).mallopt(MAP, 128 * 1024)
print(json.dumps([faults(), keep_freed_memory(), faults(), faults()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an allocator of Linux")
def test_kept_memory_is_not_faulted_in_again() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, cwd=root, check=True
    )
    before, obeyed, _, after = json.loads(done.stdout)
    if obeyed:
        assert after < 1000 and before > 10 * max(after, 100)  # fewer where pages are huge


@pytest.mark.parametrize(
    "library",
    [object(), OSError("no library"), TypeError("no path")],
    ids=["musl", "none", "windows"],
)
def test_another_c_library_is_left_alone(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: object) -> object:
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(memory.ctypes, "CDLL", opened)
    assert memory.keep_freed_memory.__wrapped__() is False
