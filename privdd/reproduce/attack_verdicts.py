"""Sentences that small audits, or trainings, decide. What an attack does not find stays undecided: it may be too weak."""

from __future__ import annotations

from typing import Any

from privdd.reporting.strongest import PICTURE_MARGIN
from privdd.reproduce.decided import HERE, NOT, OPEN, Decided, Grounds
from privdd.reproduce.paper_order import HOLDS, REVERSED

Row = dict[str, Any]


def strongest_membership(found: dict[str, Any], surface: str) -> Row | None:
    """The finding on a surface whose interval of the AUC begins highest."""
    rows = [r for r in found["findings"] if r["surface"] == surface and r["family"] == "membership" and r.get("auc_ci")]
    return max(rows, key=lambda row: float(row["auc_ci"][0]), default=None)


def _auc(row: Row) -> str:
    return (
        f"{row['attack']} AUC {row['auc']:.3f} (95 %: {row['auc_ci'][0]:.3f} to {row['auc_ci'][1]:.3f}, n = {row['n']})"
    )


def fedrd_not_real(evidence: Grounds) -> Decided:
    row = strongest_membership(evidence.findings("fedrd"), "synthetic_representations")
    if row is None:
        return Decided(OPEN, ("no membership attack read the representations",))
    if row["auc_ci"][0] > 0.5:
        return Decided(NOT, (_auc(row), "they start from representations of real records, and tell which were used"))
    return Decided(OPEN, (_auc(row), "no better than guessing at this size"))


def fedrd_secret_map(evidence: Grounds) -> Decided:
    """The rungs of the ladder on which the attacker does not have the projection."""
    rows = [r for r in evidence.findings("fedrd")["findings"] if r["attack"] == "feature_inversion"]
    if not rows:
        return Decided(OPEN, ("no inversion was run",))
    blind, ladder = _blind(rows[0]), rows[0]["diagnostics"]["ladder"]
    best = max((name for name in ("shadow_map", "nothing") if name in ladder), key=lambda name: ladder[name]["psnr"])
    lines = (
        f"without the projection ({best}): {ladder[best]['psnr']:.1f} dB, a blind guess {blind:.1f} dB",
        f"with it: {ladder['knows_map']['psnr']:.1f} dB" if "knows_map" in ladder else "the projection was not given",
    )
    return Decided(NOT if ladder[best]["psnr"] >= blind + PICTURE_MARGIN else OPEN, lines)


def fedfed_inversion(evidence: Grounds) -> Decided:
    rows = [r for r in evidence.findings("fedfed")["findings"] if r["attack"] == "feature_inversion"]
    if not rows:
        return Decided(OPEN, ("no inversion was run",))
    row = max(rows, key=lambda one: one["psnr"] - _blind(one))
    lines = (f"{row['psnr']:.1f} dB from {row['surface'].replace('_', ' ')}, a blind guess {_blind(row):.1f} dB",)
    return Decided(NOT if row["psnr"] >= _blind(row) + PICTURE_MARGIN else OPEN, lines)


def _blind(row: Row) -> float:
    return max(value for name, value in row["baselines"].items() if name.startswith("psnr_"))


def fedlgd_no_extra(evidence: Grounds) -> Decided:
    return _beside(evidence, "fedlgd", "virtual_data", "FedAvg on virtual data", worse_is=NOT, better_is=HERE)


def fedlgd_membership(evidence: Grounds) -> Decided:
    return _beside(evidence, "fedlgd", "fedavg", "FedAvg on the records", worse_is=NOT, better_is=HERE)


def _beside(evidence: Grounds, first: str, second: str, named: str, *, worse_is: str, better_is: str) -> Decided:
    """Decided where the two intervals do not meet; otherwise the game is too small to tell them apart."""
    a, b = (strongest_membership(evidence.findings(name), "update") for name in (first, second))
    if a is None or b is None:
        return Decided(OPEN, ("no membership attack read the updates",))
    lines = (f"FedLGD: {_auc(a)}", f"{named}: {_auc(b)}")
    if a["auc_ci"][0] > b["auc_ci"][1]:
        return Decided(worse_is, lines)
    if a["auc_ci"][1] < b["auc_ci"][0]:
        return Decided(better_is, lines)
    return Decided(OPEN, (*lines, "the intervals meet"))


def fedfed_raw(evidence: Grounds) -> Decided:
    """What fedfed.figure11 says of features against whole images."""
    column = evidence.results("fedfed.figure11")["columns"][0]
    said = next(one for one in column["text"] if one["worse"] == "algo=fedfed_raw")
    p = "one seed" if said["p"] is None else f"p {said['p']:.2g}"
    lines = (f"features {100 * said['gain']:+.1f} points beside whole images ({p})",)
    return Decided({HOLDS: HERE, REVERSED: NOT}.get(said["verdict"], OPEN), lines)
