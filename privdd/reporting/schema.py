"""Schema 2 of ``findings.json`` as pydantic models that refuse any key or value they do not know;
its reader and writer (one-line errors, atomic writes, no NaN, no ``null``), and the published JSON
Schema: ``python -m privdd.reporting.schema > docs/findings.schema.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from attacks.types import Adversary, Family, Surface
from privdd.runtime.files import SCHEMA, DamagedRun, check_schema, read_json, write_bytes

Verdict = Literal["unprotected", "untested", "consistent", "contradiction"]
Status = Literal["measured", "nothing_to_read", "not_attacked", "failed"]
TargetKind = Literal["model", "synthetic", "updates", "recording", "message", "scores"]
Relation = Literal["add_remove", "zero_out", "replace"]
GRAVITY: tuple[Verdict, ...] = ("contradiction", "unprotected", "untested", "consistent")
KAPPA_TOLERANCE = 1e-4  # of what is allowed: kappa is measured in floating point


def _to_float(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _to_json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


Finite = Annotated[float, Field(allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Epsilon = Annotated[
    float,
    BeforeValidator(_to_float),
    Field(ge=0),
    PlainSerializer(_to_json, return_type=float | str),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "inf"}]}),
]
Decibel = Annotated[
    float,
    BeforeValidator(_to_float),
    Field(gt=-math.inf),
    PlainSerializer(_to_json, return_type=float | str),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"const": "inf"}]}),
]
# No control characters: these texts reach terminals, drawings and pages.
Text = Annotated[str, Field(max_length=4000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*\.safetensors$")]


class Part(BaseModel):
    """Immutable, and no key beyond those named."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


@dataclass(frozen=True)
class Scope:
    """What judging one row needs of the file that it stands in.

    looks: at how many rates of the file a reader looks for a successful attack; unit: the unit of
    privacy; target: the kind of what was brought from outside, "" for a simulation.
    """

    looks: int
    unit: str = "record"
    target: TargetKind | Literal[""] = ""


class Kappa(Part):
    """The crafted record's shift of a release, over the allowed shift: least, mean, and mean
    square."""

    min: Epsilon
    mean: Epsilon
    energy: Epsilon | None = None


class ShownBy(Part):
    """How a lower bound was come by: the tier of its test, what is taken on trust, how many runs,
    the record's kappa."""

    tier: Literal["T2", "T3"]
    trusts: list[Text]
    runs: Count
    kappa: Kappa | None = None


class EpsilonPair(Part):
    """Upper bounds by the two accountants; shown: the largest finite-sample lower bound for all
    that is released."""

    pld: Epsilon
    rdp: Epsilon
    shown: Epsilon | None = None
    shown_by: ShownBy | None = None

    @model_validator(mode="after")
    def _says_how(self) -> EpsilonPair:
        if (self.shown is None) != (self.shown_by is None):
            raise ValueError("shown, shown_by: both or neither")
        return self

    @property
    def proven(self) -> float:
        """Both are upper bounds, so the smaller one holds."""
        return min(self.pld, self.rdp)


class TypedLimit(Part):
    """A limit as somebody typed it, before it was converted into that of the run's own relation."""

    epsilon: Epsilon
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    relation: Text


class ClaimRow(Part):
    """epsilon: "no number" where the paper fixes it only up to constants, or says it in words.
    typed: what it was converted from."""

    source: Text
    epsilon: Epsilon | Literal["no number"]
    sound: bool
    why: Text
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    choices: list[Text] = Field(default_factory=list)
    neighbours: Text | None = None
    tested_by: list[Text] = Field(default_factory=list)
    typed: TypedLimit | None = None

    @property
    def number(self) -> float | None:
        return None if isinstance(self.epsilon, str) else self.epsilon


class ReconstructionRow(Part):
    """Among k candidates of prior chance 1/k: no attacker names the record more often than
    ``bound``.

    attained: the rate of a likelihood attacker on crafted records, where the whole noise is
        Gaussian;
    claimed: what the claim of the smallest epsilon would allow.
    """

    k: Annotated[int, Field(ge=2)]
    prior: Unit
    bound: Unit
    attained: Unit | None = None
    claimed: Unit | None = None


class NoiseRow(Part):
    """The source of a run's noise; for_release: nobody else can draw it again, and no other run
    holds it."""

    source: Literal["seed", "secret", "os"]
    paired: bool
    for_release: bool


class PublicFact(Part):
    """Something that everyone may know of a run, so that no row of the ledger counts it."""

    what: Text
    value: Text


class Multiplicity(Part):
    """How the bounds that can decide a verdict share one error: alpha / tests for each.

    replaced: bounds among them that an earlier command computed and a later one replaced; they
        still take their share."""

    alpha: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    tests: Annotated[int, Field(ge=1)]
    replaced: Count | None = None


class Privacy(Part):
    """noise: absent where none is added."""

    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
    unit: Literal["record", "client"]
    relation: Relation
    epsilon: EpsilonPair
    claims: list[ClaimRow]
    noise: NoiseRow | None = None
    public: list[PublicFact] = Field(default_factory=list)
    multiplicity: Multiplicity | None = None
    reconstruction: list[ReconstructionRow] | None = None


# Infinity is written as the string ``"inf"`` and is ``math.inf`` in memory; every other number is
# finite.


class Seconds(Part):
    train: Positive
    worlds: Positive
    attacks: Positive
    total: Positive


class Run(Part):
    algo: Text
    data: Text
    preset: Text
    seed: Count
    version: Text
    clients: Count
    rounds: Count
    seconds: Seconds
    # Audited records that were made hard to fit.
    tail: dict[Literal["mislabelled", "near_duplicates"], Count] | None = None
    # Whether pages show records as images; folders of earlier versions, and targets, do not say.
    show_images: bool | None = None


class Utility(Part):
    """accuracy in [0, 1]; bytes are those of one client over the whole run.

    diverged: the first round after which there was no finite model; its accuracy then says nothing.
    """

    accuracy: Unit
    accuracy_kind: Literal["global", "personal"]
    accuracy_by_round: list[Unit] = Field(default_factory=list)
    diverged: Count | None = None
    uploaded_bytes_per_client: Count = 0
    downloaded_bytes_per_client: Count | None = None


class DistillationRow(Part):
    """What the distillation of one client did in a round; a key that does not apply is left out.

    moved: distance between images (representations) at the start and at the end, over the norm at
        the start; rate: step length in units of the variance of their numbers at the start;
    loss_before, loss_after: matching loss, mean over fresh networks; at_bound: share of released
        features whose norm is at its bound; starts_real: whether all start as real records;
        projected: whether they are records' representations.
    """

    client: Count
    round: Count
    moved: Positive | None = None
    rate: Positive | None = None
    loss_before: Positive | None = None
    loss_after: Positive | None = None
    at_bound: Unit | None = None
    starts_real: bool | None = None
    projected: bool | None = None


class Target(Part):
    """An external target and the records that it is audited with.

    training, heldout: how many there are; repeated, repeated_heldout: those that equal an earlier
        record of their file;
    shared: held-out records that equal a training record. copies_together: an audited record stands
        for all its copies, so that no bound is for one of them. outputs: how the model's outputs
        were read. notes: what a reader
    has to know first. doubts: why neither a leak nor its absence can be read from these files;
    empty where nothing speaks against them.
    """

    kind: TargetKind
    training: Count | None = None
    heldout: Count | None = None
    repeated: Count = 0
    repeated_heldout: Count = 0
    shared: Count = 0
    copies_together: bool = False
    accuracy_training: Unit | None = None
    outputs: Text | None = None
    notes: list[Text] = Field(default_factory=list)
    doubts: list[Text] = Field(default_factory=list)


class SurfaceRow(Part):
    """behind: names of the queries and messages that it was computed from, its own among them;
    refuted: those of them whose limit a finding refutes. Both are absent where there are none."""

    surface: Surface
    sender: Literal["client", "server"]
    names: list[Text]
    rounds: Count
    bytes: Count
    mechanism: Text
    epsilon: EpsilonPair
    audited: (
        Literal[True] | Annotated[str, Field(pattern=r"^(waived|not attacked|nothing to read): .+")]
    )
    # "mechanism, part: why" for what no test covered; a consistent surface has to list it
    untested: list[Text] = Field(default_factory=list)
    # hooks of the method without which attacks cannot compare a record with it; absent: none is
    # missing
    missing_hooks: Text | None = None
    behind: list[Text] = Field(default_factory=list)
    refuted: list[Text] = Field(default_factory=list)
    verdict: Verdict

    @model_validator(mode="after")
    def _consistent_lists_untested(self) -> SurfaceRow:
        if self.verdict == "consistent" and "untested" not in self.model_fields_set:
            raise ValueError("verdict='consistent': untested is needed, the list of untested parts")
        return self


class TprAt(Part):
    """resolvable: false where there are too few non-members to see this false-positive rate."""

    tpr: Unit
    ci: tuple[Unit, Unit]
    resolvable: bool


FprKey = Annotated[str, Field(pattern=r"^(0\.\d*[1-9]\d*|1e-\d+)$")]


class WorstRecord(Part):
    """One exposed record: found in hits of trials replays that it is in. record: its place among
    the audited ones.

    wrong, out: it is named in ``wrong`` of the ``out`` replays that it is not in."""

    record: Count
    hits: Count
    trials: Count
    tpr: Unit
    ci: tuple[Unit, Unit]
    wrong: Count | None = None
    out: Count | None = None


class WorstRecords(Part):
    """How often the most exposed ``share`` of records is found when it is in, at a false-positive
    rate of 0.1 %."""

    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    tpr: Unit
    ci: tuple[Unit, Unit]
    records: list[WorstRecord]


class KindRates(Part):
    """Records of one kind, at the threshold whose false-positive rate over all records is 0.1 %;
    ci: of tpr."""

    n: Count
    auc: Unit
    tpr: Unit
    fpr: Unit
    ci: tuple[Unit, Unit]


class NearestAtRank(Part):
    """Members nearer to what was sent than the ``rank``-th nearest non-member; p_value: of this
    rank alone."""

    rank: Annotated[int, Field(ge=1)]
    identified: Count
    false_alarms: Count
    p_value: Unit


class CopyTest(Part):
    """All members of the run against all its non-members, by the distance to the nearest row that
    was sent (``attacks.membership.nearest_row``): ``identified`` of ``members`` lie nearer than all
    non-members but ``false_alarms`` of
    ``nonmembers``. p_value: of so many by chance, corrected for the ranks."""

    members: Count
    nonmembers: Count
    identified: Count
    false_alarms: Count
    p_value: Unit
    ranks: list[NearestAtRank]


class Pictures(Part):
    """The pictures of a finding one by one, PSNR in dB (``attacks.inversion.evaluation.pictures``):
    the median and that of the best guess; how many lie clearly above the closest guess for their
    own record; the one furthest above.

    chance, chance_best: how often a blind picture is clear, and the best of so many gains as much;
        absent where unknown."""

    n: Annotated[int, Field(ge=1)]
    median: Decibel
    guess: Decibel
    clear: Count
    best: Decibel
    best_guess: Decibel
    chance: Unit | None = None
    chance_best: Unit | None = None


class FindingRow(Part):
    """message: the name of the message or query that it is about, several joined by ", "; refutes:
    it contradicts what is stated (absent: it does not). psnr, ssim, lpips: means over n pictures;
    picked: of how many results of the attack this one is the best.

    tpr_at_fpr_per_record: mean over records, with that false-positive rate for each record by
        itself. status: "nothing_to_read" where what was sent says nothing that this attack reads
        about any record, so that it has no rate."""

    surface: Surface
    attack: Text
    family: Family
    adversary: Adversary
    message: Text | None = None
    refutes: bool | None = None
    auc: Unit | None = None
    auc_ci: tuple[Unit, Unit] | None = None
    tpr_at_fpr: dict[FprKey, TprAt] | None = None
    tpr_at_fpr_per_record: dict[FprKey, TprAt] | None = None
    worst_records: WorstRecords | None = None
    by_kind: dict[Literal["mislabelled", "near_duplicates", "ordinary"], KindRates] | None = None
    copy_test: CopyTest | None = None
    blind_auc: Unit | None = None
    epsilon_shown: Epsilon | None = None
    epsilon_method: Text | None = None
    epsilon_validity: Literal["finite_sample", "curve", "gaussian_only"] | None = None
    epsilon_stated: Epsilon | None = None
    confidence: Unit | None = None
    kappa: Positive | None = None
    kappa_allowed: Positive | None = None
    psnr: Decibel | None = None
    ssim: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None = None
    lpips: Positive | None = None
    lpips_trunk: Text | None = None
    identified: Unit | None = None
    identified_chance: Unit | None = None
    label_accuracy: Unit | None = None
    pictures: Pictures | None = None
    picked: Annotated[int, Field(ge=1)] | None = None
    n: Count | None = None
    worlds: Count | None = None
    rounds: Count | None = None
    seconds: Positive | None = None
    baselines: dict[Text, Finite] | None = None
    diagnostics: dict[str, Any] | None = None
    signal: Text | None = None
    status: Status | None = None
    note: Text | None = None
    figure: FileName | None = None

    @model_validator(mode="after")
    def _joint_bound_is_a_number(self) -> FindingRow:
        # of all diagnostics the one that verdicts are computed from
        bound = _to_float((self.diagnostics or {}).get("epsilon_familywise", 0.0))
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or not bound >= 0:
            raise ValueError("diagnostics.epsilon_familywise: must be a number of at least 0")
        return self

    @property
    def rate_count(self) -> int:
        """How many of its figures could lie above guessing by chance: each is one more try at 95
        %."""
        rates = (self.tpr_at_fpr or {}).values()
        measures = (self.auc_ci, self.worst_records, self.label_accuracy, self.copy_test)
        pictures = self.pictures
        # of the results of an attack the best was picked: each of them was a try
        picked = (
            self.identified,
            pictures and pictures.chance,
            pictures and pictures.chance_best,
        )
        count = sum(rate.resolvable for rate in rates)
        count += sum(measure is not None for measure in measures)
        return count + (self.picked or 1) * sum(measure is not None for measure in picked)

    @property
    def evidence_name(self) -> str:
        return self.figure or f"{self.surface}.{self.attack}.safetensors"


class Findings(Part):
    """The whole file. Raises pydantic's ValidationError on any key or value outside the schema.

    utility is absent where nothing was trained: scores brought from elsewhere. target: of what was
    brought from outside only."""

    schema_: Literal[1] = Field(alias="schema", default=SCHEMA)
    run: Run
    target: Target | None = None
    utility: Utility | None = None
    # of the audited client; absent if nothing is distilled, and in files of earlier versions
    distillation: list[DistillationRow] | None = None
    privacy: Privacy
    surfaces: list[SurfaceRow]
    findings: list[FindingRow]
    verdict: Verdict

    @property
    def scope(self) -> Scope:
        """What a row of this file is judged by."""
        target = self.target.kind if self.target else ""
        looks = max(1, sum(row.rate_count for row in self.findings))
        return Scope(looks, self.privacy.unit, target)

    @model_validator(mode="after")
    def _verdict_covers_surfaces(self) -> Findings:
        if self.verdict != "contradiction" and "contradiction" in (
            row.verdict for row in self.surfaces
        ):
            raise ValueError(
                f"verdict={self.verdict!r}: a surface is in contradiction, so the run is"
            )
        return self


def exceeds_kappa(kappa: float, allowed: float) -> bool:
    """Whether one unit moves a release further than ``allowed``, by more than rounding does."""
    return kappa > allowed * (1 + KAPPA_TOLERANCE)


def worst_verdict(verdicts: Iterable[str]) -> Verdict:
    """The gravest of some verdicts; of none, consistent."""
    return GRAVITY[min(map(GRAVITY.index, verdicts), default=-1)]


def _refuse_null(value: Any, path: str = "") -> None:
    if value is None:
        raise ValueError(f"{path}: null is not allowed (a key that does not apply is left out)")
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        items = ()
    for key, inner in items:
        _refuse_null(inner, f"{path}.{key}" if path else str(key))


def first_error_line(error: ValidationError) -> str:
    """One line for the first of pydantic's errors, with the number of the others."""
    errors = error.errors(include_url=False, include_context=False)
    where = ".".join(str(part) for part in errors[0]["loc"])
    if len(errors) > 1:
        rest = f" (and {len(errors) - 1} more)"
    else:
        rest = ""
    message = errors[0]["msg"].removeprefix("Value error, ")
    if where:
        return f"{where}: {message}{rest}"
    return f"{message}{rest}"


def validate_findings(data: Any, where: str = "findings") -> Findings:
    """A checked value from plain data. Raises DamagedRun with one line."""
    if not isinstance(data, dict):
        raise DamagedRun(f"{where}: an object is needed, got {type(data).__name__}")
    check_schema(where, data)
    try:
        _refuse_null(data)
        return Findings.model_validate(data)
    except ValidationError as error:
        raise DamagedRun(f"{where}: {first_error_line(error)}") from None
    except ValueError as error:
        raise DamagedRun(f"{where}: {error}") from None


def load_findings(path: Path | str) -> Findings:
    """Read findings.json, or the one inside a run folder. Raises DamagedRun with one line."""
    path = Path(path)
    path = path / "findings.json" if path.is_dir() else path
    return validate_findings(read_json(path), str(path))


def dump_findings(findings: Findings) -> str:
    """The file's text: keys in the schema's order, absent keys left out, NaN refused."""
    data = findings.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_findings(findings: Findings | Mapping[str, Any], path: Path | str) -> Path:
    """Check, then replace the file in one step, so that no reader ever sees half of it.

    Raises DamagedRun if a mapping does not follow the schema.
    """
    if isinstance(findings, Findings):
        checked = findings
    else:
        checked = validate_findings(dict(findings), str(path))
    try:
        text = dump_findings(checked)
    except ValueError as error:
        raise DamagedRun(f"{path}: {error}") from None
    write_bytes(Path(path), text.encode())
    return Path(path)


def schema_text() -> str:
    """The schema as indented JSON, with a line end."""
    schema = Findings.model_json_schema(by_alias=True)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"privdd findings.json, schema {SCHEMA}",
    }
    return (
        json.dumps(
            {**head, **{k: v for k, v in schema.items() if k != "title"}},
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


if __name__ == "__main__":
    print(schema_text(), end="")
