"""The papers' sentences about privacy, each with the test that decides it here, on one page.

Arithmetic decides some (a formula against an accountant, the direction of a metric), small audits
or trainings the others; finished ones of the same settings are used again. What an attack does not
find stays undecided: it may be too weak."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from scipy import optimize

from attacks.images import LpipsUnavailable, lpips
from privdd.cli.main import config_of
from privdd.cli.paper_rows import audit_row, config_digest
from privdd.cli.plain_config import to_plain_settings
from privdd.core.rng import Keys
from privdd.data.readers import load_digits_dataset
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.claims import DELTA, kairouz_composition, printed_composition
from privdd.reporting.finding_selection import PICTURE_MARGIN
from privdd.reporting.page import template_environment
from privdd.reproduce.catalogue import ReproduceArguments, find_entry
from privdd.reproduce.page import reproduce_entry
from privdd.reproduce.sentences import HOLDS, REVERSED
from privdd.runtime.files import read_json, write_bytes, write_json
from privdd.runtime.progress import show_progress

HOLDS_HERE = "holds here"
FAILS_HERE = "does not hold"
UNDECIDED = "undecided"


SMALL_AUDIT = ("data=digits", "preset=smoke", "audit.worlds=16")
MEMBERSHIP = "attack=[lira,rmia,loss_threshold]"
AUDITS = {
    "fedrd": ("algo=fedrd", "attack=[lira,rmia,loss_threshold,feature_inversion]"),
    "fedfed": ("algo=fedfed", "attack=[feature_inversion]"),
    "fedlgd": ("algo=fedlgd", MEMBERSHIP),
    "virtual_data": ("algo=virtual_data", MEMBERSHIP),
    "fedavg": ("algo=fedavg", MEMBERSHIP),
}
SIGMAS = (1.0, 3.0, 5.0)
PRINTED_EPSILONS = (10.0, 1.11, 0.4)
# T; |B|; records of a class of CIFAR-10, all at one client: the smallest q there is.
MATCHING_STEPS = 1000
MATCHING_BATCH = 256
CLASS_SIZE = 5000
FEATURE_SHARE = 0.3  # rho
FindingRow = dict[str, Any]
Decision = Callable[["ClaimEvidence"], "ClaimVerdict"]
SENTENCES: list[PrivacySentence] = []  # in the papers' order, each above what decides it


def audit_folder_name(name: str) -> str:
    """The name changes with every setting of the audit, so that no finding under other settings is
    used."""
    config = config_of("audit", *AUDITS[name], *SMALL_AUDIT)
    audit_settings = [to_plain_settings(config[part]) for part in ("audit", "attack", "capture")]
    return f"{name}-{config_digest(config, audit_settings)}"


@dataclass(frozen=True)
class ClaimEvidence:
    """The results that a test may ask for; what is not there yet is run when it is asked for."""

    asked: ReproduceArguments

    def audit_findings(self, name: str) -> dict[str, Any]:
        """findings.json of one of the small audits."""
        path = self.asked.out / "privacy" / audit_folder_name(name)
        if not (path / "findings.json").is_file():
            audit_row((*AUDITS[name], *SMALL_AUDIT), path)
        findings: dict[str, Any] = read_json(path / "findings.json")
        return findings

    def entry_results(self, entry: str) -> dict[str, Any]:
        """results.json of an entry, at scale=small."""
        return reproduce_entry(find_entry(entry), replace(self.asked, name=entry, scale="small"))[
            0
        ].as_json()


@dataclass(frozen=True)
class ClaimVerdict:
    """verdict: ``HOLDS_HERE``, ``FAILS_HERE`` or ``UNDECIDED``; because: the numbers that decide,
    in words."""

    verdict: str
    because: tuple[str, ...]

    @classmethod
    def decided(cls, holds: bool, because: tuple[str, ...]) -> ClaimVerdict:
        if holds:
            return cls(HOLDS_HERE, because)
        return cls(FAILS_HERE, because)


def strongest_membership(findings: dict[str, Any], surface: str) -> FindingRow | None:
    """The finding on a surface whose interval of the AUC begins highest."""
    rows = [
        r
        for r in findings["findings"]
        if r["surface"] == surface and r["family"] == "membership" and r.get("auc_ci")
    ]
    return max(rows, key=lambda row: float(row["auc_ci"][0]), default=None)


def _format_auc(row: FindingRow) -> str:
    return (
        f"{row['attack']} AUC {row['auc']:.3f} (95 %: {row['auc_ci'][0]:.3f} to "
        f"{row['auc_ci'][1]:.3f}, n = {row['n']})"
    )


@dataclass(frozen=True)
class PrivacySentence:
    """quote: the paper's words; reading: what must be true for it to hold; by: "formula", "attack"
    or "training"."""

    name: str
    where: str
    quote: str
    reading: str
    by: str
    decide: Decision


def privacy_sentence(
    name: str, where: str, quote: str, reading: str, by: str
) -> Callable[[Decision], Decision]:
    """Enters a decision in ``SENTENCES``, with what it decides (``PrivacySentence``)."""

    def enter_decision(decide: Decision) -> Decision:
        SENTENCES.append(PrivacySentence(name, where, quote, reading, by, decide))
        return decide

    return enter_decision


@privacy_sentence(
    "feddm.theorem",
    "FedDM, section 4.4",
    "using DP-SGD in local training of FedDM can satisfy (ϵ, δ)-differential "
    "privacy, with σ ≥ √(2 log(1/δ)/ϵ) "
    "for any Tq² ≤ ϵ/2",
    "the paper's own sigma, T and batch meet the condition on CIFAR-10, and an "
    "accountant then allows that epsilon",
    "formula",
)
def decide_feddm_theorem(evidence: ClaimEvidence) -> ClaimVerdict:
    """The kindest case: T steps at the smallest q, Poisson batches, and each record clipped (the
    method clips their mean)."""
    q = MATCHING_BATCH / CLASS_SIZE
    lines = []
    holds = True
    for sigma in SIGMAS:
        stated = 2 * math.log(1 / DELTA) / sigma**2
        event = dpa.SelfComposedDpEvent(
            dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma)), MATCHING_STEPS
        )
        real = accounted(event, DELTA)
        meets = MATCHING_STEPS * q**2 <= stated / 2
        holds = holds and meets and real <= stated
        lines.append(
            f"sigma {sigma:g}: T q² = {MATCHING_STEPS * q**2:.3g}, ε/2 = "
            f"{stated / 2:.3g}, so the condition {'holds' if meets else 'fails'}; "
            f"the formula gives {stated:.3g}, the accountant {real:.3g} a round"
        )
    lines.append(
        "this is the kindest case: a client that holds all 5,000 records of a class, "
        "each record clipped by itself"
    )
    return ClaimVerdict.decided(holds, tuple(lines))


@privacy_sentence(
    "fedrd.table2",
    "FedRD, section V-C",
    "We set the value of noise scale σ = 1, 3, 5 and the corresponding privacy "
    "budget ϵ = 10, 1.11, 0.4 with δ = 10⁻⁵",
    "the formula of the same section gives these numbers with the natural logarithm of its proof",
    "formula",
)
def decide_fedrd_table_two(evidence: ClaimEvidence) -> ClaimVerdict:
    natural = [2 * math.log(1 / DELTA) / sigma**2 for sigma in SIGMAS]
    common = [2 * math.log10(1 / DELTA) / sigma**2 for sigma in SIGMAS]
    agrees = [abs(a - b) < 0.01 for a, b in zip(natural, PRINTED_EPSILONS, strict=True)]
    lines = (
        f"natural logarithm: {', '.join(f'{v:.3g}' for v in natural)}",
        f"base 10: {', '.join(f'{v:.3g}' for v in common)}",
        f"printed: {', '.join(f'{v:g}' for v in PRINTED_EPSILONS)}",
    )
    return ClaimVerdict.decided(all(agrees), lines)


@privacy_sentence(
    "fedrd.not-real",
    "FedRD, section IV-B",
    "the synthetic representations are not real instances of the local dataset",
    "the representations do not reveal whether a record was used",
    "attack",
)
def decide_fedrd_not_real(evidence: ClaimEvidence) -> ClaimVerdict:
    row = strongest_membership(evidence.audit_findings("fedrd"), "synthetic_representations")
    if row is None:
        return ClaimVerdict(UNDECIDED, ("no membership attack read the representations",))
    if row["auc_ci"][0] > 0.5:
        return ClaimVerdict(
            FAILS_HERE,
            (
                _format_auc(row),
                "they start from representations of real records, and reveal which were used",
            ),
        )
    return ClaimVerdict(UNDECIDED, (_format_auc(row), "no better than chance at this size"))


def _blind_psnr(row: FindingRow) -> float:
    return max(value for name, value in row["baselines"].items() if name.startswith("psnr_"))


@privacy_sentence(
    "fedrd.secret-map",
    "FedRD, section IV-B",
    "the attackers cannot infer from the representations [...] to obtain the "
    "original data x, as the local projection "
    "model is kept local",
    "an attacker without the projection reconstructs no image better than a guess from "
    "public records",
    "attack",
)
def decide_fedrd_secret_map(evidence: ClaimEvidence) -> ClaimVerdict:
    """The rungs of the ladder on which the attacker does not have the projection."""
    rows = [
        r
        for r in evidence.audit_findings("fedrd")["findings"]
        if r["attack"] == "feature_inversion"
    ]
    if not rows:
        return ClaimVerdict(UNDECIDED, ("no inversion was run",))
    blind = _blind_psnr(rows[0])
    ladder = rows[0]["diagnostics"]["ladder"]
    best = max(
        (name for name in ("shadow_map", "nothing") if name in ladder),
        key=lambda name: ladder[name]["psnr"],
    )
    lines = (
        f"without the projection ({best}): {ladder[best]['psnr']:.1f} dB, a blind guess "
        f"{blind:.1f} dB",
        f"with it: {ladder['knows_map']['psnr']:.1f} dB"
        if "knows_map" in ladder
        else "the projection was not given",
    )
    return ClaimVerdict(
        FAILS_HERE if ladder[best]["psnr"] >= blind + PICTURE_MARGIN else UNDECIDED, lines
    )


def release_epsilon(sigma: float, sensitivity: float, delta: float = DELTA) -> float:
    """The accounted epsilon of one Gaussian release."""
    return accounted(dpa.GaussianDpEvent(sigma / sensitivity), delta)


@privacy_sentence(
    "fedfed.less-noise",
    "FedFed, theorem 3.3",
    "Given identical ϵ, δ, we attain σ < σ′",
    "at equal epsilon the noise on features is smaller than on raw records, taken by itself",
    "formula",
)
def decide_fedfed_less_noise(evidence: ClaimEvidence) -> ClaimVerdict:
    """One Gaussian release of a vector of norm at most rho, against one of norm at most 1."""
    raw = 1.0
    target = release_epsilon(raw, 1.0)
    noise = optimize.brentq(
        lambda sigma: release_epsilon(sigma, FEATURE_SHARE) - target, FEATURE_SHARE / 10, raw
    )
    lines = (
        f"at the epsilon {target:.3g} that noise 1 gives raw records of norm 1, features "
        f"of norm {FEATURE_SHARE:g} need noise {noise:.3g}",
        f"noise over norm is the same for both ({noise / FEATURE_SHARE:.3g} and "
        f"{raw:.3g}): less noise, on a signal as much weaker",
        "the generator is trained on raw records and sent without noise, so this says "
        "nothing of the whole method",
    )
    return ClaimVerdict.decided(noise < raw, lines)


@privacy_sentence(
    "fedfed.square",
    "FedFed, theorem 3.3",
    "such that σ ∝ ‖x_s‖²",
    "twice the norm needs four times the noise at equal epsilon",
    "formula",
)
def decide_fedfed_square(evidence: ClaimEvidence) -> ClaimVerdict:
    once, twice, four = (
        release_epsilon(s, norm) for s, norm in ((1.0, 1.0), (2.0, 2.0), (4.0, 2.0))
    )
    lines = (
        f"norm 1, noise 1: epsilon {once:.3g}; norm 2, noise 2: {twice:.3g}; norm 2, "
        f"noise 4: {four:.3g}",
        "twice the norm needs twice the noise, as in the paper's own proof (appendix D.1)",
    )
    linear = math.isclose(once, twice, rel_tol=1e-6) and not math.isclose(once, four, rel_tol=0.05)
    return ClaimVerdict.decided(not linear, lines)


@privacy_sentence(
    "fedfed.composition",
    "FedFed, theorem 3.4",
    "For k clients with (ϵ, δ)-differential privacy, FedFed satisfies [...]-differential privacy",
    "the printed bound is not below that of the theorem which it cites",
    "formula",
)
def decide_fedfed_composition(evidence: ClaimEvidence) -> ClaimVerdict:
    lines = []
    below = False
    for clients in (10, 100):
        epsilon = 0.876
        printed = printed_composition(epsilon, clients, DELTA)
        source = kairouz_composition(epsilon, clients, DELTA)
        below = below or printed < source * (1 - 1e-9)
        lines.append(
            f"{clients} clients of epsilon {epsilon:g}: printed {printed:.4g}, its source "
            f"{source:.4g}"
        )
    lines.append(
        "clients hold different records, so no composition over clients is needed: the "
        "worst client counts"
    )
    return ClaimVerdict.decided(not below, tuple(lines))


@privacy_sentence(
    "fedfed.raw",
    "FedFed, section 4.2",
    "sharing the full data with DP protection leads to a degradation in the "
    "performance of the FL system",
    "at equal protection, features give a higher accuracy than whole images "
    "(fedfed.figure11, scale=small)",
    "training",
)
def decide_fedfed_raw(evidence: ClaimEvidence) -> ClaimVerdict:
    """Features against whole images, from the results of fedfed.figure11."""
    column = evidence.entry_results("fedfed.figure11")["columns"][0]
    pairs = chain.from_iterable(sentence["pairs"] for sentence in column["sentences"])
    statement = next(pair for pair in pairs if pair["worse"] == "algo=fedfed_raw")
    p = "one seed" if statement["p"] is None else f"p {statement['p']:.2g}"
    lines = (f"features {100 * statement['gain']:+.1f} points against whole images ({p})",)
    return ClaimVerdict(
        {HOLDS: HOLDS_HERE, REVERSED: FAILS_HERE}.get(statement["verdict"], UNDECIDED), lines
    )


@privacy_sentence(
    "fedfed.inversion",
    "FedFed, section 4.4",
    "FedFed could protect globally shared data",
    "the shared features reconstruct no image better than a guess from public records",
    "attack",
)
def decide_fedfed_inversion(evidence: ClaimEvidence) -> ClaimVerdict:
    rows = [
        r
        for r in evidence.audit_findings("fedfed")["findings"]
        if r["attack"] == "feature_inversion"
    ]
    if not rows:
        return ClaimVerdict(UNDECIDED, ("no inversion was run",))
    row = max(rows, key=lambda line: line["psnr"] - _blind_psnr(line))
    lines = (
        f"{row['psnr']:.1f} dB from {row['surface'].replace('_', ' ')}, a blind guess "
        f"{_blind_psnr(row):.1f} dB",
    )
    return ClaimVerdict(
        FAILS_HERE if row["psnr"] >= _blind_psnr(row) + PICTURE_MARGIN else UNDECIDED, lines
    )


def _compare_with_fedlgd(evidence: ClaimEvidence, other_method: str, named: str) -> ClaimVerdict:
    """Decided where the two intervals do not meet; otherwise the game is too small to tell them
    apart."""
    a, b = (
        strongest_membership(evidence.audit_findings(name), "update")
        for name in ("fedlgd", other_method)
    )
    if a is None or b is None:
        return ClaimVerdict(UNDECIDED, ("no membership attack read the updates",))
    lines = (f"FedLGD: {_format_auc(a)}", f"{named}: {_format_auc(b)}")
    if a["auc_ci"][0] > b["auc_ci"][1]:
        return ClaimVerdict(FAILS_HERE, lines)
    if a["auc_ci"][1] < b["auc_ci"][0]:
        return ClaimVerdict(HOLDS_HERE, lines)
    return ClaimVerdict(UNDECIDED, (*lines, "the intervals meet"))


@privacy_sentence(
    "fedlgd.no-extra",
    "FedLGD, section on privacy",
    "FedLGD uses pre-existing information, i.e., shared averaged gradients and "
    "global model, to distill virtual data, "
    "so there is no extra privacy leakage",
    "membership in FedLGD's updates is found no better than in those of FedAvg on "
    "the same kind of virtual data",
    "attack",
)
def decide_fedlgd_no_extra(evidence: ClaimEvidence) -> ClaimVerdict:
    return _compare_with_fedlgd(evidence, "virtual_data", "FedAvg on virtual data")


@privacy_sentence(
    "fedlgd.membership",
    "FedLGD, section on privacy",
    "attacking membership becomes more challenging",
    "membership is found worse in FedLGD's updates than in those of FedAvg on the records",
    "attack",
)
def decide_fedlgd_membership(evidence: ClaimEvidence) -> ClaimVerdict:
    return _compare_with_fedlgd(evidence, "fedavg", "FedAvg on the records")


@privacy_sentence(
    "fedlgd.lpips",
    "FedLGD, section on privacy",
    "it effectively alleviates the attack from perceptual perspective, by reducing "
    "LPIPS from 0.253 to 0.177",
    "a smaller LPIPS means an image less like the record",
    "formula",
)
def decide_fedlgd_lpips(evidence: ClaimEvidence) -> ClaimVerdict:
    """LPIPS between pictures and the same with more and more noise."""
    pictures = load_digits_dataset("digits", None, Keys(0)).test.x[:32]
    noise = torch.randn(pictures.shape, generator=Keys(0).fold("lpips").torch())
    steps = (0.05, 0.1, 0.2, 0.4)
    try:
        distances = [
            float(lpips((pictures + s * noise).clamp(0, 1), pictures).mean()) for s in steps
        ]
    except LpipsUnavailable:
        return ClaimVerdict(UNDECIDED, ("no pretrained weights of LPIPS on this machine",))
    lines = (
        "LPIPS between 32 images and themselves under noise of "
        + ", ".join(f"{s:g}: {v:.3f}" for s, v in zip(steps, distances, strict=True)),
        "a smaller LPIPS means more alike, so the paper's numbers as printed say that "
        "the attack got better",
    )
    grows_with_noise = bool(np.all(np.diff(distances) > 0))
    return ClaimVerdict.decided(not grows_with_noise, lines)


def format_verdict_counts(decisions: Mapping[str, ClaimVerdict]) -> str:
    """ "3 hold here, 4 do not, 2 are undecided"."""
    counts = Counter(decision.verdict for decision in decisions.values())
    return (
        f"{counts[HOLDS_HERE]} hold here, {counts[FAILS_HERE]} do not, {counts[UNDECIDED]} are "
        "undecided"
    )


def write_sentences(
    sentences: Sequence[PrivacySentence],
    decisions: Mapping[str, ClaimVerdict],
    folder: Path,
    command: str,
) -> Path:
    """``privacy.html`` and ``privacy.json`` in ``folder`` -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = ("name", "where", "quote", "reading", "by")
    rows = []
    for sentence in sentences:
        values = {name: getattr(sentence, name) for name in columns}
        rows.append(values | asdict(decisions[sentence.name]))
    write_json(folder / "privacy.json", {"schema": 1, "command": command, "sentences": rows})
    tones = {HOLDS_HERE: "consistent", FAILS_HERE: "contradiction", UNDECIDED: "unprotected"}
    text = (
        template_environment()
        .get_template("sentences.html.jinja")
        .render(rows=rows, tones=tones, counted=format_verdict_counts(decisions), command=command)
    )
    write_bytes(folder / "privacy.html", text.encode(errors="replace"))
    return folder / "privacy.html"


def decide_sentences(wish: ReproduceArguments) -> int:
    evidence = ClaimEvidence(wish)
    decisions = {}
    with show_progress("sentences", len(SENTENCES)) as bar:
        for sentence in SENTENCES:
            decisions[sentence.name] = sentence.decide(evidence)
            bar.advance(sentence.name)
    print(format_verdict_counts(decisions))
    for sentence in SENTENCES:
        print(f"{decisions[sentence.name].verdict:14} {sentence.where}: {sentence.quote}")
    print(
        f"page: {write_sentences(SENTENCES, decisions, wish.out / 'privacy', wish.command)}",
        flush=True,
    )
    return 0
