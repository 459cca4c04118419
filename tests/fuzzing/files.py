"""Damaged run folders: each kind of file a run writes, cut, flipped, swapped or replaced, and read
by every command."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from tests.fuzzing.outcomes import Outcome

TINY = [
    "preset=smoke",
    "data.limit=90",
    "data.test_limit=40",
    "partition.clients=2",
    "model=mlp",
    "model.width=8",
    "algo=fedproto",
    "algo.rounds=2",
    "algo.local_epochs=1",
    "audit.records=12",
    "audit.worlds=3",
    "audit.victims=1",
    "privacy.delta=1e-3",
    "attack=[lira,loss_threshold]",
    "audit.waive.prototypes=fuzzed",
    "audit.waive.update=fuzzed",
    "audit.waive.global_model=fuzzed",
    "audit.waive.labels=fuzzed",
    "audit.waive.counts=fuzzed",
    "audit.waive.statistics=fuzzed",
]
READERS = ("report", "verify", "run", "resume", "compare")


@dataclass(frozen=True)
class Damage:
    """One file of a run folder (relative), how it is damaged, and the command that reads the folder
    then."""

    whole: Path
    file: str
    how: int
    reader: str
    seed: int

    def __str__(self) -> str:
        return f"{self.reader} after damage {self.how} to {self.file}"


def whole_runs(place: Path) -> list[Path]:
    """A finished audit, and one whose findings were never written: it can be resumed."""
    from privdd.cli.main import config_of
    from privdd.cli.run import run_audit

    done = place / "done"
    stopped = place / "stopped"
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        run_audit(config_of("audit", *TINY), done, ["python", "-m", "privdd.audit", *TINY])
    shutil.copytree(done, stopped)
    for name in ("findings.json", "report.html", "manifest.json"):
        (stopped / name).unlink()
    return [done, stopped]


def damage_cases(runs: Sequence[Path], count: int, seed: int) -> Iterator[Damage]:
    """Every kind of file in turn, with readers and damages drawn at random."""
    rng = random.Random(f"files/{seed}")
    listed = [
        (run, str(file.relative_to(run)))
        for run in runs
        for file in sorted(run.rglob("*"))
        if file.is_file() and file.suffix != ".lock"
    ]
    for number in range(count):
        run, file = listed[number % len(listed)]
        reader = rng.choice(READERS) if run.name == "done" else "resume"
        yield Damage(run, file, rng.randrange(12), reader, rng.randrange(2**31))


def damaged(data: bytes, how: int, rng: random.Random) -> bytes:
    """The bytes of a file, damaged in one of 12 ways."""
    at = rng.randrange(len(data)) if data else 0
    flipped = bytearray(data)
    if data:
        flipped[at] ^= 1 << rng.randrange(8)
    digits = [i for i, byte in enumerate(data[:20_000]) if 48 <= byte <= 57]
    numbers = bytearray(data)
    if digits:
        numbers[rng.choice(digits)] = rng.choice(b"0123456789")
    ways = (
        data[:at],
        bytes(flipped),
        bytes(numbers),
        b"",
        b"\0" * 64,
        b"null",
        b"[" * 100_000,
        b'{"schema": 99}',
        data + data,
        data.replace(b"0.", b"-1e999", 1),
        b"\xff\xfe" + data,
        data.replace(b'"', b"'", 1),
    )
    return ways[how]


def read_damaged(made: Damage, copy: Path) -> Outcome:
    """Damage a copy and read it: one line or a whole answer; nothing may be taken for true that the
    file says wrongly."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made.whole, copy)
    file = copy / made.file
    before = file.read_bytes()
    file.write_bytes(damaged(before, made.how, random.Random(made.seed)))
    changed = file.read_bytes() != before
    out = StringIO()
    err = StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = _status(made.reader, copy)
    said = [
        line
        for line in err.getvalue().splitlines()
        if line.startswith(("privdd: error", "privdd-"))
    ]
    if "Traceback" in err.getvalue():
        return Outcome("traceback", err.getvalue()[-1500:])
    if made.reader == "verify" and status == 0 and changed and made.file in SEALED_BY_VERIFY:
        return Outcome("nonsense", f"privdd.verify agrees with a changed {made.file}")
    if status == 1:
        if len(said) != 1 or len(said[0]) > 900:
            return Outcome("nonsense", f"status 1 with {len(said)} lines: {err.getvalue()[-300:]}")
        return Outcome("refused", said[0])
    return Outcome("disagrees" if made.reader == "verify" and status == 2 else "read")


SEALED_BY_VERIFY = ("findings.json", "ledger.json", "config.yaml")


def _status(reader: str, copy: Path) -> int:
    from privdd import report, verify
    from privdd.cli.errors import run_guarded
    from privdd.cli.main import main
    from privdd.cli.run import run_audit

    if reader == "report":
        return report.main([str(copy)])
    if reader == "compare":
        return report.main([str(copy), str(copy), f"out={copy.parent / 'both'}"])
    if reader == "verify":
        return verify.main([str(copy)])
    os.chdir(copy.parent)
    sys.argv = [
        "privdd.audit",
        f"{reader}={copy}",
        *(["attack=loss_threshold"] if reader == "run" else []),
    ]
    return run_guarded(lambda: main("audit", run_audit))
