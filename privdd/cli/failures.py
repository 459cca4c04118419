"""Which exceptions the user can do something about, and a one-line message for each."""

from __future__ import annotations

import errno


def explain(error: BaseException) -> str | None:
    """One line for errors that input, disk or network can cause; None for bugs of privdd."""
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        known = {errno.ENOSPC: "no space left on the disk; what was written is kept, free space and resume"}
        return f"{name}{known.get(error.errno or 0, error.strerror or str(error))}"
    if isinstance(error, ValueError | MemoryError | NotImplementedError):
        return " ".join(str(error).split()) or type(error).__name__
    module, name = type(error).__module__, type(error).__name__
    if module.startswith(("hydra", "omegaconf")):
        cause = error.__cause__
        inner = explain(cause) if cause is not None else None
        return inner or " ".join(str(error).split())[:400]
    if name in {"AttackFailed", "LostWorkers", "MissingData", "UnsupportedEventError"}:
        return " ".join(str(error).split())
    return None
