"""``Experiment``: everything that a run needs, assembled and checked; and which sent artifacts its
folder keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.types import Surface
from privdd.core.types import Received, Records, Shard, flatten_values
from privdd.core.validation import BadConfig
from privdd.data.dataset import Dataset, is_published
from privdd.federated.aggregation import SUM_CLIENT
from privdd.federated.channel import count_bytes
from privdd.federated.settings import AuditSettings, PrivacySettings, RunSettings
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder, write_tensors

# bytes of all clients' uploads in a run, above which "auto" keeps the audited client's alone
MAX_CAPTURED_BYTES = 2e9


def check_capture(capture: CaptureSettings) -> None:
    """Raises ValueError for rounds or clients that are neither a known word nor a list."""
    for name, words in (("rounds", ("all", "first_last")), ("clients", ("all", "auto", "victim"))):
        value = getattr(capture, name)
        chosen = isinstance(value, list | tuple) and all(
            type(item) is int and item >= 0 for item in value
        )
        if not chosen and value not in words:
            raise ValueError(
                f"capture.{name}={value}: allowed are {', '.join(words)} or a list of "
                "whole numbers from 0"
            )


@dataclass(frozen=True)
class CaptureSettings:
    """Which sent artifacts are kept: each of surfaces, rounds, clients is "all" or a selection.

    clients "auto": those of all clients, unless uploads of that size from all of them in all rounds
    take more than ``MAX_CAPTURED_BYTES``; then the audited client's alone, which is what attacks
    read.
    """

    surfaces: str | Sequence[str] = "all"
    rounds: str | Sequence[int] = "all"
    clients: str | Sequence[int] = "auto"

    def __post_init__(self) -> None:
        check_capture(self)
        surfaces = {str(surface) for surface in Surface}
        if self.surfaces != "all" and not (
            isinstance(self.surfaces, list | tuple) and {*self.surfaces} <= surfaces
        ):
            allowed = f"all or a list of surfaces ({', '.join(sorted(surfaces))})"
            raise ValueError(f"capture.surfaces={self.surfaces}: allowed are {allowed}")

    def check_selection(self, plan: Plan) -> None:
        """Raises ValueError, one line, for a round or a client that the run does not have: nothing
        of it could be kept."""
        for name, count in (("rounds", plan.method.rounds), ("clients", plan.problem.clients)):
            chosen = getattr(self, name)
            if not isinstance(chosen, str) and max(chosen, default=0) >= count:
                raise ValueError(
                    f"capture.{name}={list(chosen)}: this run has {name} 0 to {count - 1}"
                )

    def is_kept(self, plan: Plan, round: int, received: Received, size: int = 0) -> bool:
        """Whether an upload of ``size`` bytes is kept."""
        rounds = {"all": True, "first_last": round in (0, plan.method.rounds - 1)}
        if isinstance(self.rounds, str):
            in_round = rounds[self.rounds]
        else:
            in_round = round in self.rounds
        victim = received.client in (plan.victim, SUM_CLIENT)
        all_bytes = (
            size * plan.method.rounds * len(plan.asked_clients(0))
        )  # where no client drops out
        clients = {"all": True, "victim": victim, "auto": victim or all_bytes <= MAX_CAPTURED_BYTES}
        if isinstance(self.clients, str):
            of_client = clients[self.clients]
        else:
            of_client = received.client in self.clients
        return in_round and of_client

    def write_uploads(self, folder: RunFolder, plan: Plan, inbox: Sequence[Received]) -> None:
        for received in inbox:
            if not self.is_kept(plan, received.round, received, count_bytes(received.values)):
                continue
            names = [
                n
                for n in received.values
                if self.surfaces == "all" or plan.method.uploads[n] in self.surfaces
            ]
            if chosen := flatten_values({name: received.values[name] for name in names}):
                write_tensors(folder.artifact_file(received.round, received.client), chosen)


@dataclass(frozen=True)
class Experiment:
    """A run, assembled and checked, before anything is computed. auditing: None if the run only
    trains."""

    run: RunSettings
    privacy: PrivacySettings
    auditing: AuditSettings | None
    plan: Plan
    dataset: Dataset
    shards: Sequence[Shard]
    engine: Engine
    capture: CaptureSettings

    @property
    def shows_images(self) -> bool:
        """Whether the run's pages show records as images; "auto" asks whether they are public."""
        setting = self.audit_settings.show_images
        return is_published(self.dataset) if setting == "auto" else setting

    @property
    def test_records(self) -> Records:
        return self.dataset.test

    @property
    def audit_settings(self) -> AuditSettings:
        """How the run is audited. Raises BadConfig where it only trains."""
        if self.auditing is None:
            raise BadConfig("audit: this config only trains; a config of privdd.audit is needed")
        return self.auditing

    def new_ledger(self) -> Ledger:
        return Ledger(self.privacy.relation, self.privacy.unit, self.privacy.delta)
