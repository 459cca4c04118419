"""Nothing uncounted leaves a client: whoever holds the outputs of its mechanisms could write its
replies himself.

The test: a federation runs once with a client's data and once with neighbouring data, with the
first run's mechanism outputs in the place of its own. Every byte that the client sends
(tensors, ledger rows, everything else of the reply)
and every byte of the published ledger.json must come out the same, in a simulation and through
Flower."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dp_accounting as dpa
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save

from privdd.core.types import Received, Records, Shard, State, Tensors, flatten_values
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import (
    ClientTask,
    client_step,
    publish_final_state,
    run_round,
    start_training,
)
from privdd.integrations.flower import GridEngine, client_app
from privdd.integrations.reply_check import FederationFailed
from privdd.privacy.mechanism import LedgerRow, Output
from privdd.privacy.mechanisms import AggregateClip, ClientLevel, ClippedSum, FeatureNoise
from privdd.runtime.engine import Engine
from tests.federations import ALGOS, tiny


def without(shard: Shard, at: int) -> Records:
    return shard.train.take([i for i in range(len(shard.train)) if i != at])


def dropped(shard: Shard) -> Shard:
    return shard.with_train(without(shard, 3))


def zeroed(shard: Shard) -> Shard:
    gone = shard.train.take([3])
    return replace(
        shard.with_train(without(shard, 3)), nulls=replace(gone, x=torch.zeros_like(gone.x))
    )


def exchanged(shard: Shard) -> Shard:
    """Another image in the place of record 3, and a label of another class."""
    x = shard.train.x.clone()
    y = shard.train.y.clone()
    x[3], y[3] = 1 - x[3], (y[3] + 1) % shard.classes
    return shard.with_train(Records(x, y, shard.train.ids))


def someone_else(shard: Shard) -> Shard:
    """Another client altogether: fewer records, other images, a single class."""
    few = shard.train.take(range(len(shard.train) // 2))
    return shard.with_train(Records(1 - few.x, torch.full_like(few.y, shard.classes - 1), few.ids))


def nobody(shard: Shard) -> Shard:
    return shard.with_train(shard.train.take([]))


NEIGHBOURS: dict[str, list[Callable[[Shard], Shard]]] = {
    "add_remove": [dropped, someone_else, nobody],  # the last two are many records away
    "zero_out": [zeroed],
    "replace": [exchanged],
}
CASES: dict[str, tuple[tuple[str, ...], Callable[[Shard], Shard]]] = {
    f"{algo} {relation} {other.__name__}": ((algo, f"privacy.relation={relation}"), other)
    for algo in ALGOS
    if algo.endswith("_dp") and algo != "fedfed_dp"
    for relation, others in NEIGHBOURS.items()
    for other in others
}
CASES |= {
    f"fedavg dpsgd {relation} {other.__name__}": (
        ("fedavg", "privacy=dpsgd", f"privacy.relation={relation}"),
        other,
    )
    for relation, others in NEIGHBOURS.items()
    for other in others
}
# its labels and their number are public under zero-out alone
CASES["fedfed_dp zeroed"] = (("fedfed_dp",), zeroed)
CASES |= {  # the whole client is the unit, also one that has no records
    f"{algo} client {other.__name__}": ((algo, "privacy=client"), other)
    for algo in ("fedavg", "fedprox")
    for other in (someone_else, nobody)
}


@dataclass
class Tape:
    """Every mechanism's outputs in the order of their making: kept in the first run, given out
    again in the second."""

    kept: list[Tensors] = field(default_factory=list)
    played: int | None = None

    def of(self, output: Output) -> Output:
        if self.played is None:
            self.kept.append(output.value)
            return output
        self.played += 1
        return replace(output, value=self.kept[self.played - 1])


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    made = Tape()
    for kind in (AggregateClip, ClientLevel, ClippedSum, FeatureNoise):
        monkeypatch.setattr(
            kind, "__call__", lambda self, v, noise, _of=kind.__call__: made.of(_of(self, v, noise))
        )
    return made


class Listening(Engine):
    """A simulation's clients, one after another; replies: what each of them sent."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "replies", [])

    def map(
        self, fn: Callable[..., Any], tasks: Iterable[ClientTask]
    ) -> Iterator[tuple[Received, list[LedgerRow], State]]:
        for task in tasks:
            received, rows, memory = client_step(task)
            self.replies.append(
                (task.round, task.client, save(flatten_values(received.values)), repr(rows))
            )
            yield received, rows, memory


class OneProcess:
    """A Flower grid whose clients are in this process; replies: each as Flower serialises it."""

    def __init__(self, experiment: Experiment, shards: Sequence[Shard]) -> None:
        nodes = range(100, 100 + len(shards))
        self.contexts = {
            n: Context(1, n, {"partition-id": n - 100}, RecordDict(), {}) for n in nodes
        }

        def own(context):
            return (
                experiment.plan,
                experiment.new_ledger(),
                shards[context.node_config["partition-id"]],
            )

        self.app = client_app(own, simulation=True)
        self.replies = []
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        TaskIdentity.task_id = 1

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        for message in messages:
            node = message.metadata.dst_node_id
            reply = self.app(message, self.contexts[node])
            reply.metadata._src_node_id = node
            sent = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
            self.replies.append((message.metadata.group_id, node - 100, sent))
            yield reply


def federation(
    experiment: Experiment, shards: Sequence[Shard], flower: bool
) -> tuple[list[Any], str]:
    """(every reply of every client in order, the text of ledger.json) of all rounds."""
    plan = experiment.plan
    if flower:
        grid = OneProcess(experiment, shards)
        heard = grid.replies
        engine: Any = GridEngine(grid, {node - 100: node for node in grid.contexts})  # type: ignore[arg-type]
    else:
        engine = Listening()
        heard = engine.replies
    progress = start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress = run_round(plan, progress, shards, engine)[0]
    return heard, "".join(publish_final_state(plan, progress).ledger.text())


FIRST: dict[
    Any, tuple[Any, list[Tensors]]
] = {}  # what is seen of a federation, and its tape: neighbours share it


def both(
    experiment: Experiment,
    other: Callable[[Shard], Shard],
    tape: Tape,
    flower: bool,
    name: Any = None,
) -> tuple[Any, Any]:
    """What is seen of a federation, and of the same one with other data at the audited client.

    name: of the first one, which is run once; None: it is run anew.
    """
    shards = list(experiment.shards)
    if name is None or name not in FIRST:
        made = federation(experiment, shards, flower), tape.kept
        if name is not None:
            FIRST[name] = made
    else:
        made = FIRST[name]
    first, tape.kept = made
    tape.played = 0
    victim = experiment.plan.victim
    shards[victim] = other(shards[victim])
    second = federation(experiment, shards, flower)
    assert (
        tape.played == len(tape.kept) > 0
    )  # or there was nothing to hold fixed, or something not held
    return first, second


# of each method one simulated neighbour stays
@pytest.mark.nightly(
    but=[
        "feddm_dp add_remove someone_else-simulated",
        "feddm_dp add_remove nobody-simulated",
        "fedrd_personal_dp add_remove someone_else-simulated",
        "fedavg dpsgd add_remove dropped-simulated",
        "fedavg dpsgd add_remove dropped-flower",
        "fedavg dpsgd add_remove someone_else-simulated",
        "fedavg dpsgd add_remove someone_else-flower",
        "fedavg dpsgd add_remove nobody-simulated",
        "fedavg dpsgd add_remove nobody-flower",
        "fedavg dpsgd zero_out zeroed-simulated",
        "fedavg client someone_else-simulated",
        "fedavg client someone_else-flower",
        "fedavg client nobody-simulated",
        "fedavg client nobody-flower",
        "fedprox client someone_else-simulated",
        "fedprox client someone_else-flower",
        "fedprox client nobody-simulated",
        "fedprox client nobody-flower",
    ]
)
@pytest.mark.parametrize("flower", [False, True], ids=["simulated", "flower"])
@pytest.mark.parametrize("case", CASES)
def test_replies_and_ledger_are_the_same_bytes_for_a_neighbour(
    case: str, flower: bool, tape: Tape
) -> None:
    overrides, other = CASES[case]
    experiment = tiny(*overrides)
    (sent, ledger), (sent_too, ledger_too) = both(
        experiment, other, tape, flower, (overrides, flower)
    )
    assert len(sent) >= 3 * experiment.plan.method.rounds
    for one, two in zip(sent, sent_too, strict=True):
        assert one == two
    assert ledger == ledger_too and len(json.loads(ledger)["releases"]) >= len(sent)


TELLING: dict[str, Callable[[Output, int], Output]] = {
    "why": lambda output, n: replace(output, why=f"the mean of {n} records"),
    "noise_std": lambda output, n: replace(output, noise_std=output.noise_std * (n + 1)),
    "sensitivity": lambda output, n: replace(output, sensitivity=1 / (n + 1)),
    "clip_norm": lambda output, n: replace(output, clip_norm=float(n + 1)),
    "flags": lambda output, n: replace(output, flags={"even": n % 2 == 0}),
    "event": lambda output, n: replace(output, event=dpa.GaussianDpEvent(5.0 + n)),
}


@pytest.mark.nightly(but=["noise_std-flower", "sensitivity-flower", "clip_norm-flower"])
@pytest.mark.parametrize("flower", [False, True], ids=["simulated", "flower"])
@pytest.mark.parametrize("place", TELLING)
def test_a_row_that_tells_how_many_records_there_were_is_caught(
    place: str, flower: bool, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = ClippedSum.__call__
    tell = TELLING[place]
    told = lambda self, v, noise: tell(apply(self, v, noise), len(next(iter(v.values()))))  # noqa: E731
    monkeypatch.setattr(ClippedSum, "__call__", told)
    experiment = tiny("feddm_dp")
    if flower:  # the server knows what the row should say, whatever the data
        with pytest.raises(FederationFailed, match=r"^client 0 \(node 100\), round 0: .* the plan"):
            federation(experiment, experiment.shards, flower)
        return
    (sent, ledger), (sent_too, ledger_too) = both(experiment, dropped, tape, flower)
    assert sent != sent_too and ledger != ledger_too


def test_an_error_does_not_tell_about_the_data() -> None:
    """The text of an exception becomes Flower's answer."""
    # without privacy a client must have records: its parameters are averaged by their number
    experiment = tiny("fedavg")
    shards = [nobody(experiment.shards[0]), *experiment.shards[1:]]
    with pytest.raises(ValueError, match="records=0"):
        federation(experiment, shards, flower=False)
    with pytest.raises(FederationFailed) as failure:
        federation(experiment, shards, flower=True)
    assert str(failure.value) == "client 0 failed in round 0; its own log says why"
    assert failure.value.__cause__ is None and failure.value.__suppress_context__
