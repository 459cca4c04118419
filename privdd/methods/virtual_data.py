"""Any method on virtual data: each client distils its records once and trains on the images in
their place.

The baselines of FedLGD (Huang et al., TMLR 2024, section 5.1: "we use local virtual data from our
initialization stage for FL methods other than ours"), and any other pairing of a distiller with a
method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from attacks.types import Surface
from privdd.core.types import ClientData, Problem, State, Values, Work, pack, unpack
from privdd.distillation.diagnostics import rows_in_memory
from privdd.distillation.private_matching import check_no_batch_norm
from privdd.distillation.virtual_images import Distiller, replace_by_images
from privdd.federated.audit_hooks import (
    Distils,
    FastReplay,
    ImageMatching,
    ReadsUploads,
    RecordTransform,
)
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec


def _ask_inner(hook: str) -> Any:
    """A hook that the inner method answers."""

    def ask(self: VirtualData, *given: Any) -> Any:
        return getattr(self.inner, hook)(*given)

    return ask


@dataclass(frozen=True, kw_only=True)
class VirtualData(Method, ReadsUploads, FastReplay, Distils):
    """inner: the method that trains; virtual: how a client's images are distilled, in networks like
    ``model``.

    A client distils in the first round that it takes part in, from the records that it has then,
    and keeps the images (its memory: ``images/...``; the inner method's is below ``inner/``).
    Everything else is the inner method's. model must treat each image alone (no batch norm).
    """

    inner: FedAvg
    model: ModelSpec
    virtual: Distiller

    uploads: Mapping[str, Surface] = field(init=False)
    broadcasts: Mapping[str, Surface] = field(init=False)
    visible_to: Mapping[str, tuple[str, ...]] = field(init=False)  # type: ignore[misc]
    accuracy_kind: Literal["global", "personal"] = field(init=False)  # type: ignore[misc]

    on_gpu = "matching and training on virtual images"

    def __post_init__(self) -> None:
        if not isinstance(self.inner, FedAvg):
            raise ValueError(
                f"algo.inner={type(self.inner).__name__}: a method of local training is needed"
            )
        if self.virtual.mixes_records:
            check_no_batch_norm(self.model.norm, "model")
        for name in ("uploads", "broadcasts", "visible_to", "accuracy_kind"):
            object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def rounds(self) -> int:
        return self.inner.rounds

    init = _ask_inner("init")
    broadcast = _ask_inner("broadcast")
    aggregate = _ask_inner("aggregate")
    releases_per_round = _ask_inner("releases_per_round")
    phase = _ask_inner("phase")
    classifier = _ask_inner("classifier")
    sent_state = _ask_inner("sent_state")
    model_state = _ask_inner("model_state")
    record_loss = _ask_inner("record_loss")
    initial_classifier = _ask_inner("initial_classifier")
    # as if it trained on the records: how many images there are depends on their classes
    settings = _ask_inner("settings")

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        own, images = replace_by_images(self.virtual, self.model, memory, shard, ctx)
        upload, inner = self.inner.local(broadcast, unpack("inner", memory), own, ctx)
        return upload, {**images, **pack("inner", inner)}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        return self.inner.predict(server, None if memory is None else unpack("inner", memory), x)

    def client_private(self) -> VirtualData:
        return replace(self, inner=self.inner.client_private())

    def maps(
        self, broadcast: Values, memory: State, problem: Problem
    ) -> Mapping[str, Callable[[Tensor], Tensor]]:
        return self.inner.maps(broadcast, unpack("inner", memory), problem)

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        return self.virtual.record_transform(problem.shape)

    def distillation(self) -> ImageMatching | None:
        virtual = self.virtual.without_matching()
        if virtual is None:
            return None
        still = replace(self, virtual=virtual)
        return ImageMatching(still, self.model, lambda _, memory: rows_in_memory(memory))

    def surrogate_images(self, memory: State, problem: Problem) -> Tensor | None:
        images = memory.get("images/x")
        if images is None:
            return None
        return images.detach().reshape(-1, *problem.shape)
