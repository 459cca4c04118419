"""The ``privacy`` part of ``findings.json``: what is claimed, proven and shown of epsilon, and what it rests on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from privdd.reporting.schema_values import Count, Epsilon, Part, Relation, Text, Unit


class Kappa(Part):
    """What the crafted record moves a release by, over what is allowed: least, mean, and mean square."""

    min: Epsilon
    mean: Epsilon
    energy: Epsilon | None = None


class CertifiedBy(Part):
    """How a lower bound was come by: the tier of its test, what is taken on trust, how many runs, the record's kappa."""

    tier: Literal["T2", "T3"]
    trusts: list[Text]
    runs: Count
    kappa: Kappa | None = None


class EpsilonPair(Part):
    """Upper bounds by the two accountants; certified: the largest finite-sample lower bound for all that is released."""

    pld: Epsilon
    rdp: Epsilon
    certified: Epsilon | None = None
    certified_by: CertifiedBy | None = None

    @model_validator(mode="after")
    def _says_how(self) -> EpsilonPair:
        if (self.certified is None) != (self.certified_by is None):
            raise ValueError("certified, certified_by: both or neither")
        return self

    @property
    def best(self) -> float:
        """Both are upper bounds, so the smaller one holds."""
        return min(self.pld, self.rdp)


class ClaimRow(Part):
    """epsilon: "no number" where the paper fixes it only up to constants, or says it in words."""

    source: Text
    epsilon: Epsilon | Literal["no number"]
    sound: bool
    why: Text
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    choices: list[Text] = Field(default_factory=list)
    neighbours: Text | None = None
    tested_by: list[Text] = Field(default_factory=list)

    @property
    def number(self) -> float | None:
        return None if isinstance(self.epsilon, str) else self.epsilon


class ReconstructionRow(Part):
    """Among k candidates of prior chance 1/k: no attacker names the record more often than ``bound``.

    attained: the rate of a likelihood attacker on crafted records, where the whole noise is Gaussian;
    claimed: what the claim of the smallest epsilon would allow.
    """

    k: Annotated[int, Field(ge=2)]
    prior: Unit
    bound: Unit
    attained: Unit | None = None
    claimed: Unit | None = None


class NoiseRow(Part):
    """Where a run's noise came from; for_release: nobody else can draw it again, and no other run holds it."""

    source: Literal["seed", "secret", "os"]
    paired: bool
    for_release: bool


class PublicFact(Part):
    """Something that everyone may know of a run, so that no row of the ledger counts it."""

    what: Text
    value: Text


class Multiplicity(Part):
    """How the bounds that can decide a verdict share one error: alpha / tests for each.

    replaced: of these, bounds that were made by an earlier command and have others in their place.
    """

    alpha: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    tests: Annotated[int, Field(ge=1)]
    replaced: Count | None = None


class Privacy(Part):
    """noise: absent where none is added, and in files of earlier versions."""

    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
    unit: Literal["record", "client"]
    relation: Relation
    epsilon: EpsilonPair
    claims: list[ClaimRow]
    noise: NoiseRow | None = None
    public: list[PublicFact] = Field(default_factory=list)
    multiplicity: Multiplicity | None = None
    reconstruction: list[ReconstructionRow] | None = None
