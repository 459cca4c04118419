"""Worker processes through joblib's loky, with lost workers tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError


def process_map(engine: Any, fn: Callable[[Any], Any], work: Sequence[Any]) -> Iterator[Any]:
    """Results in order; tasks after the last delivered one are resubmitted when a worker dies."""
    from privdd.engine import _pinned

    done = 0
    for attempt in range(engine.retries + 1):
        try:
            # batch_size=1: joblib would otherwise put short tasks on one worker
            pool = Parallel(n_jobs=engine.size, backend="loky", batch_size=1, return_as="generator")
            for result in pool(delayed(_pinned)(fn, item, engine.threads) for item in work[done:]):
                done += 1
                yield result
            return
        except TerminatedWorkerError as error:
            if attempt == engine.retries:
                raise RuntimeError(
                    f"a worker process died {attempt + 1} times (out of memory?); use fewer engine.workers"
                ) from error
