"""A Ray cluster in this process: runs messages at once, keeps all bytes that it is given, and fails
when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


LOST = (
    "WorkerCrashedError",
    "NodeDiedError",
    "ObjectLostError",
    "OutOfMemoryError",
    "LocalRayletDiedError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "RaySystemError",
    "RuntimeEnvSetupError",
    "OwnerDiedError",
    "GetTimeoutError",
)
ERRORS = {name: type(name, (RayError,), {}) for name in LOST}
EXCEPTIONS = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, **ERRORS)


@dataclass(eq=False)
class FakeRay:
    """failures: what the next calls of "put", "send", "wait" or "get" raise; silent: how often
    ``wait`` has no answer."""

    processors: int = 2
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    silent: int = 0
    sent: list[bytes] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)
    puts: int = 0
    tasks: dict[int, Callable[[], np.ndarray]] = field(default_factory=dict)
    store: dict[str, np.ndarray] = field(default_factory=dict)
    exceptions: Any = field(default_factory=lambda: EXCEPTIONS)

    def _fail(self, call: str) -> None:
        if self.failures.get(call):
            raise self.failures[call].pop(0)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.processors)}

    available_resources = cluster_resources

    def put(self, value: np.ndarray) -> str:
        self._fail("put")
        self.sent.append(value.tobytes())
        self.puts += 1
        self.store[f"object {self.puts}"] = value
        return f"object {self.puts}"

    def remote(self, **options: Any) -> Callable[[Callable[..., np.ndarray]], Any]:
        return lambda function: SimpleNamespace(
            remote=lambda *arguments: self._send(function, arguments)
        )

    def _send(
        self, function: Callable[..., np.ndarray], arguments: tuple[str, str, np.ndarray]
    ) -> int:
        self._fail("send")
        header, reference, payload = arguments
        self.sent += [header.encode(), payload.tobytes()]
        handle = len(self.sent)
        self.tasks[handle] = lambda: function(header, self.store[reference], payload)
        return handle

    def wait(
        self, handles: list[int], num_returns: int, timeout: float
    ) -> tuple[list[int], list[int]]:
        self._fail("wait")
        if self.silent:
            self.silent -= 1
            return [], handles
        return handles[-1:], handles[:-1]  # the latest first

    def get(self, handle: int, timeout: float | None = None) -> np.ndarray:
        self._fail("get")
        try:
            answer = self.tasks.pop(handle)()
        except Exception as error:
            raise RayTaskError(error) from None
        self.answered.append(answer.tobytes())
        return answer

    def cancel(self, handle: int, force: bool) -> None:
        self.tasks.pop(handle, None)
