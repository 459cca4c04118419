"""What ``findings.json`` says of each membership attack, against the scores that its evidence file holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from attacks.membership.attack import audited_epsilon, measure
from attacks.membership.records_alone import told_apart
from attacks.types import Family, Worlds
from privdd.auditing.attack_tasks import attack_seeds
from privdd.auditing.error_budget import CANARIES, PER_MECHANISM, WHOLE_RUN, ErrorBudget
from privdd.core.keys import Keys
from privdd.reporting.curves import psnr
from privdd.reporting.folder import LIMIT, RunRecord
from privdd.reporting.schema import FindingRow, WorstRecord
from privdd.reporting.strongest import FEATURE_ATTACKS
from privdd.runtime.files import DamagedRun, safe_name
from privdd.runtime.run_folder import read_tensors
from privdd.verifying.disagreement import Disagreement, differing

BOUND = ("epsilon_measured", "epsilon_method", "epsilon_validity")
OF_RECORDS = ("worst_records", "by_kind")  # not in every finding of an attack with scores
UNFAIR = 1e-3  # below this p-value the members were not drawn by fair coins, and brought scores get no bound
SEEDS = 2**31 - 1
ROUNDING = 1e-3  # dB: means of single-precision numbers, in another order


@dataclass(frozen=True)
class Rescored:
    """What was found again: ``measures`` by name; without a key that cannot be found from the folder."""

    measures: Mapping[str, Any]
    decisive: Mapping[str, Any]


def scored_rows(record: RunRecord) -> list[tuple[int, FindingRow]]:
    """(position, row) of the findings of membership attacks, but for attacks on a diverged run: they say no number."""
    rows = [(at, row) for at, row in enumerate(record.findings.findings) if row.family == Family.MEMBERSHIP]
    return [(at, row) for at, row in rows if row.status != "not_attacked" or row.figure or row.rates]


def check_scores(record: RunRecord) -> Iterator[Disagreement]:
    """AUC, rates, blind control and bounds of every membership attack. Raises DamagedRun for damaged evidence."""
    rows = scored_rows(record)
    yield from _check_budget(record, len(rows))
    brought = record.findings.utility is None and not record.ledger
    seeds = _seeds(record.findings.run.seed, len(rows)) if brought else []
    for place, (at, row) in enumerate(rows):
        held = evidence_of(record, row)
        if held is None:  # of an attack that brings no scores: see ``verification.taken``
            continue
        worlds, scores = held
        delta, confidence, targets = _options(record, row)
        if brought:
            found = _brought(worlds, scores, delta, confidence, seeds[place], len(rows))
        else:
            found = _own(record, row, worlds, scores, delta, confidence, targets, budget_of(record, len(rows)))
        yield from _compared(at, row, found, told_of_records(record))


def told_of_records(record: RunRecord) -> frozenset[str] | None:
    """What the file's version says of each most exposed record: None in earlier ones, which named none; others did not say
    how often it is named while it is out. An emptied list is none of an earlier version."""
    worst = [row.worst_records for row in record.findings.findings if row.worst_records]
    if all("records" not in one.model_fields_set for one in worst):
        return None
    known = [one.model_fields_set for each in worst for one in each.records]
    return frozenset(WorstRecord.model_fields if not known else set().union(*known))


def _compared(at: int, row: FindingRow, found: Rescored, told: frozenset[str] | None) -> Iterator[Disagreement]:
    key = f"findings.{at} ({row.surface} {row.attack})"
    stored = row.model_dump(exclude_none=True)
    for name, value in found.measures.items():
        if name == "worst_records" and name in stored:
            known = [{key: one[key] for key in one if key in (told or ())} for one in value["records"]]
            value = {**value, "records": known if told else []}
        yield from differing("findings.json", f"{key}.{name}", stored.get(name), value)
    for name in OF_RECORDS:
        if name not in found.measures:  # the scores show none
            yield from differing("findings.json", f"{key}.{name}", stored.get(name), None)
    diagnostics = stored.get("diagnostics", {})
    for name, value in found.decisive.items():
        yield from differing("findings.json", f"{key}.diagnostics.{name}", diagnostics.get(name), value)


def _options(record: RunRecord, row: FindingRow) -> tuple[float, float, int]:
    """delta, confidence and targets of an attack: plain numbers of the stored config, else the run's own."""
    attacks = record.config.get("attack")
    node = attacks.get(row.attack) if isinstance(attacks, Mapping) else None
    given = node if isinstance(node, Mapping) else {}
    delta, targets = given.get("delta"), given.get("targets", 1)
    confidence = given.get("confidence", row.confidence)
    known = [record.findings.privacy.delta if delta is None else delta, 0.95 if confidence is None else confidence]
    if not all(isinstance(v, int | float) and 0 <= v < 1 for v in known) or not isinstance(targets, int):
        raise DamagedRun(
            f"{record.path / 'config.yaml'}: attack.{row.attack}: delta, confidence or targets are no numbers"
        )
    return float(known[0]), float(known[1]), max(1, targets)


def evidence_of(record: RunRecord, row: FindingRow) -> tuple[Worlds, Tensor] | None:
    """Masks (K, n), blind scores and scores (K, n) of one evidence file, None where it holds none.

    Raises DamagedRun for a file that is missing or damaged.
    """
    path = record.path / "evidence" / safe_name(row.evidence_name)
    parts = read_tensors(path, LIMIT)
    if "scores" not in parts and row.auc is None:
        return None
    try:
        flat = [parts[name] for name in ("scores", "members", "record", "world")]
        worlds, records = 1 + int(flat[3].max()), 1 + int(flat[2].max())
        grid = torch.arange(worlds * records)
        if not torch.equal(flat[3].long() * records + flat[2].long(), grid) or any(len(t) != len(grid) for t in flat):
            raise ValueError("record and world do not number the scores")
        if not torch.isfinite(flat[0]).all() or not torch.isin(flat[1], torch.tensor([0, 1])).all():
            raise ValueError("finite scores and members of 0 and 1 are needed")
        blind = parts.get("blind", torch.zeros(len(grid))).double()
        if not torch.isfinite(blind).all():
            raise ValueError("finite blind scores are needed")
        shape = (worlds, records)
        masks = flat[1].bool().reshape(shape)
        kinds = {name.removeprefix("kind_"): at.long() for name, at in parts.items() if name.startswith("kind_")}
        if any(at.ndim != 1 or not len(at) or at.min() < 0 or at.max() >= records for at in kinds.values()):
            raise ValueError("a kind's places must be those of records")
        worlds_held = Worlds({}, masks, blind.reshape(shape), torch.zeros(records), kinds=kinds)
        return worlds_held, flat[0].double().reshape(shape)
    except (KeyError, ValueError, RuntimeError, IndexError) as error:
        raise DamagedRun(f"{path}: not the scores of an attack ({' '.join(str(error).split())[:100]})") from None


def _own(
    record: RunRecord,
    row: FindingRow,
    worlds: Worlds,
    scores: Tensor,
    delta: float,
    confidence: float,
    targets: int,
    budget: ErrorBudget,
) -> Rescored:
    """With the random streams of the run: they break ties between scores."""
    where = str(row.note or "").split("; ")[0]
    seeds = attack_seeds(Keys(record.findings.run.seed), row.attack, str(row.surface), where)
    first, second = (np.random.default_rng(seed) for seed in seeds)
    try:
        measures, _ = measure(
            scores, worlds, delta=delta, generator=first, confidence=confidence, targets=min(targets, len(scores))
        )
        bound = audited_epsilon(
            scores, worlds.masks, record.findings.privacy.delta, second, confidence=budget.confidence
        )
    except ValueError as error:
        raise DamagedRun(f"{record.path / 'evidence' / row.evidence_name}: {error}") from None
    target = record.findings.target
    together = target is not None and target.copies_together
    if row.epsilon_measured is None and (together or told_apart(worlds.blind[0], worlds.masks[0])):
        return Rescored({name: value for name, value in measures.items() if name not in BOUND}, {})
    return Rescored(measures, {"epsilon_familywise": bound.value, "tests": budget.tests})


def check_pictures(record: RunRecord) -> Iterator[Disagreement]:
    """The PSNR of what was rebuilt, where the evidence holds all pictures of the finding beside the records."""
    for at, row in enumerate(record.findings.findings):
        if (held := pictures_of(record, row)) is None:
            continue
        key, seen = f"findings.{at} ({row.surface} {row.attack})", row.pictures
        pairs = [("psnr", row.psnr, held.mean())]
        if seen is not None:
            nearest = held[np.abs(held - seen.best).argmin()]
            pairs += [("pictures.n", seen.n, len(held)), ("pictures.best", seen.best, nearest)]
            pairs += [("pictures.median", seen.median, np.median(held))]
        for name, stored, found in pairs:
            if abs(stored - found) > ROUNDING:
                yield from differing("findings.json", f"{key}.{name}", stored, float(found))


def pictures_of(record: RunRecord, row: FindingRow) -> np.ndarray | None:
    """PSNR in dB of each picture of a finding; None where the evidence does not hold all of them, or they are features."""
    if row.psnr is None or row.attack in FEATURE_ATTACKS:
        return None
    held = record.evidence(row)
    if held.real is None or held.reconstructed is None or len(held.real) != row.n:
        return None
    return psnr(held.real, held.reconstructed)


def budget_of(record: RunRecord, membership: int) -> ErrorBudget:
    """How the run's bounds share their error; runs before it was written down shared 0.05 by membership tests alone."""
    shared = record.findings.privacy.multiplicity
    return ErrorBudget(shared.alpha, shared.tests) if shared else ErrorBudget(0.05, max(1, membership))


def _check_budget(record: RunRecord, membership: int) -> Iterator[Disagreement]:
    """The printed budget against the stored config, and against the number of tests in the file."""
    shared, audit = record.findings.privacy.multiplicity, record.config.get("audit")
    confidence = audit.get("confidence") if isinstance(audit, Mapping) else None
    if shared is None:
        return
    if isinstance(confidence, int | float) and 0 < confidence < 1:
        yield from differing("findings.json", "privacy.multiplicity.alpha", shared.alpha, round(1 - confidence, 12))
    canaries = CANARIES * any(row.attack.startswith("one_run_") for row in record.findings.findings)
    replaced = shared.replaced or 0
    left = shared.tests - membership - canaries - replaced
    mechanisms = max(0, -(-(left - WHOLE_RUN) // PER_MECHANISM))
    counted = max(1, membership + canaries + PER_MECHANISM * mechanisms + WHOLE_RUN * (mechanisms > 0) + replaced)
    yield from differing("findings.json", "privacy.multiplicity.tests", shared.tests, counted)


def _brought(worlds: Worlds, scores: Tensor, delta: float, confidence: float, seed: int, tests: int) -> Rescored:
    """Of scores that someone brought: the bound at the confidence shared by all attacks decides."""
    found = [
        measure(scores, worlds, delta=delta, generator=np.random.default_rng(seed), confidence=level)[0]
        for level in (confidence, 1 - (1 - confidence) / tests)
    ]
    members = int(worlds.masks[0].sum())
    fair = binomtest(members, worlds.masks.shape[1], 0.5).pvalue >= UNFAIR
    left_out = {"blind_auc", "worlds", *(() if fair else BOUND)}
    kept = {name: value for name, value in found[0].items() if name not in left_out}
    return Rescored(kept, {"epsilon_familywise": found[1]["epsilon_measured"]} if fair else {})


def _seeds(seed: int, attacks: int) -> Sequence[int]:
    """The seeds of ``attacks.scores.audit_scores``: bare scores take the seed itself, attacks draw one after another."""
    if attacks == 1:
        return [seed]
    stream = torch.Generator().manual_seed(seed)
    return [int(torch.randint(SEEDS, (1,), generator=stream)) for _ in range(attacks)]
