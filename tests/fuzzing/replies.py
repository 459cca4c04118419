"""What a hostile client of a Flower federation might answer: any part of an honest reply, changed
at random."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.integrations.flower import run_on_grid
from privdd.integrations.reply_check import FederationFailed
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny
from tests.fuzzing.outcomes import Outcome
from tests.integrations.hand_grid import AlteringGrid, arrays, rows, words

METHODS = {
    "fedavg_dp": ("fedavg", "privacy=dpsgd", "privacy.delta=1e-3", "model=mlp", "model.width=8"),
    "fedproto": ("fedproto", "model=mlp", "model.width=8"),
    "feddm_dp": ("feddm_dp", "model=mlp", "model.width=8"),
    "fedfed_dp": ("fedfed_dp", "privacy.delta=1e-3"),
}
NUMBERS = (math.nan, math.inf, -math.inf, 3e38, -1e12, 1e-40)
WORDS: tuple[Any, ...] = (
    0,
    -1,
    2,
    10**12,
    "x",
    "",
    0.5,
    True,
    b"\0",
    [1, 2],
    "\x1b[2J",
    "[" * 100_000,
    None,
)
VALUES: tuple[Any, ...] = (
    0,
    -1,
    1,
    10**12,
    "x",
    "",
    0.5,
    1e300,
    True,
    None,
    [],
    [0],
    {},
    {"a": True},
    "\x1b[2J",
    {"type": "none"},
    {"type": "gaussian", "noise_multiplier": 50.0},
)
Honest = Mapping[str, tuple[Experiment, Progress]]


@dataclass(frozen=True)
class ReplyCase:
    """part: what is changed, a key of CHANGES; round: of client 1's reply; seed: of everything
    else."""

    method: str
    part: str
    round: int
    seed: str

    def __str__(self) -> str:
        return f"{self.part} of {self.method}, round {self.round}"


def reply_case(number: int, seed: int) -> ReplyCase:
    """Every part of a reply of every method in turn."""
    names = list(METHODS)
    parts = list(CHANGES)
    place = number % (len(names) * len(parts))
    return ReplyCase(
        names[place % len(names)],
        parts[place // len(names)],
        (number // 3) % 2,
        f"replies/{seed}/{number}",
    )


def federation(place: Path) -> Honest:
    """Undisturbed federations of two rounds."""
    found = {}
    for name, (algo, *settings) in METHODS.items():
        experiment = tiny(algo, *settings)
        found[name] = (
            experiment,
            run_on_grid(experiment, AlteringGrid(experiment), RunFolder(place / name)),
        )  # type: ignore[arg-type]
    return found


def send(made: ReplyCase, honest: Honest, place: Path) -> Outcome:
    """A federation in which client 1 answers like this once: one line and an intact state, or
    nothing that it gains."""
    experiment, whole = honest[made.method]
    rng = random.Random(made.seed)
    folder = RunFolder(place / "run")
    grid = AlteringGrid(
        experiment, lambda reply: CHANGES[made.part](reply, rng), ("train", 1, str(made.round))
    )
    try:
        found = run_on_grid(experiment, grid, folder)  # type: ignore[arg-type]
    except FederationFailed as failure:
        line = str(failure)
        starts = (
            f"client 1 (node 101), round {made.round}: ",
            f"client 1 did not answer in round {made.round}; ",
        )
        if not line.startswith(starts) or not line.isprintable() or len(line) > 300:
            return Outcome("nonsense", f"what is said: {line[:400]!r}")
        grid.bad = ("", 0, "")
        again = run_on_grid(experiment, grid, folder)  # type: ignore[arg-type]
        if again.ledger.to_json() != whole.ledger.to_json() or again.accuracy != whole.accuracy:
            return Outcome("nonsense", f"the state is not as if it had not come: {line}")
        return Outcome("refused", line)
    return _accepted(found, whole)


def _accepted(found: Progress, whole: Progress) -> Outcome:
    """Values within the limits are the client's own affair; what its rows say of them is not."""
    if not all(bool(t.isfinite().all()) for t in found.server.values() if t.is_floating_point()):
        return Outcome("nonsense", "a reply was taken after which the server's state is not finite")
    for client in range(3):
        if found.ledger.epsilon(client=client) != whole.ledger.epsilon(client=client):
            return Outcome(
                "nonsense", f"a reply was taken that changes the epsilon of client {client}"
            )
    return Outcome("ran")


# --- changes --------------------------------------------------------------------------------------


def _one(
    change: Callable[[torch.Tensor, random.Random], torch.Tensor],
) -> Callable[[Message, random.Random], None]:
    """Change one tensor of the reply."""

    def altered(reply: Message, rng: random.Random) -> None:
        def chosen(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            name = rng.choice(sorted(held))
            return held | {name: change(held[name], rng)}

        arrays(reply, chosen)

    return altered


def _number(held: torch.Tensor, rng: random.Random) -> torch.Tensor:
    changed = held.clone()
    value = rng.choice(NUMBERS)
    if changed.numel():
        whole = not changed.is_floating_point()
        changed.view(-1)[rng.randrange(changed.numel())] = (
            rng.choice((-1, 10**12, 99)) if whole else value
        )
    return changed


def _shape(held: torch.Tensor, rng: random.Random) -> torch.Tensor:
    ways = (
        held[None],
        held.flatten(),
        held[..., None],
        held.reshape(-1)[:1],
        held.reshape(-1)[:0],
        torch.zeros(()),
    )
    ways = (*ways, *((held[:-1], torch.cat([held, held])) if held.ndim else ()))
    return rng.choice(ways).contiguous()


def _dtype(held: torch.Tensor, rng: random.Random) -> torch.Tensor:
    kinds = (
        torch.float64,
        torch.float16,
        torch.int64,
        torch.int8,
        torch.bool,
        torch.complex64,
        torch.float32,
    )
    return held.to(rng.choice(kinds))


def _names(reply: Message, rng: random.Random) -> None:
    def changed(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = rng.choice(sorted(held))
        way = rng.randrange(4)
        if way == 0:
            return {k: v for k, v in held.items() if k != name}
        if way == 1:
            return held | {
                rng.choice(
                    ("secret/x", "../../x", "zzz", "\x1b[2J", "", f"{name}/more")
                ): torch.ones(2)
            }
        if way == 2:
            return {("renamed/x" if k == name else k): v for k, v in held.items()}
        return dict(reversed(held.items()))

    arrays(reply, changed, order=rng.random() < 0.7)


def _bytes(reply: Message, rng: random.Random) -> None:
    held = dict(reply.content.array_records["tensors"])
    name = rng.choice(sorted(held))
    old = held[name]
    data = bytearray(old.data)
    at = rng.randrange(min(len(old.data), 140))
    data[at] ^= 1 << rng.randrange(8)
    ways = (
        bytes(data),
        old.data[:at],
        old.data + b"x",
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY" + bytes(200),
    )
    held[name] = Array(dtype=old.dtype, shape=old.shape, stype=old.stype, data=rng.choice(ways))
    reply.content["tensors"] = ArrayRecord(held)


def _words(reply: Message, rng: random.Random) -> None:
    name = rng.choice((*sorted(reply.content.config_records["words"]), "another"))
    words(reply, **{name: rng.choice(WORDS)})


def _field(reply: Message, rng: random.Random) -> None:
    def changed(held: list[dict[str, Any]]) -> None:
        row = rng.choice(held)
        row[rng.choice((*sorted(row), "another"))] = rng.choice(VALUES)

    rows(reply, changed)


def _rows(reply: Message, rng: random.Random) -> None:
    ways: tuple[Callable[[list[Any]], Any], ...] = (
        list.clear,
        list.reverse,
        lambda held: held.pop(),
        lambda held: held.append(held[0]),
        lambda held: held.append(7),
        lambda held: held.extend(held * 1000),
        lambda held: held.insert(0, {}),
    )
    rows(reply, rng.choice(ways))


def _ledger(reply: Message, rng: random.Random) -> None:
    stated = str(reply.content.config_records["words"]["rows"])
    at = rng.randrange(len(stated))
    key = rng.choice(("schema", "delta", "unit", "relation", "releases"))
    ways = (
        stated[:at],
        stated[:at] + rng.choice('0123456789[]{}",e-') + stated[at + 1 :],
        "null",
        "[]",
        "{}",
        "7",
        "",
        json.dumps({**json.loads(stated), key: rng.choice(VALUES)}),
    )
    words(reply, rows=rng.choice(ways))


def _records(reply: Message, rng: random.Random) -> None:
    way = rng.randrange(4)
    if way == 0:
        del reply.content[rng.choice(("tensors", "words"))]
    elif way == 1:
        reply.content["metrics"] = MetricRecord({"mean": 0.5})
    elif way == 2:
        reply.content["words"] = reply.content["tensors"]
    else:
        reply.content["tensors"] = ArrayRecord()


def _twice(reply: Message, rng: random.Random) -> list[Message]:
    return [reply] * rng.choice((0, 2, 3))


CHANGES: dict[str, Callable[[Message, random.Random], Any]] = {
    "a number": _one(_number),
    "a shape": _one(_shape),
    "a type": _one(_dtype),
    "names": _names,
    "bytes": _bytes,
    "a word": _words,
    "a field of a row": _field,
    "rows": _rows,
    "the text of the rows": _ledger,
    "records": _records,
    "how often": _twice,
}
