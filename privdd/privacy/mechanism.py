"""What a mechanism is: a randomised function that returns its value and its accounting together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import dp_accounting as dpa

from attacks.validation import check_hook_names, declared_hooks
from privdd.core.types import Tensors
from privdd.privacy.noise import Noise

# What a mechanism releases, by which the tests of its sensitivity are chosen: a noised sum over
# records' contributions; one noised row for each record, as ``FeatureNoise`` does; a whole client's
# noised update; the noised mean of a batch that is clipped as a whole.
SensitivityKind = Literal["sum", "rows", "update", "batch_mean"]


@dataclass(frozen=True)
class Output:
    """A mechanism's result: what may leave, and the row that it earns.

    event: one application's ``DpEvent``; sensitivity: L2 (or L1 for Laplace) change that one record
    can cause before noise; noise_std: absolute scale of the noise; flags: the side conditions of
    the proof (all must be true, else the ledger turns the event into NonPrivateDpEvent); lattice:
    the public step of which every released number is a multiple (``privdd.privacy.lattice``), None
    = there is none; shares: how many clients' noise of this scale makes that of the event, in their
    sum."""

    value: Tensors
    event: dpa.DpEvent
    clip_norm: float | None = None
    sensitivity: float | None = None
    why: str = ""
    noise_std: float = 0.0
    flags: Mapping[str, bool] = field(default_factory=dict)
    exact: Tensors | None = None  # before noise: for the sensitivity falsifier only, never stored
    lattice: float | None = None
    shares: int = 1


class Mechanism(ABC):
    """A randomised function of per-record contributions. Subclasses are usually frozen dataclasses.

    Its own settings are fields; helpers start with an underscore, or are named by ``hooks=``.

    Attributes:
        sampling_probability: the chance with which each record takes part in one release (Poisson
            sampling by ``ctx.sample``), in (0, 1].
        per_record: whether it reads each record's contribution, or only their mean.
        for_queries: whether it turns contributions (n, ...) of records into one value (...), which
            no upload is.
        sensitivity_kind: what it releases; the tests of its sensitivity are chosen by it.
    """

    if TYPE_CHECKING:  # class variables or fields, as it suits the mechanism

        @property
        def sampling_probability(self) -> float: ...
        @property
        def per_record(self) -> bool: ...
        @property
        def for_queries(self) -> bool: ...
        @property
        def sensitivity_kind(self) -> SensitivityKind: ...
    else:
        sampling_probability: float = 1.0
        per_record: bool = True
        for_queries: bool = False
        sensitivity_kind: SensitivityKind = "sum"

    def __init_subclass__(cls, hooks: Sequence[str] = (), **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls._hooks = cls._hooks | frozenset(hooks)
        check_hook_names(cls, "a mechanism", cls._hooks)

    _hooks: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def __call__(self, value: Tensors, noise: Noise) -> Output:
        """The released value with its accounting; ``noise`` is the only source of randomness."""

    @property
    def event(self) -> dpa.DpEvent:
        """One application's event, known before any data is seen: noise is calibrated by it.

        Raises ValueError where there is none, so that privacy.epsilon cannot choose the noise.
        """
        raise ValueError(
            f"privacy.epsilon: {type(self).__name__} knows the cost of a release only after "
            "it is made (it declares no "
            "event); set privacy.noise_multiplier"
        )

    def public_constants(self, numbers: int) -> Mapping[str, Any]:
        """The public facts of the noise on a record of so many numbers: "std", "noise_stds",
        "copies", ..."""
        return {}


Mechanism._hooks = declared_hooks(Mechanism)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One release (an entry of ledger.json) before the ledger numbers it: only what all may know,
    for rows travel.

    How many records took part is not among it: a class's size and a sample's size are private, and
    where the number of records is public, because a release has one row for each, ``shape`` says
    it."""

    round: int
    client: int
    name: str
    surface: str
    visible_to: tuple[str, ...]
    shape: Mapping[str, tuple[int, ...]]
    digest: str
    event: dpa.DpEvent
    count: int = 1
    partition: str | None = None
    clip_norm: float | None = None
    sensitivity: float | None = None
    why: str = ""
    noise_std: float = 0.0
    flags: Mapping[str, bool] = field(default_factory=dict)
    post_of: tuple[int, ...] = ()
    nonprivate_reason: str | None = None
    lattice: float | None = None
