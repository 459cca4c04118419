"""Numbers found again from a run folder: epsilons from the ledger, rates and bounds from scores,
verdicts, and those of a training."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attacks.membership.blind_baseline import is_separable
from attacks.membership.measures import measure_rates_per_record, membership_measures, one_run_bound
from attacks.membership.nearest_row import copy_test
from attacks.statistics import binomial_p_value, shared_confidence
from attacks.types import Family, Finding, Worlds
from privdd.auditing import attack_tasks
from privdd.auditing import findings as audit_findings
from privdd.auditing.coverage import is_about_releases, untested_parts
from privdd.auditing.verdicts import (
    SurfaceLimit,
    decide_verdict,
    deciding_bound,
    findings_on_surface,
    judge_run,
)
from privdd.core.rng import Keys
from privdd.privacy.accounting import check_work, smallest_bound
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.reporting.comparison import read_training_record
from privdd.reporting.figures.image_pairs import psnr_of_arrays
from privdd.reporting.finding_selection import FEATURE_ATTACKS
from privdd.reporting.run_record import LIMIT, RunRecord, read_run_config
from privdd.reporting.schema import (
    EpsilonPair,
    FindingRow,
    Findings,
    worst_verdict,
)
from privdd.runtime.files import (
    DamagedRun,
    check_plain_folder,
    read_json,
    read_json_object,
    safe_name,
)
from privdd.runtime.run_files import MANIFEST
from privdd.runtime.run_folder import RunFolder, read_tensors
from privdd.runtime.seal import check_was_sealed
from privdd.verification.file_checks import (
    Disagreement,
    Unverified,
    check_page_sources,
    find_disagreements,
)

FINDINGS_FILE = "findings.json"
compare_findings = functools.partial(find_disagreements, FINDINGS_FILE)
# of scores that someone else computed, without a ledger
UNKNOWN_EPSILON = {
    "pld": math.inf,
    "rdp": math.inf,
}
# not in every finding of an attack with scores
RECORD_MEASURES = ("worst_records", "by_kind", "tpr_at_fpr_per_record")
# below it the members were not drawn by fair coins, and brought scores get no bound
UNFAIR_COINS_P_VALUE = 1e-3
MAX_SEED = 2**31 - 1
ROUNDING = 1e-3  # dB: means of single-precision numbers, in another order
TRAINING_FILE = "training.json"


def run_ledger(record: RunRecord) -> Ledger | None:
    """The ledger, None for scores that were brought. Raises DamagedRun for one that is damaged or
    gone."""
    if not record.ledger:
        if record.findings.utility is None and not record.findings.run.rounds:
            return None
        raise DamagedRun(f"{record.path / 'ledger.json'}: no such file, or an empty one")
    try:
        ledger = Ledger.from_json(record.ledger)
        check_work(ledger.totals())
        return ledger
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedRun(
            f"{record.path / 'ledger.json'}: {' '.join(str(error).split())[:200]}"
        ) from None


def recompute_epsilons(
    ledger: Ledger | None, surfaces: Sequence[str] | None = None
) -> dict[str, float]:
    """Both accountants' epsilon, of the whole run or of some surfaces."""
    if ledger is None:
        return dict(UNKNOWN_EPSILON)
    with warnings.catch_warnings():
        # an accountant without a bound: infinite, as the run recorded it
        warnings.simplefilter("ignore", UserWarning)
        return ledger.epsilon_by_accountant(surfaces=surfaces)


def check_ledger_numbers(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    """Every number of ``findings.json`` that follows from the ledger alone."""
    findings = record.findings
    recomputed: dict[str, Any] = {"epsilon": recompute_epsilons(ledger)}
    if ledger is not None:
        recomputed |= {"delta": ledger.delta, "unit": ledger.unit, "relation": ledger.relation}
    stored = findings.privacy.model_dump(include=set(recomputed))
    stored["epsilon"] = accountant_pair(findings.privacy.epsilon)
    yield from compare_findings("privacy", stored, recomputed)
    if ledger is not None:
        yield from _check_surfaces(findings, ledger)
        yield from _check_client_counts(findings, ledger)
        yield from _check_sizes(record)
        if (rows := findings.privacy.reconstruction) is not None:
            without_claims = [
                row.model_dump(exclude={"claimed"}, exclude_none=True) for row in rows
            ]
            yield from compare_findings(
                "privacy.reconstruction",
                without_claims,
                audit_findings.reconstruction_rows(ledger, []),
            )


def accountant_pair(pair: EpsilonPair) -> dict[str, float]:
    """The two accountants' numbers, without the lower bound that stands beside them."""
    return {"pld": pair.pld, "rdp": pair.rdp}


def _check_surfaces(findings: Findings, ledger: Ledger) -> Iterator[Disagreement]:
    rows: dict[tuple[str, str], list[Release]] = {}
    for release in ledger.releases:
        if release.visible_to != ("analyst",):
            sender = "server" if release.client == SERVER else "client"
            rows.setdefault((release.surface, sender), []).append(release)
    stored = {(str(row.surface), row.sender): row for row in findings.surfaces}
    for key in dict.fromkeys([*stored, *rows]):
        name = f"surfaces.{key[0]}"
        if key not in stored or key not in rows:
            words = [" ".join(key) if key in keys else None for keys in (stored, rows)]
            yield from compare_findings(name, *words)
            continue
        releases = rows[key]
        recomputed = {
            "names": list(dict.fromkeys(r.name for r in releases)),
            "rounds": len({r.round for r in releases}),
            "bytes": audit_findings.size_in_bytes(releases),
            "epsilon": recompute_epsilons(ledger, [key[0]]),
        }
        stored_row = {
            **stored[key].model_dump(include=set(recomputed)),
            "epsilon": accountant_pair(stored[key].epsilon),
        }
        yield from compare_findings(name, stored_row, recomputed)


def _check_client_counts(findings: Findings, ledger: Ledger) -> Iterator[Disagreement]:
    """The ledger numbers clients and rounds from 0; not all of them need to have sent something."""
    clients = 1 + max((r.client for r in ledger.releases), default=-1)
    rounds = 1 + max((r.round for r in ledger.releases if r.client != SERVER), default=-1)
    for key, stored, least in (
        ("clients", findings.run.clients, clients),
        ("rounds", findings.run.rounds, rounds),
    ):
        if stored < least:
            yield Disagreement(
                FINDINGS_FILE, f"run.{key}", str(stored), f"at least {least}, by ledger.json"
            )


def _check_sizes(record: RunRecord) -> Iterator[Disagreement]:
    """Bytes by client and the accuracy of the last round."""
    utility = record.findings.utility
    clients = record.findings.run.clients
    if utility is None or not clients:
        return
    for word in ("uploaded", "downloaded"):
        counts = record.manifest.get(f"{word}_bytes")
        if isinstance(counts, list):
            try:
                sizes = audit_findings.bytes_per_client(counts, clients)
            except (AttributeError, TypeError) as error:
                raise DamagedRun(
                    f"{record.path / 'manifest.json'}: {word}_bytes: {error}"
                ) from None
            key = f"{word}_bytes_per_client"
            yield from compare_findings(f"utility.{key}", getattr(utility, key), sizes)
    if utility.accuracy_by_round:
        yield from compare_findings(
            "utility.accuracy", utility.accuracy, utility.accuracy_by_round[-1]
        )


class AttackOptions(NamedTuple):
    """How an attack turned its scores into numbers."""

    delta: float
    confidence: float
    targets: int


@dataclass(frozen=True)
class RecomputedScores:
    """The recomputed ``measures`` by name, without keys that the folder cannot give."""

    measures: Mapping[str, Any]
    decisive: Mapping[str, Any]


def scored_rows(record: RunRecord) -> list[tuple[int, FindingRow]]:
    """(position, row) of the findings of membership attacks, but for attacks on a diverged run:
    they say no number."""
    rows = [
        (index, row)
        for index, row in enumerate(record.findings.findings)
        if row.family == Family.MEMBERSHIP
    ]
    return [
        (index, row)
        for index, row in rows
        if row.status != "not_attacked" or row.figure or row.rate_count
    ]


def check_score_numbers(record: RunRecord) -> Iterator[Disagreement]:
    """AUC, rates, blind control and bounds of every membership attack. Raises DamagedRun for
    damaged evidence."""
    rows = scored_rows(record)
    yield from _check_budget(record, len(rows))
    brought = record.findings.utility is None and not record.ledger
    if brought:
        seeds = _external_seeds(record.findings.run.seed, len(rows))
    else:
        seeds = []
    budget = error_budget_of(record, len(rows))
    for place, (index, row) in enumerate(rows):
        held = read_evidence_scores(record, row)
        if held is None:  # of an attack that brings no scores: see ``list_not_recomputable``
            continue
        options = _attack_options(record, row)
        if brought:
            scores = _recompute_external(held, options, seeds[place], len(rows))
        else:
            scores = _recompute_own(record, row, held, options, budget)
        if row.tpr_at_fpr_per_record is not None:  # of scores that are the signal itself
            scores = _with_rates_per_record(scores, held, options)
        yield from _compare_scores(index, row, scores)


def _with_rates_per_record(
    recomputed: RecomputedScores, held: tuple[Worlds, Tensor], options: AttackOptions
) -> RecomputedScores:
    worlds, scores = held
    rates = measure_rates_per_record(scores, worlds.masks, options.confidence)
    if rates is None:
        return recomputed
    return replace(recomputed, measures={**recomputed.measures, "tpr_at_fpr_per_record": rates})


def _compare_scores(
    index: int, row: FindingRow, recomputed: RecomputedScores
) -> Iterator[Disagreement]:
    key = f"findings.{index} ({row.surface} {row.attack})"
    stored = row.model_dump(exclude_none=True)
    for name, value in recomputed.measures.items():
        yield from compare_findings(f"{key}.{name}", stored.get(name), value)
    for name in RECORD_MEASURES:
        if name not in recomputed.measures:  # the scores show none
            yield from compare_findings(f"{key}.{name}", stored.get(name), None)
    diagnostics = stored.get("diagnostics", {})
    for name, value in recomputed.decisive.items():
        yield from compare_findings(f"{key}.diagnostics.{name}", diagnostics.get(name), value)


def _attack_options(record: RunRecord, row: FindingRow) -> AttackOptions:
    """Plain numbers of the stored config, else the run's own."""
    attacks = record.config.get("attack")
    if isinstance(attacks, Mapping):
        node = attacks.get(row.attack)
    else:
        node = None
    settings = node if isinstance(node, Mapping) else {}
    delta = settings.get("delta")
    targets = settings.get("targets", 1)
    confidence = settings.get("confidence", row.confidence)
    options = [
        record.findings.privacy.delta if delta is None else delta,
        0.95 if confidence is None else confidence,
    ]
    if not all(isinstance(v, int | float) and 0 <= v < 1 for v in options) or not isinstance(
        targets, int
    ):
        why = "delta, confidence or targets must be numbers"
        raise DamagedRun(f"{record.path / 'config.yaml'}: attack.{row.attack}: {why}")
    return AttackOptions(float(options[0]), float(options[1]), max(1, targets))


def read_evidence_scores(record: RunRecord, row: FindingRow) -> tuple[Worlds, Tensor] | None:
    """Masks (K, n), blind scores and scores (K, n) of one evidence file, None where it holds none.

    Raises DamagedRun for a file that is missing or damaged.
    """
    path = record.path / "evidence" / safe_name(row.evidence_name)
    parts = read_tensors(path, LIMIT)
    if "scores" not in parts and row.auc is None:
        return None
    try:
        flat = [parts[name] for name in ("scores", "members", "record", "world")]
        worlds = 1 + int(flat[3].max())
        records = 1 + int(flat[2].max())
        grid = torch.arange(worlds * records)
        if not torch.equal(flat[3].long() * records + flat[2].long(), grid) or any(
            len(t) != len(grid) for t in flat
        ):
            raise ValueError("record and world do not number the scores")
        if not torch.isfinite(flat[0]).all() or not torch.isin(flat[1], torch.tensor([0, 1])).all():
            raise ValueError("finite scores and members of 0 and 1 are needed")
        blind = parts.get("blind", torch.zeros(len(grid))).double()
        if not torch.isfinite(blind).all():
            raise ValueError("finite blind scores are needed")
        shape = (worlds, records)
        masks = flat[1].bool().reshape(shape)
        kinds = {
            name.removeprefix("kind_"): positions.long()
            for name, positions in parts.items()
            if name.startswith("kind_")
        }
        if any(
            positions.ndim != 1
            or not len(positions)
            or positions.min() < 0
            or positions.max() >= records
            for positions in kinds.values()
        ):
            raise ValueError("a kind's places must be those of records")
        worlds_held = Worlds({}, masks, blind.reshape(shape), torch.zeros(records), kinds=kinds)
        return worlds_held, flat[0].double().reshape(shape)
    except (KeyError, ValueError, RuntimeError, IndexError) as error:
        raise DamagedRun(
            f"{path}: not the scores of an attack ({' '.join(str(error).split())[:100]})"
        ) from None


def _recompute_own(
    record: RunRecord,
    row: FindingRow,
    held: tuple[Worlds, Tensor],
    options: AttackOptions,
    budget: attack_tasks.ErrorBudget,
) -> RecomputedScores:
    """With the random streams of the run: they break ties between scores."""
    (worlds, scores), (delta, confidence, targets) = held, options
    where = str(row.note or "").split("; ")[0]
    seeds = attack_tasks.attack_seeds(
        Keys(record.findings.run.seed), row.attack, str(row.surface), where
    )
    first, second = (np.random.default_rng(seed) for seed in seeds)
    try:
        measures, _ = membership_measures(
            scores,
            worlds,
            delta=delta,
            generator=first,
            confidence=confidence,
            targets=min(targets, len(scores)),
        )
        bound = one_run_bound(
            scores,
            worlds.masks,
            record.findings.privacy.delta,
            second,
            confidence=budget.confidence,
        )
    except ValueError as error:
        raise DamagedRun(f"{record.path / 'evidence' / row.evidence_name}: {error}") from None
    target = record.findings.target
    together = target is not None and target.copies_together
    if row.epsilon_shown is None and (together or is_separable(worlds.blind[0], worlds.masks[0])):
        return RecomputedScores(measures.without_bound().to_row(), {})
    joint = attack_tasks.corrected_bound(bound.value, measures.epsilon_shown)
    return RecomputedScores(measures.to_row(), {"epsilon_familywise": joint, "tests": budget.tests})


def check_copy_tests(record: RunRecord) -> Iterator[Disagreement]:
    """Members identified by the nearest row, from the distances of all members and non-members in
    the evidence."""
    for index, row in enumerate(record.findings.findings):
        if row.copy_test is None:
            continue
        path = record.path / "evidence" / safe_name(row.evidence_name)
        held = read_tensors(path, LIMIT)
        try:
            recomputed = copy_test(held["near_members"], held["near_nonmembers"])
        except (KeyError, ValueError) as error:
            raise DamagedRun(f"{path}: no distances of members and non-members ({error})") from None
        key = f"findings.{index} ({row.surface} {row.attack}).copy_test"
        yield from compare_findings(key, row.copy_test.model_dump(), recomputed)


def check_pictures(record: RunRecord) -> Iterator[Disagreement]:
    """The PSNR of what was rebuilt, where the evidence holds all pictures of the finding beside the
    records."""
    for index, row in enumerate(record.findings.findings):
        if (held := pictures_of(record, row)) is None:
            continue
        key = f"findings.{index} ({row.surface} {row.attack})"
        images = row.pictures
        pairs = [("psnr", row.psnr, held.mean())]
        if images is not None:
            nearest = held[np.abs(held - images.best).argmin()]
            pairs += [
                ("pictures.n", images.n, len(held)),
                ("pictures.best", images.best, nearest),
            ]
            pairs += [("pictures.median", images.median, np.median(held))]
        for name, stored, recomputed in pairs:
            if abs(stored - recomputed) > ROUNDING:
                yield from compare_findings(f"{key}.{name}", stored, float(recomputed))


def pictures_of(record: RunRecord, row: FindingRow) -> np.ndarray | None:
    """PSNR in dB of each picture of a finding; None where the evidence does not hold all of them,
    or they are features."""
    if row.psnr is None or row.attack in FEATURE_ATTACKS:
        return None
    held = record.evidence(row)
    if held.real is None or held.reconstructed is None or len(held.real) != row.n:
        return None
    return psnr_of_arrays(held.real, held.reconstructed)


def error_budget_of(record: RunRecord, membership: int) -> attack_tasks.ErrorBudget:
    """How the run's bounds share their error; runs before it was written down shared 0.05 by
    membership tests alone."""
    shared = record.findings.privacy.multiplicity
    if shared:
        return attack_tasks.ErrorBudget(shared.alpha, shared.tests)
    return attack_tasks.ErrorBudget(0.05, max(1, membership))


def _check_budget(record: RunRecord, membership: int) -> Iterator[Disagreement]:
    """The printed budget against the stored config, and against the number of tests in the file."""
    shared = record.findings.privacy.multiplicity
    audit = record.config.get("audit")
    if isinstance(audit, Mapping):
        confidence = audit.get("confidence")
    else:
        confidence = None
    if shared is None:
        return
    if isinstance(confidence, int | float) and 0 < confidence < 1:
        yield from compare_findings(
            "privacy.multiplicity.alpha", shared.alpha, round(1 - confidence, 12)
        )
    canaries = attack_tasks.CANARY_TESTS * any(
        row.attack.startswith("one_run_") for row in record.findings.findings
    )
    planned_tests = membership + canaries + (shared.replaced or 0)
    mechanisms = max(
        0,
        math.ceil(
            (shared.tests - planned_tests - attack_tasks.WHOLE_RUN_TESTS)
            / attack_tasks.TESTS_PER_MECHANISM
        ),
    )
    counted = max(
        1,
        planned_tests
        + attack_tasks.TESTS_PER_MECHANISM * mechanisms
        + attack_tasks.WHOLE_RUN_TESTS * (mechanisms > 0),
    )
    yield from compare_findings("privacy.multiplicity.tests", shared.tests, counted)


def _recompute_external(
    held: tuple[Worlds, Tensor], options: AttackOptions, seed: int, tests: int
) -> RecomputedScores:
    """Measures of external scores: the bound at the confidence shared by all attacks decides."""
    worlds, scores = held
    measures_by_level = [
        membership_measures(
            scores,
            worlds,
            delta=options.delta,
            generator=np.random.default_rng(seed),
            confidence=confidence,
        )[0]
        for confidence in (options.confidence, shared_confidence(options.confidence, tests))
    ]
    members = int(worlds.masks[0].sum())
    fair = binomial_p_value(members, worlds.masks.shape[1], 0.5) >= UNFAIR_COINS_P_VALUE
    measures = replace(measures_by_level[0], blind_auc=None, worlds=None)
    if not fair:
        return RecomputedScores(measures.without_bound().to_row(), {})
    joint = measures_by_level[1].epsilon_shown
    return RecomputedScores(measures.to_row(), {"epsilon_familywise": joint})


def _external_seeds(seed: int, attacks: int) -> Sequence[int]:
    """The seeds of ``attacks.external_scores.audit_scores``: bare scores take the seed itself,
    attacks draw one after another."""
    if attacks == 1:
        return [seed]
    stream = torch.Generator().manual_seed(seed)
    return [int(torch.randint(MAX_SEED, (1,), generator=stream)) for _ in range(attacks)]


def check_verdicts(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    """Stated epsilons, what was audited, and each surface's and the run's verdict.

    Rows with measures of another family are all that is reported: no verdict follows from them.
    """
    findings = record.findings
    foreign = list(_find_foreign_measures(findings.findings))
    if foreign:
        yield from foreign
        return
    every = [attack_tasks.as_finding(row) for row in record.findings.findings]
    keys = [(str(row.surface), row.sender) for row in findings.surfaces]
    verdicts_found = []
    limits = []
    for row, key in zip(findings.surfaces, keys, strict=True):
        surface = str(row.surface)
        mine = [
            (index, one)
            for index, one in enumerate(findings.findings)
            if str(one.surface) == surface
        ]
        stated = stated_epsilon(record, ledger, surface)
        for index, one in mine:
            yield from _check_stated(
                record, index, one, _printed_epsilon(ledger, every[index], stated)
            )
        read = findings_on_surface(every, key, keys)
        about = [f for f in read if is_about_releases(f.family, f.adversary)]
        attacked = any(finding.measures.has_result for finding in about)
        if (row.audited is True) != attacked:
            yield from compare_findings(f"surfaces.{surface}.audited", row.audited, attacked)
        if ledger is None:
            missing = []
        else:
            missing = untested_parts(ledger, surface, every)
        yield from compare_findings(f"surfaces.{surface}.untested", row.untested, missing)
        epsilon = recompute_epsilons(ledger, [surface])
        limits.append(SurfaceLimit(surface, row.sender, epsilon, stated, missing))
        verdicts_found.append(
            decide_verdict(epsilon, stated, [every[index] for index, _ in mine], missing)
        )
    if ledger is None:
        yield from _compare_verdicts(findings, verdicts_found)
        yield from compare_findings("verdict", findings.verdict, worst_verdict(verdicts_found))
        return
    verdicts = judge_run(ledger, limits, every)
    yield from _compare_verdicts(findings, [verdicts.surfaces[key] for key in keys])
    yield from compare_findings("verdict", findings.verdict, verdicts.verdict)
    judged = zip(findings.findings, verdicts.refuting, strict=True)
    for index, (finding, refutes) in enumerate(judged):
        yield from compare_findings(f"findings.{index}.refutes", bool(finding.refutes), refutes)
    yield from _check_shown(record, ledger, every)


def _find_foreign_measures(rows: Sequence[FindingRow]) -> Iterator[Disagreement]:
    """Each measure that stands in a row of a family without it."""
    for index, row in enumerate(rows):
        for name in attack_tasks.foreign_measures(row):
            stored = getattr(row, name)
            yield from compare_findings(f"findings.{index}.{name}", stored, None)


def _compare_verdicts(findings: Findings, verdicts: Sequence[str]) -> Iterator[Disagreement]:
    for row, verdict in zip(findings.surfaces, verdicts, strict=True):
        yield from compare_findings(f"surfaces.{row.surface}.verdict", row.verdict, verdict)


def _check_shown(record: RunRecord, ledger: Ledger, every: list[Finding]) -> Iterator[Disagreement]:
    """The shown epsilons are those of the rows that show them; the rows themselves need the run's
    records."""
    findings = record.findings
    victim = int(record.manifest.get("audited_client", -1))
    pairs = {"privacy": (findings.privacy.epsilon, audit_findings.shown_entries(every))}
    for row in findings.surfaces:
        entries = audit_findings.shown_entries_of_surface(victim, ledger, str(row.surface), every)
        pairs[f"surfaces.{row.surface}"] = (row.epsilon, entries)
    for name, (pair, recomputed) in pairs.items():
        stored = pair.model_dump(include={"shown", "shown_by"}, exclude_none=True)
        yield from compare_findings(f"{name}.epsilon", stored, recomputed)


def stated_epsilon(record: RunRecord, ledger: Ledger | None, surface: str) -> float | None:
    """The ε stated for a surface by the ledger, or by whoever brought scores; None if none is
    stated."""
    if ledger is None:
        claims = record.findings.privacy.claims
        return claims[0].number if claims else None
    of_records = audit_findings.record_level_ledger(ledger)
    value = smallest_bound(recompute_epsilons(of_records, [surface]))
    return value if math.isfinite(value) else None


def _printed_epsilon(ledger: Ledger | None, finding: Finding, stated: float | None) -> float | None:
    """The stated ε of a row; one that follows from a client-level statement is printed only if a
    bound breaks it."""
    is_of_records = ledger is None or audit_findings.states_records(ledger)
    if is_of_records or (stated is not None and deciding_bound(finding) > stated):
        return stated
    return None


def _check_stated(
    record: RunRecord, index: int, row: FindingRow, stated: float | None
) -> Iterator[Disagreement]:
    """A bound on records is held against the ledger's epsilon or against a claim that the run
    prints."""
    if row.family == Family.GUARANTEE or row.epsilon_shown is None:
        return
    claims = [claim.number for claim in record.findings.privacy.claims]
    if row.epsilon_stated not in claims or row.epsilon_stated is None:
        key = f"findings.{index} ({row.surface} {row.attack}).epsilon_stated"
        yield from compare_findings(key, row.epsilon_stated, stated)


def load_verified_training(folder: Path) -> RunRecord:
    """A finished training whose epsilons follow from its ledger. Raises DamagedRun, for one that
    was never sealed too, or Unverified for one that differs."""
    check_plain_folder(folder)
    record = read_training_record(folder)
    manifest = read_json_object(RunFolder(folder).manifest_file, optional=True)
    check_was_sealed(folder, manifest)
    wrong = list(check_page_sources(folder, manifest))
    wrong = wrong or list(check_training_numbers(folder))
    if wrong:
        raise Unverified(f"{folder}: {wrong[0]}")
    return record


def check_training_numbers(folder: Path) -> Iterator[Disagreement]:
    """Epsilon, delta, unit, relation and accuracy. Raises DamagedRun for a damaged state."""
    stored, head = (
        read_json_object(file)
        for file in (folder / TRAINING_FILE, RunFolder(folder).checkpoint_file)
    )
    place = folder / "state" / safe_name(str(head.get("state"))) / "ledger.json"
    try:
        ledger = Ledger.from_json(read_json(place))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedRun(f"{place}: {' '.join(str(error).split())[:200]}") from None
    recomputed: dict[str, Any] = {
        "delta": ledger.delta,
        "unit": ledger.unit,
        "relation": ledger.relation,
    }
    recomputed |= {"epsilon": recompute_epsilons(ledger), "accuracy_by_round": head.get("accuracy")}
    by_round = stored.get("accuracy_by_round")
    if isinstance(by_round, list) and by_round:
        recomputed["accuracy"] = by_round[-1]
    for key, value in recomputed.items():
        yield from find_disagreements(TRAINING_FILE, key, stored.get(key), value)
    seed = read_run_config(folder / "config.yaml").get("seed")
    manifest = read_json_object(RunFolder(folder).manifest_file)
    yield from find_disagreements(MANIFEST, "seed", manifest.get("seed"), seed)
