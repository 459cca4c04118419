"""A real federation on Flower: any method's ``local`` in a ClientApp (here), its ``aggregate`` in a ServerApp.

The client runs the channel, so mechanisms, noise and ledger rows are made where the data is; only what
the channel lets out, and its ledger rows, travel. Client memory stays in Flower's client state, beside the
latest reply: asked for that round again, a client sends the same reply, never another draw of its noise.
Flower keeps that state for one series of runs, so a federation goes on in the series that it began in. A method
whose accuracy is that of each client's own model is measured where that model is. The server (``flower_server``)
runs the same rounds as a simulation, with a ``GridEngine`` in the place of the task engine, and leaves a run folder
that ``python -m privdd.audit run=DIR`` attacks, where the audited client's records are at hand. It believes no reply
that disagrees with the plan (``reply_check``). Needs the extra ``privdd[flower]``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privdd.adapters.flower_messages import FederationFailed, records, tensors
from privdd.auditing.pipeline import game_of
from privdd.core.state import flat, nested
from privdd.core.types import Received, Records, Shard, State
from privdd.federated.channel import digest
from privdd.federated.experiment import Experiment
from privdd.federated.measured import predict_in_batches, share_right
from privdd.federated.simulation import Plan, Task, client_step
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Row

LOG = logging.getLogger("privdd")
Own = Callable[[Context], tuple[Plan, Ledger, Shard]]  # what one client knows: the plan, and its own data


def own_data(experiment: Experiment, client: int) -> Shard:
    """The shard of one client, as an audited simulation trains on it (the audited client's after its coin flips)."""
    shard = experiment.shards[client]
    audited = experiment.auditing is not None and client == experiment.plan.victim
    return game_of(experiment).shard(shard, 0) if audited else shard


def client_app(
    own: Own, *, tells_accuracy: bool = False, simulation: bool = False, mods: Sequence[Any] = ()
) -> ClientApp:
    """A ClientApp that answers ``query`` with its client number and ``train`` with one round's upload.

    own: from Flower's context (its node_config names the client) to plan, an empty ledger and the shard.
    tells_accuracy: answers ``evaluate`` with the accuracy of its own model on its own test split, which
    personal methods need. That number leaves the client outside the channel: no ledger row covers it, so
    it is for studies, and a guarantee holds for everything else.
    simulation: the data is nobody's, so noise may be drawn from the seed. Everyone who takes part knows the seed: a
    real client draws its noise from the operating system or from a secret of its own, or answers with an error.
    mods: of Flower, around every message (``privdd_tap("run")`` records what leaves).
    """
    app = ClientApp(mods=list(mods))

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(records({}, client=own(context)[2].client), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        plan, ledger, shard = own(context)
        words, sent_here = message.content.config_records["words"], tensors(message.content)
        round, asked = int(words["round"]), digest(sent_here)  # type: ignore[arg-type]
        sent = _sent_before(context, shard.client, round, asked)
        if sent is None:
            _check_trust(plan)
            _check_noise(plan, simulation)
            memory = _remembered(context, shard.client, bool(words["remembers"]))
            received, rows, memory = _step(Task(plan, round, shard.client, nested(sent_here), memory, shard))
            ledger.append(rows)
            sent = records(
                flat(received.values),
                client=shard.client,
                round=received.round,
                asked=asked,
                rows=json.dumps(ledger.to_json()),
                remembers=int(bool(memory)),
            )
            _remember(context, memory, sent, round=round, asked=asked)
        return Message(sent, reply_to=message)

    @app.evaluate()
    def judge(message: Message, context: Context) -> Message:
        plan, _, shard = own(context)
        told = {}
        if tells_accuracy:
            memory = _remembered(context, shard.client, bool(message.content.config_records["words"]["remembers"]))
            told = _own_accuracy(plan, tensors(message.content), memory, shard.test)
        return Message(records({}, client=shard.client, refuses=int(not tells_accuracy), **told), reply_to=message)

    return app


def _check_trust(plan: Plan) -> None:
    """Raises FederationFailed under secure aggregation, which is not run here: the server would see each upload, with a share of the noise."""
    if plan.trust.summed:
        raise FederationFailed(
            f"trust={plan.trust.name}: this client would send its own upload, with a share of the noise"
        )


def _check_noise(plan: Plan, simulation: bool) -> None:
    """Raises FederationFailed where the noise could be drawn again by the server, or cannot be drawn at all."""
    if not plan.mechanisms:
        return
    if plan.noise_source == "seed" and not simulation:
        raise FederationFailed(
            "privacy.noise_source=seed: who takes part knows the seed and can take the noise off again; allowed are "
            "secret and os, and seed in a study: client_app(own, simulation=True)"
        )
    if plan.noise_source == "secret" and not plan.keys.secret:
        raise FederationFailed("privacy.noise_source=secret: this client has no secret (PRIVDD_SECRET)")


def _step(task: Task) -> tuple[Received, list[Row], State]:
    """The client's round. Raises FederationFailed without the cause, for Flower sends the text of an exception."""
    try:
        return client_step(task)
    except Exception:
        LOG.exception("client %d, round %d", task.client, task.round)
        raise FederationFailed(f"client {task.client} failed in round {task.round}; its own log says why") from None


def _own_accuracy(plan: Plan, broadcast: State, memory: State, test: Records) -> dict[str, float]:
    """{"accuracy": 0..1} on the client's test split; empty where there is no model or no test record."""
    if not memory or not len(test):
        return {}
    logits = predict_in_batches(lambda x: plan.method.predict(broadcast, memory, x), test.x)
    return {"accuracy": share_right(logits, test.y)}


def _sent_before(context: Context, client: int, round: int, asked: str) -> RecordDict | None:
    """The reply of the latest round where that round is asked for again, after a server that stopped.

    Sent twice it tells nothing new; worked out again it would release noise that no ledger counts.
    asked: digest of the broadcast. Raises FederationFailed for an earlier round, and for another broadcast.
    """
    latest = context.state.config_records.get("latest")
    if latest is None or int(latest["round"]) < round:  # type: ignore[arg-type]
        return None
    if latest["round"] != round:
        at = int(latest["round"])  # type: ignore[arg-type]
        raise FederationFailed(f"client {client} remembers round {at} and cannot repeat round {round}")
    if latest["asked"] != asked:
        raise FederationFailed(f"client {client} answered round {round} already, to another broadcast")
    return RecordDict({part: context.state[f"reply {part}"] for part in ("tensors", "words")})


def _remembered(context: Context, client: int, expected: bool) -> State:
    """What the client keeps. Raises FederationFailed where the server knows of a memory and there is none."""
    memory = tensors(context.state) if "tensors" in context.state else {}
    if expected and not memory:
        raise FederationFailed(f"client {client} has lost its memory of earlier rounds; go on in the same run series")
    return memory


def _remember(context: Context, memory: State, sent: RecordDict, **latest: int | str) -> None:
    """Keep the memory and the latest reply, in the place of the one before."""
    for name, record in records(memory).items():
        context.state[name] = record
    for name, record in sent.items():
        context.state[f"reply {name}"] = record
    context.state["latest"] = ConfigRecord({**latest})
