"""May an artifact be shared? One decision for each, from its verdict, its limit, what attacks did,
and the sample's size.

A leak that was found counts at any sample size; that none was found counts only where the sample
could have shown one. The decision says what this run supports. It is no legal judgement, and no
proof."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privdd.reporting import finding_selection, leaks, summary, wording
from privdd.reporting.findings_tables import VISIBLE, changed_records_text, ledger_rows
from privdd.reporting.leaks import COPY_ATTACKS, membership_phrase
from privdd.reporting.run_record import RunRecord, reproduction_recipe
from privdd.reporting.schema import FindingRow, Findings, Privacy
from privdd.reporting.wording import format_number, format_share, join_names, one_in
from privdd.runtime.files import to_plain_json

Kind = Literal["do_not_share", "undecided", "share_only_under", "no_leak_found"]
Tone = Literal["bad", "warn", "good"]
ENOUGH_FPR = 0.001  # a sample that is to decide has to show an attack at 1 false alarm in 1 000
TESTED = "consistent"  # the verdict of a limit that tests looked at wholly, and did not contradict
ENOUGH_PICTURES = 30  # where only reconstructions were tried
SEED = (
    "its noise comes from the seed on this page, so anyone can regenerate and subtract it; "
    "such a run is a simulation, not for release"
)
PAIRED = (
    "its noise is the same in every run with this seed, so two of them undo it; such a run "
    "is a simulation"
)
SHOWN = "sure: shown, at 95 % confidence over all tests together"
NO_LIMIT = "no guarantee limits what it reveals, although noise was added"
UNKNOWN = (
    "its noise must come from a source that nobody can replay; this folder does not record "
    "the source"
)


@dataclass(frozen=True)
class Decision:
    """What to do with one artifact. conditions: only of "share_only_under"; can: what attackers
    did, in words.

    enough: whether the sample could have shown a leak; sure: how much the decision can be relied
        on."""

    line: summary.SurfaceLine
    kind: Kind
    tone: Tone
    title: str
    why: str
    conditions: tuple[str, ...]
    can: tuple[str, ...]
    seen_by: str
    sample: str
    enough: bool
    sure: str


def decide_surfaces(findings: Findings, ledger: Mapping[str, Any] | None = None) -> list[Decision]:
    """One for each surface: what must not be shared first."""
    made = [
        _decide_surface(line, findings, parties_holding(line, ledger or {}))
        for line in summary.surface_lines(findings)
    ]
    order = ("do_not_share", "undecided", "no_leak_found", "share_only_under")
    return sorted(
        made, key=lambda one: order.index(one.kind)
    )  # stable: within a kind, the gravest verdict first


def sample_banner(findings: Findings) -> str:
    """A banner where the run is too small to decide that nothing leaks; else ""."""
    rows = [row for row in findings.findings if row.family == "membership" and row.tpr_at_fpr]
    size = _sample_text(rows)
    tested = {
        line.row.surface for line in summary.surface_lines(findings) if line.verdict == TESTED
    }
    if findings.run.preset == "smoke":
        return (
            f"Smoke run{f' ({size})' if size else ''}: too small to decide. A leak found here "
            "is real; finding none proves little."
        )
    if rows and not _can_show_leaks(_counted_findings(rows, tested)):
        return (
            f"Too small to decide: {size or 'the sample'} cannot show an attack at "
            f"{one_in(ENOUGH_FPR)} false alarms. "
            "A leak found here is real; finding none proves little."
        )
    return ""


def parties_holding(line: summary.SurfaceLine, ledger: Mapping[str, Any]) -> str:
    """The parties that hold the artifact, by the ledger's rows, else by its sender."""
    seen = _parties_seeing(
        row for row in ledger_rows(ledger) if row.get("surface") == line.row.surface
    )
    found = [name for name in seen if name in VISIBLE.values()]
    if VISIBLE["public"] in found:
        return VISIBLE["public"]  # which is everyone else too
    return join_names(found) if found else line.seen_by


def _parties_seeing(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Everyone, in words, to whom one of these rows of the ledger is visible; the analyst is no
    real party."""
    shown = (row.get("visible_to") for row in rows)
    names = (
        str(name) for seen in shown if isinstance(seen, list) for name in seen if name != "analyst"
    )
    return list(dict.fromkeys(VISIBLE.get(name, name) for name in names))


def _decide_surface(line: summary.SurfaceLine, findings: Findings, seen: str) -> Decision:
    rows = finding_selection.findings_on_surface(line.row, findings)
    privacy = findings.privacy
    noise = leaks.noise_leak(rows) if summary.has_bare_noise(line.row) else None
    weak = [noise.sentence] if noise is not None else []
    tested = {row.surface for row in rows} if line.verdict == TESTED else set[str]()
    can = (*weak, *summary.leak_sentences(summary.believable_findings(rows, findings)))
    enough = _is_sample_enough(rows, tested, findings.run.preset)
    kind, tone, why = _judge_limit(line, rows, privacy, bool(can))
    if summary.target_doubts(findings) and kind == "no_leak_found":
        kind = "undecided"
        tone = "warn"
        why = "these files do not allow members to be compared with others"
    why = NO_LIMIT if weak else why
    conditions = (
        tuple(_sharing_conditions(line, privacy, enough)) if kind == "share_only_under" else ()
    )
    return Decision(
        line,
        kind,
        tone if enough or tone != "good" else "warn",
        _decision_title(kind, line, rows),
        why,
        conditions,
        can,
        seen,
        _sample_text(rows),
        enough,
        SHOWN if weak else _certainty_text(kind, line, rows, bool(can), enough),
    )


def _judge_limit(
    line: summary.SurfaceLine, rows: list[FindingRow], privacy: Privacy, leaked: bool
) -> tuple[Kind, Tone, str]:
    limit = line.proven
    if line.verdict == "contradiction":
        source = (
            f": it was computed from the {line.holds.lower()}, whose limit does not hold"
            if line.holds
            else ""
        )
        return "do_not_share", "bad", f"the limit stated for it does not hold{source}"
    if math.isinf(limit):
        return _judge_unprotected(line, rows, leaked)
    if limit == 0 and leaked:
        return (
            "do_not_share",
            "bad",
            "an attack works, although its limit of ε = 0 says that no record enters it",
        )
    if limit == 0:
        return (
            "no_leak_found",
            "good" if line.verdict == "consistent" else "warn",
            "no record enters it: ε = 0",
        )
    if limit > summary.LARGE_EPSILON and leaked:
        return (
            "do_not_share",
            "bad",
            f"an attack works, and its limit of ε = {format_number(limit)} forbids little",
        )
    if wording.is_simulation_noise(privacy):
        return (
            "do_not_share",
            "warn",
            SEED if privacy.noise and privacy.noise.source == "seed" else PAIRED,
        )
    if line.verdict == "untested":
        return "share_only_under", "warn", "some part of what its limit rests on was not tested"
    if _is_untried(line, rows):
        return (
            "share_only_under",
            "warn",
            f"its noise was tested, but no attack was tried ({line.row.audited})",
        )
    if finding_selection.has_no_signal(rows):
        return (
            "share_only_under",
            "warn",
            f"its noise was tested; {finding_selection.UNSCORED}{_hooks_text(line)}",
        )
    plain = limit <= summary.LARGE_EPSILON and privacy.noise is not None
    return "share_only_under", "good" if plain else "warn", "no attack contradicted its limit"


def _judge_unprotected(
    line: summary.SurfaceLine, rows: list[FindingRow], leaked: bool
) -> tuple[Kind, Tone, str]:
    if leaked:
        return "do_not_share", "bad", "nothing limits what it reveals, and an attack works"
    if finding_selection.has_no_signal(rows):
        return (
            "undecided",
            "warn",
            f"nothing limits what it reveals; {finding_selection.UNSCORED}{_hooks_text(line)}",
        )
    if finding_selection.lacks_map(line.row, rows):
        return (
            "undecided",
            "warn",
            "nothing limits what it reveals, and most attacks had nothing to "
            f"read{_hooks_text(line)}",
        )
    if _is_untried(line, rows):
        return (
            "do_not_share",
            "bad",
            f"nothing limits what it reveals, and no attack was tried ({line.row.audited})",
        )
    return (
        "no_leak_found",
        "warn",
        "nothing limits what it reveals; the attacks tried here were not shown to beat "
        "chance, and others may",
    )


def _hooks_text(line: summary.SurfaceLine) -> str:
    return (
        ""
        if line.row.missing_hooks is None
        else f" (the method defines no {line.row.missing_hooks})"
    )


def _is_untried(line: summary.SurfaceLine, rows: list[FindingRow]) -> bool:
    """Whether no attack looked at it: one that found nothing to read did look, though it has no
    rate."""
    return line.row.audited is not True and not finding_selection.has_no_signal(rows)


def _decision_title(kind: Kind, line: summary.SurfaceLine, rows: list[FindingRow]) -> str:
    if kind == "share_only_under":
        return f"Share only under ε = {format_number(line.proven)}"
    if kind == "do_not_share":
        return "Do not share"
    if kind == "undecided":
        unread = finding_selection.has_no_signal(rows) or finding_selection.lacks_map(
            line.row, rows
        )
        return "Not tested" if unread else "Cannot be decided from these files"
    return "No leak found by this test"


def _sharing_conditions(line: summary.SurfaceLine, privacy: Privacy, enough: bool) -> list[str]:
    large = f"; that is above {format_number(summary.LARGE_EPSILON)} and protects little"
    large = large if line.proven > summary.LARGE_EPSILON else ""
    limit = (
        f"an attacker's odds about one {privacy.unit} ({wording.relation_text(privacy)}) "
        "may change "
        f"{wording.odds_factor(line.proven)}, except with probability "
        f"{format_number(privacy.delta)}{large}"
    )
    gaps = line.row.untested if line.verdict == "untested" else []
    said = [limit, *(f"someone looks at what no test did: {gap}" for gap in gaps)]
    said += [UNKNOWN] if privacy.noise is None else []
    return said if enough else [*said, "the audit is repeated with a larger sample"]


def _certainty_text(
    kind: Kind, line: summary.SurfaceLine, rows: list[FindingRow], leaked: bool, enough: bool
) -> str:
    if line.verdict == "contradiction":
        return "sure: shown at 95 % confidence or by the run's own noise"
    if kind == "do_not_share" and leaked:
        if summary.is_certain(rows):
            return "sure: above chance, at 95 % confidence over all rates of this report together"
        return "likely: above a guess, but without an interval"
    if _is_untried(line, rows):
        return "not attacked"
    said = [] if enough else ["not sure: too small to decide"]
    known = (
        (one, one.at) for one in finding_selection.ranked_memberships(rows) if one.at is not None
    )
    if kind != "undecided" and line.proven and (best := next(known, None)):
        missed = f"{format_share(best[1].ci[1])} of members at {one_in(best[0].fpr)} false alarms"
        said.append(
            f"at 95 %, {wording.attack_title(best[0].row.attack)} may still identify up to {missed}"
        )
    return "; ".join(said)


def _can_show_leaks(rows: list[FindingRow]) -> bool:
    return any(one.fpr <= ENOUGH_FPR for one in finding_selection.ranked_memberships(rows))


def _counted_findings(rows: list[FindingRow], tested: Collection[str]) -> list[FindingRow]:
    """The rows whose sample counts: transcripts that follow the mechanism's law count on surfaces
    where tests looked at all that the law rests on."""
    return [
        row for row in rows if row.surface in tested or not finding_selection.reads_transcripts(row)
    ]


def _is_sample_enough(rows: list[FindingRow], tested: Collection[str], preset: str) -> bool:
    if preset == "smoke":
        return False
    if any(row.family == "membership" and row.tpr_at_fpr for row in rows):
        return _can_show_leaks(_counted_findings(rows, tested))
    pictures = [row.n or 0 for row in rows if row.psnr is not None]
    return not pictures or max(pictures) >= ENOUGH_PICTURES


def _sample_text(rows: list[FindingRow]) -> str:
    """The largest sample of a membership attack in words; else of pictures; "" where nothing was
    counted."""
    members = [row for row in rows if row.family == "membership" and row.n]
    if members:
        worlds, drawn = (
            max(
                (
                    row.worlds or 0
                    for row in members
                    if finding_selection.reads_transcripts(row) is kind
                ),
                default=0,
            )
            for kind in (False, True)
        )
        replays = f", {worlds} replays" if worlds > 1 else ""
        transcripts = (
            f", {drawn} transcripts of its noised sums, one of them the run's own" if drawn else ""
        )
        return f"{max(row.n or 0 for row in members)} audited records{replays}{transcripts}"
    pictures = max((row.n or 0 for row in rows if row.psnr is not None), default=0)
    return f"{pictures} rebuilt picture{'s' if pictures != 1 else ''}" if pictures else ""


# The three risks are those of the Article 29 Working Party (Opinion 05/2014 on anonymisation
# techniques): singling out, linkability, inference. The kinds of attack are those that EDPB Opinion
# 28/2024 on AI models asks to be tested against; what is to be known of an epsilon follows NIST SP
# 800-226 (2025). A map of findings, no legal judgement.
NOTHING = "No attack was shown to beat chance, which is no evidence that nothing leaks."
UNTRIED = "Not tried in this run."
FIGURES = (
    "auc",
    "auc_ci",
    "tpr_at_fpr",
    "worst_records",
    "psnr",
    "pictures",
    "identified",
    "identified_chance",
    "label_accuracy",
    "kappa",
    "epsilon_shown",
    "epsilon_stated",
    "diagnostics",
)
IDENTIFIED = (
    "identified",
    "identified_chance",
    "diagnostics",
)  # diagnostics: how many copies were counted
Pick = Callable[[FindingRow], bool]


@dataclass(frozen=True)
class Answer:
    """question: in plain words; by: the attacks that were tried; found: (surface's title or "",
    sentence)."""

    term: str
    question: str
    by: str
    found: tuple[tuple[str, str], ...]


def answer_risks(findings: Findings) -> list[Answer]:
    """One answer for each of the three risks."""
    return [
        _answer_question(
            findings,
            "Singling out",
            "Can one record be picked out of all others?",
            _singles_out,
            ("tpr_at_fpr", "auc", "auc_ci", "worst_records", "epsilon_shown", *IDENTIFIED),
            _identification_bounds(findings),
        ),
        _answer_question(
            findings,
            "Linkability",
            "Can a message be linked to a record that somebody already holds?",
            _links,
            IDENTIFIED,
        ),
        _answer_question(
            findings,
            "Inference",
            "Can something that was never sent be learned about a record or a client?",
            _infers,
            ("psnr", "pictures", "label_accuracy"),
        ),
    ]


def attack_kinds_tried(findings: Findings) -> list[tuple[str, str]]:
    """(kind of attack that the EDPB's opinion names, what this run tried of it)."""
    rows = findings.findings
    tried: Mapping[str, tuple[Pick, str]] = {
        "membership inference": (_is_membership, ""),
        "attribute inference": (
            lambda r: r.family == "label",
            "of classes alone; no other attribute was tried",
        ),
        "exfiltration and regurgitation of training data": (
            lambda r: r.attack in COPY_ATTACKS,
            "copies among synthetic data",
        ),
        "model inversion": (lambda r: r.family == "model_inversion", ""),
        "reconstruction": (
            lambda r: r.family in finding_selection.PICTURE_FAMILIES - {"model_inversion"},
            "",
        ),
    }
    return [(kind, _attacks_tried(rows, pick, note)) for kind, (pick, note) in tried.items()]


def guarantee_facts(findings: Findings, ledger: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what has to be known of an epsilon, its value here)."""
    privacy = findings.privacy
    tests = dict.fromkeys(
        wording.attack_title(row.attack) for row in findings.findings if row.family == "guarantee"
    )
    noise = wording.noise_source_text(privacy.noise) if privacy.noise else "no noise is recorded"
    stated = (
        f"ε at most {format_number(privacy.epsilon.proven)} at δ = "
        f"{format_number(privacy.delta)}, over all rounds"
    )
    seeing = _parties_seeing(ledger_rows(ledger))
    utility = findings.utility
    # of models that never left their clients (``audit.public_facts`` says the same)
    own = utility is not None and (utility.accuracy_kind == "personal" or not findings.run.clients)
    return [
        ("the limit", "none is proven: ε = ∞" if math.isinf(privacy.epsilon.proven) else stated),
        (
            "the unit of privacy",
            f"one {privacy.unit}; neighbours: {wording.relation_text(privacy)}",
        ),
        (
            "who sees what is sent (the trust model)",
            join_names(seeing) if seeing else "not recorded",
        ),
        ("where the noise comes from", noise),
        (
            "whether the code does what the proof says",
            f"looked at by {join_names(list(tests))}" if tests else UNTRIED,
        ),
        (
            "what the limit does not cover",
            f"how settings were chosen; {'the accuracy, and ' * own}the findings on this page",
        ),
    ]


def security_controls(findings: Findings) -> list[tuple[str, str]]:
    """(control of OWASP AISVS 1.0, chapter C11.2 on membership inference, what this run shows of
    it)."""
    privacy = findings.privacy
    best = finding_selection.strongest_membership(
        summary.believable_findings(findings.findings, findings)
    )
    noised = (
        f"ε at most {format_number(privacy.epsilon.proven)} at δ = "
        f"{format_number(privacy.delta)}, one {privacy.unit}, {privacy.relation}"
    )
    untried = "membership inference was not tried, or its sample was too small"
    return [
        (
            "v1.0-C11.2.4: differentially private training",
            "none: ε = ∞" if math.isinf(privacy.epsilon.proven) else noised,
        ),
        (
            "v1.0-C11.2.5: membership inference does not exceed guessing",
            untried if best is None else f"an attacker {membership_phrase(best)}",
        ),
    ]


def _is_membership(row: FindingRow) -> bool:
    return row.family == "membership" and row.status != "nothing_to_read"


def _singles_out(row: FindingRow) -> bool:
    return _is_membership(row) or row.attack == "singling_out"


def _links(row: FindingRow) -> bool:
    known = row.identified is not None and row.identified_chance is not None
    return known and row.attack not in ("singling_out", "inference")


def _infers(row: FindingRow) -> bool:
    return (
        row.family in {"label", *finding_selection.PICTURE_FAMILIES}
        and row.attack != "singling_out"
    )


def _answer_question(
    findings: Findings,
    term: str,
    question: str,
    pick: Pick,
    kept: Sequence[str],
    first: Sequence[str] = (),
) -> Answer:
    """kept: the figures of this question; no others are read, so that nothing is said twice."""
    others = dict.fromkeys({*FIGURES} - {*kept})
    rows = [row for row in summary.believable_findings(findings.findings, findings) if pick(row)]
    doubts = (
        summary.target_doubts(findings) if len(rows) < sum(map(pick, findings.findings)) else []
    )
    found = [("", said) for said in (*first, *doubts)]
    for title, surface in {
        wording.surface_title(row): row.surface for row in findings.surfaces
    }.items():
        mine = [row.model_copy(update=others) for row in rows if row.surface == surface]
        found += [(title, f"{said}.") for said in summary.leak_sentences(mine)]
    nothing = NOTHING if rows else UNTRIED
    return Answer(
        term, question, _attacks_tried(findings.findings, pick), tuple(found) or (("", nothing),)
    )


def _attacks_tried(rows: Sequence[FindingRow], pick: Pick, note: str = "") -> str:
    names = list(dict.fromkeys(wording.attack_title(row.attack) for row in rows if pick(row)))
    return f"{join_names(names)}{f' ({note})' if note else ''}" if names else UNTRIED


def _identification_bounds(findings: Findings) -> list[str]:
    """Bounds of the accounting alone on picking one record out of k."""
    rows = findings.privacy.reconstruction or []
    if not rows:
        return []
    row = rows[-1]
    if row.bound >= 1:
        return ["No proven limit keeps a record from being named."]
    unit = findings.privacy.unit
    return [
        f"Proven: the right {unit} among {row.k} is named in at most "
        f"{format_share(row.bound)} of cases (chance {format_share(row.prior)})."
    ]


SCHEMA = 1
TARGET = {
    "model": "model",
    "synthetic": "synthetic set",
    "updates": "captured updates",
    "recording": "recorded federation",
    "scores": "scores",
}


def manifest_text(record: RunRecord, key: str, most: int = 100) -> str:
    """A text of the manifest, at most ``most`` characters; "not recorded" where there is none."""
    value = record.manifest.get(key)
    return value[:most] if isinstance(value, str) and value.strip() else "not recorded"


def attacking_parties(record: RunRecord) -> str:
    """The parties that attacks played, in words."""
    played = dict.fromkeys(wording.ADVERSARY[row.adversary][0] for row in record.findings.findings)
    return join_names(list(played)) if played else "nobody"


NOT_PUBLISHED = "these are not the published files"  # part of a data set's note


def audit_signature(record: RunRecord) -> list[tuple[str, str]]:
    """(name, value): what was audited, when, with what, and against whom."""
    run = record.findings.run
    noise = record.findings.privacy.noise
    target = record.findings.target
    named = [
        (TARGET[target.kind] if target else "method", run.algo),
        ("data", run.data),
        ("date", manifest_text(record, "date")),
        ("privdd", run.version),
        ("commit", manifest_text(record, "commit")),
        *_audited_sizes(record.findings),
        ("seed", str(run.seed)),
        ("attackers", attacking_parties(record)),
    ]
    if run.tail:  # rates and accuracy are not those of the client's data as they were
        named.append(("audited records changed", changed_records_text(run)))
    if seen := manifest_text(record, "data_note", 400).partition("; networks see it ")[2]:
        named.append(("networks see images", seen))
    if NOT_PUBLISHED in manifest_text(record, "data_note", 400):
        named.append(("records", NOT_PUBLISHED))
    return [*named, ("noise", wording.noise_source_text(noise))] if noise else named


def _audited_sizes(findings: Findings) -> list[tuple[str, str]]:
    """How large what was audited is; of a target what it has of it."""
    run = findings.run
    target = findings.target
    federation = [("clients", str(run.clients)), ("rounds", str(run.rounds))]
    if target is None:
        return [*federation, ("preset", run.preset)]
    counts = [("training records", target.training), ("held-out records", target.heldout)]
    named = [(name, str(count)) for name, count in counts if count is not None]
    named += [("outputs read as", target.outputs)] if target.outputs else []
    return (federation if run.clients else []) + named


def decision_card(record: RunRecord) -> dict[str, Any]:
    """Schema 1 of ``card.json`` (docs/reference/run-folder.md); infinity is "inf", what does not
    apply is null."""
    findings = record.findings
    privacy = findings.privacy
    small = sample_banner(findings)
    claim = finding_selection.boldest_claim(privacy.claims)
    return {
        "schema": SCHEMA,
        "run": dict(audit_signature(record)) | {"command": reproduction_recipe(record).command},
        "verdict": findings.verdict,
        "headline": summary.verdict_headline(findings).title,
        "large_enough": not small,
        "why_too_small": small or None,
        "simulation": wording.is_simulation_noise(privacy),
        "epsilon": {
            "claimed": claim.number if claim else None,
            "claimed_delta": (claim.delta or privacy.delta) if claim else None,
            "proven": privacy.epsilon.proven,
            "shown": finding_selection.shown_epsilon(findings.findings),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "relation": privacy.relation,
            "large": summary.LARGE_EPSILON,
        },
        "artifacts": [_artifact_entry(one) for one in decide_surfaces(findings, record.ledger)],
    }


def _artifact_entry(one: Decision) -> dict[str, Any]:
    line = one.line
    return {
        "surface": str(line.row.surface),
        "sender": line.row.sender,
        "decision": one.kind,
        "title": one.title,
        "tone": one.tone,
        "why": one.why,
        "conditions": list(one.conditions),
        "attackers_can": list(one.can),
        "seen_by": one.seen_by,
        "verdict": line.verdict,
        "computed_from": line.holds or None,
        "epsilon": {
            "stated": line.stated,
            "proven": line.proven,
            "shown": line.shown,
        },
        "sample": one.sample or None,
        "large_enough": one.enough,
        "how_sure": one.sure or None,
    }


def encode_card(record: RunRecord) -> bytes:
    """The file as it is written."""
    return (
        json.dumps(to_plain_json(decision_card(record)), indent=1, allow_nan=False) + "\n"
    ).encode()
