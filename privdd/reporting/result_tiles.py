"""The number and the sentence of each tile on the first screen of a report."""

from __future__ import annotations

from dataclasses import dataclass

from privdd.reporting import finding_selection, leaks, wording
from privdd.reporting.finding_selection import MembershipResult
from privdd.reporting.leaks import COPY_ATTACKS
from privdd.reporting.schema import FindingRow, Findings, Pictures
from privdd.reporting.wording import NONE, format_decibel, format_number, format_share

CHANCE = "Not shown to beat chance"


@dataclass(frozen=True)
class ResultTile:
    """One tile.

    Attributes:
        title: What was tried.
        number: The result, the first thing read.
        text: Where it holds, and by which attack.
        is_number: Whether ``number`` is a number, set large, rather than a few words.
    """

    title: str
    number: str
    text: str
    is_number: bool = True

    @property
    def has_result(self) -> bool:
        """Whether any attack has a result."""
        return self.number != wording.NONE


def membership_tile(findings: Findings) -> ResultTile:
    """How many members the strongest attack identifies."""
    title = "Members identified"
    if findings.target is not None and findings.target.doubts:
        return ResultTile(title, wording.NONE, "These files do not show it.")
    scope = findings.scope
    member = finding_selection.strongest_membership(findings.findings, scope)
    if member is None and finding_selection.findings_without_signal(findings):
        return ResultTile(title, wording.NONE, "No attack has a rate.")
    if member is None:
        return ResultTile(title, wording.NONE, "No sample large enough.")
    place = wording.surface_title(member.row, scope)
    text = f"{place}, {wording.attack_title(member.row.attack)}"
    if member.counts or member.exposed or not member.beats_chance:
        text += f", {format_share(member.fpr)} FPR"
    number, is_number = _membership_number(member)
    return ResultTile(title, number, f"{text}.", is_number)


def _membership_number(member: MembershipResult) -> tuple[str, bool]:
    """(result, whether it is a number)."""
    if member.counts and member.at is not None:
        return format_share(member.at.tpr), True
    if member.exposed:
        return f"{len(member.exposed)} of {member.row.n}", True
    if member.kind == "bound":
        bound = finding_selection.epsilon_bound(member.row)
        return f"ε at least {format_number(bound)}", False
    if member.beats_chance:
        return f"AUC {format_share(member.row.auc)}", False
    return CHANCE, False


def reconstruction_tile(findings: Findings, tabular: bool) -> ResultTile:
    """How many images the strongest attack reconstructs, or how close they come.

    Args:
        findings: The run's findings.json.
        tabular: Whether the records are rows of a table.
    """
    scope = findings.scope
    if tabular:
        noun = "Rows"
        unit = "number by number"
    else:
        noun = "Images"
        unit = "pixel by pixel"
    best = finding_selection.strongest_reconstruction(findings.findings, scope)
    if best is None:
        text = f"No attack tried to reconstruct {noun.lower()}."
        return ResultTile(f"{noun} reconstructed", wording.NONE, text)
    if best.attack in COPY_ATTACKS:
        title = f"{noun} near training {noun.lower()}"
    else:
        title = f"{noun} reconstructed"
    copies = leaks.shown_copies(best, scope)
    if copies is not None:
        text = f"{wording.surface_title(best, scope)}: {leaks.copy_sentence(best, copies)}."
        return ResultTile(title, f"{copies.copies} of {copies.released}", text)
    is_shown = finding_selection.rebuilds_records(best, scope)
    number, is_number = _reconstruction_number(best, is_shown)
    place = wording.surface_title(best, scope)
    attack = wording.attack_title(best.attack)
    sentence = leaks.picture_phrase(best, scope, brief=True)
    if not is_shown and best.pictures is not None and best.attack not in COPY_ATTACKS:
        sentence = _unshown_sentence(best.pictures)
    text = f"{place}, {attack}: {sentence}. PSNR, closeness {unit}."
    return ResultTile(title, number, text, is_number)


def _reconstruction_number(best: FindingRow, is_shown: bool) -> tuple[str, bool]:
    """(result, whether it is a number)."""
    images = best.pictures
    clear = ""
    if images is not None and images.clear:
        clear = f"{images.clear} of {images.n}"
    if not is_shown:
        if clear and best.attack not in COPY_ATTACKS:
            return f"{clear}, too few to distinguish from chance", False
        return CHANCE, False
    if clear:
        return clear, True
    psnr = best.psnr
    if images is not None:
        psnr = images.median
    if psnr is None:
        return NONE, False
    return format_decibel(psnr), True


def _unshown_sentence(images: Pictures) -> str:
    return (
        f"{images.clear} of {images.n} clearly closer than every guess, median "
        f"{format_decibel(images.median)} (of the best guesses {format_decibel(images.guess)})"
    )
