"""Worker processes through joblib's loky, with lost workers tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from privdd.engine import Engine, LostWorkers, pinned


def process_map(engine: Engine, fn: Callable[[Any], Any], work: Sequence[Any]) -> Iterator[Any]:
    """Results in order; tasks after the last delivered one run again when a worker dies.

    The pool outlives the call (loky keeps it), so that workers import torch once per run. Raises
    LostWorkers where workers die ``engine.retries`` + 1 times without a result in between.
    """
    done = losses = 0
    while done < len(work):
        # batch_size=1: joblib would otherwise put short tasks on one worker
        pool = Parallel(n_jobs=engine.size, backend="loky", batch_size=1, return_as="generator")
        try:
            for result in pool(delayed(pinned)(fn, item, engine.threads) for item in work[done:]):
                done, losses = done + 1, 0
                yield result
        except TerminatedWorkerError:
            losses += 1
            if losses > engine.retries:
                raise LostWorkers(losses) from None
