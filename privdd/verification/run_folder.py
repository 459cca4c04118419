"""A run folder held against itself: digests, and every number that follows from other files of the
folder; pages from verified numbers only.

Nothing of the folder is executed: JSON, safetensors and plain yaml are read, and the project's own
accounting, ROC curves, bounds and verdict run on what was read.

Several runs that agree with themselves, for a comparison: in worker processes where there are many,
each only once.

Of a run that was found to agree with itself a note is kept, under the digests of all that was
looked at: the files, the code, and the libraries. Notes lie among the user's own caches, never in a
folder that a stranger may have written. Whatever differs by a bit has no note, and whoever deletes
them has every run checked again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import privdd
from attacks.types import Family
from privdd.privacy.ledger import Ledger
from privdd.reporting.albums import picture_albums
from privdd.reporting.card import encode_card
from privdd.reporting.compared_settings import group_runs
from privdd.reporting.comparison import plot_frontier, write_comparison
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.notebook import with_views
from privdd.reporting.page import render_report, write_report
from privdd.reporting.plots import draw_report
from privdd.reporting.run_record import RunRecord, attack_commands, read_run_record
from privdd.reporting.schema import Part
from privdd.runtime import seal
from privdd.runtime.engine import Engine, torch_threads
from privdd.runtime.files import (
    DamagedRun,
    check_plain_folder,
    read_bytes,
    read_json,
    read_json_object,
    write_bytes,
)
from privdd.runtime.run_files import CARD, MANIFEST, PAGE, SIGNATURE
from privdd.runtime.seal import TOP_FILES, compute_seal, file_sha256
from privdd.runtime.startup import start_forkserver, usable_cores
from privdd.verification import file_checks, recomputed
from privdd.verification.file_checks import check_page_sources

MAX_PAGE_BYTES = 256 * 2**20  # bytes
DRAWING_PATTERN = re.compile(rb"<svg\b.*?</svg>|data:image/png;base64,[A-Za-z0-9+/=]*", re.DOTALL)
# Of a finding: what it says beside its numbers.
FINDING_HEAD = {
    "surface",
    "attack",
    "family",
    "adversary",
    "figure",
    "note",
    "signal",
    "seconds",
    "epsilon_stated",
}
# Measures that the folder cannot give again and decisions rest on -> what they are called; {} is
# the attack.
DECIDING = {
    "epsilon_shown": "epsilon shown by {}",
    "kappa": "kappa of {}",
    "pictures": "images of {}",
    "identified": "images of {}",
    "label_accuracy": "labels of {}",
}
# that the numbers were found with
LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting", "pydantic", "PyYAML")
MANY_RUNS = 30  # runs that are to be checked, from which workers save more than their start costs
WORKER_MODULES = ("privdd.verification.run_folder",)


def check_page(record: RunRecord) -> Iterator[file_checks.Disagreement]:
    """The page and its card are made again and compared byte by byte.

    Where it was drawn by another version of Matplotlib (see ``other_plotting_library``), the
    drawings inside it are left out. A folder without a page has nothing to check.
    """
    card = record.path / CARD
    if card.is_file() and read_bytes(card, MAX_PAGE_BYTES) != encode_card(record):
        yield file_checks.Disagreement(
            CARD, "all of it", "another card", "the one that the run's files give"
        )
    file = record.path / PAGE
    if not file.is_file():
        return
    stored = read_bytes(file, MAX_PAGE_BYTES)
    rendered = render_report(record, draw_report(record), picture_albums(record)).encode(
        errors="replace"
    )
    if stored == rendered:
        return
    if DRAWING_PATTERN.sub(b"", stored) == DRAWING_PATTERN.sub(b"", rendered):
        if not other_plotting_library(record):
            yield file_checks.Disagreement(
                PAGE, "drawings", "other ones", "those of the evidence (the text agrees)"
            )
        return
    first_difference = next(
        (i for i, (a, b) in enumerate(zip(_text_lines(stored), _text_lines(rendered))) if a != b), 0
    )
    stored_excerpt, rendered_excerpt = (
        b"".join(_text_lines(text)[first_difference : first_difference + 1])
        .decode(errors="replace")
        .strip()
        for text in (stored, rendered)
    )
    yield file_checks.Disagreement(
        PAGE, f"line {first_difference + 1}", repr(stored_excerpt[:80]), repr(rendered_excerpt[:80])
    )


def other_plotting_library(record: RunRecord) -> str:
    """The plotting library of the page if this machine has another version; else ""."""
    version = record.manifest.get(seal.PLOTTING_KEY)
    if version in (None, seal.plotting_library()):
        return ""
    return str(version)[:60]


def _text_lines(page: bytes) -> list[bytes]:
    return DRAWING_PATTERN.sub(b"", page).splitlines()


@dataclass(frozen=True)
class Verification:
    """disagreements: none in an honest run; taken: numbers that the folder alone cannot give again;
    unlisted: files that the run did not write and nothing reads; signer: the public key, "" where
        nobody signed; computed: how many numbers were computed again; trusted: how many were not;
        deciding: those of them that a decision can rest on, in words."""

    disagreements: tuple[file_checks.Disagreement, ...]
    not_recomputable: tuple[str, ...]
    unlisted: tuple[str, ...]
    signer: str = ""
    computed: int = 0
    trusted: int = 0
    deciding: tuple[str, ...] = ()


def verify_run(folder: Path, key: Path | None = None) -> Verification:
    """Everything that can be checked, files first. key: the public key of who must have signed.

    Raises DamagedRun, one line, for a folder that cannot be read, was never sealed or has no
    signature for ``key``."""
    if folder.is_dir():
        check_plain_folder(folder)
    only_trained = (folder / "training.json").is_file() and not (folder / "findings.json").is_file()
    manifest: Mapping[str, Any]
    if only_trained:
        manifest = read_json_object(folder / MANIFEST)
    else:
        record = read_run_record(folder)
        manifest = record.manifest
    disagreements = list(file_checks.check_file_digests(folder, manifest))
    signer = ""
    if key is not None or (folder / SIGNATURE).is_file():
        signer, wrong = file_checks.check_signature(folder, manifest, key)
        disagreements += wrong
    with file_checks.count_comparisons() as computed, torch_threads(1):
        if only_trained:
            disagreements += recomputed.check_training_numbers(folder)
            unrecomputed, (trusted, deciding) = (
                ["accuracy: needs the data and the model"],
                (1, tuple[str, ...]()),
            )
        else:
            ledger = recomputed.run_ledger(record)
            disagreements += _check_numbers(record, ledger)
            if ledger is not None:
                disagreements += file_checks.check_sent_values(folder, ledger)
            disagreements += check_page(record)
            unrecomputed, (trusted, deciding) = (
                list(list_not_recomputable(record, ledger)),
                on_trust(record),
            )
    unlisted = tuple(file_checks.list_unlisted_files(folder, manifest))
    return Verification(
        tuple(disagreements), tuple(unrecomputed), unlisted, signer, computed[0], trusted, deciding
    )


def load_run(folder: Path | str) -> RunRecord:
    """A run whose numbers agree, for pages and comparisons.

    The files that a page is drawn from are held against the manifest, and the numbers against each
    other.

    Args:
        folder: A run folder.

    Returns:
        The run as the report reads it.

    Raises:
        DamagedRun: The folder cannot be read, or its run did not end: it was never sealed.
        Unverified: The first disagreement.
    """
    folder = Path(folder)
    if folder.is_dir():
        check_plain_folder(folder)
    record = read_run_record(folder)
    seal.check_was_sealed(folder, record.manifest)
    wrong = list(file_checks.check_page_sources(folder, record.manifest))
    with torch_threads(1):  # on small tensors, more cost time
        wrong = wrong or list(_check_numbers(record, recomputed.run_ledger(record)))
    if wrong:
        if len(wrong) > 1:
            remainder = f" (and {len(wrong) - 1} more: python -m privdd.verify)"
        else:
            remainder = ""
        raise file_checks.Unverified(f"{folder}: {wrong[0]}{remainder}")
    return replace(record, findings=with_views(record.findings, record.path))


def _check_numbers(record: RunRecord, ledger: Ledger | None) -> Iterator[file_checks.Disagreement]:
    yield from recomputed.check_ledger_numbers(record, ledger)
    yield from recomputed.check_score_numbers(record)
    yield from recomputed.check_pictures(record)
    yield from recomputed.check_copy_tests(record)
    yield from recomputed.check_verdicts(record, ledger)
    yield from _check_manifest(record)
    yield from _missing(record)


def _check_manifest(record: RunRecord) -> Iterator[file_checks.Disagreement]:
    """Compare the seed and version in manifest, config and findings."""
    run = record.findings.run
    manifest = record.manifest
    config = record.config
    for name, value in (("seed", run.seed), ("version", run.version)):
        if name in manifest:
            yield from file_checks.find_disagreements(MANIFEST, name, manifest[name], value)
    if "seed" in config:
        yield from file_checks.find_disagreements("config.yaml", "seed", config["seed"], run.seed)


def _missing(record: RunRecord) -> Iterator[file_checks.Disagreement]:
    """Attacks that a command ran, or the config asks for, and of which no finding is left.

    A run that diverged was not attacked. A folder of what others trained lists no attacks."""
    unread = record.manifest.get("attacks_not_run")
    diverged = record.findings.utility is not None and record.findings.utility.diverged is not None
    if not isinstance(unread, list) or diverged:
        return
    wanted: dict[str, str] = {}
    for command in attack_commands(record):
        wanted |= dict.fromkeys(
            command.attacks, f"it was run on {command.date[:10]} ({command.command})"
        )
    present = {row.attack for row in record.findings.findings} | {*map(str, unread)}
    stored = record.config.get("attack")
    for name in sorted({*wanted, *(stored if isinstance(stored, Mapping) else ())} - present):
        yield file_checks.Disagreement(
            "findings.json",
            "findings",
            f"none of {name}",
            wanted.get(name, "config.yaml asks for it"),
        )


def on_trust(record: RunRecord) -> tuple[int, tuple[str, ...]]:
    """(how many numbers of the findings ``list_not_recomputable`` speaks of, those that a decision
    can rest on in words)."""
    findings = record.findings
    measured = list[tuple[str, str]]()
    count = (findings.utility is not None) + sum(
        claim.number is not None for claim in findings.privacy.claims
    )
    for row in findings.findings:
        if row.family != Family.MEMBERSHIP:
            names = row.model_fields_set - FINDING_HEAD
            measured += [
                (name, row.attack)
                for name in names
                if isinstance(getattr(row, name), int | float | Part)
            ]
    deciding: list[str] = []
    for key, text in DECIDING.items():
        deciding += [text.format(attack) for name, attack in measured if name == key]
    return count + len(measured), tuple(dict.fromkeys(deciding))


def list_not_recomputable(record: RunRecord, ledger: Ledger | None) -> Iterator[str]:
    """One line for each number that the folder alone cannot give again, and is taken from
    ``findings.json``: the key, and what it would take."""
    findings = record.findings
    if findings.utility is not None:
        yield "utility.accuracy: needs the data and the model"
    if findings.target is not None:
        yield "target: needs the files"
    if (library := other_plotting_library(record)) and (record.path / PAGE).is_file():
        yield f"{PAGE}: drawings: made by {library!r}, here is {seal.plotting_library()}"
    for claim in findings.privacy.claims:
        yield f"privacy.claims ({claim.source}): the theorem needs the run's settings"
    scored = {index for index, _ in recomputed.scored_rows(record)}
    for index, row in enumerate(findings.findings):
        name = f"findings.{index} ({row.surface} {row.attack})"
        if row.family != Family.MEMBERSHIP:
            if recomputed.pictures_of(record, row) is not None:
                again = {"psnr", "n"}
            else:
                again = set[str]()
            measured = sorted(row.model_fields_set - FINDING_HEAD - {"diagnostics"} - again)
            if measured:
                yield f"{name}: {', '.join(measured)}: needs the run's records"
        elif index in scored and recomputed.read_evidence_scores(record, row) is None:
            yield f"{name}: its evidence holds no scores"
        elif row.epsilon_stated is not None and row.epsilon_stated != recomputed.stated_epsilon(
            record, ledger, str(row.surface)
        ):
            yield f"{name}: epsilon_stated is the claim's, not the ledger's"


def write_run_page(run: Path | str, paper: PaperStyle | None = None) -> Path:
    """``report.html`` and figures of a run that agrees with itself; returns the page's path.
    paper: the form of figures as PDF. Raises as ``load_run``."""
    with torch_threads(1):
        page = write_report(run, load_run, paper)
    seal.seal_page(Path(run))
    return page


def compare(
    runs: Sequence[Path | str],
    out: Path | str,
    say: Callable[[str], object] = lambda line: None,
    paper: PaperStyle | None = None,
) -> Path:
    """``out/comparison.html``, figures and tables of runs that agree with themselves; returns the
    page's path. say: told the verdicts and what leaks most, line by line; paper: the form of
    figures as PDF. Raises as ``load_run``."""
    with torch_threads(1):
        return write_comparison(runs, out, functools.partial(load_runs, load=load_run), say, paper)


def frontier(runs: Iterable[Path | str]) -> Figure:
    """Accuracy against accounted epsilon over finished runs, what attacks showed at least beside
    it. Raises as ``load_run``, and ValueError where no run has both."""
    plot = plot_frontier(group_runs(load_runs([*runs], load_run)))
    if plot is None:
        raise ValueError("none of these runs has an accuracy and a finite epsilon")
    return plot.figure


def load_runs(folders: Sequence[Path | str], load: Callable[[Path], RunRecord]) -> list[RunRecord]:
    """The runs, of which ``load`` (``load_run``) has found each to agree with itself. Raises as it
    does."""
    places = [(place := Path(folder), find_note(place)) for folder in folders]
    loaded = [_load_noted(folder, note) for folder, note in places]
    fresh = [place for place, run in zip(places, loaded) if run is None]
    many = len(fresh) >= MANY_RUNS and usable_cores() > 1
    if many:
        start_forkserver(WORKER_MODULES, "cpu")
    checked = Engine("processes" if many else "serial").map(
        functools.partial(check_and_note, load=load), fresh
    )
    return [next(checked) if run is None else run for run in loaded]


def check_and_note(place: tuple[Path, Path | None], load: Callable[[Path], RunRecord]) -> RunRecord:
    """``load`` of a folder, and a note where the run agrees with itself. place: the folder, and its
    ``find_note`` before."""
    folder, note = place
    record = load(folder)
    if note is not None and note == find_note(folder):  # nothing was changed meanwhile
        with suppress(
            OSError, ValueError
        ):  # a cache that cannot be written, a config that is no JSON
            config = json.loads(json.dumps(record.config, allow_nan=False))
            write_bytes(
                note,
                json.dumps(config if config == record.config else None).encode(),
                private=True,
                durable=False,
            )
    return record


def _load_noted(folder: Path, note: Path | None) -> RunRecord | None:
    """The run, if it was found to agree with itself before and no bit has changed."""
    if note is None or not note.is_file():
        return None
    with suppress(DamagedRun, OSError, ValueError):
        config = json.loads(note.read_bytes())
        record = read_run_record(folder, config if isinstance(config, Mapping) else None)
        return replace(record, findings=with_views(record.findings, record.path))
    return None


def find_note(folder: Path) -> Path | None:
    """Where a note on what the folder holds now would be; None for a folder that is not sealed, or
    differs from its seal."""
    try:
        check_plain_folder(folder)
        manifest = read_json(folder / MANIFEST)
        if any(check_page_sources(folder, manifest)):
            return None
        held = [folder / name for name in TOP_FILES] + [*(folder / "evidence").glob("*")]
        files = {
            str(file.relative_to(folder)): file_sha256(file)
            for file in sorted(held)
            if file.is_file()
        }
        looked_at = [compute_seal(manifest), files, _code_digest()]
        return _notes_folder() / hashlib.sha256(json.dumps(looked_at).encode()).hexdigest()
    except (
        DamagedRun,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,
    ):  # whoever checks it will say why
        return None


def _notes_folder() -> Path:
    """Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privdd" / "verified"


@functools.cache
def _code_digest() -> str:
    """Of the code that checks: every file's name, size and time, and the libraries' versions."""
    package = Path(privdd.__file__).parent
    versions: list[Any] = [version(name) for name in LIBRARIES]
    for place in (package, package.parent / "attacks"):
        files = (
            (file.relative_to(place.parent), file.stat()) for file in sorted(place.rglob("*.py"))
        )
        versions += [(str(name), state.st_size, state.st_mtime_ns) for name, state in files]
    return hashlib.sha256(json.dumps(versions).encode()).hexdigest()
