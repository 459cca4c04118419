"""Bring your own: audit arrays that someone else computed, from one ``.npz`` file, or bare scores
from a ``.csv`` file.

It holds one of three sets of arrays, larger score = more like a member: ``scores`` (n,) and
``member`` (n,); ``signals`` (K, n) and ``masks`` (K, n), row 0 being the audited model; or
``logits`` (K, n, C), ``labels`` (n,) and ``masks`` (K, n).
Beside these, ``blind`` (n,): scores of a control that never saw a model; and ``labels`` (n,). A csv
has a first line of names and columns ``scores``, ``member`` and perhaps ``blind``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.membership.attack import unreadable_finding
from attacks.membership.base_attack import Base
from attacks.membership.density import GradientDensity
from attacks.membership.lira import Lira
from attacks.membership.measures import membership_measures
from attacks.membership.rmia import Rmia
from attacks.membership.shadow_classifier import ShadowClassifier
from attacks.membership.signals import logit_scaled
from attacks.membership.threshold import LossThreshold
from attacks.statistics import binomial_p_value
from attacks.types import Adversary, Family, Finding, Knowledge, Surface, Truth, View, Worlds
from attacks.validation import check_archive

ARRAY_SETS = (("scores", "member"), ("signals", "masks"), ("logits", "labels", "masks"))
NPZ_FOR_MORE = "signals of several models come in an .npz"
SHAPES = {
    "scores": "(n,), one number for each of n >= 1 records",
    "signals": "(K, n), of K models and n >= 1 records",
    "logits": "(K, n, C), of K models, n >= 1 records and C >= 2 classes",
}
CSV_WORDS = {"true": "1", "false": "0"}
KNOWN_ARRAYS = set(chain.from_iterable(ARRAY_SETS)) | {"blind"}
CSV_COLUMNS = (*ARRAY_SETS[0], "blind")
_NO_RECORDS = torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)
_NO_TRUTH = Truth(*_NO_RECORDS, *_NO_RECORDS, torch.zeros(1))


def load_scores(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of ``path``, checked. ValueError: unreadable, pickled, unknown or missing names,
    shapes, NaN."""
    if Path(path).suffix.lower() == ".csv":
        return _read_csv_scores(Path(path))
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged zip raises EOFError, zlib.error, and others
        why = " ".join(str(error).split())[:120]
        raise ValueError(
            f"scores={path}: not a readable .npz without pickled objects ({why})"
        ) from error
    unknown = sorted(set(arrays) - KNOWN_ARRAYS)
    if unknown:
        raise ValueError(
            f"scores={path}: unknown arrays {unknown}; known are {sorted(KNOWN_ARRAYS)}"
        )
    if array_set_of(arrays) is None:
        sets = [list(names) for names in ARRAY_SETS]
        raise ValueError(f"scores={path}: holds {sorted(arrays)}; needed is one of {sets}")
    _check_shapes(arrays)
    _check_values(arrays)
    return arrays


def _read_csv_scores(path: Path) -> dict[str, np.ndarray]:
    """Bare scores, members and perhaps a blind control by column. Raises ValueError, one line."""
    needed = (
        "needed is a first line of names, scores,member[,blind], and a line of numbers for "
        f"each record; {NPZ_FOR_MORE}"
    )
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = [line for line in csv.reader(file) if line]
        if not table:
            raise ValueError("it is empty")
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(
            f"scores={path}: not a readable .csv ({' '.join(str(error).split())[:120]}); {needed}"
        ) from None
    first, *lines = table
    names = [name.strip() for name in first]
    if not set(ARRAY_SETS[0]) <= set(names) <= set(CSV_COLUMNS) or len(set(names)) < len(names):
        raise ValueError(f"scores={path}: holds columns {names}; {needed}")
    values = np.empty((len(lines), len(names)))
    for record, line in enumerate(lines):
        try:
            numbers = [float(CSV_WORDS.get(cell.strip().lower(), cell)) for cell in line]
            # a line that is too short is an error as well
            values[record] = np.array(numbers).reshape(len(names))
        except ValueError:
            raise ValueError(
                f"scores={path}: record {record} (from 0) is {','.join(line)[:60]!r}; {needed}"
            ) from None
    arrays = dict(zip(names, values.T))
    _check_shapes(arrays)
    _check_values(arrays)
    return arrays


def array_set_of(arrays: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Which of the three sets the arrays hold; logits win over signals, these over scores."""
    return next((names for names in reversed(ARRAY_SETS) if set(names) <= set(arrays)), None)


def arrays_to_worlds(arrays: Mapping[str, np.ndarray]) -> Worlds:
    """``Worlds`` from (signals, masks) or (logits, labels, masks); the signal is named
    "confidence"."""
    masks = torch.from_numpy(arrays["masks"].astype(bool))
    labels = torch.from_numpy(arrays.get("labels", np.zeros(masks.shape[1])).astype(np.int64))
    blind = torch.from_numpy(arrays.get("blind", np.zeros(masks.shape[1])).astype(np.float64))
    if "logits" in arrays:
        logits = torch.from_numpy(arrays["logits"].astype(np.float64))
        return Worlds({"confidence": logit_scaled(logits, labels)}, masks, blind, labels, logits)
    signal = torch.from_numpy(arrays["signals"].astype(np.float64))
    return Worlds({"confidence": signal}, masks, blind, labels)


def audit_scores(
    path: str | Path,
    *,
    surface: Surface = Surface.GLOBAL_MODEL,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Finding]:
    """Membership findings from the file's arrays: one for bare scores, else one per attack.

    Signals are read as logit-scaled confidences. Epsilon is the one-run bound: it holds if each
    record was in by its own fair coin, and is left out if the share of members rules that out
    (binomial p < 0.001). A blind AUC is reported only if the file has blind scores.
    """
    arrays = load_scores(path)
    if array_set_of(arrays) == ARRAY_SETS[0]:
        return [_audit_bare_scores(arrays, surface, delta, confidence, seed)]
    worlds = arrays_to_worlds(arrays)
    nobody = Knowledge(
        (1, 1, 1), int(worlds.labels.max()) + 1, torch.zeros(0, 1, 1, 1), torch.zeros(0).long()
    )
    view = View(surface, Adversary.SERVER, (), nobody, worlds)
    options: dict[str, Any] = {"confidence": confidence, "delta": delta}
    attacks = [
        Lira(**options),
        Rmia(**options),
        Base(**options),
        LossThreshold(**options),
        GradientDensity(**options),
    ]
    if worlds.logits is not None:
        attacks.append(ShadowClassifier(**options))
    generator = torch.Generator().manual_seed(seed)
    findings = []
    for attack in attacks:
        why = attack.nothing_to_read(view)
        if why:
            findings.append(unreadable_finding(attack, view, why))
            continue
        evidence = attack.run(view, generator)
        finding = attack.judge(evidence, view, _NO_TRUTH)
        if finding.measures.status != "nothing_to_read":
            blind = arrays.get("blind")
            finding = _add_score_figures(finding, evidence.scores, worlds.masks, blind)
            finding = _drop_unsupported(finding, arrays, arrays["masks"][0])
        findings.append(finding)
    return findings


def describe_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """What was read, in a sentence: how many models and records."""
    names = array_set_of(arrays) or ARRAY_SETS[0]
    shape = arrays[names[0]].shape
    if names == ARRAY_SETS[0]:
        return f"Read as scores of 1 model for {shape[0]} records."
    return (
        f"Read as {names[0]} of {shape[0]} models (rows, the audited one first) for "
        f"{shape[1]} records (columns)."
    )


def _add_score_figures(
    finding: Finding, scores: Tensor | None, masks: Tensor, blind: np.ndarray | None
) -> Finding:
    """The finding with its exact scores (m,), members (m,) and blind (m,), and which record and
    world each is of."""
    if scores is None:
        raise ValueError(f"{finding.attack}: returned no scores")
    members = masks[: len(scores)]
    count, records = members.shape
    replay, record = torch.meshgrid(torch.arange(count), torch.arange(records), indexing="ij")
    figures = {
        "scores": scores.double(),
        "members": members.to(torch.uint8),
        "record": record,
        "world": replay,
    }
    if blind is not None:
        figures["blind"] = torch.from_numpy(blind.astype(np.float64)).expand(members.shape)
    flat = {name: figure.flatten() for name, figure in figures.items()}
    return replace(finding, figures={**finding.figures, **flat})


def _audit_bare_scores(
    arrays: Mapping[str, np.ndarray], surface: Surface, delta: float, confidence: float, seed: int
) -> Finding:
    scores = torch.from_numpy(arrays["scores"].astype(np.float64))[None]
    member = torch.from_numpy(arrays["member"].astype(bool))[None]
    blind = torch.from_numpy(arrays.get("blind", np.zeros(scores.shape[1])).astype(np.float64))
    measures, figures = membership_measures(
        scores,
        Worlds({}, member, blind, torch.zeros(scores.shape[1])),
        delta=delta,
        generator=np.random.default_rng(seed),
        confidence=confidence,
    )
    measures = replace(measures, worlds=None)  # nothing is known of any but the audited model
    bare = Finding(surface, "scores", Family.MEMBERSHIP, Adversary.SERVER, measures, figures)
    return _drop_unsupported(
        _add_score_figures(bare, scores, member, arrays.get("blind")), arrays, arrays["member"]
    )


def _drop_unsupported(
    finding: Finding, arrays: Mapping[str, np.ndarray], member: np.ndarray
) -> Finding:
    """Drop what the file cannot support: a blind control that it lacks, a bound if the coins were
    not fair."""
    if "blind" not in arrays:
        finding = finding.with_measures(blind_auc=None)
    if binomial_p_value(int(member.sum()), len(member), 0.5) < 1e-3:
        finding = replace(finding, measures=finding.measures.without_bound())
    return finding


def _check_shapes(arrays: Mapping[str, np.ndarray]) -> None:
    names = array_set_of(arrays) or ()
    main = arrays[names[0]]
    wanted = {"scores": 1, "signals": 2, "logits": 3}[names[0]]
    if main.ndim != wanted or main.size == 0 or (wanted == 3 and main.shape[2] < 2):
        raise ValueError(f"{names[0]}: shape {main.shape}, must be {SHAPES[names[0]]}")
    records = main.shape[min(wanted - 1, 1)]
    if names[0] == "signals" and len(main) > records and not {"labels", "blind"} & set(arrays):
        raise ValueError(
            f"signals: shape {main.shape} is {len(main)} models and {records} records, more models "
            "than records; if rows are records, give signals.T and masks.T; if rows are models, "
            "add labels (n,) or blind (n,), one a record"
        )
    shapes = {
        "member": (records,),
        "masks": main.shape[:2],
        "labels": (records,),
        "blind": (records,),
    }
    for name, shape in shapes.items():
        if name in arrays and (name != "masks" or wanted > 1) and arrays[name].shape != shape:
            raise ValueError(
                f"{name}: shape {arrays[name].shape}, {names[0]} {main.shape} asks for {shape}"
            )


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    for name, value in arrays.items():
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise ValueError(
                f"{name}: holds {value.dtype} with NaN, infinity or no numbers; finite "
                "numbers are needed"
            )
        if name in ("member", "masks") and not np.isin(value, (0, 1)).all():
            raise ValueError(f"{name}: booleans (or 0 and 1) are needed")
    classes = 0
    if "logits" in arrays:
        classes = arrays["logits"].shape[2]
    labels = arrays.get("labels", np.zeros(0))
    if classes and not ((labels >= 0) & (labels < classes) & (labels % 1 == 0)).all():
        raise ValueError(f"labels: whole numbers from 0 to {classes - 1} are needed")
