"""Which of the sent artifacts are kept in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.types import Surface
from privdd.core.state import pack
from privdd.core.types import Received
from privdd.federated.channel import size_of
from privdd.federated.simulation import Plan
from privdd.federated.trust import SUM
from privdd.runtime.run_folder import RunFolder, write_tensors

ROOM = 2e9  # bytes of all clients' uploads in a run, above which "auto" keeps the audited client's alone


@dataclass(frozen=True)
class Capture:
    """Which sent artifacts are kept: each of surfaces, rounds, clients is "all" or a selection.

    clients "auto": those of all clients, unless uploads of that size from all of them in all rounds take more than ROOM;
    then the audited client's alone, which is what attacks read.
    """

    surfaces: str | Sequence[str] = "all"
    rounds: str | Sequence[int] = "all"
    clients: str | Sequence[int] = "auto"

    def __post_init__(self) -> None:
        known = {str(surface) for surface in Surface}
        for name, words in (
            ("surfaces", ("all",)),
            ("rounds", ("all", "first_last")),
            ("clients", ("all", "auto", "victim")),
        ):
            value = getattr(self, name)
            if isinstance(value, str) and value in words:
                continue
            items = value if isinstance(value, list | tuple) else [None]
            if not all(v in known if name == "surfaces" else type(v) is int and v >= 0 for v in items):
                what = f"surfaces ({', '.join(sorted(known))})" if name == "surfaces" else "whole numbers from 0"
                raise ValueError(f"capture.{name}={value}: allowed are {', '.join(words)} or a list of {what}")

    def check_there(self, plan: Plan) -> None:
        """Raises ValueError, one line, for a round or a client that the run does not have: nothing of it could be kept."""
        for name, count in (("rounds", plan.method.rounds), ("clients", plan.problem.clients)):
            chosen = getattr(self, name)
            if not isinstance(chosen, str) and max(chosen, default=0) >= count:
                raise ValueError(f"capture.{name}={list(chosen)}: this run has {name} 0 to {count - 1}")

    def wants(self, plan: Plan, round: int, received: Received, size: int = 0) -> bool:
        """Whether an upload of ``size`` bytes is kept."""
        rounds = {"all": True, "first_last": round in (0, plan.method.rounds - 1)}
        in_round = rounds[self.rounds] if isinstance(self.rounds, str) else round in self.rounds
        victim = received.client in (plan.victim, SUM)
        clients = {"all": True, "victim": victim, "auto": victim or size * _uploads(plan) <= ROOM}
        of_client = clients[self.clients] if isinstance(self.clients, str) else received.client in self.clients
        return in_round and of_client

    def keep(self, folder: RunFolder, plan: Plan, inbox: Sequence[Received]) -> None:
        for received in inbox:
            if self.wants(plan, received.round, received, size_of(received.values)):
                chosen = {
                    key: t
                    for name, value in received.values.items()
                    if self.surfaces == "all" or plan.method.uploads[name] in self.surfaces
                    for key, t in pack(name, value).items()
                }
                if chosen:
                    write_tensors(folder.artifact(received.round, received.client), chosen)


def _uploads(plan: Plan) -> int:
    """How many uploads a run has, where no client drops out."""
    return plan.method.rounds * len(plan.asked(0))
