"""FedMIA (Zhu et al. 2025): what other clients sent says how a signal of a record looks that the
sender did not hold.

No shadow models: a record belongs to one client, so the other clients' uploads of the same round
are its non-member distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.membership.attack import (
    MembershipAttack,
    check_shadow_signals,
    primary_signal,
    require_worlds,
)
from attacks.membership.lira import lira
from attacks.membership.multi_round import MultiRoundAttack, signal_in_all_rounds
from attacks.tensors import accepts_numpy
from attacks.types import SERVER_ONLY, Evidence, Finding, Surface, View, Worlds

FEWEST_CLIENTS = 2  # other clients, of whose signals a spread can be computed
# of which the readers' signals are comparable from client to client
COMPARABLE_SURFACES = frozenset(
    {Surface.UPDATE, Surface.GRADIENT, Surface.LOGITS, Surface.SYNTHETIC_IMAGES}
)


@accepts_numpy
def stack_other_clients(by_round: Sequence[Sequence[Tensor]]) -> Tensor | None:
    """What other clients sent in several rounds, as attacks hold it.

    Args:
        by_round: Of each of R rounds, the signals (n,) of every other client that took part.

    Returns:
        (M, n, R), M the fewest clients of any round with at least ``FEWEST_CLIENTS``; NaN in rounds
        with fewer. If all have fewer, rounds with any count; None if no other client took part.
    """
    counts = [len(clients) for clients in by_round]
    needed = max(1, min(FEWEST_CLIENTS, max(counts, default=0)))
    comparable_counts = [count for count in counts if count >= needed]
    if not comparable_counts:
        return None
    fewest = min(comparable_counts)
    signal = next(clients[0] for clients in by_round if clients)
    unknown = torch.full((fewest, *signal.shape), torch.nan, dtype=signal.dtype)
    rounds = []
    for clients in by_round:
        signals = unknown
        if len(clients) >= needed:
            signals = torch.stack(list(clients[:fewest]))
        rounds.append(signals)
    return torch.stack(rounds, -1)


@accepts_numpy
def has_other_clients(reference: Tensor) -> Tensor:
    """Whether each of R rounds (R,) has enough other clients, of their signals (M, n, R)."""
    return ~reference.isnan().all(0).all(0)


@accepts_numpy
def fedmia(
    target: Tensor,
    reference: Tensor,
    *,
    variance: Literal["auto", "bayes", "per_record", "pooled"] = "auto",
) -> Tensor:
    """How surprising a client's signal of each record is among those of clients without it.

    One-tailed test (Zhu et al. 2025, section 4): the score is -ln Pr[X >= target], with X as the
    other clients' signals are distributed. Scores of several rounds add up (Fisher's combination).

    Args:
        target: (n,) signals of the audited client's upload, larger = more like a member.
        reference: (M, n) signals of M >= 2 other clients' uploads in the same round.
        variance: of X for each record. "per_record" is the published Gaussian; "auto" is the
            predictive law of ``lira``, which leans on the other records as well.

    Returns:
        (n,) float64, larger = member.

    Raises:
        ValueError: for bad shapes, NaN, or fewer than two other clients.
    """
    # -ln Pr[X >= t] = -ln Phi((mu - t) / sigma), which is LiRA's one-sided test of -t against -X
    no_member = torch.zeros(reference.shape, dtype=torch.bool)
    check_shadow_signals(reference, no_member, target, 2)
    if len(reference) < FEWEST_CLIENTS:
        raise ValueError(f"reference: {len(reference)} other clients, {FEWEST_CLIENTS} are needed")
    return -lira(-reference, no_member, -target, online=False, variance=variance)


@dataclass(frozen=True)
class ClientComparison(MembershipAttack):
    """What attacks share that compare a client's upload with those of the other clients."""

    surfaces: ClassVar[frozenset[Surface]] = COMPARABLE_SURFACES
    adversaries = SERVER_ONLY
    least_worlds: ClassVar[int] = 1
    reads_other_clients: ClassVar[bool] = True

    _last_round_alone: ClassVar[bool] = False  # it reads no earlier round

    def nothing_to_read(self, view: View) -> str:
        replays = require_worlds(view)
        reference = replays.other_clients
        if not reference:
            return "what other clients sent in these rounds is not known to this adversary"
        clients = min(map(len, reference.values()))
        if clients < FEWEST_CLIENTS:
            return f"{clients} other client took part; {FEWEST_CLIENTS} are needed"
        if missing := super().nothing_to_read(view):
            return missing
        name = primary_signal(view.surface, replays, self._chosen_signal(view.surface))
        rounds = signal_in_all_rounds(replays, name).shape[-1]
        if self._last_round_alone:
            rounds = 1
        if name in reference and has_other_clients(reference[name][..., -rounds:]).any():
            return ""
        return f"fewer than {FEWEST_CLIENTS} other clients took part in the rounds that it reads"


@dataclass(frozen=True)
class FedMIA(ClientComparison, MultiRoundAttack):
    """Zhu et al. (2025) on the surface's primary signal in every round; see ``fedmia``."""

    variance: Literal["auto", "bayes", "per_record", "pooled"] = "auto"
    name: ClassVar[str] = "fedmia"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        replays = require_worlds(view)
        signals = signal_in_all_rounds(replays, name)  # (K, n, R)
        rounds = signals.shape[-1]
        reference = replays.other_clients[name][..., -rounds:]  # (M, n, R)
        has_others = has_other_clients(reference)
        signals = signals[..., has_others]
        reference = reference[..., has_others]
        scores = torch.zeros(signals.shape, dtype=torch.float64)
        for r in range(signals.shape[-1]):
            for k, signal in enumerate(signals[..., r]):
                scores[k, :, r] = fedmia(signal, reference[..., r], variance=self.variance)
        return scores

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        finding = super()._add_details(finding, evidence, replays)
        clients = len(replays.other_clients[str(evidence.notes["signal"])])
        return finding.with_measures(note=f"non-members as in the uploads of {clients} others")
