"""What a client trains on in place of its records: images that a distiller makes of them once, or the records themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from privdd.core.types import Shard, State
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec
from privdd.training.contrastive import as_records

PLACE = "images/"  # where a client's memory keeps them: images/x (M, ipc, c, h, w) and images/label (M,)


class Distiller(ABC):
    """How a client's images are made. Subclasses are frozen dataclasses that hold settings only."""

    @abstractmethod
    def distil(self, model: ModelSpec, shard: Shard, ctx: ClientContext) -> State:
        """The images of each class that the client holds, for its memory (see PLACE), in networks like ``model``."""

    def in_place(self, images: State, shard: Shard) -> Shard:
        """The client with its images, one after the other by class, where its records were.

        Records that zero-out adjacency blackened are gone too: what they would have changed is in the images.
        """
        x, label = images["images/x"], images["images/label"]
        own = as_records(x.flatten(0, 1), label.to(x.device).repeat_interleave(x.shape[1]))
        return replace(shard, train=own, nulls=None)

    @property
    def mixes_records(self) -> bool:
        """Whether one image may hold several records, and one record be in several images."""
        return True


@dataclass(frozen=True)
class OwnRecords(Distiller):
    """No distillation: the client's records stand for themselves. The grid's control, and the identity in tests."""

    def distil(self, model: ModelSpec, shard: Shard, ctx: ClientContext) -> State:
        return {}

    def in_place(self, images: State, shard: Shard) -> Shard:
        return shard

    @property
    def mixes_records(self) -> bool:
        return False


def kept_images(memory: State) -> State:
    """The part of a client's memory that its distiller made."""
    return {name: value for name, value in memory.items() if name.startswith(PLACE)}


def stood_in(
    distiller: Distiller, model: ModelSpec, memory: State, shard: Shard, ctx: ClientContext
) -> tuple[Shard, State]:
    """(the client as its method sees it, the images to remember): made once, in the first round that needs them."""
    images = kept_images(memory) or distiller.distil(model, shard, ctx)
    return distiller.in_place(images, shard), images
