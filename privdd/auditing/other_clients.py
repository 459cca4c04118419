"""The signals of the audited records in what the other clients sent: they hold none of them.

The server receives these uploads in the run itself. They are not kept with it, as they cost as much
room as all clients' models; a client draws all that it draws from its own stream of the round, so
each is computed again, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from attacks.membership.fedmia import stack_other_clients
from privdd.auditing.adversary_view import AdversaryView, Signals
from privdd.auditing.replay import round_chain
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import FinishedRun
from privdd.core.types import Shard, State, Tensors
from privdd.federated.simulation import Plan, Snapshot
from privdd.runtime.progress import show_progress


def repeat_upload(
    plan: Plan, snapshot: Snapshot, client: int, shard: Shard, memory: State
) -> tuple[Mapping[str, Tensors], State]:
    """What a client sent in a round in which it took part.

    Args:
        plan: Of the run.
        snapshot: Of the round.
        client: Its number.
        shard: Its data.
        memory: What it kept of earlier rounds.

    Returns:
        (message name -> tensors, as the server received them; what it keeps afterwards).
    """
    ctx = plan.client_context(snapshot.round, client)
    upload, memory = plan.method.local(snapshot.broadcast, memory, shard.client_data, ctx)
    return plan.channel.send(upload, ctx)[0].values, memory


@dataclass(frozen=True)
class OtherClientTask:
    """One client's round, repeated and read, self-contained so that any worker can run it.

    memory: what the client kept of earlier rounds; view: what the round's adversary holds, None of
    a round that is passed and not read.
    """

    plan: Plan
    snapshot: Snapshot
    client: int
    shard: Shard
    memory: State
    view: AdversaryView | None

    def run(self) -> tuple[Signals, State]:
        """(the signals of the audited records in this client's upload, what it keeps)."""
        sent, memory = repeat_upload(self.plan, self.snapshot, self.client, self.shard, self.memory)
        if self.view is None:
            return {}, memory
        return extract_signals(self.view, sent), memory


def run_other_client(task: OtherClientTask) -> tuple[Signals, State]:
    return task.run()


def other_client_signals(
    run: FinishedRun, grouped: Mapping[int, Sequence[int]]
) -> dict[int, dict[str, Tensor]]:
    """Audited round -> the signals of what M other clients sent in its rounds.

    Args:
        run: The finished run.
        grouped: Audited round -> the rounds of its kind that are read, itself the last.

    Returns:
        "surface|signal" -> (M, n, R) of ``stack_other_clients``; nothing if the server sees sums
        alone, or if clients remember and not all take part in each round: what another client
        remembers of rounds without the audited one cannot be repeated.
    """
    plan = run.plan
    snapshots = run.progress.snapshots
    remembers = any(len(round_chain(plan, snapshots, t)) > 1 for t in snapshots)
    if plan.trust.is_summed or (remembers and plan.fraction < 1):
        return {}
    return {
        last: _stack_clients(list(_signals_by_round(run, last, rounds)))
        for last, rounds in grouped.items()
    }


def _signals_by_round(
    run: FinishedRun, last: int, rounds: Sequence[int]
) -> Iterator[list[Signals]]:
    """Of each of the rounds, the signals of every other client that took part in it: one round's
    view is held at a time."""
    plan = run.plan
    snapshots = run.progress.snapshots
    passed: Sequence[Snapshot] = round_chain(plan, snapshots, last)
    remembers = len(passed) > 1
    if not remembers:
        passed = [snapshots[t] for t in rounds]
    memories: dict[int, State] = {}
    with show_progress("uploads of other clients", len(passed)) as bar:
        for snapshot in passed:
            view = None
            if snapshot.round in rounds:
                view = run.adversary_view(snapshot.round)
            tasks = [
                OtherClientTask(plan, snapshot, client, shard, memories.get(client, {}), view)
                for client, shard in enumerate(run.experiment.shards)
                if client != plan.victim and client in plan.participants(snapshot.round)
            ]
            signals = []
            for task, (read, memory) in zip(
                tasks, run.experiment.engine.map(run_other_client, tasks)
            ):
                signals.append(read)
                if remembers:
                    memories[task.client] = memory
            bar.advance()
            if view is not None:
                view.drop_derived_values()
                yield signals


def _stack_clients(by_round: Sequence[Sequence[Signals]]) -> dict[str, Tensor]:
    """(M, n, R) by "surface|signal", of the signals that each client has in all of the rounds."""
    uploads = [signals for clients in by_round for signals in clients]
    stacked = {}
    for name, value in uploads[-1].items() if uploads else ():
        if value.ndim == 1 and all(name in signals for signals in uploads):
            clients = stack_other_clients([_values(clients, name) for clients in by_round])
            if clients is not None:
                stacked[name] = clients
    return stacked


def _values(clients: Sequence[Signals], name: str) -> list[Tensor]:
    return [signals[name] for signals in clients]
