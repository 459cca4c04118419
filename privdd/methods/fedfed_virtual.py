"""FedFed where virtual images stand for a client's records: in all of it, in its training alone, or
in its release alone.

With ``virtual_data`` this makes one grid: any base method, any local distiller (``Distiller``),
features released or not.
FedFed: Yang et al., NeurIPS 2023; virtual data: Huang et al. (FedLGD), TMLR 2024, section 5.1. No
    paper has this pairing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from attacks.types import Surface
from privdd.core.types import ClientData, Problem, Shard, State, Values, Work
from privdd.distillation.diagnostics import rows_in_memory
from privdd.distillation.private_matching import check_no_batch_norm
from privdd.distillation.virtual_images import Distiller, images_in_memory, replace_by_images
from privdd.federated.audit_hooks import ImageMatching, RecordTransform
from privdd.federated.channel import ClientContext
from privdd.methods.fedfed import FedFed
from privdd.privacy.claims import Claim, ClaimedRun
from privdd.privacy.mechanism import Mechanism

WHERE = ("everywhere", "training", "release")


@dataclass(frozen=True, kw_only=True)
class FedFedVirtual(FedFed):
    """virtual: how a client's images are made, once, in networks like the base method's; where they
    stand for its
    records: everywhere, in training (phase B: the features are those of records), or in release
        (phase A and the
    release: the features are those of images, and phase B trains on records beside them).

    One record may be in all images of its class, so noise on each row says nothing of a record:
    rows made of images carry the flag ``row_per_record``, which is false, and the ledger counts
    them as unprotected."""

    virtual: Distiller
    where: Literal["everywhere", "training", "release"] = "everywhere"

    queries: ClassVar[Mapping[str, Surface]] = {}  # DP-SGD on images bounds no record

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.where not in WHERE:
            raise ValueError(f"algo.where={self.where!r}: allowed are {', '.join(WHERE)}")
        if self.virtual.mixes_records:
            check_no_batch_norm(self.base.model.norm, "model")

    def _uses_images(self, round: int) -> bool:
        """Whether images are in the records' place in this round."""
        return self.where == "everywhere" or (self.where == "training") == (
            round > self.distill_rounds
        )

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        images = images_in_memory(memory)
        rest = {name: value for name, value in memory.items() if name not in images}
        if not self._uses_images(ctx.round):
            return super().local(broadcast, rest, shard, ctx)
        own, images = replace_by_images(self.virtual, self.base.model, memory, shard, ctx)
        upload, after = super().local(broadcast, rest, own, ctx)
        if self.virtual.mixes_records and ctx.round == self.distill_rounds:
            # the classes with images depend on the records: they are not public
            flags = {"row_per_record": False}
            upload = {
                n: replace(a, public="", flags={**a.flags, **flags}) for n, a in upload.items()
            }
        return upload, {**after, **images}

    def share_at_bound(
        self, broadcast: Values, memory: State, x: Tensor, problem: Problem
    ) -> float | None:
        """Of images, if they are what is released."""
        images = images_in_memory(memory).get("images/x")
        if self._uses_images(self.distill_rounds) and images is not None:
            x = images.detach().reshape(-1, *problem.shape)
        return super().share_at_bound(broadcast, memory, x, problem)

    def rows_are_records(self) -> bool:
        return self.where == "training" or not self.virtual.mixes_records

    def upload_uses_memory(self, round: int, memory: State) -> bool:
        return (
            self._uses_images(round) and bool(images_in_memory(memory))
        ) or super().upload_uses_memory(round, memory)

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        """That of the images which the network is trained on; in "release" it is trained on the
        records themselves."""
        if self.where != "release":
            return self.virtual.record_transform(problem.shape)
        return None

    def distillation(self) -> ImageMatching | None:
        virtual = self.virtual.without_matching()
        if virtual is None:
            return None
        still = replace(self, virtual=virtual)
        return ImageMatching(still, self.base.model, lambda _, memory: rows_in_memory(memory))

    def surrogate_images(self, memory: State, problem: Problem) -> Tensor | None:
        if self.where != "release":
            images = images_in_memory(memory).get("images/x")
        else:
            images = None
        if images is None:
            return None
        return images.detach().reshape(-1, *problem.shape)

    def releases_per_round(  # type: ignore[override]
        self, round: int, mechanisms: Mapping[str, Mechanism]
    ) -> dict[str, int] | None:
        """As FedFed; None (unknown) where rows are not records, since noise on such rows cannot be
        chosen for a target epsilon."""
        if self.rows_are_records():
            return super().releases_per_round(round, mechanisms)
        return None

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        if self.rows_are_records():
            return super().claims(plan, shards)
        return []
