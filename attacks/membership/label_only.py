"""Membership from predicted labels alone: how stable is a record's label under perturbation?

Choquette-Choo, Tramer, Carlini and Papernot, "Label-Only Membership Inference Attacks" (ICML 2021):
a model is surer of what it was trained on, so more of a member's shifted and noised copies keep the
right label. No confidence, weights or shadow models are used, only ``queries`` to the model that
was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, Surface, Truth, View, Worlds, is_image
from attacks.validation import check_counts

# pixels, wrapped around
PIXEL_SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
NOISE_LEVELS = (0.1, 0.2, 0.3, 0.5)  # standard deviation of noise; records are in [0, 1]


@accepts_numpy
def label_robustness(
    labels_of: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    copies: int,
    generator: torch.Generator,
) -> Tensor:
    """The share of perturbed copies of each record that keep its label (Choquette-Choo et al.
    2021).

    The copies are the nine PIXEL_SHIFTS (of rows of a table the record itself), and ``copies`` with
    noise at each of NOISE_LEVELS, the same noise for every record.

    Args:
        labels_of: the model, records (n, ...) -> predicted labels (n,).
        x: records (n, c, h, w) or (n, d) in [0, 1].
        y: their labels (n,).
        copies: noised copies at each level.
        generator: draws the noise.

    Returns:
        (n,) float64 in [0, 1], larger = member.
    """
    noise = torch.randn(copies, *x.shape[1:], generator=generator).to(x)
    batches = [torch.roll(x, shift, (-2, -1)) for shift in _pixel_shifts(x.shape[1:])]
    for level in NOISE_LEVELS:
        batches += [x + level * image for image in noise]
    is_right = [(labels_of(batch) == y).double() for batch in batches]
    return torch.stack(is_right).mean(0)


def _pixel_shifts(shape: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Of images the shifts, of rows of a table the row itself."""
    if is_image(shape):
        return PIXEL_SHIFTS
    return PIXEL_SHIFTS[:1]


@dataclass(frozen=True)
class LabelOnly(MembershipAttack):
    """Robustness of the label as the score, with one threshold for all records; only the real run
    is judged."""

    copies: int = 8
    name: ClassVar[str] = "label_only"
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.UPDATE, Surface.GLOBAL_MODEL})
    least_worlds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "copies")

    def nothing_to_read(self, view: View) -> str:
        if require_worlds(view).records is None or _sent_state(view) is None:
            return "the release is not a model that labels a record by itself"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (1, n): of the run that really happened."""
        replays = require_worlds(view)
        model = view.knowledge.model
        state = _sent_state(view)
        if replays.records is None or model is None or state is None:
            raise ValueError(f"{self.name}: the view holds no model")
        model.eval()

        def labels_of(x: Tensor) -> Tensor:
            with torch.no_grad():
                outputs = [functional_call(model, state, (batch,)) for batch in x.split(512)]
            return torch.cat([logits.argmax(1) for logits in outputs])

        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        scores = label_robustness(
            labels_of, replays.records, replays.labels, self.copies, generator
        )
        shifts = _pixel_shifts(view.knowledge.shape)
        queries = len(shifts) + self.copies * len(NOISE_LEVELS)
        notes = {"signal": "labels", "seed": seed, "queries": queries}
        return Evidence(scores=scores[None], notes=notes)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """As for any membership attack, with one replay."""
        real_run = replace(view, worlds=first_replay(require_worlds(view)))
        return super().judge(evidence, real_run, truth)

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        return finding.with_measures(diagnostics={"queries_per_record": evidence.notes["queries"]})


def first_replay(replays: Worlds) -> Worlds:
    """The run that really happened, without its replays."""
    signals = {name: value[:1] for name, value in replays.signals.items()}
    return Worlds(
        signals,
        replays.masks[:1],
        replays.blind,
        replays.labels,
        records=replays.records,
        other_clients=replays.other_clients,
    )


def _sent_state(view: View) -> dict[str, Tensor] | None:
    """Parameters and buffers of the model that was sent; None if some are missing, or if it does
    not read records."""
    model: nn.Module | None = view.knowledge.model
    if model is None or not view.captures or "projection" in view.knowledge.maps:
        return None
    state = model.state_dict()
    sent: dict[str, Tensor] = {}
    for capture in view.captures:
        for name, value in capture.value.items():
            # of several networks, the first whose values have the model's names and shapes
            if name in state and state[name].shape == value.shape:
                sent.setdefault(name, value)
    if not dict(model.named_parameters()).keys() <= sent.keys():
        return None
    return {**state, **sent}
