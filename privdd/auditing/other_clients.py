"""The signals of the audited records in what the other clients sent: they hold none of them.

The server receives these uploads in the run itself. They are not kept with it, as they cost as much
room as all clients' models; a client draws all that it draws from its own stream of the round, so
each is computed again, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privdd.auditing.adversary_view import AdversaryView, Signals
from privdd.auditing.replay import round_chain
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import FinishedRun
from privdd.core.types import Shard, State, Tensors
from privdd.federated.simulation import Plan, Snapshot
from privdd.runtime.progress import show_progress


def repeat_uploads(
    plan: Plan, chain: Sequence[Snapshot], client: int, shard: Shard
) -> Iterator[tuple[int, Mapping[str, Tensors]]]:
    """The rounds of a chain in which a client took part, and what it sent in each.

    Args:
        plan: Of the run.
        chain: Rounds in their order, from the first that the client's memory depends on.
        client: Its number.
        shard: Its data.

    Yields:
        (round, message name -> tensors), as the server received them.
    """
    memory: State = {}
    for snapshot in chain:
        if client not in plan.participants(snapshot.round):
            continue
        ctx = plan.client_context(snapshot.round, client)
        upload, memory = plan.method.local(snapshot.broadcast, memory, shard.client_data, ctx)
        yield snapshot.round, plan.channel.send(upload, ctx)[0].values


@dataclass(frozen=True)
class OtherClientTask:
    """One client's rounds, repeated and read, self-contained so that any worker can run it.

    chains: each ends with a round that is read, or passes it; views: round -> what its adversary
    holds; the rounds that are read.
    """

    plan: Plan
    chains: Sequence[Sequence[Snapshot]]
    client: int
    shard: Shard
    views: Mapping[int, AdversaryView]

    def run(self) -> dict[int, Signals]:
        """Round -> the signals of the audited records in this client's upload."""
        signals: dict[int, Signals] = {}
        for chain in self.chains:
            for t, sent in repeat_uploads(self.plan, chain, self.client, self.shard):
                if t in self.views:
                    signals[t] = extract_signals(self.views[t], sent)
        return signals


def run_other_client(task: OtherClientTask) -> dict[int, Signals]:
    return task.run()


def other_client_signals(
    run: FinishedRun, grouped: Mapping[int, Sequence[int]]
) -> dict[int, dict[str, Tensor]]:
    """Audited round -> the signals of what M other clients sent in its rounds.

    Args:
        run: The finished run.
        grouped: Audited round -> the rounds of its kind that are read, itself the last.

    Returns:
        "surface|signal" -> (M, n, R), M the fewest other clients of any of the R rounds; nothing if
        the server sees sums alone, or if clients remember and not all take part in each round: what
        another client remembers of rounds without the audited one cannot be repeated.
    """
    plan = run.plan
    snapshots = run.progress.snapshots
    remembers = any(len(round_chain(plan, snapshots, t)) > 1 for t in snapshots)
    if plan.trust.is_summed or (remembers and plan.fraction < 1):
        return {}
    signals: dict[int, dict[str, Tensor]] = {}
    for last, rounds in grouped.items():
        chain = round_chain(plan, snapshots, last)
        chains: list[Sequence[Snapshot]] = [chain]
        if len(chain) == 1:
            chains = [(snapshots[t],) for t in rounds]
        views = {t: run.adversary_view(t) for t in rounds}
        tasks = [
            OtherClientTask(plan, chains, client, shard, views)
            for client, shard in enumerate(run.experiment.shards)
            if client != plan.victim
        ]
        by_client = []
        with show_progress("uploads of other clients", len(tasks)) as bar:
            for client_signals in run.experiment.engine.map(run_other_client, tasks):
                by_client.append(client_signals)
                bar.advance()
        signals[last] = _stack_clients(by_client, rounds)
    return signals


def _stack_clients(
    by_client: Sequence[Mapping[int, Signals]], rounds: Sequence[int]
) -> dict[str, Tensor]:
    """(M, n, R) by "surface|signal", of the signals that each client has in all of the rounds."""
    by_round = [[signals[t] for signals in by_client if t in signals] for t in rounds]
    fewest = min(map(len, by_round), default=0)
    if not fewest:
        return {}
    first = by_round[-1][0]
    names = [
        name
        for name, value in first.items()
        if value.ndim == 1 and all(name in one for several in by_round for one in several)
    ]
    return {
        name: torch.stack(
            [torch.stack([one[name] for one in several[:fewest]]) for several in by_round], -1
        )
        for name in names
    }
