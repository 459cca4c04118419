"""Two lines that record a federation of someone else's on Flower, for ``python -m privdd.audit
recording=DIR``.

At the clients ``ClientApp(mods=[privdd_tap("run"), ...])``, first in the list, so that it sees what
really leaves; at the server ``strategy = tapped(strategy, "run")``. Each is enough by itself. They
change nothing that is sent, and whatever goes wrong with a recording is logged and marked in it;
the training never hears of it. What recognised components claim of their own privacy is recorded
too, and not checked here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import dp_accounting as dpa
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from privdd.core.validation import BadConfig, is_number
from privdd.federated.budget import BudgetExceeded
from privdd.privacy.accounting import epsilon
from privdd.recording import CLIENTS_FOLDER, HEAD_FILE
from privdd.recording.recording import (
    BROADCAST,
    COMPLETE,
    FINAL,
    REPLY,
    SERVER_NODE,
    STOPPED,
    MessageHeading,
    MessageRecorder,
    PendingMark,
)
from privdd.runtime.files import check_private

MAX_MODS = 50  # mods that are looked through
DP_STRATEGIES = {
    "DifferentialPrivacyServerSideFixedClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyClientSideAdaptiveClipping",
}
CLAIM_SETTINGS = (
    "clipping_norm",
    "sensitivity",
    "epsilon",
    "delta",
    "noise_multiplier",
    "num_sampled_clients",
)
RECORDING = "a recording, as private as the models themselves,"
ROUND_KEYS = ("server-round", "server_round", "round", "current_round")


def mods_below(call_next: Callable[..., Any]) -> Iterator[Any]:
    """The mods that a message still goes through: Flower keeps them in the closures that it chains
    them by."""
    for _ in range(MAX_MODS):
        enclosed: dict[str, Any] = {}
        if isinstance(call_next, FunctionType):
            enclosed = dict(zip(call_next.__code__.co_freevars, call_next.__closure__ or ()))
        if not {"_ffn", "_mod"} <= set(enclosed):
            return
        yield enclosed["_mod"].cell_contents
        call_next = enclosed["_ffn"].cell_contents


def claims_of_mods(call_next: Callable[..., Any]) -> tuple[dict[str, Any], ...]:
    """The claims of the mods below: those of ``LocalDpMod``, about the arrays of one reply to
    ``train``.

    Its formula is the classical one, noise = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon.
    """
    return tuple(
        _build_claim(mod, "reply", math.sqrt(2 * math.log(1.25 / mod.delta)) / mod.epsilon)
        for mod in mods_below(call_next)
        if _flower_class_name(mod) == "LocalDpMod"
        and 0 < mod.epsilon < math.inf
        and 0 < mod.delta < 1
    )


def claims_of_strategy(strategy: Any) -> tuple[dict[str, Any], ...]:
    """The claims of a strategy, about each aggregate that it returns."""
    if _flower_class_name(strategy) not in DP_STRATEGIES or not strategy.noise_multiplier > 0:
        return ()
    return (_build_claim(strategy, "final", float(strategy.noise_multiplier)),)


def _flower_class_name(part: Any) -> str:
    """The name of a class of Flower's own; "" for anything else, a subclass included: it may do
    something else."""
    kind = type(part)
    if kind.__module__.split(".")[0] == "flwr":
        return kind.__name__
    return ""


def _build_claim(part: Any, covers: str, multiplier: float) -> dict[str, Any]:
    settings = {
        name: value
        for name, value in vars(part).items()
        if name in CLAIM_SETTINGS and is_number(value)
    }
    component = _flower_class_name(part)
    return {
        "component": component,
        "settings": settings,
        "covers": covers,
        "noise_multiplier": multiplier,
    }


@cache
def flower_version() -> str:
    return f"flwr {version('flwr')}"


def message_arrays(content: RecordDict) -> dict[str, np.ndarray]:
    """All arrays of a message by name; with several records the names are RECORD/ARRAY."""
    records = content.array_records
    arrays = {}
    for name, record in records.items():
        prefix = f"{name}/" if len(records) > 1 else ""
        for key, array in record.items():
            arrays[f"{prefix}{key}"] = array.numpy()
    return arrays


def message_numbers(content: RecordDict) -> dict[str, Any]:
    """The numbers that travel beside the arrays: RECORD/NAME -> a number or a list of numbers."""
    numbers: dict[str, Any] = {}
    for name, record in content.metric_records.items():
        for key, value in record.items():
            if isinstance(value, list):
                numbers[f"{name}/{key}"] = [_json_number(item) for item in value]
            else:
                numbers[f"{name}/{key}"] = _json_number(value)
    return numbers


def _json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are texts."""
    return value if np.isfinite(value) else str(value)


def message_round(message: Message) -> int:
    """The server's round, as strategies of Flower tell it; 0 where nothing does."""
    for record in message.content.config_records.values():
        for name in ROUND_KEYS:
            if isinstance(record.get(name), int):
                return int(record[name])  # type: ignore[arg-type]
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else 0


def privdd_tap(run: str | Path, *, beside_app: bool = False) -> Callable[..., Message]:
    """A mod for ``ClientApp(mods=[...])`` that records what the client gets and sends, in
    RUN/clients/NODE.

    Raises BadConfig where RUN lies with a Flower app, into whose bundle flwr would pack it, unless
    beside_app."""
    if not beside_app:
        check_private(Path(run), RECORDING)

    def record_and_forward(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        recorder = MessageRecorder(
            Path(run) / CLIENTS_FOLDER / str(context.node_id),
            "client",
            {"library": flower_version(), "claims": []},
        )
        heading = recorder.run_safely(
            "the kind of a message", lambda: _message_heading(message, context, call_next)
        )
        pending = heading and recorder.run_safely(
            "the start of a message", lambda: _record_received(recorder, heading, message)
        )
        try:
            reply = call_next(message, context)
        finally:  # where the app fails nothing leaves the client but the text of its error
            if pending:
                pending.remove_mark()
        if heading and not reply.has_error():
            recorder.run_safely(
                f"the reply to {heading.kind} of round {heading.round}",
                lambda: _record_sent(recorder, heading, reply),
            )
        return reply

    return record_and_forward


def _message_heading(
    message: Message, context: Context, call_next: Callable[..., Any]
) -> MessageHeading:
    partition = context.node_config.get("partition-id")
    return MessageHeading(
        message_round(message),
        int(context.node_id),
        str(message.metadata.message_type),
        BROADCAST,
        int(context.run_id),
        partition if type(partition) is int else None,
        claims=claims_of_mods(call_next),
    )


def _record_received(
    recorder: MessageRecorder, heading: MessageHeading, message: Message
) -> PendingMark:
    pending = PendingMark(recorder.folder, heading.round, heading.kind)
    if not (recorder.folder / HEAD_FILE).is_file():
        recorder.write_head()
    received = replace(heading, metrics=message_numbers(message.content), claims=())
    recorder.record_message(received, message_arrays(message.content))
    return pending


def _record_sent(recorder: MessageRecorder, heading: MessageHeading, reply: Message) -> None:
    sent = replace(heading, part=REPLY, metrics=message_numbers(reply.content))
    recorder.record_message(sent, message_arrays(reply.content))


def tapped(
    strategy: Strategy,
    run: str | Path,
    *,
    beside_app: bool = False,
    budget: float | None = None,
    delta: float = 1e-5,
) -> Strategy:
    """The strategy with its messages recorded in RUN from now on. Raises TypeError for anything
    else.

    budget: the largest epsilon that the strategy's own noise may add up to, at ``delta`` and per
        client: a round that would exceed it raises BudgetExceeded before it is sent. A strategy
            without noise of Flower's own has no such number.

    Raises BadConfig as ``privdd_tap`` does. A folder that holds a recording already is left alone:
    RUN-2, RUN-3, ... are taken then, which is logged."""
    if not isinstance(strategy, Strategy):
        raise TypeError(
            f"tapped({type(strategy).__name__}): a strategy of flwr.serverapp.strategy is needed"
        )
    if not beside_app:
        check_private(Path(run), RECORDING)
    claims = claims_of_strategy(strategy)
    if budget is not None and not claims:
        raise BadConfig(
            f"budget={budget}: {type(strategy).__name__} adds no noise that could be counted"
        )
    recorder = _server_recorder(strategy, Path(run))
    tap = _ServerRecorder(recorder, claims, budget, delta)
    for kind in ("train", "evaluate"):
        for step, wrap in (("configure", tap.wrap_configure), ("aggregate", tap.wrap_aggregate)):
            setattr(strategy, f"{step}_{kind}", wrap(kind, getattr(strategy, f"{step}_{kind}")))
    setattr(strategy, "start", tap.wrap_start(strategy.start))  # noqa: B010
    return strategy


def _server_recorder(strategy: Strategy, run: Path) -> MessageRecorder:
    from privdd.recording.recording import LOG

    folder = run
    number = 1
    while (folder / HEAD_FILE).exists():
        number += 1
        folder = run.with_name(f"{run.name}-{number}")
    if folder != run:
        LOG.warning(
            "PRIVDD TAP: %s holds a recording already; this one is written to %s", run, folder
        )
    kind = type(strategy)
    name = f"{kind.__module__}.{kind.__qualname__}"
    claims = list(claims_of_strategy(strategy))
    run_facts = {"library": flower_version(), "strategy": name, "claims": claims}
    recorder = MessageRecorder(folder, "server", run_facts)
    recorder.run_safely("the head of the recording", recorder.write_head)
    return recorder


class _ServerRecorder:
    """Functions around a strategy's own; each calls it once and hands on what it was given and what
    it returns."""

    def __init__(
        self,
        recorder: MessageRecorder,
        claims: tuple[Mapping[str, Any], ...],
        budget: float | None = None,
        delta: float = 1e-5,
    ) -> None:
        self.recorder = recorder
        self.claims = claims
        self.budget = budget
        self.delta = delta

    def _check_budget(self, server_round: int) -> None:
        """Refuse a round after which the claimed noise costs more than the budget, as if every
        client took part."""
        if self.budget is None:
            return
        noise_multiplier = float(self.claims[0]["noise_multiplier"])
        event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise_multiplier), server_round)
        projected = epsilon(event, self.delta)
        if projected > self.budget:
            raise BudgetExceeded(
                f"budget={self.budget:g}: round {server_round} is refused: after it, "
                "epsilon would be "
                f"{projected:.4g} at delta {self.delta:g} (unit client, add_remove)"
            )

    def wrap_configure(
        self, kind: str, own: Callable[..., Iterable[Message]]
    ) -> Callable[..., Any]:
        def configure_and_record(server_round: int, *args: Any, **settings: Any) -> Any:
            if kind == "train":
                self._check_budget(server_round)
            messages = list(own(server_round, *args, **settings))
            self.recorder.run_safely(
                f"what round {server_round} sent",
                lambda: self._record_broadcast(server_round, kind, messages),
            )
            return messages

        return configure_and_record

    def wrap_aggregate(self, kind: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def record_and_aggregate(
            server_round: int, replies: Iterable[Message], *args: Any, **settings: Any
        ) -> Any:
            held = list(replies)  # before the strategy reads them: some take the arrays out
            self.recorder.run_safely(
                f"what round {server_round} received",
                lambda: self._record_replies(server_round, kind, held),
            )
            result = own(server_round, held, *args, **settings)
            if kind == "train":
                self.recorder.run_safely(
                    f"the model after round {server_round}",
                    lambda: self._record_final(server_round, result),
                )
            return result

        return record_and_aggregate

    def wrap_start(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def start_and_record(*args: Any, **settings: Any) -> Any:
            state = STOPPED
            try:
                result = own(*args, **settings)
                state = COMPLETE
                return result
            except BudgetExceeded:
                state = COMPLETE  # every round that ran is recorded
                raise
            finally:
                self.recorder.run_safely(
                    "the end of the recording", lambda: self.recorder.close_recording(state)
                )

        return start_and_record

    def _record_broadcast(self, round: int, kind: str, messages: list[Message]) -> None:
        """One file for a content that all clients get, one for each client otherwise."""
        is_same_content = len({id(message.content) for message in messages}) == 1
        for message in messages[:1] if is_same_content else messages:
            self._record_message(
                round,
                SERVER_NODE if is_same_content else message.metadata.dst_node_id,
                kind,
                BROADCAST,
                message,
            )

    def _record_replies(self, round: int, kind: str, replies: list[Message]) -> None:
        for reply in replies:
            if not reply.has_error():
                self._record_message(round, reply.metadata.src_node_id, kind, REPLY, reply)

    def _record_message(
        self,
        round: int,
        node: int,
        kind: str,
        part: Literal["broadcast", "reply"],
        message: Message,
    ) -> None:
        run = int(message.metadata.run_id)
        numbers = message_numbers(message.content)
        heading = MessageHeading(round, int(node), kind, part, run, metrics=numbers)
        self.recorder.record_message(heading, message_arrays(message.content))

    def _record_final(self, round: int, result: tuple[Any, Any]) -> None:
        arrays, metrics = result
        if arrays is not None:
            if metrics is None:
                numbers = {}
            else:
                numbers = message_numbers(RecordDict({"metrics": metrics}))
            heading = MessageHeading(
                round, SERVER_NODE, "train", FINAL, metrics=numbers, claims=self.claims
            )
            self.recorder.record_message(heading, message_arrays(RecordDict({"arrays": arrays})))
