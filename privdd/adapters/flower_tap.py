"""Two lines that record a federation of someone else's on Flower, for ``python -m privdd.audit run=DIR``.

At the clients ``ClientApp(mods=[privdd_tap("run"), ...])``, first in the list, so that it sees what really leaves; at
the server ``strategy = tapped(strategy, "run")``. Each is enough by itself. They change nothing that is sent, and
whatever goes wrong with a recording is logged and marked in it; the training never hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from privdd.adapters.flower_claims import of_mods, of_strategy
from privdd.runtime.private_folder import check_private
from privdd.tapping.message_file import BROADCAST, FINAL, REPLY, SERVER, Heading
from privdd.tapping.named_recording import CLIENTS, HEAD
from privdd.tapping.recorder import COMPLETE, STOPPED, Pending, TapRecorder

RECORDING = "a recording, as private as the models themselves,"
ROUND = ("server-round", "server_round", "round", "current_round")


@cache
def library() -> str:
    return f"flwr {version('flwr')}"


# --- messages ------------------------------------------------------------------------------------


def arrays_of(content: RecordDict) -> dict[str, np.ndarray]:
    """All arrays of a message by name; with several records the names are RECORD/ARRAY."""
    records = content.array_records
    several = len(records) > 1
    return {
        f"{name}/{key}" if several else key: array.numpy()
        for name, record in records.items()
        for key, array in record.items()
    }


def numbers_of(content: RecordDict) -> dict[str, Any]:
    """The numbers that travel beside the arrays: RECORD/NAME -> a number or a list of numbers."""
    found = {f"{name}/{key}": value for name, record in content.metric_records.items() for key, value in record.items()}
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value if np.isfinite(value) else str(value)


def round_of(message: Message) -> int:
    """The server's round, as strategies of Flower tell it; 0 where nothing does."""
    for record in message.content.config_records.values():
        for name in ROUND:
            if isinstance(record.get(name), int):
                return int(record[name])  # type: ignore[arg-type]
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else 0


# --- at a client ---------------------------------------------------------------------------------


def privdd_tap(run: str | Path, *, beside_app: bool = False) -> Callable[..., Message]:
    """A mod for ``ClientApp(mods=[...])`` that records what the client gets and sends, in RUN/clients/NODE.

    Raises BadConfig where RUN lies with a Flower app, into whose bundle flwr would pack it, unless beside_app.
    """
    if not beside_app:
        check_private(Path(run), RECORDING)

    def tap(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        recorder = TapRecorder(
            Path(run) / CLIENTS / str(context.node_id), "client", {"library": library(), "claims": []}
        )
        heading = recorder.safely("what a message is", lambda: _heading(message, context, call_next))
        pending = heading and recorder.safely("the start of a message", lambda: _received(recorder, heading, message))
        try:
            reply = call_next(message, context)
        finally:  # where the app fails nothing leaves the client but the text of its error
            if pending:
                pending.done()
        if heading and not reply.has_error():
            recorder.safely(
                f"the reply to {heading.kind} of round {heading.round}", lambda: _sent(recorder, heading, reply)
            )
        return reply

    return tap


def _heading(message: Message, context: Context, call_next: Callable[..., Any]) -> Heading:
    partition = context.node_config.get("partition-id")
    return Heading(
        round_of(message),
        int(context.node_id),
        str(message.metadata.message_type),
        BROADCAST,
        int(context.run_id),
        partition if type(partition) is int else None,
        claims=of_mods(call_next),
    )


def _received(recorder: TapRecorder, heading: Heading, message: Message) -> Pending:
    pending = Pending(recorder.folder, heading.round, heading.kind)
    if not (recorder.folder / HEAD).is_file():
        recorder.begin()
    told = Heading(**{**vars(heading), "metrics": numbers_of(message.content), "claims": ()})
    recorder.keep(told, arrays_of(message.content))
    return pending


def _sent(recorder: TapRecorder, heading: Heading, reply: Message) -> None:
    kept = Heading(**{**vars(heading), "part": REPLY, "metrics": numbers_of(reply.content)})
    recorder.keep(kept, arrays_of(reply.content))


# --- at the server -------------------------------------------------------------------------------


def tapped(strategy: Strategy, run: str | Path, *, beside_app: bool = False) -> Strategy:
    """The same strategy, whose messages are recorded in RUN from now on. Raises TypeError for anything else.

    Raises BadConfig as ``privdd_tap`` does. A folder that holds a recording already is left alone: RUN-2, RUN-3, ... are taken then, which is logged.
    """
    if not isinstance(strategy, Strategy):
        raise TypeError(f"tapped({type(strategy).__name__}): a strategy of flwr.serverapp.strategy is needed")
    if not beside_app:
        check_private(Path(run), RECORDING)
    recorder = _server_recorder(strategy, Path(run))
    tap = _ServerTap(recorder, of_strategy(strategy))
    for name, around in (
        ("configure_train", tap.sending("train")),
        ("configure_evaluate", tap.sending("evaluate")),
        ("aggregate_train", tap.receiving("train")),
        ("aggregate_evaluate", tap.receiving("evaluate")),
        ("start", tap.whole),
    ):
        setattr(strategy, name, around(getattr(strategy, name)))
    return strategy


def _server_recorder(strategy: Strategy, run: Path) -> TapRecorder:
    from privdd.tapping.recorder import LOG

    folder, number = run, 1
    while (folder / HEAD).exists():
        number += 1
        folder = run.with_name(f"{run.name}-{number}")
    if folder != run:
        LOG.warning("PRIVDD TAP: %s holds a recording already; this one is written to %s", run, folder)
    kind = type(strategy)
    more = {
        "library": library(),
        "strategy": f"{kind.__module__}.{kind.__qualname__}",
        "claims": list(of_strategy(strategy)),
    }
    recorder = TapRecorder(folder, "server", more)
    recorder.safely("the head of the recording", recorder.begin)
    return recorder


class _ServerTap:
    """Functions around a strategy's own; each calls it once and hands on what it was given and what it returns."""

    def __init__(self, recorder: TapRecorder, claims: tuple[Mapping[str, Any], ...]) -> None:
        self.recorder, self.claims = recorder, claims

    def sending(self, kind: str) -> Callable[..., Any]:
        def around(own: Callable[..., Iterable[Message]]) -> Callable[..., Any]:
            def configure(server_round: int, *args: Any, **more: Any) -> Any:
                messages = list(own(server_round, *args, **more))
                self.recorder.safely(
                    f"what round {server_round} sent", lambda: self._broadcast(server_round, kind, messages)
                )
                return messages

            return configure

        return around

    def receiving(self, kind: str) -> Callable[..., Any]:
        def around(own: Callable[..., Any]) -> Callable[..., Any]:
            def aggregate(server_round: int, replies: Iterable[Message], *args: Any, **more: Any) -> Any:
                held = list(replies)  # before the strategy reads them: some take the arrays out
                self.recorder.safely(
                    f"what round {server_round} received", lambda: self._replies(server_round, kind, held)
                )
                result = own(server_round, held, *args, **more)
                if kind == "train":
                    self.recorder.safely(
                        f"the model after round {server_round}", lambda: self._final(server_round, result)
                    )
                return result

            return aggregate

        return around

    def whole(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **more: Any) -> Any:
            state = STOPPED
            try:
                result = own(*args, **more)
                state = COMPLETE
                return result
            finally:
                self.recorder.safely("the end of the recording", lambda: self.recorder.end(state))

        return start

    def _broadcast(self, round: int, kind: str, messages: list[Message]) -> None:
        """One file for a content that all clients get, one for each client otherwise."""
        same = len({id(message.content) for message in messages}) == 1
        for message in messages[:1] if same else messages:
            node = SERVER if same else int(message.metadata.dst_node_id)
            heading = Heading(round, node, kind, BROADCAST, _run(message), metrics=numbers_of(message.content))
            self.recorder.keep(heading, arrays_of(message.content))

    def _replies(self, round: int, kind: str, replies: list[Message]) -> None:
        for reply in replies:
            if not reply.has_error():
                node = int(reply.metadata.src_node_id)
                heading = Heading(round, node, kind, REPLY, _run(reply), metrics=numbers_of(reply.content))
                self.recorder.keep(heading, arrays_of(reply.content))

    def _final(self, round: int, result: tuple[Any, Any]) -> None:
        arrays, metrics = result
        if arrays is not None:
            numbers = {} if metrics is None else numbers_of(RecordDict({"metrics": metrics}))
            heading = Heading(round, SERVER, "train", FINAL, metrics=numbers, claims=self.claims)
            self.recorder.keep(heading, arrays_of(RecordDict({"arrays": arrays})))


def _run(message: Message) -> int:
    return int(message.metadata.run_id)
