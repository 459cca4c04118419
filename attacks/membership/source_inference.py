"""Source inference (Hu et al. 2023): which client holds a record? The one whose model has the
smallest loss on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from attacks.membership.attack import require_worlds
from attacks.membership.fedmia import ClientComparison
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, View, Worlds


@accepts_numpy
def source_margin(signal: Tensor, reference: Tensor) -> Tensor:
    """By how much a client's signal of each record exceeds the largest of all other clients'.

    With equal chances of all clients, the likeliest owner of a record is the client with the
    largest posterior, which falls with the loss (Hu et al. 2023, theorem 1); so the record is
    attributed to this client if the margin is positive.

    Args:
        signal: (..., n), larger = more like a member; minus a loss, for one.
        reference: (M, n) of M other clients.

    Returns:
        (..., n) float64.
    """
    return signal.double() - reference.double().amax(0)


@dataclass(frozen=True)
class SourceInference(ClientComparison):
    """Hu et al. (2023), by the surface's primary signal in the audited round; the score is the
    margin of ``source_margin``. The confidence orders clients as the loss does."""

    name: ClassVar[str] = "source_inference"
    _last_round_alone: ClassVar[bool] = True

    def score(self, view: View, name: str, seed: int) -> Tensor:
        replays = require_worlds(view)
        return source_margin(replays.signals[name], replays.other_clients[name][..., -1])

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        """diagnostics "source": the shares of members and of non-members that are attributed to the
        audited client, and the chance level of a random choice among all clients. Non-members are
        attributed to it as well if its data differ from the others'."""
        if evidence.scores is None:
            return finding
        clients = 1 + len(replays.other_clients[str(evidence.notes["signal"])])
        attributed = evidence.scores > 0
        masks = replays.masks[: len(evidence.scores)]
        source: dict[str, Any] = {
            "members": float(attributed[masks].double().mean()),
            "non_members": float(attributed[~masks].double().mean()),
            "clients": clients,
            "chance": 1 / clients,
        }
        note = (
            f"{source['members']:.0%} of the members and {source['non_members']:.0%} of the "
            f"non-members are attributed to this client among {clients}; only the difference is "
            f"about membership (chance level {source['chance']:.0%})"
        )
        return finding.with_measures(diagnostics={"source": source}, note=note)
