"""Plain words: how numbers are printed, what surfaces and verdicts are called, what is said of a
run's noise, the glossary."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from attacks.images import MAX_PSNR
from privdd.reporting.schema import (
    ClaimRow,
    FindingRow,
    NoiseRow,
    Privacy,
    Scope,
    SurfaceRow,
    Utility,
    Verdict,
)

NONE = "–"
POST_PROCESSING = "post-processing of "  # before the names of mechanisms
NBSP = "\u00a0"
ACRONYMS = {
    "t0_ledger": "the test of the run's own ledger (T0)",
    "t0_noise": "the test of the run's own noise (T0)",
    "t0_sampling": "the test of the run's own sampling (T0)",
    "t1_sensitivity": "the sensitivity test (T1)",
    "t1_told": "the test of other messages (T1)",
    "t1_noise_use": "the test of whether noise is used (T1)",
    "t2_likelihood_ratio": "the likelihood-ratio test (T2)",
    "t2_whole_run": "the certificate of the whole run (T2)",
    "t3_transcript": "the transcript attack (T3)",
    "t3_curve": "the test of the accountant's curve (T3)",
    "t3_final": "the attack on the final artifact (T3)",
    "lira": "LiRA",
    "rmia": "RMIA",
    "base": "BASE",
    "dlg": "DLG",
    "idlg": "iDLG",
}
MECHANISMS: Mapping[str, str] = {
    "FeatureNoise": "noise on each row of features",
    "ClippedSum": "clipped, noised sums over records",
    "AggregateClip": "a clipped, noised batch mean",
    "ClientLevel": "clipped, noised whole updates",
    "SumShare": "clipped sums, whose noise the clients share out",
    "ClientShare": "clipped whole updates, whose noise the clients share out",
}
VERDICT: Mapping[Verdict, str] = {
    "unprotected": "Unprotected",
    "untested": "Untested",
    "consistent": "Consistent",
    "contradiction": "Contradicted",
}
_VERDICT_MEANS: Mapping[Verdict, str] = {
    "unprotected": "no guarantee is proven about one {unit}",
    "untested": "a guarantee is stated, and no test covered some part of it",
    "consistent": "a guarantee is stated, and no test contradicts it; that is not a proof",
    "contradiction": (
        "the stated guarantee is false: more leaks than it allows, or the run's noise differs from "
        "the stated noise"
    ),
}
SURFACE: Mapping[str, tuple[str, str]] = {
    "update": ("Model update", "the weights a client sends back after training on its records"),
    "gradient": ("Gradient", "the direction in which a client's records would move the model"),
    "synthetic_images": ("Synthetic images", "images that a client distilled from its records"),
    "synthetic_representations": (
        "Synthetic representations",
        "distilled records in a projected space",
    ),
    "features": (
        "Released features",
        "one vector for each record, sent with or without noise",
    ),
    "labels": ("Labels", "the classes of the rows that a client sends"),
    "statistics": ("Statistics", "means and variances computed over a client's records"),
    "prototypes": ("Prototypes", "means, sums or moments of each class's embeddings"),
    "control_variate": ("Control variate", "SCAFFOLD's running estimate of a client's gradient"),
    "counts": ("Counts", "how many records a client holds, in all or by class"),
    "logits": ("Logits", "a network's outputs on images that everybody has"),
    "global_model": ("Global model", "the model the server sends to everyone"),
    "global_images": ("Global images", "synthetic images that the server sends to everyone"),
    "shared_features": ("Shared feature pool", "all clients' features, sent on to everyone"),
    "generator": (
        "Generator",
        "a network that draws features of each class, and the class shares of a round's clients",
    ),
}
# The same where a target was brought from outside: no run of privdd made it.
BROUGHT: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "model": {"global_model": ("Trained model", "the external model")},
    "synthetic": {
        "synthetic_images": ("Synthetic images", "the external synthetic set"),
        "synthetic_representations": (
            "Synthetic records",
            "the external synthetic set, whose records are not images",
        ),
    },
    "updates": {
        "update": ("Model update", "a client's message, as captured"),
        "gradient": ("Gradient", "a client's message, as captured"),
    },
    "recording": {
        "update": ("Model update", "a client's message, as recorded"),
        "global_model": ("Global model", "the server's message, as recorded"),
    },
}
# what is added to a title if client and server both send on one surface
SENT_BY: Mapping[str, str] = {"client": " of a client", "server": " of the server"}
ADVERSARY: Mapping[str, tuple[str, str]] = {
    "server": (
        "the server",
        "follows the protocol, and reads every upload of every client",
    ),
    "peer": ("another client", "takes part, and reads all messages from the server"),
    "public": ("anyone", "holds the final model only"),
    "analyst": (
        "the analyst",
        "sees every noised value that the proof covers: a hypothetical party, against which "
        "the guarantee is stated",
    ),
    "malicious_server": (
        "a malicious server",
        "breaks the protocol: it chooses the model that clients train; it is played only "
        "if an attack is requested by name",
    ),
}
FAMILY: Mapping[str, str] = {
    "membership": "Was this record used?",
    "guarantee": "Does the stated guarantee hold?",
    "gradient_inversion": "Reconstruct images from an update",
    "model_inversion": "Reconstruct images from a model",
    "reconstruction": "Reconstruct images from messages",
    "label": "Which classes does a client hold?",
}
_RELATION: Mapping[str, str] = {
    "add_remove": "one {unit} added or removed",
    "zero_out": "one {unit} replaced by a null {unit} (zero-out)",
    "replace": "one {unit} exchanged for any other",
}
# term, the way that is worse for privacy, meaning
_GLOSSARY: tuple[tuple[str, str, str], ...] = (
    (
        "epsilon (ε)",
        "higher leaks more",
        "How much one {unit} can change an attacker's view. At ε = 1 any odds about one "
        "{unit} can grow "
        "about 2.7-fold, at ε = 8 about 3 000-fold; ∞ means that no bound is proven. It "
        "has a meaning only with its delta, unit and neighbouring relation.",
    ),
    (
        "delta (δ)",
        "higher leaks more",
        "The probability mass for which the ε-limit may fail. It should be far below "
        "one divided by the number of {unit}s.",
    ),
    ("unit", "", "What ε protects: one record, or everything one client holds."),
    (
        "relation",
        "",
        "Which two data sets must be hard to distinguish: with one {unit} added or removed, with "
        "one that contributes nothing in its place, or with any other in its place. An ε for one "
        "relation is not an ε for another.",
    ),
    (
        "claimed",
        "",
        "The ε that the method's paper prints for this mechanism. A test that shows more "
        "contradicts the paper. A formula whose "
        "assumptions the run violates does not count.",
    ),
    (
        "stated",
        "",
        "The ε that this run promises: a larger ε that is shown is a contradiction.",
    ),
    (
        "proven at most",
        "",
        "An upper bound that the accountant computes for the messages of the run, by "
        "composition of every release (PLD, and RDP for comparison). In a simulation it is also "
        "the stated ε, unless the method states another one.",
    ),
    (
        "shown at least",
        "higher leaks more",
        "A lower bound: at least this much can leak, certified by playing the run with and "
        "without a crafted {unit}, "
        "or shown by an attack, at 95 % confidence. A low value shows a weak attack, or too "
        "few trials, as much as a private release.",
    ),
    (
        "AUC",
        "higher leaks more",
        "The chance that an attack ranks a random member above a random non-member. "
        "50 % is the chance level. An average, which hides a few records that leak completely.",
    ),
    (
        "TPR at FPR",
        "higher leaks more",
        "The share of members that an attack identifies at a threshold which accuses "
        "at most, say, 1 in 1 000 non-members. A sample with fewer than 1 000 non-members cannot "
        "show that rate, and is "
        "marked as too small.",
    ),
    (
        "blind control",
        "50 % expected",
        "The same game played without seeing the artifact. If it beats chance, the "
        "game itself is unfair and its other numbers do not count.",
    ),
    (
        "PSNR",
        "higher leaks more",
        "Closeness of a reconstructed image to the original in decibels, pixel by pixel. "
        "Compare it with the baseline, such as the average image.",
    ),
    ("SSIM", "higher leaks more", "Similarity of structure, 1 for identical images."),
    (
        "LPIPS",
        "lower leaks more",
        "Perceived difference by a neural network, 0 for identical images. "
        "Values of different networks do not compare.",
    ),
    (
        "identified",
        "higher leaks more",
        "How often a reconstructed image is closest to its own original among all candidates; "
        "compare it with the chance level.",
    ),
    (
        "kappa (κ)",
        "must not pass its limit",
        "The largest change one {unit} made before the noise, in units of the "
        "proof's assumption. Above its limit, the noise was too small and the proof does not "
        "apply.",
    ),
)
# Measured by python -m benchmarks.accuracy --claim alpha: the real images alone, sent without a
# matching step.
REAL_START = (
    "The synthetic set starts from real records (start=real), and this accuracy is that "
    "of raw images sent: "
    "the same records sent as they are, without any distillation, do as well at small budgets."
)
_LIMITS: tuple[str, ...] = (
    "“No attack found” is never evidence for a claim. Attacks give lower bounds; only a "
    "proof gives an upper one.",
    "Selecting the best point of a sweep on private data costs privacy beyond "
    "the ε of that point "
    "(Liu and Talwar, 2019; Papernot and Steinke, 2022). The ε here counts one run, not "
    "how its settings were chosen.",
    "The worst attack is picked out of several. Each printed interval is for one attack "
    "on its own; whether an attack "
    "counts as better than chance, and the bounds that decide a verdict, are corrected "
    "for the choice.",
    "The numbers hold for this data, this model and these settings. Another data set can "
    "leak more.",
)
LATTICE = (
    "Noise is drawn in float64 by inversion of its distribution, and added on a public "
    "lattice, so that low bits reveal "
    "nothing (Mironov, 2012). Another sampler needs its own argument."
)
SEED = (
    "Simulation, not for release: anyone who knows the seed can regenerate the noise and "
    "subtract it."
)
PAIRED = (
    "Paired noise: a second run with this seed holds the same noise, and two of them "
    "published undo it."
)
SOURCE = {
    "seed": "drawn from the public seed",
    "secret": "drawn from a secret that is not in this folder",
    "os": "drawn by the operating system, once",
}
SEVERAL = (
    "These runs were made with paired noise, so that their differences show the settings "
    "and not the noise: "
    "publish one of them at most, or their ε hold for none."
)


def format_number(value: float | None, digits: int = 3) -> str:
    """Three significant digits; infinity as its sign; a dash for nothing."""
    if value is None:
        return NONE
    if math.isinf(value):
        return "∞"
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-").replace("e+0", "e")
    if abs(value) < 1000:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}".replace(",", NBSP)


def relation_name(relation: str) -> str:
    """add_remove as "add/remove", zero_out as "zero-out"."""
    return relation.replace("add_remove", "add/remove").replace("_", "-")


def setting_title(label: str) -> str:
    """A setting's label without names of settings: "dp_head noise_multiplier=2" as
    "dp head σ = 2"."""
    spaced = re.sub(r" *= *", " = ", label.replace("noise_multiplier=", "σ="))
    return spaced.replace("_", " ")


def typed_limit_text(claim: ClaimRow) -> str:
    """``epsilon 3 at delta 1e-5 (stated, add/remove; 6 at 2.11e-4 for an exchange)``; "" of a claim
    that was not converted."""
    if claim.typed is None or claim.delta is None:
        return ""
    typed = claim.typed
    relation = relation_name(typed.relation)
    exchange = f"{format_number(claim.number)} at {format_number(claim.delta)} for an exchange"
    return (
        f"epsilon {format_number(typed.epsilon)} at delta {format_number(typed.delta)} "
        f"(stated, {relation}; {exchange})"
    )


def stated_cell(stated: float | None, claims: Sequence[ClaimRow]) -> str:
    """The number that the run is held to; before it the one that was typed, if it was
    converted."""
    held_to = format_number(stated)
    for claim in claims:
        if claim.typed is not None and claim.number == stated:
            return f"{format_number(claim.typed.epsilon)} ({held_to})"
    return held_to


def format_share(value: float | None) -> str:
    """A rate as percent: two significant digits below 10 %, one decimal at most above."""
    if value is None:
        return NONE
    points = 100 * value
    digits = 2 if points < 10 else 3
    return f"{points:.{digits}g}{NBSP}%"


def format_decibel(value: float) -> str:
    """A PSNR with one decimal: 15.43 as "15.4 dB", identical images as "exact"."""
    if value >= MAX_PSNR:
        return "exact"
    return f"{value:.1f}{NBSP}dB"


def format_bytes(value: float) -> str:
    """A number of bytes in decimal units: 1234567 as "1.23 MB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g}\u00a0{unit}"


def format_accuracy(utility: Utility) -> str:
    """A model's accuracy as percent, or that there was none in the end."""
    if utility.diverged is not None:
        return f"none (diverged in round {utility.diverged})"
    return format_share(utility.accuracy)


def join_names(names: Sequence[str]) -> str:
    """At least one name: "a", "a and b", "a, b and c"."""
    if len(names) == 1:
        return names[0]
    return ", ".join(names[:-1]) + " and " + names[-1]


def attack_title(name: str) -> str:
    """An attack's name as it is written in text: "feature_inversion" as "feature inversion", "lira"
    as "LiRA"."""
    return ACRONYMS.get(name, name.replace("_", " "))


def mechanism_title(text: str) -> str:
    """Mechanisms in words, each once; names of a user's own stay as they are."""
    _, prefix, names = text.rpartition(POST_PROCESSING)
    titles = dict.fromkeys(MECHANISMS.get(name, name) for name in names.split(", "))
    return prefix + ", ".join(titles)


def odds_factor(epsilon: float) -> str:
    """By how much odds may change at most: e to the epsilon, as "10-fold" or "about 5
    million-fold"."""
    if epsilon > math.log(1e12):
        return "more than a trillion-fold"
    times = math.exp(epsilon)
    for size, name in ((1e9, " billion"), (1e6, " million"), (1e3, NBSP + "000")):
        if times >= size:
            return f"about {times / size:.0f}{name}-fold"
    return f"{times:.2g}-fold"


def surface_title_and_meaning(row: SurfaceRow | FindingRow, scope: Scope) -> tuple[str, str]:
    """The title of what attackers hold, and what it is."""
    return BROUGHT.get(scope.target, {}).get(row.surface, SURFACE[row.surface])


def surface_title(row: SurfaceRow | FindingRow, scope: Scope) -> str:
    """The title alone."""
    return surface_title_and_meaning(row, scope)[0]


def relation_text(privacy: Privacy) -> str:
    """Which two data sets a run's epsilon compares: its relation, of its unit of privacy."""
    return neighbours_text(privacy.relation, privacy.unit)


def neighbours_text(relation: str, unit: str) -> str:
    """Which two data sets are neighbours: "one record added or removed" of add_remove."""
    return _RELATION[relation].format(unit=unit)


def page_limits(privacy: Privacy) -> list[str]:
    """The limits of what a page on such a run can say."""
    return [*_LIMITS, *([LATTICE] if privacy.noise else [])]


def glossary_rows(unit: str) -> list[tuple[str, str, str]]:
    """(term, the way that is worse for privacy or "", meaning), for this unit of privacy."""
    return [(term, way, meaning.format(unit=unit)) for term, way, meaning in _GLOSSARY]


def verdict_meanings(unit: str) -> dict[Verdict, str]:
    """The meaning of each verdict, for this unit of privacy."""
    return {kind: meaning.format(unit=unit) for kind, meaning in _VERDICT_MEANS.items()}


def noise_warnings(privacy: Privacy) -> list[str]:
    """Sentences that stand at the top of a run's page; none if the noise may be released."""
    noise = privacy.noise
    if noise is None or noise.for_release:
        return []
    warnings = []
    if noise.source == "seed":
        warnings.append(SEED)
    if noise.paired:
        warnings.append(PAIRED)
    return warnings


def is_simulation_noise(privacy: Privacy) -> bool:
    """Whether the run's noise is known not to be fit for release: whoever holds the seed, or a
    twin, can take it off."""
    return privacy.noise is not None and not privacy.noise.for_release


def noise_source_text(noise: NoiseRow) -> str:
    """The source of the noise, in words."""
    if noise.paired:
        suffix = ", the same in every run with this seed"
    else:
        suffix = ""
    return SOURCE[noise.source] + suffix


def comparison_warnings(runs: Iterable[Privacy]) -> list[str]:
    """Warnings about runs that are shown side by side."""
    paired = [run for run in runs if run.noise is not None and run.noise.paired]
    return [SEVERAL] if len(paired) > 1 else []
