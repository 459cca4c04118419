"""What protection costs in distillation: one round of matching, plain and under each mechanism.

    python -m benchmarks.dp_distillation [--classes 3] [--batch 128] [--ipc 10] [--steps 20] [--maps
    4] [--width 32]

plain: distribution matching, a fresh network and a real batch at every step. noisy_embedding: the
records are read ``maps`` times, then the same number of steps on the released targets.
clipped_gradient: every record's gradient at every step (measured on fewer steps, scaled up).
aggregate_clip: the papers' clip of the mean. CPU seconds on one thread and peak memory, each in a
process of its own; the ratio is to plain.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import torch
from torch import Tensor

from attacks.command_line import CommandParser
from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records
from privdd.distillation.class_cells import single_client_cells
from privdd.distillation.distribution_matching import (
    MatchingSettings,
    MatchingStreams,
    descend_images,
    fresh_networks,
    match_distributions,
    matching_gradient,
)
from privdd.distillation.private_matching import release_embeddings, release_gradients
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build, initial
from privdd.privacy.mechanisms import AggregateClip, ClippedSum

KEYS = Keys(0)
SHAPE = (1, 28, 28)
FEW = 2  # steps of the slow variants that are really taken
VARIANTS = ("plain", "noisy_embedding", "aggregate_clip", "clipped_gradient")


class Round:
    """The same records, networks and images for every variant."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        self.o = options
        n = options.classes * options.batch
        g = KEYS.fold("data").torch()
        self.records = Records(
            torch.rand(n, *SHAPE, generator=g), torch.arange(n) % options.classes, torch.arange(n)
        )
        self.images = torch.randn(options.classes, options.ipc, *SHAPE, generator=g)
        spec = ModelSpec("convnet", width=options.width)
        model = build(spec, SHAPE, options.classes)
        self.networks = fresh_networks(
            model, lambda gen: initial(spec, SHAPE, options.classes, gen), KEYS.fold("nets")
        )
        self.settings = MatchingSettings(iterations=options.steps, batch=options.batch)
        mechanisms = {
            "embedding": ClippedSum(5.0, 10.0, normaliser=options.batch),
            "synthetic_gradient": ClippedSum(5.0, 10.0, normaliser=options.batch),
        }
        queries = {name: Surface.GRADIENT for name in mechanisms}
        self.ctx = ClientContext(
            0, 0, KEYS, Problem(SHAPE, options.classes, 1), mechanisms, queries
        )

    def plain(self) -> int:
        streams = MatchingStreams(KEYS.fold("batch"), KEYS.fold("augment"))
        match_distributions(
            single_client_cells(self.records, self.o.classes),
            self.images,
            self.networks,
            self.settings,
            streams,
        )
        return self.o.steps

    def noisy_embedding(self) -> int:
        maps = [self.networks(k) for k in range(self.o.maps)]
        targets = release_embeddings(maps, self.records, range(self.o.classes), self.ctx)
        images = self.images
        velocity = torch.zeros_like(self.images)
        for t in range(self.o.steps):
            gradient = matching_gradient(images, targets[t % len(maps)], maps[t % len(maps)])
            images, velocity = descend_images(images, velocity, gradient, self.settings)
        return self.o.steps

    def clipped_gradient(self) -> int:
        images: Tensor = self.images
        for t in range(FEW):
            images = images - release_gradients(
                images,
                self.networks(t),
                self.records,
                range(self.o.classes),
                self.ctx,
                chunk=self.o.chunk or None,
            )
        return FEW

    def aggregate_clip(self) -> int:
        self.ctx.mechanisms = {"synthetic_gradient": AggregateClip(5.0, 10.0)}
        return self.clipped_gradient()


def measure(variant: str, options: argparse.Namespace, out: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    run = Round(options)
    getattr(run, variant)()  # first calls import and allocate
    start = time.process_time()
    steps = getattr(run, variant)()
    seconds = (time.process_time() - start) * options.steps / steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    out.put((seconds, peak))


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (
        ("classes", 3),
        ("batch", 128),
        ("ipc", 10),
        ("steps", 20),
        ("maps", 4),
        ("width", 32),
        ("chunk", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    base = 0.0
    for variant in VARIANTS:
        out = context.Queue()
        process = context.Process(target=measure, args=(variant, options, out))
        process.start()
        seconds, peak = out.get()
        process.join()
        base = base or seconds
        print(
            f"{variant:>18}: {seconds:8.2f} CPU s a round, {seconds / base:6.2f} x plain, "
            f"peak {peak:7.0f} MiB"
        )


if __name__ == "__main__":
    main()
