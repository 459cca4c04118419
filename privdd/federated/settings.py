"""Typed settings that check themselves; no code below the commands reads the config by name.

Each ``__post_init__`` raises BadConfig, one line that names the key, the value and what is allowed.
NaN and the infinities are refused, and true or false is no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from privdd.core.hard_examples import HardExamples
from privdd.core.units import RELATIONS, UNITS, Relation
from privdd.core.validation import (
    BadConfig,
    check_choice,
    check_integer,
    check_number,
    check_share,
    check_text,
    setting_error,
)

TrainingMode = Literal["auto", "loop", "vectorised"]
Required = Literal["all", "some"]
DEVICES = ("cpu", "cuda")
NOISE_SOURCES = ("seed", "secret", "os")
MAX_COUNT = 10**6  # of each count of an audit
COUNTS = {
    "records": (2, "at least 2 are needed (one is guessed in, one out)"),
    "worlds": (1, "at least 1 is needed (world 0 is the run itself)"),
    "rounds": (1, "at least 1 is needed (the latest of each phase)"),
    "federations": (0, "0 or more is needed"),
    "federation_rounds": (0, "0 (all rounds) or more is needed"),
    "victims": (0, "0 or more is needed"),
    "canaries": (0, "0 or more is needed"),
    "transcripts": (2, "at least 2 are needed (the first is the run itself)"),
    "processed_federations": (0, "0 or more is needed"),
    "processed_worlds": (1, "at least 1 is needed (the first is the run itself)"),
}
LEAST_REPLAYS = 4
SHARED_COUNTS = ("worlds", "rounds")  # settings of an audit that share ``audit.replays``


def check_replays(value: object) -> int:
    """``audit.replays`` as an int. Raises BadConfig."""
    needed = "at least 4 are needed (2 rounds, as they are and replayed once)"
    return check_integer("audit.replays", value, LEAST_REPLAYS, needed, most=MAX_COUNT)


@dataclass(frozen=True)
class RunSettings:
    """What names a run, and the settings that all of its parts share.

    algo: its label in tables; data, preset: names; participation: share of clients drawn each
        round, in (0, 1];
    fingerprint: a digest of all settings that affect what clients send (not of how it is attacked).
    """

    algo: str
    data: str
    preset: str
    seed: int
    device: str
    participation: float
    fingerprint: str

    def __post_init__(self) -> None:
        for key, value in (
            ("name", self.algo),
            ("data.name", self.data),
            ("preset.name", self.preset),
        ):
            check_text(key, value)
        check_number("seed", self.seed)
        if not isinstance(self.seed, int) or self.seed < 0:
            raise setting_error("seed", self.seed, "a whole number from 0 is needed")
        if self.device not in DEVICES:
            raise BadConfig(f"device={self.device}: must be cpu, or cuda if a GPU is present")
        check_share("participation", self.participation, "a share in (0, 1] is needed", one=True)


@dataclass(frozen=True)
class PrivacySettings:
    """The privacy statement of a run. Its mechanisms are objects of their own, in the plan.

    delta: in (0, 1); epsilon: the target that the noise is chosen for, None = as the mechanisms are
        set;
    noise_multiplier: what the mechanisms were given, None where it is no one number; clip_norm
        likewise.
    paired_noise: noise depends on seed, round and client alone, so that runs with one seed share
        it.
    budget: the largest epsilon allowed; a round that would exceed it is refused before it runs.
    """

    name: str
    delta: float
    noise_source: str
    relation: Relation
    unit: str
    epsilon: float | None = None
    noise_multiplier: float | None = None
    clip_norm: float | None = None
    paired_noise: bool = False
    budget: float | None = None

    def __post_init__(self) -> None:
        check_text("privacy.name", self.name)
        if not isinstance(self.paired_noise, bool):
            raise setting_error(
                "privacy.paired_noise", self.paired_noise, "true or false is needed"
            )
        check_share("privacy.delta", self.delta)
        for key in ("epsilon", "noise_multiplier", "clip_norm", "budget"):
            check_number(f"privacy.{key}", getattr(self, key), optional=True)
        for key in ("epsilon", "budget"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise setting_error(f"privacy.{key}", value, "a number above 0 is needed")
        check_choice("privacy.noise_source", self.noise_source, NOISE_SOURCES)
        check_choice("privacy.relation", self.relation, RELATIONS)
        check_choice("privacy.unit", self.unit, UNITS)

    @property
    def is_for_release(self) -> bool:
        """Whether the noise protects what is published: nobody else can draw it again, and no other
        run holds it."""
        return self.noise_source != "seed" and not self.paired_noise


@dataclass(frozen=True)
class GuaranteeBudget:
    """The budget of guarantee tests. runs: with and as many without the record, side by side;
    slow_runs: the same where releases are made one by one; images: synthetic images a class in
        those runs (no theorem names a number)."""

    runs: int = 200
    slow_runs: int = 20
    images: int = 2

    def __post_init__(self) -> None:
        for name, least in (("runs", 20), ("slow_runs", 20), ("images", 1)):
            object.__setattr__(
                self,
                name,
                check_integer(
                    f"audit.guarantee.{name}", getattr(self, name), least, most=MAX_COUNT
                ),
            )


@dataclass(frozen=True)
class HardExampleSettings(HardExamples):
    """The counts of ``audit.tail``, checked."""

    def __post_init__(self) -> None:
        for name in ("mislabelled", "near_duplicates"):
            object.__setattr__(self, name, check_integer(f"audit.tail.{name}", getattr(self, name)))


@dataclass(frozen=True)
class AuditSettings:
    """How a run is audited.

    Attributes:
        client: The audited one; auto is the one with most records.
        records: How many are audited; each is in the run by a fair inclusion bit.
        worlds: Replays of the audited client (one shadow model each), the real run included.
        federations: Replays of the whole federation.
        victims: Records that each reconstruction attack is tried on.
        confidence: Of guarantee tests, in (0, 1).
        guarantee: How long guarantee tests run.
        training: How replays are trained.
        canaries: Crafted records that fair inclusion bits add to the audited client's data.
        rounds: How many of a phase are replayed, the latest included.
        require: Whether every surface has to be attacked.
        federation_rounds: How many last rounds are each replayed federation's own; 0 is all.
        waive: Surface -> why it is not attacked.
        tail: How many audited records are made hard to fit.
        show_images: Whether the report shows records and reconstructions as images, which are the
            client's own data; "auto" is for data sets that are published.
        transcripts: How many transcripts of noised sums a closed form reads, the real one included,
            if nothing else is sent.
        processed_worlds: How many of the replays of the client are then run.
        processed_federations: How many of those of the federation.
        replays: Replays of a round, in each phase, that ``SHARED_COUNTS`` share by how many rounds
            the run has; None if either of these is set.
    """

    client: int | Literal["auto"]
    records: int
    worlds: int
    federations: int
    victims: int
    confidence: float
    guarantee: GuaranteeBudget
    training: TrainingMode = "auto"
    canaries: int = 0
    rounds: int = 1
    require: Required = "all"
    federation_rounds: int = 0
    waive: Mapping[str, str] = field(default_factory=dict)
    tail: HardExampleSettings = HardExampleSettings()
    show_images: bool | Literal["auto"] = "auto"
    transcripts: int = 1000
    processed_worlds: int = 8
    processed_federations: int = 8
    replays: int | None = None

    def __post_init__(self) -> None:
        is_number = (
            isinstance(self.client, int) and not isinstance(self.client, bool) and self.client >= 0
        )
        if not is_number and self.client != "auto":
            raise setting_error(
                "audit.client", self.client, "auto, or a client's number from 0, is needed"
            )
        for name, (least, needed) in COUNTS.items():
            object.__setattr__(
                self,
                name,
                check_integer(f"audit.{name}", getattr(self, name), least, needed, most=MAX_COUNT),
            )
        if self.replays is not None:
            object.__setattr__(self, "replays", check_replays(self.replays))
        check_share("audit.confidence", self.confidence)
        if 1 - self.confidence == 1:
            raise setting_error(
                "audit.confidence", self.confidence, "1 - confidence must differ from 0"
            )
        check_choice("audit.training", self.training, get_args(TrainingMode))
        check_choice("audit.require", self.require, get_args(Required))
        if not isinstance(self.show_images, bool) and self.show_images != "auto":
            raise setting_error(
                "audit.show_images", self.show_images, "must be auto, true or false"
            )
        if self.waive:
            from attacks.types import (
                Surface,
            )  # imports torch, which a refused value should not have to wait for

        for surface, reason in self.waive.items():
            check_choice("audit.waive", surface, [str(s) for s in Surface])
            check_text(f"audit.waive.{surface}", reason)
            if not reason.strip():
                raise BadConfig(f"audit.waive.{surface}: a reason is needed")
