"""An embedding that lets one record through, so that a mean over a class carries that record.

The counterpart of an imprint for methods that share no gradients: blocks of the embedding are
copies of the pixels behind a gate that opens for about one record of a class. A class's mean over a
block that one record opened is that record divided by the class's count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.malicious.chosen_model import ChosenModel, cluster_rows, draw_gates, linear_layers
from attacks.types import Evidence, Family, Surface, View
from attacks.validation import check_counts

# of the two layers: so small that a round of local training leaves the embedding as it is
FIRST_SCALE = 1e-4
SECOND_SCALE = 1e-6
# by how much a gate lifts the pixels for each unit that its measurement lies above the threshold
GATE_LIFT = 10.0
# by how much a shut gate lies below: more than a pixel, so that training cannot open it by chance
GATE_OFFSET = 2.0
# coordinates of a block beside the pixels: the gate alone, and the gate with a pixel that is always
# 1
GATE_COORDINATES = 2
PIXEL_TOLERANCE = 0.02


@dataclass(frozen=True)
class PlantedEmbedding(ChosenModel):
    """blocks: copies of the pixels, each behind a gate of its own."""

    blocks: int = 12
    name: ClassVar[str] = "planted_embedding"
    family: ClassVar[Family] = Family.RECONSTRUCTION
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.PROTOTYPES})

    def __post_init__(self) -> None:
        check_counts(self, "blocks")

    def hidden_width(self, pixels: int, classes: int) -> int:
        return self.blocks * (pixels + GATE_COORDINATES)

    def set_parameters(
        self, model: nn.Module, public_x: Tensor, records: int, generator: torch.Generator
    ) -> None:
        """First layer: the pixels, a pixel that is always 1, the gates. Second: blocks of what each
        gate lifts."""
        first, second, head = linear_layers(model)
        pixels = first.in_features
        size = first.in_features + GATE_COORDINATES
        blocks = first.out_features // size
        # one record of a class of average size
        share = head.out_features / max(records, 2 * head.out_features)
        weights, thresholds = draw_gates(public_x, blocks, share, generator)
        with torch.no_grad():
            for layer in (first, second, head):
                layer.weight.zero_()
                layer.bias.zero_()
            first.weight[:pixels] = FIRST_SCALE * torch.eye(pixels)
            first.bias[pixels] = FIRST_SCALE
            first.weight[pixels + 1 : pixels + 1 + blocks] = FIRST_SCALE * weights
            first.bias[pixels + 1 : pixels + 1 + blocks] = -FIRST_SCALE * thresholds
            for block in range(blocks):
                start = block * size
                units = slice(start, start + size)
                # a shut block is below zero, whatever the pixels are
                second.weight[units, pixels] = -GATE_OFFSET * SECOND_SCALE
                second.weight[units, pixels + 1 + block] = SECOND_SCALE * GATE_LIFT
                second.weight[start + 1, pixels] = (1 - GATE_OFFSET) * SECOND_SCALE
                pixel_units = slice(start + GATE_COORDINATES, start + size)
                second.weight[pixel_units, :pixels] = SECOND_SCALE * torch.eye(pixels)

    def record_contributions(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Each record's embedding: what it adds to the sum of its class."""
        with torch.no_grad():
            return model.features(x).abs()  # type: ignore[operator]

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (m, c, h, w): of every class and block that one record alone opened."""
        sent = view.captures[0].value
        shape = view.knowledge.shape
        pixels = view.knowledge.public_x[0].numel()
        total = sent["mean"].double() * sent["count"].double().unsqueeze(1)
        rows = records_from_sums(total, pixels).float()
        records = cluster_rows(rows, int(view.knowledge.settings["batch_records"]))
        if not len(records):
            records = view.knowledge.public_x.mean(0).flatten()[None]
        return Evidence(images=records.reshape(-1, *shape))


def records_from_sums(total: Tensor, pixels: int) -> Tensor:
    """Records (m, pixels) in [0, 1] from the classes' sums (C, width) of the planted embedding."""
    # A block that one record opened holds s (g + pixel - GATE_OFFSET), g the opening of the gate
    # and s the scale; its first two coordinates, s (g - GATE_OFFSET) and s (g + 1 - GATE_OFFSET),
    # give both. A block that no record opened is zero. One that several opened is an image whose
    # brightest pixel is rarely 1 and whose scale is a multiple of s.
    size = pixels + GATE_COORDINATES
    by_block = total[:, : total.shape[1] // size * size].reshape(-1, size)
    low = by_block[:, :1]
    high = by_block[:, 1:2]
    scale = high - low
    alone = (low > 0) & (scale < 1.5 * SECOND_SCALE * FIRST_SCALE)
    rows = ((by_block[:, GATE_COORDINATES:] - low) / scale.clamp_min(1e-300))[alone[:, 0]]
    fits = (rows.amin(1) > -PIXEL_TOLERANCE) & (rows.amax(1) < 1 + PIXEL_TOLERANCE)
    return rows[fits].clamp(0, 1)
