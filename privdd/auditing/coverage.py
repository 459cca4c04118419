"""Coverage: is every released surface attacked or waived, and every part of a stated limit tested?

The first is checked before anything is trained; the second follows from what each test says in its
finding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import dp_accounting as dpa

from attacks.measures import GuaranteeMeasures
from attacks.types import Adversary, Attack, Family, Finding, Surface
from privdd.auditing.signal_extraction import missing_hooks
from privdd.core.validation import BadConfig
from privdd.federated.experiment import Experiment
from privdd.federated.method import Method
from privdd.federated.settings import AuditSettings
from privdd.privacy.ledger import Ledger, Release

# Signals (losses, gradients) are NaN where the model is: a rate of those would look like an attack
# that failed.
DIVERGED_NOTE = "not run: training diverged, so no model gives signals"
# why a surface is not attacked where audit.require=some
UNREAD_REASON = "not read by the attacks asked for"
# A test says in its finding (``diagnostics``) at which parts it looked, for the mechanisms that its
# ``signal`` names, and in which rounds: ``covers`` = {part: rounds}. What it declined, left out, or
# could not read is ``untested`` = {part: why}. A part that no test covers is untested, and so is
# one that any test had to leave out.
NOISE_PART = "noise"  # the law of each number's noise
# numbers, releases, rounds and clients do not share it; it does not take itself off
JOINT_NOISE_PART = "joint noise"
SAMPLING_PART = "sampling"  # independent coins of the probability that the accounting counts on
SENSITIVITY_PART = "sensitivity"  # how far one record (or client) moves the value before noise
MEMORY_PART = "memory"  # what the client keeps of earlier rounds
MESSAGES_PART = "messages"  # all that leaves beside the releases
LEDGER_PART = "ledger"  # each release is in it, as it was made
WHOLE_RUN_PART = "whole run"  # all releases of all rounds together
TESTS_BY_PART: Mapping[str, Sequence[str]] = {  # part -> the tests that can look at it
    NOISE_PART: ("t0_noise",),
    JOINT_NOISE_PART: ("t0_noise",),
    SAMPLING_PART: ("t0_sampling",),
    SENSITIVITY_PART: ("t1_sensitivity",),
    MEMORY_PART: ("t1_told",),
    MESSAGES_PART: ("t1_told",),
    LEDGER_PART: ("t0_ledger",),
    WHOLE_RUN_PART: ("t2_whole_run",),
}
# of runs from before tests said what they looked at
PARTS_OF_OLD_RUNS = (NOISE_PART, SAMPLING_PART, SENSITIVITY_PART)


def why_not_read(findings: Sequence[Finding]) -> str | Literal[False]:
    """The note that a surface was not attacked, if an attack tried it and its scores carried no
    information; else False."""
    silent = [
        finding for finding in findings if finding.measures.status in ("nothing_to_read", "failed")
    ]
    if silent:
        why = f"{silent[0].attack} could not read it; {silent[0].measures.note or ''}"
    else:
        why = ""
    return f"not attacked: {why}" if why else False


def is_about_releases(family: Family, adversary: Adversary) -> bool:
    """Whether such an attack looks at what this run released: not a guarantee test, nor a run with
    a chosen model."""
    return family != Family.GUARANTEE and adversary != Adversary.MALICIOUS_SERVER


def describe_waiver(reason: str) -> str:
    """The text in the findings for a surface that ``audit.waive`` names with this reason."""
    if reason.startswith(UNREAD_REASON):
        return f"not attacked: {reason}"
    return f"waived: {reason}"


def is_applicable_to(attack: Attack, surface: Surface, adversary: Adversary, worlds: int) -> bool:
    """Whether an attack reads this kind of view. worlds: replays (shadow models) in it, 0 = a view
    without any."""
    if surface not in attack.surfaces or adversary not in attack.adversaries:
        return False
    if attack.family == Family.MEMBERSHIP:
        return worlds >= attack.least_worlds
    if attack.family == Family.GRADIENT_INVERSION and not attack.whole_client:
        # these attack single-record probes, the worst case, instead of the real update
        return worlds == 0
    return worlds > 0


def expected_views(
    method: Method, audit: AuditSettings
) -> Iterator[tuple[Surface, Adversary, int]]:
    """Surface, adversary and number of worlds (replays) of every view that an audit of this method
    will have."""
    worlds = audit.worlds
    federations = min(audit.federations, audit.worlds)
    for surface in method.uploads.values():
        yield surface, Adversary.SERVER, worlds
        if surface == Surface.UPDATE and audit.victims > 0:
            yield surface, Adversary.SERVER, 0
    for surface in method.broadcasts.values():
        if surface == Surface.GLOBAL_MODEL:
            adversary = Adversary.PUBLIC
        else:
            adversary = Adversary.PEER
        yield (
            surface,
            adversary,
            worlds if surface == Surface.SHARED_FEATURES else max(1, federations),
        )


def check_coverage(
    method: Method,
    attacks: Mapping[str, Attack],
    audit: AuditSettings,
    shipped: Callable[[], Mapping[str, Attack]] = dict,
) -> None:
    """Every surface is attacked or waived in writing, before any training. Raises BadConfig. audit:
    its number of worlds (replays) decides what membership attacks can read; shipped: the attacks
    that the message may suggest."""
    for name, surface in method.uploads.items():
        if str(surface) in audit.waive:
            hooks = ""
        else:
            hooks = missing_hooks(method, surface)
        if hooks:
            raise BadConfig(
                f"algo: {type(method).__name__} sends {name!r} (surface {surface}), in "
                "which no attack can search for a "
                f"record: it must define {hooks} (see privdd.api.Method), or waive it: "
                f"audit.waive.{surface}='reason'"
            )
    if missing := uncovered_surfaces(method, attacks, audit):
        advice = _suggest_attacks(method, attacks, shipped(), missing, audit)
        if advice:
            adding = f"ask for attack=[{','.join([*attacks, *advice])}], or "
        else:
            adding = ""
        waiving = " ".join(f"audit.waive.{surface}='reason'" for surface in missing)
        raise BadConfig(
            f"attack=[{','.join(attacks)}]: no attack for {', '.join(missing)} with "
            f"{describe_replay_settings(audit)}; {adding}waive "
            f"{'them' if len(missing) > 1 else 'it'}: {waiving}"
        )


def describe_replay_settings(audit: AuditSettings) -> str:
    """The settings that decide which membership attacks have enough replays."""
    return f"audit.worlds={audit.worlds}, audit.federations={audit.federations}"


def uncovered_surfaces(
    method: Method, attacks: Mapping[str, Attack], audit: AuditSettings
) -> list[str]:
    """The method's surfaces that no attack reads and no reason waives, sorted."""
    surfaces = {str(s) for s in (*method.uploads.values(), *method.broadcasts.values())}
    return sorted(surfaces - _covered_surfaces(method, attacks, audit) - set(audit.waive))


def _covered_surfaces(
    method: Method, attacks: Mapping[str, Attack], audit: AuditSettings
) -> set[str]:
    return {*measuring_attacks(method, attacks, audit)}


def measuring_attacks(
    method: Method, attacks: Mapping[str, Attack], audit: AuditSettings
) -> dict[str, list[str]]:
    """Surface -> the attacks that read it and measure something there; surfaces without any have no
    entry.

    The check before training and the note after it (``describe_unmeasured``) both ask this.
    """
    measuring: dict[str, list[str]] = {}
    for surface, adversary, worlds in expected_views(method, audit):
        for name, attack in attacks.items():
            if (
                is_applicable_to(attack, surface, adversary, worlds)
                and surface not in attack.unmeasured
            ):
                names = measuring.setdefault(str(surface), [])
                if name not in names:
                    names += [name]
    return measuring


def describe_unmeasured(
    surface: str, method: Method, attacks: Mapping[str, Attack], audit: AuditSettings
) -> str:
    """Why a surface has no measure although attacks were to read it, for its row in the findings;
    "" where none was to."""
    names = measuring_attacks(method, attacks, audit).get(surface, [])
    if not names:
        return ""
    return (
        f"not attacked: {', '.join(names)} would read it, and found nothing of it in this run "
        "that could be measured"
    )


def _suggest_attacks(
    method: Method,
    attacks: Mapping[str, Attack],
    known: Mapping[str, Attack],
    missing: Sequence[str],
    audit: AuditSettings,
) -> list[str]:
    """A small set of known attacks that covers all of ``missing``; empty if no such set exists."""
    reach = {
        name: _covered_surfaces(method, {name: known[name]}, audit)
        for name in known
        if name not in attacks
    }
    unread = set(missing)
    chosen = []
    while unread and reach:
        best = max(sorted(reach), key=lambda name: len(reach[name] & unread))
        if not reach[best] & unread:
            return []
        chosen.append(best)
        unread -= reach.pop(best)
    return chosen if not unread else []


def findings_of_diverged_run(
    experiment: Experiment, attacks: Mapping[str, Attack]
) -> tuple[Finding, ...]:
    """The findings of a run whose training diverged: without a measure, one for every surface and
    attack that would have read it."""
    findings_by_key: dict[tuple[str, str, str], Finding] = {}
    for surface, adversary, worlds in expected_views(
        experiment.plan.method, experiment.audit_settings
    ):
        for name, attack in attacks.items():
            if is_applicable_to(attack, surface, adversary, worlds):
                measures = attack.family.measures(n=0, status="not_attacked", note=DIVERGED_NOTE)
                row = Finding(surface, name, attack.family, adversary, measures)
                findings_by_key.setdefault((surface, name, adversary), row)
    return tuple(findings_by_key.values())


def covered_diagnostics(test: str, rounds: Collection[int]) -> dict[str, Any]:
    """For a finding's diagnostics: all parts that ``test`` can look at were looked at, in these
    rounds."""
    return {"covers": {part: sorted(rounds) for part in _parts_of_test(test)}}


def untested_diagnostics(test: str, why: str) -> dict[str, Any]:
    """For a finding's diagnostics: none of them was, for the reason ``why``."""
    return {"untested": dict.fromkeys(_parts_of_test(test), why)}


def _parts_of_test(test: str) -> Iterator[str]:
    return (part for part, tests in TESTS_BY_PART.items() if test in tests)


def untested_parts(ledger: Ledger, surface: str, findings: Sequence[Finding]) -> list[str]:
    """The parts of the mechanisms behind a surface that no test looked at, each with its reason:
    "name, part: why"."""
    rows: dict[str, list[Release]] = {}
    for row in ledger.closure([surface]):
        if row.is_protected:
            rows.setdefault(row.name, []).append(row)
    tests = [f for f in findings if f.family == Family.GUARANTEE]
    needed: list[tuple[str, str]] = []
    for name, rounds in sorted(rows.items()):
        needed += [(name, part) for part in _needed_parts(rounds, tests)]
    reasons = {of: _why_untested(*of, tests) for of in needed}
    return [f"{name}, {part}: {why}" for (name, part), why in reasons.items() if why]


def _needed_parts(rows: Sequence[Release], tests: Sequence[Finding]) -> Iterator[str]:
    sampled = any(isinstance(row.event, dpa.PoissonSampledDpEvent) for row in rows)
    says_covers = any("covers" in test.diagnostics for test in tests)
    return (
        part
        for part in (TESTS_BY_PART if says_covers else PARTS_OF_OLD_RUNS)
        if sampled or part != SAMPLING_PART
    )


def _why_untested(name: str, part: str, tests: Sequence[Finding]) -> str:
    """What a test of this part had to leave out, else why none looked at it; "" where it was
    covered."""
    able = [f for f in tests if f.attack in TESTS_BY_PART[part]]
    of_mechanism = [f for f in able if name in (f.measures.signal or "").split(", ")]
    for finding in of_mechanism:
        if why := _untested_reason(finding, part):
            return why
    if any(_is_covered(finding, part) for finding in of_mechanism):
        return ""
    if of_mechanism and of_mechanism[0].measures.note:
        return of_mechanism[0].measures.note
    return "no test applies to it"


def _is_covered(finding: Finding, part: str) -> bool:
    """Whether a test looked at a part in some round, as it says itself; a row of a run that was
    stored before tests said so covers what it has measured."""
    diagnostics = finding.diagnostics
    if "covers" in diagnostics or "untested" in diagnostics:
        return bool(diagnostics.get("covers", {}).get(part))
    measures = finding.measures
    has_kappa = isinstance(measures, GuaranteeMeasures) and measures.kappa is not None
    return part in PARTS_OF_OLD_RUNS and (has_kappa or "p_value" in diagnostics)


def _untested_reason(finding: Finding, part: str) -> str:
    reasons = finding.diagnostics.get("untested") or {}
    return str(reasons if isinstance(reasons, str) else reasons.get(part, ""))
