"""The types that attacks and their callers share: surfaces, views, evidence, findings.

What an attacker holds is in the ``View``; what only the evaluator holds is in ``Truth``. An attack
never receives a ``Truth``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from attacks.measures import (
    GuaranteeMeasures,
    LabelMeasures,
    Measures,
    MembershipMeasures,
    ReconstructionMeasures,
)
from attacks.validation import check_hook_names, declared_hooks

Tensors = Mapping[str, Tensor]
RecordShape = tuple[int, ...]  # of one record: (c, h, w) of an image, (d,) of a row of a table


def is_image(shape: Sequence[int]) -> bool:
    """Whether a record of this shape is an image (c, h, w), and no row of a table (d,)."""
    return len(shape) == 3


class Surface(StrEnum):
    """The kind of a released artifact, as an attacker sees it."""

    UPDATE = "update"
    GRADIENT = "gradient"
    SYNTHETIC_IMAGES = "synthetic_images"
    SYNTHETIC_REPRESENTATIONS = "synthetic_representations"
    FEATURES = "features"
    LABELS = "labels"
    STATISTICS = "statistics"
    PROTOTYPES = "prototypes"
    CONTROL_VARIATE = "control_variate"
    COUNTS = "counts"
    LOGITS = "logits"
    GLOBAL_MODEL = "global_model"
    GLOBAL_IMAGES = "global_images"
    SHARED_FEATURES = "shared_features"
    GENERATOR = "generator"


# what no client sends
SENT_BY_SERVER = frozenset(
    {Surface.GLOBAL_MODEL, Surface.GLOBAL_IMAGES, Surface.SHARED_FEATURES, Surface.GENERATOR}
)


class Adversary(StrEnum):
    """Who attacks: see the README's threat models."""

    SERVER = "server"
    PEER = "peer"
    PUBLIC = "public"
    ANALYST = "analyst"
    MALICIOUS_SERVER = "malicious_server"


class Family(StrEnum):
    """What kind of harm a finding measures."""

    MEMBERSHIP = "membership"
    GUARANTEE = "guarantee"
    GRADIENT_INVERSION = "gradient_inversion"
    MODEL_INVERSION = "model_inversion"
    RECONSTRUCTION = "reconstruction"
    LABEL = "label"

    @property
    def measures(self) -> type[Measures]:
        """The class of what findings of this family state."""
        return MEASURES_BY_FAMILY[self]


MEASURES_BY_FAMILY: Mapping[Family, type[Measures]] = {
    Family.MEMBERSHIP: MembershipMeasures,
    Family.GUARANTEE: GuaranteeMeasures,
    Family.GRADIENT_INVERSION: ReconstructionMeasures,
    Family.MODEL_INVERSION: ReconstructionMeasures,
    Family.RECONSTRUCTION: ReconstructionMeasures,
    Family.LABEL: LabelMeasures,
}


@dataclass(frozen=True)
class Capture:
    """One observed artifact: its tensors, and what the server had sent before it."""

    round: int
    client: int
    name: str
    value: Tensors
    broadcast: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class DataColumn:
    """A column of numbers from ``low`` to ``high``, or one of ``categories``.

    Attributes:
        name: Its heading.
        low: The least number of the public range; it becomes 0.
        high: The largest; it becomes 1.
        categories: The public list of words, each with a number of its own that is 0 or 1; empty
            for a column of numbers.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers of a row belong to it."""
        return len(self.categories) or 1


@dataclass(frozen=True)
class Knowledge:
    """What the adversary knows beside the artifact itself.

    shape: (c, h, w) or (d,) of a record in [0, 1]; public_x (m, ...) and public_y (m,): records of
        the same distribution that belong to no audited client; model: the architecture whose
        parameters travel (in the victim's own mode), loaded with
    the broadcast; maps: named callables, x (b, ...) -> (b, ...), e.g. ``feature`` for FedFed's
    protected features or ``projection`` for FedRD's; settings: plain numbers of the protocol (lr,
    momentum, local_steps, batch_size, noise_std, ...); known: records that this adversary happens
    to hold, with the row of the release that stems from each ("x" (k, ...), "row" (k,));
        columns: what the numbers of a row of a table stand for, () of images; asked_images: images
    (m, c, h, w) that everybody has, for whose outputs clients are asked; None if there are none.
    """

    shape: RecordShape
    classes: int
    public_x: Tensor
    public_y: Tensor
    model: nn.Module | None = None
    maps: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    known: Tensors = field(default_factory=dict)
    columns: tuple[DataColumn, ...] = ()
    asked_images: Tensor | None = None


@dataclass(frozen=True)
class Worlds:
    """Signals of K replays of the victim, the sources of K shadow models; row 0 is the run that
    really happened.

    signals: name -> (K, n), larger = more like a member; masks: (K, n) bool, True = in;
    logits: (K, n, C) of the model that each replay released or that its artifact trains; blind:
        (n,) scores of an attack that never sees any artifact; labels: (n,); rounds: the signals in
        R rounds of the run, (K, n, R) with the same coins in
    all, the last being that of ``signals``; records: (n, c, h, w), the audited records themselves;
    kinds: positions (m,) of audited records that were made hard to fit, by what was done to them;
        queries: the signals of q copies of each record under the transforms of the training, (K, n,
            q), the record as it is first: absent if nothing transforms it.
    other_clients: (M, n, R) of what M other clients, who hold none of the records, sent in the R
        rounds of ``rounds``, NaN in rounds with too few of them; absent if no attack reads them.
    """

    signals: Mapping[str, Tensor]
    masks: Tensor
    blind: Tensor
    labels: Tensor
    logits: Tensor | None = None
    public_logits: Tensor | None = None
    rounds: Mapping[str, Tensor] = field(default_factory=dict)
    records: Tensor | None = None
    kinds: Mapping[str, Tensor] = field(default_factory=dict)
    queries: Mapping[str, Tensor] = field(default_factory=dict)
    other_clients: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.masks.ndim != 2 or self.masks.dtype != torch.bool:
            raise ValueError(
                f"masks must be a (K, n) bool tensor, got {tuple(self.masks.shape)} "
                f"{self.masks.dtype}"
            )
        for name, value in self.signals.items():
            if value.shape != self.masks.shape:
                raise ValueError(
                    f"signal {name!r} has shape {tuple(value.shape)}, masks "
                    f"{tuple(self.masks.shape)}"
                )
            if not torch.isfinite(value).all():
                raise ValueError(f"signal {name!r} holds NaN or infinity")
        for name, value in self.rounds.items():
            if (
                value.ndim != 3
                or value.shape[:2] != self.masks.shape
                or not torch.isfinite(value).all()
            ):
                raise ValueError(
                    f"rounds of {name!r}: finite (K, n, R) for masks "
                    f"{tuple(self.masks.shape)} are needed"
                )
        for name, value in self.queries.items():
            if (
                value.ndim != 3
                or value.shape[:2] != self.masks.shape
                or not torch.isfinite(value).all()
            ):
                raise ValueError(
                    f"queries of {name!r}: finite (K, n, q) for masks "
                    f"{tuple(self.masks.shape)} are needed"
                )
        for name, value in self.other_clients.items():
            if (
                value.ndim != 3
                or value.shape[1] != self.masks.shape[1]
                or not (torch.isfinite(value) | value.isnan().all(0).all(0)).all()
            ):
                raise ValueError(
                    f"other_clients of {name!r}: (M, n, R) for n = {self.masks.shape[1]} records "
                    "are needed, finite or NaN in whole rounds"
                )


@dataclass(frozen=True)
class View:
    """What one adversary holds about one surface (no truth inside).

    other_rounds: the same surface in other rounds that are kept, each with the maps of its own
        round and no worlds.
    message: the names of what it holds, joined by ", ": those of the captures, unless they are
        given."""

    surface: Surface
    adversary: Adversary
    captures: tuple[Capture, ...]
    knowledge: Knowledge
    worlds: Worlds | None = None
    other_rounds: tuple[View, ...] = ()
    message: str = ""

    def __post_init__(self) -> None:
        if not self.message:
            object.__setattr__(
                self, "message", ", ".join(dict.fromkeys(c.name for c in self.captures))
            )


@dataclass(frozen=True)
class Truth:
    """What only the evaluator holds: the victim's records behind each capture.

    x (n, c, h, w) and y (n,): the victim's training records; heldout_x: records of the same client
    that it did not train on; counts: (classes,) true label counts; virtual: images that stand
    between records and artifact (FedLGD); rows: (n,) the row of a per-record release that stems
    from each record; distiller: what distilled the released images, as ``distiller_inference``
    calls it, "" if that has no name for it."""

    x: Tensor
    y: Tensor
    heldout_x: Tensor
    heldout_y: Tensor
    counts: Tensor
    virtual: Tensor | None = None
    rows: Tensor | None = None
    distiller: str = ""


@dataclass(frozen=True)
class Evidence:
    """What an attack returns, before it is compared with the truth."""

    scores: Tensor | None = None
    members: Tensor | None = None
    images: Tensor | None = None
    labels: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One row of the report.

    measures: of the class of its family (``attacks.measures``), TypeError for another, as no
        reader of the run would accept it; message: the name of the message
        (or of the noised query) that it is about, several joined by ", "; "" = not known by
        name."""

    surface: Surface
    attack: str
    family: Family
    adversary: Adversary
    measures: Measures
    figures: Mapping[str, Tensor] = field(default_factory=dict)
    message: str = ""

    def __post_init__(self) -> None:
        expected = self.family.measures
        if not isinstance(self.measures, expected):
            raise TypeError(
                f"measures of {self.family} must be {expected.__name__}, "
                f"not {type(self.measures).__name__}"
            )

    @property
    def diagnostics(self) -> Mapping[str, Any]:
        return self.measures.diagnostics or {}

    def with_measures(self, **changes: Any) -> Finding:
        """The finding with these measures changed. Raises TypeError for one that its family does
        not have."""
        return replace(self, measures=replace(self.measures, **changes))

    def with_diagnostics(self, **more: Any) -> Finding:
        """The finding with more diagnostics beside its own."""
        return self.with_measures(diagnostics={**self.diagnostics, **more})


class Attack(ABC):
    """One attack: which surfaces it reads, and how it turns a view into a finding.

    ``run`` sees the view only; ``judge`` belongs to the evaluator. Subclasses are usually frozen
    dataclasses whose fields are
    their settings. least_worlds: the fewest models (K of ``Worlds``) that a membership attack can
    run on. whole_client: whether a gradient inversion reads what the audited client really
            sent, instead of what it would send if it
    held one record. unmeasured: surfaces of which it reports what it read and measures nothing, so
    that they stay
    unattacked. reads_other_clients: whether it compares with what the other clients sent, which an
    audit then computes again. images_only: whether it reads pixels beside each other, which rows of
    a table do not have. on_gpu: whether ``run`` and ``judge`` work where the view's tensors are;
    ``generator`` stays on the CPU."""

    if TYPE_CHECKING:  # class variables or fields, as it suits the attack

        @property
        def name(self) -> str: ...
        @property
        def family(self) -> Family: ...
        @property
        def surfaces(self) -> frozenset[Surface]: ...
        @property
        def adversaries(self) -> frozenset[Adversary]: ...
        @property
        def on_gpu(self) -> bool: ...
    else:
        name: str
        family: Family
        surfaces: frozenset[Surface]
        adversaries: frozenset[Adversary]
        on_gpu: bool = False

    least_worlds: ClassVar[int] = 1
    whole_client: ClassVar[bool] = False
    unmeasured: ClassVar[frozenset[Surface]] = frozenset()
    images_only: ClassVar[bool] = False
    reads_other_clients: ClassVar[bool] = False

    def __init_subclass__(cls, hooks: Sequence[str] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._hooks = cls._hooks | frozenset(hooks)
        check_hook_names(cls, "an attack", cls._hooks)

    _hooks: ClassVar[frozenset[str]] = frozenset()

    def nothing_to_read(self, view: View) -> str:
        """Why this view holds nothing for the attack, which is then reported instead of a result;
        "" if it does."""
        return ""

    @abstractmethod
    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """What the attacker makes of what it holds; all randomness from ``generator``."""

    def run_each(
        self, views: Sequence[View], generators: Sequence[torch.Generator]
    ) -> list[Evidence]:
        """``run`` on several views; overridden where many cost less together than one by one."""
        return [
            self.run(view, generator) for view, generator in zip(views, generators, strict=True)
        ]

    @abstractmethod
    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """The evidence compared with the truth, as a row of the report."""


Attack._hooks = declared_hooks(Attack)


UPDATE_SURFACES = frozenset({Surface.UPDATE, Surface.GRADIENT})
SERVER_ONLY = frozenset({Adversary.SERVER})
IMAGE_SURFACES = frozenset({Surface.SYNTHETIC_IMAGES, Surface.GLOBAL_IMAGES})
ANY_ADVERSARY = frozenset({Adversary.SERVER, Adversary.PEER, Adversary.PUBLIC})
