"""Which exceptions the user can do something about, and a one-line message for each."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Sequence

from attacks.command_line import ERROR_PREFIX
from privdd.core.command import HELP_OPTIONS, Command
from privdd.runtime.files import printable

UNREAD = 141  # 128 + SIGPIPE
STOPPED = 130  # 128 + SIGINT

# What torch says -> what can be done about it.
TORCH_ERRORS = {
    "Expected more than 1 value per channel when training": "the network's norm has one value to "
    "take the mean of (batch norm: a batch of one record whose maps are 1x1); choose norm=group, "
    "or other sizes of batch and data",
    "not enough memory": "out of memory; choose a smaller model, batch or number of workers",
    "can't allocate memory": "out of memory; choose a smaller model, batch or number of workers",
    "CUDA out of memory": "out of memory on the GPU; choose a smaller model or batch",
    "does not have a deterministic implementation": "device=cuda: a layer has no GPU kernel that "
    "adds in a fixed order, and what differs each time cannot be checked; choose another layer "
    "(model), or device=cpu",
    "Storage size calculation overflowed": "out of memory; choose a smaller model or batch",
}


def run_reporting_errors(work: Callable[[], int]) -> int:
    """Exit status of ``work``; an error that the user can do something about is one line on stderr,
    and status 1.

    Where nobody reads the output any more (``| head``), it ends in silence with the status of a
    program that SIGPIPE ends."""
    try:
        status = work()
        sys.stdout.flush()
        return status
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _lost_its_reader():
            return UNREAD
        line = explain_error(error)
        if line is None:
            raise
        print(f"{ERROR_PREFIX}: {printable(line)}", file=sys.stderr)
        return 1


def _lost_its_reader() -> bool:
    """Whether the reader of stdout has gone; what is left to be written then goes nowhere."""
    try:
        sys.stdout.flush()
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        # unbuffered, a flush has nothing to fail at
        gone = any(event & select.POLLERR for _, event in watch.poll(0))
    except BrokenPipeError:
        gone = True
    except (AttributeError, ValueError):  # no poll on this system, or no file behind stdout
        gone = False
    if gone:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return gone


def explain_error(error: BaseException) -> str | None:
    """One line for errors that input, disk or network can cause; None for bugs of privdd."""
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        hints = {
            errno.ENOSPC: "no space left on the disk; the files so far are kept: free space and "
            "resume"
        }
        return f"{name}{hints.get(error.errno or 0, error.strerror or str(error))}"
    if isinstance(error, ValueError | RuntimeError):
        for phrase, line in TORCH_ERRORS.items():
            if phrase in str(error):
                return line
    if isinstance(error, ValueError | MemoryError | NotImplementedError):
        return " ".join(str(error).split()) or type(error).__name__
    module = type(error).__module__
    name = type(error).__name__
    if module.startswith(("hydra", "omegaconf")):
        cause = error.__cause__
        inner = explain_error(cause) if cause is not None else None
        return inner or " ".join(str(error).split())[:400]
    if name in {"TooManyLostWorkers", "MissingData", "UnsupportedEventError"}:
        return " ".join(str(error).split())
    return None


def run_guarded(main: Callable[[], int]) -> int:
    """Run a command; anything the user can cause ends in one line on stderr and status 1."""
    try:
        return run_reporting_errors(main)
    except KeyboardInterrupt as stop:
        reason = f": {stop}" if str(stop) else ""
        print(f"\nprivdd: stopped{reason}", file=sys.stderr)
        return STOPPED


def run_command(
    command: Command,
    argv: Sequence[str] | None,
    work: Callable[[Sequence[str]], int],
    *,
    needs_arguments: bool = True,
) -> int:
    """Run a command of the form KEY=VALUE, or print its help.

    Args:
        command: What describes it.
        argv: The arguments; those of this process by default.
        work: From the arguments to the exit status.
        needs_arguments: Whether it does nothing without any, but for its help.

    Returns:
        The exit status; 1 after one line on stderr where the user is at fault.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    asks_help = bool(HELP_OPTIONS & {*arguments})
    if asks_help or (needs_arguments and not arguments):
        print(command.help_text(), end="")
        return int(not asks_help)
    return run_guarded(lambda: work(arguments))
