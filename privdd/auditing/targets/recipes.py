"""Recipes of privdd that make a synthetic set, as generators of shadow sets: ``target.generator=distribution_matching``.

For pictures whose owner distilled them by such a method elsewhere, or who has no function that makes the set again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from privdd.core.checks import check_number, whole
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys
from privdd.core.types import Records
from privdd.distillation.class_subsets import labelled, one_world
from privdd.distillation.distribution_matching import Matching, Streams, match
from privdd.distillation.initial_images import initial_images
from privdd.distillation.networks import fresh
from privdd.models import ModelSpec, build, initial

STARTS = ("real", "noise")
MOST = 10**6  # of each count


@dataclass(frozen=True)
class DistributionMatching:
    """Zhao and Bilen (WACV 2023): images whose mean features in random networks are those of the records.

    per_class: images of each class; iterations: one network each; batch: real records of a class at each; lr: of SGD on
    the images; start: real records or noise; width: filters of the network. Raises BadConfig for a bad value.
    """

    per_class: int = 10
    iterations: int = 200
    batch: int = 128
    lr: float = 1.0
    start: Literal["real", "noise"] = "real"
    width: int = 32

    at_once: ClassVar[int] = 1024  # images of a forward pass

    def __post_init__(self) -> None:
        for name in ("per_class", "iterations", "batch", "width"):
            object.__setattr__(
                self, name, whole(f"target.args.{name}", getattr(self, name), 1, most=MOST)
            )  # 12.0 is 12
        check_number("target.args.lr", self.lr)
        if not self.lr > 0:
            raise BadConfig(f"target.args.lr={self.lr}: a number above 0 is needed")
        if self.start not in STARTS:
            raise BadConfig(f"target.args.start={self.start}: allowed are {', '.join(STARTS)}")

    def __call__(self, x: Any, y: Any, seed: int) -> tuple[Tensor, Tensor]:
        """Pictures x (n, c, h, w) in [0, 1] and labels y (n,) -> (classes * per_class, c, h, w) in [0, 1], and labels.

        Raises ValueError for what are no pictures.
        """
        pictures, labels = torch.as_tensor(x).float(), torch.as_tensor(y).long()
        if pictures.ndim != 4 or min(pictures.shape[2:]) < 8:
            raise ValueError(
                f"records of shape {tuple(pictures.shape[1:])}: pictures (c, h, w) of 8 x 8 at least are needed"
            )
        keys, classes = Keys(seed), int(labels.max()) + 1
        shape = (pictures.shape[1], pictures.shape[2], pictures.shape[3])
        spec = ModelSpec("convnet", width=self.width)
        cells = one_world(Records(pictures, labels, torch.arange(len(labels))), classes)
        networks = fresh(build(spec, shape, classes), lambda g: initial(spec, shape, classes, g), keys.fold("networks"))
        settings = Matching(self.iterations, batch=self.batch, lr=self.lr, chunk=self.at_once)
        start = initial_images(self.start, cells, self.per_class, shape, keys.fold("start"))
        made = match(cells, start, networks, settings, Streams(keys.fold("batch"), keys.fold("augment")))
        images, own = labelled(cells, made, 0)
        return images.clamp(0, 1), own


RECIPES = {"distribution_matching": DistributionMatching}


def recipe(name: str, args: dict[str, Any]) -> DistributionMatching:
    """The recipe of this name. Raises BadConfig, one line, for settings that it does not have."""
    made = RECIPES[name]
    known = [field.name for field in fields(made)]
    for key in args:
        if key not in known:
            raise BadConfig(f"target.args.{key}: {name} takes {', '.join(known)}")
    return made(**args)
