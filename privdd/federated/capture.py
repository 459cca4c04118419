"""Which of the sent artifacts are kept in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.types import Surface
from privdd.core.state import pack
from privdd.core.types import Received
from privdd.federated.simulation import Plan
from privdd.federated.trust import SUM
from privdd.runtime.run_folder import RunFolder, write_tensors


@dataclass(frozen=True)
class Capture:
    """Which sent artifacts are kept: each of surfaces, rounds, clients is "all" or a selection."""

    surfaces: str | Sequence[str] = "all"
    rounds: str | Sequence[int] = "all"
    clients: str | Sequence[int] = "all"

    def __post_init__(self) -> None:
        known = {str(surface) for surface in Surface}
        for name, words in (("surfaces", ("all",)), ("rounds", ("all", "first_last")), ("clients", ("all", "victim"))):
            value = getattr(self, name)
            if isinstance(value, str) and value in words:
                continue
            items = value if isinstance(value, list | tuple) else [None]
            if not all(v in known if name == "surfaces" else type(v) is int and v >= 0 for v in items):
                what = f"surfaces ({', '.join(sorted(known))})" if name == "surfaces" else "whole numbers from 0"
                raise ValueError(f"capture.{name}={value}: allowed are {', '.join(words)} or a list of {what}")

    def wants(self, plan: Plan, round: int, received: Received) -> bool:
        rounds = {"all": True, "first_last": round in (0, plan.method.rounds - 1)}
        in_round = rounds[self.rounds] if isinstance(self.rounds, str) else round in self.rounds
        clients = {"all": True, "victim": received.client in (plan.victim, SUM)}
        of_client = clients[self.clients] if isinstance(self.clients, str) else received.client in self.clients
        return in_round and of_client

    def keep(self, folder: RunFolder, plan: Plan, inbox: Sequence[Received]) -> None:
        for received in inbox:
            if self.wants(plan, received.round, received):
                chosen = {
                    key: t
                    for name, value in received.values.items()
                    if self.surfaces == "all" or plan.method.uploads[name] in self.surfaces
                    for key, t in pack(name, value).items()
                }
                if chosen:
                    write_tensors(folder.artifact(received.round, received.client), chosen)
