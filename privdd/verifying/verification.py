"""A run folder held against itself: digests, and every number that follows from other files of the folder.

Nothing of the folder is executed: JSON, safetensors and plain yaml are read, and the project's own accounting, ROC
curves, bounds and verdict run on what was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attacks.types import Family
from privdd.privacy.ledger import Ledger
from privdd.reporting.folder import RunRecord, read_run
from privdd.reporting.reproduce import attack_commands
from privdd.reporting.schema_values import Part
from privdd.runtime.files import DamagedRun, read_json
from privdd.runtime.plain_folder import check_folder
from privdd.runtime.seal import FILES, MANIFEST, PAGE, SIGNATURE, library
from privdd.verifying.disagreement import Disagreement, Unverified, counted, differing
from privdd.verifying.drawn_page import check_page, other_library
from privdd.verifying.file_digests import check_drawn_from, check_files, unlisted
from privdd.verifying.ledger_numbers import check_ledger, ledger_of
from privdd.verifying.score_numbers import check_pictures, check_scores, evidence_of, pictures_of, scored_rows
from privdd.verifying.sent_values import check_sent
from privdd.verifying.signature import check_signature
from privdd.verifying.training_numbers import check_training
from privdd.verifying.verdict_numbers import check_verdicts, stated_epsilon

# Of a finding: what it says beside its numbers.
HEAD = {"surface", "attack", "family", "adversary", "figure", "note", "signal", "seconds", "epsilon_stated"}


@dataclass(frozen=True)
class Verification:
    """disagreements: none in an honest run; taken: numbers that the folder alone cannot give again; unlisted: files
    that the run did not write and nothing reads; signer: the public key, "" where nobody signed; computed: how many
    numbers were computed again; trusted: how many were not; deciding: those of them that a decision can rest on, in words."""

    disagreements: tuple[Disagreement, ...]
    taken: tuple[str, ...]
    unlisted: tuple[str, ...]
    signer: str = ""
    computed: int = 0
    trusted: int = 0
    deciding: tuple[str, ...] = ()


def verify(folder: Path, key: Path | None = None) -> Verification:
    """Everything that can be checked, files first. key: the public key of who must have signed.

    Raises DamagedRun, one line, for a folder that cannot be read, was never sealed or has no signature for ``key``.
    """
    if folder.is_dir():
        check_folder(folder)
    only_trained = (folder / "training.json").is_file() and not (folder / "findings.json").is_file()
    if only_trained:
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict):
            raise DamagedRun(f"{folder / MANIFEST}: an object is needed")
    else:
        record = read_run(folder)
        manifest = record.manifest
    found, signer = list(check_files(folder, manifest)), ""
    if key is not None or (folder / SIGNATURE).is_file():
        signer, wrong = check_signature(folder, manifest, key)
        found += wrong
    with counted() as computed:
        if only_trained:
            found += check_training(folder)
            kept, (trusted, deciding) = ["accuracy: needs the data and the model"], (1, tuple[str, ...]())
        else:
            ledger = ledger_of(record)
            found += [*_numbers(record, ledger), *check_sent(record, ledger), *check_page(record)]
            kept, (trusted, deciding) = list(taken(record, ledger)), on_trust(record)
    beside = tuple(unlisted(folder, manifest))
    return Verification(tuple(found), tuple(kept), beside, signer, computed[0], trusted, deciding)


def verified(folder: Path | str) -> RunRecord:
    """A run whose numbers agree, for pages and comparisons.

    The files that a page is drawn from are held against the manifest where it lists any (earlier versions wrote
    none), and the numbers against each other in any case. Raises DamagedRun for a folder that cannot be read, and
    Unverified, naming the first disagreement.
    """
    folder = Path(folder)
    if folder.is_dir():
        check_folder(folder)
    record = read_run(folder)
    wrong = list(check_drawn_from(folder, record.manifest)) if FILES in record.manifest else []
    wrong = wrong or list(_numbers(record, ledger_of(record)))
    if wrong:
        more = f" (and {len(wrong) - 1} more: python -m privdd.verify)" if len(wrong) > 1 else ""
        raise Unverified(f"{folder}: {wrong[0]}{more}")
    return record


def _numbers(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    yield from check_ledger(record, ledger)
    yield from check_scores(record)
    yield from check_pictures(record)
    yield from check_verdicts(record, ledger)
    yield from _manifest(record)
    yield from _missing(record)


def _manifest(record: RunRecord) -> Iterator[Disagreement]:
    """What the manifest, the config and the findings all say of the run."""
    run, manifest, config = record.findings.run, record.manifest, record.config
    for name, value in (("seed", run.seed), ("version", run.version)):
        if name in manifest:
            yield from differing(MANIFEST, name, manifest[name], value)
    if "seed" in config:
        yield from differing("config.yaml", "seed", config["seed"], run.seed)


def _missing(record: RunRecord) -> Iterator[Disagreement]:
    """Attacks that a command ran, or the config asks for, and of which no finding is left.

    A run that diverged was not attacked, and earlier versions did not write down which attacks had nothing to read.
    """
    unread = record.manifest.get("attacks_not_run")
    diverged = record.findings.utility is not None and record.findings.utility.diverged is not None
    if not isinstance(unread, list) or diverged:
        return
    asked: dict[str, str] = {}
    for one in attack_commands(record):
        asked |= dict.fromkeys(one.attacks, f"it was run on {one.date[:10]} ({one.command})")
    there = {row.attack for row in record.findings.findings} | {*map(str, unread)}
    stored = record.config.get("attack")
    for name in sorted({*asked, *(stored if isinstance(stored, Mapping) else ())} - there):
        yield Disagreement("findings.json", "findings", f"none of {name}", asked.get(name, "config.yaml asks for it"))


# Measures that the folder cannot give again and decisions rest on -> what they are called; {} is the attack.
DECIDING = {
    "epsilon_measured": "epsilon shown by {}",
    "kappa": "kappa of {}",
    "pictures": "pictures of {}",
    "identified": "pictures of {}",
    "label_accuracy": "labels of {}",
}


def on_trust(record: RunRecord) -> tuple[int, tuple[str, ...]]:
    """(how many numbers of the findings ``taken`` speaks of, those that a decision can rest on in words)."""
    findings, measured = record.findings, list[tuple[str, str]]()
    count = (findings.utility is not None) + sum(claim.number is not None for claim in findings.privacy.claims)
    for row in findings.findings:
        if row.family != Family.MEMBERSHIP:
            names = row.model_fields_set - HEAD
            measured += [(name, row.attack) for name in names if isinstance(getattr(row, name), int | float | Part)]
    deciding = [text.format(attack) for key, text in DECIDING.items() for name, attack in measured if name == key]
    return count + len(measured), tuple(dict.fromkeys(deciding))


def taken(record: RunRecord, ledger: Ledger | None) -> Iterator[str]:
    """One line for each number that the folder alone cannot give again, and is taken from ``findings.json``: the key, and
    what it would take."""
    findings = record.findings
    if findings.utility is not None:
        yield "utility.accuracy: needs the data and the model"
    if findings.target is not None:
        yield "target: needs the files"
    if (drawn := other_library(record)) and (record.path / PAGE).is_file():
        yield f"{PAGE}: drawings: made by {drawn!r}, here is {library()}"
    for claim in findings.privacy.claims:
        yield f"privacy.claims ({claim.source}): the theorem needs the run's settings"
    scored = {at for at, _ in scored_rows(record)}
    for at, row in enumerate(findings.findings):
        name = f"findings.{at} ({row.surface} {row.attack})"
        if row.family != Family.MEMBERSHIP:
            again = {"psnr", "n"} if pictures_of(record, row) is not None else set[str]()
            measured = sorted(row.model_fields_set - HEAD - {"diagnostics"} - again)
            if measured:
                yield f"{name}: {', '.join(measured)}: needs the run's records"
        elif at in scored and evidence_of(record, row) is None:
            yield f"{name}: its evidence holds no scores"
        elif row.epsilon_stated is not None and row.epsilon_stated != stated_epsilon(record, ledger, str(row.surface)):
            yield f"{name}: epsilon_stated is the claim's, not the ledger's"
