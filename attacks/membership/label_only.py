"""Membership from predicted labels alone: how stable is a record's label when the record is
disturbed?

Choquette-Choo, Tramer, Carlini and Papernot, "Label-Only Membership Inference Attacks" (ICML 2021):
a model is surer of what it was trained on, so more of a member's shifted and noised copies keep the
right label. No confidence, no weights and no shadow model is used, only ``queries`` asked of the
model that was really sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, Surface, Truth, View, Worlds
from attacks.validation import check_counts

PIXEL_SHIFTS = (
    (0, 0),
    (0, 1),
    (0, -1),
    (1, 0),
    (-1, 0),
    (1, 1),
    (-1, -1),
    (1, -1),
    (-1, 1),
)  # pixels, wrapped around
NOISE_LEVELS = (0.1, 0.2, 0.3, 0.5)  # standard deviation of noise; records are in [0, 1]


@accepts_numpy
def label_robustness(
    labels_of: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    copies: int,
    generator: torch.Generator,
) -> Tensor:
    """(n,) in [0, 1]: the share of disturbed copies of each record (n, c, h, w) that get its label
    (n,).

    The copies are the nine SHIFTS, and ``copies`` with noise at each of LEVELS, the same noise for
    every record."""
    noise = torch.randn(copies, *x.shape[1:], generator=generator).to(x)
    kinds = [torch.roll(x, shift, (-2, -1)) for shift in PIXEL_SHIFTS]
    kinds += [x + level * one for level in NOISE_LEVELS for one in noise]
    right = [(labels_of(kind) == y).double() for kind in kinds]
    return torch.stack(right).mean(0)


@dataclass(frozen=True)
class LabelOnly(MembershipAttack):
    """Robustness of the label as the score, one threshold for all records; the real run alone is
    judged."""

    copies: int = 8
    name: ClassVar[str] = "label_only"
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.UPDATE, Surface.GLOBAL_MODEL})
    least_worlds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "copies")

    def nothing_to_read(self, view: View) -> str:
        if require_worlds(view).records is None or _sent_state(view) is None:
            return "what was sent is no model that labels a record by itself"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (1, n): of the run that really happened."""
        worlds = require_worlds(view)
        model = view.knowledge.model
        state = _sent_state(view)
        if worlds.records is None or model is None or state is None:
            raise ValueError(f"{self.name}: the view holds no model")
        model.eval()

        def labels_of(x: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.cat(
                    [functional_call(model, state, (part,)).argmax(1) for part in x.split(512)]
                )

        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        scores = label_robustness(labels_of, worlds.records, worlds.labels, self.copies, generator)
        queries = len(PIXEL_SHIFTS) + self.copies * len(NOISE_LEVELS)
        return Evidence(
            scores=scores[None], notes={"signal": "labels", "seed": seed, "queries": queries}
        )

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """As for any membership attack, with one world."""
        return super().judge(
            evidence, replace(view, worlds=first_replay(require_worlds(view))), truth
        )

    def _add_details(self, finding: Finding, evidence: Evidence, worlds: Worlds) -> Finding:
        return finding.with_measures(diagnostics={"queries_per_record": evidence.notes["queries"]})


def first_replay(worlds: Worlds) -> Worlds:
    """The run that really happened, without its replays."""
    signals = {name: value[:1] for name, value in worlds.signals.items()}
    return Worlds(signals, worlds.masks[:1], worlds.blind, worlds.labels, records=worlds.records)


def _sent_state(view: View) -> dict[str, Tensor] | None:
    """Parameters and buffers of the model that was sent; None where it is not whole or does not
    read records."""
    model: nn.Module | None = view.knowledge.model
    if model is None or not view.captures or "projection" in view.knowledge.maps:
        return None
    own = model.state_dict()
    sent: dict[str, Tensor] = {}
    for capture in (
        view.captures
    ):  # of several networks, the first whose values have the model's names and shapes
        for name, value in capture.value.items():
            if name in own and own[name].shape == value.shape:
                sent.setdefault(name, value)
    return {**own, **sent} if dict(model.named_parameters()).keys() <= sent.keys() else None
