"""A method through the stack and by its reference loop, from the same draws: cost and end state."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard, State
from privdd.federated.simulation import Plan, run_round, start_training
from privdd.methods.fedfed import build_split_skeleton
from privdd.methods.fedmd import draw_public_images
from privdd.methods.vhl import draw_anchors
from privdd.models.build import build_skeleton, state_layout
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from tests.reference.pairs import Pair, Size

KEYS = Keys(0)


@dataclass(frozen=True)
class Comparison:
    """CPU seconds of either (medians), and the largest difference of a number that both end
    with."""

    bare: float
    stack: float
    difference: float

    @property
    def ratio(self) -> float:
        return self.stack / self.bare


class Arithmetic(TorchDispatchMode):
    """Counts the floating-point operations of all convolutions and matrix products, backward passes
    included."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        self.flops += count(*args, **(kwargs or {}), out_val=out) if count else 0
        return out


def arithmetic(pair: Pair, size: Size, shards: Sequence[Shard]) -> float:
    """Floating-point operations of the stack over those of the reference loop: 1 where neither
    skips or adds work."""
    found = []
    for run in (bare, through_stack):
        with Arithmetic() as counted:
            run(pair, size, shards)
        found.append(counted.flops)
    return found[1] / found[0]


@contextmanager
def double_precision() -> Iterator[None]:
    """Everything inside is drawn and computed in float64, where rounding cannot hide a
    difference."""
    caches = (
        build_skeleton,
        state_layout,
        build_split_skeleton,
        draw_anchors,
        draw_public_images,
    )
    before = torch.get_default_dtype()
    for cache in caches:
        cache.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        for cache in caches:
            cache.cache_clear()


def in_double(shards: Sequence[Shard]) -> list[Shard]:
    """The same clients with float64 images."""
    return [s.with_train(Records(s.train.x.double(), s.train.y, s.train.ids)) for s in shards]


def exact_difference(pair: Pair, size: Size, shards: Sequence[Shard]) -> float:
    """The largest difference of a number that both end with, when both work in float64."""
    with double_precision():
        own = in_double(shards)
        return difference(bare(pair, size, own), through_stack(pair, size, own))


def split_among(records: Records, clients: int) -> list[Shard]:
    """The records in equal parts, clients without test data."""
    classes = int(records.y.max()) + 1
    parts = torch.arange(len(records)).tensor_split(clients)
    return [
        Shard(k, records.take(at), records.take([0]), records.take([0]), classes)
        for k, at in enumerate(parts)
    ]


def through_stack(pair: Pair, size: Size, shards: Sequence[Shard]) -> State:
    """The server's end state, and what client k remembers under client/k/."""
    draw_anchors.cache_clear()  # VHL's are drawn once a run, as the loop draws them
    problem = Problem(shards[0].shape, shards[0].classes, len(shards))
    method = pair.make(size)
    # noise from the stream of seed and round
    plan = Plan(KEYS, problem, method, pair.mechanisms, paired_noise=True)
    progress = start_training(plan, Ledger("zero_out", "record", 1e-5))
    seen = None
    for _ in range(method.rounds):
        progress, _, seen = run_round(plan, progress, shards, Engine(), seen)
    memories = {
        f"client/{k}/{name}": v
        for k, memory in progress.memories.items()
        for name, v in memory.items()
    }
    return {**progress.server, **memories}


def bare(pair: Pair, size: Size, shards: Sequence[Shard]) -> State:
    """What the reference loop ends with, under the stack's names."""
    return pair.loop(pair.make(size), shards, KEYS)


def difference(loop: State, stack: State) -> float:
    """The largest difference; infinite where a number is not one. Raises KeyError for an unknown
    name."""
    gaps = [float((value - stack[name]).abs().max()) for name, value in loop.items()]
    return max(gap if math.isfinite(gap) else math.inf for gap in gaps)


def compare(pair: Pair, size: Size, shards: Sequence[Shard], repeats: int) -> Comparison:
    """Both in turns ``repeats`` times, after one small unmeasured turn of each."""
    few = [
        shard.with_train(shard.train.take(torch.arange(min(32, len(shard.train)))))
        for shard in shards[:2]
    ]
    brief = replace(size, iterations=1, epochs=1)
    for warm in (bare, through_stack):
        warm(pair, brief, few)
    costs: dict[str, list[float]] = {"bare": [], "stack": []}
    for _ in range(repeats):
        cost, loop = _seconds(lambda: bare(pair, size, shards))
        costs["bare"].append(cost)
        cost, stack = _seconds(lambda: through_stack(pair, size, shards))
        costs["stack"].append(cost)
    plain, ours = (statistics.median(costs[name]) for name in ("bare", "stack"))
    return Comparison(plain, ours, difference(loop, stack))


def _seconds(work: Callable[[], State]) -> tuple[float, State]:
    begin = time.process_time()
    state = work()
    return time.process_time() - begin, state
