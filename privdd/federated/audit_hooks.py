"""What an audit may ask a method beyond the federated protocol: four protocols with defaults.

A method inherits from those of which it answers a question (``class Mine(Method, ReadsUploads)``);
for the others an audit uses the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast

from torch import Generator, Tensor, nn

from attacks.types import Surface
from attacks.validation import declared_hooks
from privdd.core.types import ClientData, Problem, Shard, State, Tensors, Upload, Values, Work
from privdd.federated.channel import ClientContext
from privdd.federated.client_work import place_client_work
from privdd.privacy.claims import Claim, ClaimedRun

Images = Callable[[Tensor], Tensor]  # (b, c, h, w) -> (b, ...)
# (b, c, h, w) -> (b, c, h, w), one draw for all
RecordTransform = Callable[[Tensor, Generator], Tensor]


class HasLocalWork(Protocol):
    """What the defaults ask of a method."""

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work: ...

    @property
    def audit_hooks(self) -> AuditHooks: ...


class _MethodPart:
    """A part of a method: its client work runs on the problem's device."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if _MethodPart not in cls.__bases__:  # the defaults below do no work of their own
            place_client_work(cls)

    @property
    def _method(self) -> HasLocalWork:
        """The method that answers."""
        return cast("HasLocalWork", self)


class ReadsUploads(_MethodPart):
    """What an upload tells of a record: by which model, map or loss an attack can read it."""

    # upload -> adversaries; without an entry, the server
    visible_to: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # personal: each client's own model is measured
    accuracy_kind: ClassVar[Literal["global", "personal"]] = "global"
    # why records must be images and no rows of a table, as a clause; "" = both do
    why_images_only: ClassVar[str] = ""

    def classifier(self, problem: Problem) -> nn.Module | None:
        """The architecture of the classifier whose parameters travel."""
        return None

    def sent_state(self, broadcast: Values) -> State | None:
        """The classifier's parameters and buffers as the server sent them, if it sent any."""
        return None

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        """The classifier's parameters and buffers that the upload ``name`` implies, if any."""
        return None

    def record_loss(
        self, name: str, value: Tensors, broadcast: Values, problem: Problem
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        """For an upload that implies no classifier: a loss that is smaller for members.

        Returns:
            (x (n, c, h, w), y (n,)) -> loss (n,), or None.
        """
        return None

    def initial_classifier(self, problem: Problem, seed: int) -> State | None:
        """The public classifier that all clients start from, if no server sends it; else None."""
        return None

    def public_images(self, problem: Problem, seed: int) -> Tensor | None:
        """The images (m, c, h, w) that everybody has, for whose outputs clients are asked; None if
        they are asked for none."""
        return None

    def maps(self, broadcast: Values, memory: State, problem: Problem) -> Mapping[str, Images]:
        """Maps from records to what is shared, by role: "feature", "embedding", "projection",
        "public"."""
        return {}

    def settings(self, shard_size: int) -> Mapping[str, Any]:
        """The protocol's public numbers for a client of so many records: lr, batch_size,
        local_steps, ..."""
        return {}

    def surrogate_images(self, memory: State, problem: Problem) -> Tensor | None:
        """Images (m, c, h, w) that a client trains on in place of its records, None if it uses
        the records."""
        return None

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        """How local work transforms records at random before it reads them, None if it does not.

        Attacks ask about copies of a record under draws of it.
        """
        return None

    def rows_are_records(self) -> bool:
        """Whether released features have one row for each record, in the order of ids.

        Then noise on a row covers a record.
        """
        return True

    def granted_knowledge(self, surface: Surface) -> str:
        """Knowledge that attacks on a surface are granted beyond the protocol, as a sentence; "" =
        none."""
        return ""

    def images_per_class(self) -> int:
        """Synthetic examples a class in one upload."""
        return 1

    def with_images_per_class(self, count: int) -> Any:
        """This method with ``count`` synthetic examples a class, if that is a setting."""
        return self._method


class StatesClaims(_MethodPart):
    """What the method's paper claims, and the releases that the claim is about."""

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        """The theorems printed in the method's paper, evaluated for this run."""
        return []

    def protected_upload(self, broadcast: Values, shard: ClientData, ctx: ClientContext) -> Upload:
        """The releases of ``local`` under a guarantee, without work that no message depends on."""
        return self._method.local(broadcast, {}, shard, ctx)[0]

    def matching_steps(self, broadcast: Values, shard: ClientData, ctx: ClientContext) -> Any:
        """The public facts of a round's noised matching steps (``MatchingSteps``), None without
        such steps."""
        return None


class FastReplay(_MethodPart):
    """How a client's rounds are replayed, each replay a shadow model, and how fast."""

    worlds_per_pass: ClassVar[int] = 8  # replays in one call of ``local_batched``
    # K replays at once cost little more than one: they are always batched
    shares_work: ClassVar[bool] = False
    # what ``device=cuda`` places on a GPU, in words; "" = nothing: the setting is refused
    on_gpu: ClassVar[str] = ""

    def upload_uses_memory(self, round: int, memory: State) -> bool:
        """Whether the upload of ``round`` depends on ``memory``, the client's from earlier
        rounds."""
        return bool(memory)

    def memory_after(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> State:
        """The memory after ``local``, without the work on an upload that nobody reads."""
        return self._method.local(broadcast, memory, shard, ctx)[1]

    def phase(self, round: int) -> str:
        """Which part of the method a round belongs to; updates of the phase "train" are
        inverted."""
        return "train"

    def timing_group(self, round: int) -> str:
        """A name that rounds of the same work share: an estimate of cost times one of each."""
        return self.phase(round)

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """K calls of ``local`` at once (up to rounding), or None if this round has no such form.

        The shards are of one client and differ by which records they hold; the broadcast is the
        same. A method whose rounds share their random draws may take the first context's for all.
        """
        return None


LabelledRows = tuple[Tensor, Tensor]  # rows (m, c, h, w) and their classes (m,)


@dataclass(frozen=True)
class ImageMatching:
    """How a method matches images or representations to records.

    Attributes:
        still: the same method with no matching step.
        model: the ``ModelSpec`` of the networks to match in.
        rows: (what a client sent, what it remembers afterwards) -> the rows that were matched,
            None if neither holds any.
        rate: the step length of the first matching, None if it has none of its own.
        distiller: as attack ``distiller_inference`` calls the matching without noise, "" if that
            has no name for it.
    """

    still: HasLocalWork
    model: Any
    rows: Callable[[Values, State], LabelledRows | None]
    rate: float | None = None
    distiller: str = ""


class Distils(_MethodPart):
    """What the diagnostics of a distillation ask."""

    def distillation(self) -> ImageMatching | None:
        """How it matches images or representations to records, None if it matches none."""
        return None

    def share_at_bound(
        self, broadcast: Values, memory: State, x: Tensor, problem: Problem
    ) -> float | None:
        """Share of the features of records x (n, c, h, w) whose norm is at its bound.

        None if none are released under this broadcast, or without a bound.
        """
        return None


class AuditHooks(ReadsUploads, StatesClaims, FastReplay, Distils):
    """The four protocols together, as an audit asks them (``method.audit_hooks``)."""


PROTOCOLS = (ReadsUploads, StatesClaims, FastReplay, Distils)
HOOK_NAMES = frozenset().union(*(declared_hooks(protocol) for protocol in PROTOCOLS))


class AnsweredHooks(AuditHooks):
    """The hooks of a method: those that it defines, and the defaults of the others."""

    def __init__(self, method: HasLocalWork) -> None:
        self._answering = method
        defined = HOOK_NAMES & {*dir(type(method)), *vars(method)}
        vars(self).update({name: getattr(self._answering, name) for name in defined})

    @property
    def _method(self) -> HasLocalWork:
        return self._answering


def overrides_hook(method: HasLocalWork, name: str) -> bool:
    """Whether a method answers a question of the four protocols other than by the default."""
    hook = getattr(method.audit_hooks, name)
    return getattr(hook, "__func__", hook) is not getattr(AuditHooks, name)
