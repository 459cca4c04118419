"""What a finding states in numbers: one class for each kind of harm, one field a measure.

None stands for a measure that does not apply. Units, ranges and JSON names are those of
``privdd.reporting.schema.FindingRow``, which has a field for each of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

Rates = Mapping[str, Mapping[str, Any]]  # false-positive rate -> true-positive rate, its interval


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What a finding of any kind may state.

    Attributes:
        epsilon_shown: a lower bound on epsilon, >= 0.
        epsilon_method: how the bound was computed.
        epsilon_validity: "finite_sample", "curve" or "gaussian_only".
        epsilon_stated: the epsilon that the bound is compared with.
        confidence: of intervals and bounds, in (0, 1).
        n: how many records, images, rows or runs were examined.
        worlds: how many replays.
        rounds: of how many rounds releases were read.
        seconds: of computing.
        baselines: measures of guesses that need no artifact.
        diagnostics: what helps to read the measures; plain JSON.
        signal: the releases or signals that were read, several joined by ", ".
        status: of the attack, if not "measured".
        note: a sentence for the reader.
        figure: the file that holds the evidence.
    """

    epsilon_shown: float | None = None
    epsilon_method: str | None = None
    epsilon_validity: str | None = None
    epsilon_stated: float | None = None
    confidence: float | None = None
    n: int | None = None
    worlds: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    baselines: Mapping[str, float] | None = None
    diagnostics: Mapping[str, Any] | None = None
    signal: str | None = None
    status: str | None = None
    note: str | None = None
    figure: str | None = None

    results: ClassVar[tuple[str, ...]] = ("epsilon_shown",)  # any one of them: it was attacked

    @property
    def has_result(self) -> bool:
        """Whether the finding measured the harm; else it says why nothing could be read."""
        return any(getattr(self, name) is not None for name in self.results)

    @property
    def is_measured(self) -> bool:
        """Whether the finding's status in findings.json is "measured"."""
        return self.has_result

    def to_row(self) -> dict[str, Any]:
        """The measures that apply, by their names in findings.json."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def without_bound(self) -> Self:
        """These measures if no bound on epsilon holds."""
        return replace(self, epsilon_shown=None, epsilon_method=None, epsilon_validity=None)


@dataclass(frozen=True, kw_only=True)
class MembershipMeasures(Measures):
    """How well members are distinguished from non-members.

    Attributes:
        auc: area under the ROC curve, in [0, 1].
        auc_ci: its interval (low, high).
        tpr_at_fpr: true-positive rates at fixed false-positive rates.
        tpr_at_fpr_per_record: the same, each record at its own threshold.
        worst_records: the most exposed records.
        by_kind: rates of mislabelled, near-duplicate and ordinary records.
        copy_test: members and non-members by their distance to the nearest row.
        blind_auc: of the blind control.
    """

    auc: float | None = None
    auc_ci: Sequence[float] | None = None
    tpr_at_fpr: Rates | None = None
    tpr_at_fpr_per_record: Rates | None = None
    worst_records: Mapping[str, Any] | None = None
    by_kind: Rates | None = None
    copy_test: Mapping[str, Any] | None = None
    blind_auc: float | None = None

    results: ClassVar[tuple[str, ...]] = ("auc", "epsilon_shown")


@dataclass(frozen=True, kw_only=True)
class ReconstructionMeasures(Measures):
    """How close reconstructions are to records.

    Attributes:
        psnr: mean over the images, in dB.
        ssim: mean structural similarity, in [-1, 1].
        lpips: mean perceptual distance, >= 0.
        lpips_trunk: the network behind ``lpips``.
        identified: share of images whose record is nearer than every held-out record.
        identified_chance: that share for a blind pick.
        label_accuracy: share of labels that were recovered.
        pictures: the best single images, which a mean hides.
        picked: of how many results of the attack this one is the best.
    """

    psnr: float | None = None
    ssim: float | None = None
    lpips: float | None = None
    lpips_trunk: str | None = None
    identified: float | None = None
    identified_chance: float | None = None
    label_accuracy: float | None = None
    pictures: Mapping[str, Any] | None = None
    picked: int | None = None

    results: ClassVar[tuple[str, ...]] = ("psnr", "identified", "label_accuracy", "epsilon_shown")


@dataclass(frozen=True, kw_only=True)
class LabelMeasures(Measures):
    """How well the labels of a client are recovered.

    Attributes:
        label_accuracy: share of records whose label was recovered, in [0, 1].
    """

    label_accuracy: float | None = None

    results: ClassVar[tuple[str, ...]] = ("label_accuracy", "epsilon_shown")


@dataclass(frozen=True, kw_only=True)
class GuaranteeMeasures(Measures):
    """What a test of a stated (epsilon, delta) measured.

    Attributes:
        kappa: how far one record moves a release, over the unit of its sensitivity.
        kappa_allowed: how far it may.
    """

    kappa: float | None = None
    kappa_allowed: float | None = None

    @property
    def is_measured(self) -> bool:
        return self.has_result or self.kappa is not None
