"""Audits of targets from outside as functions: what scripts and notebooks call."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from privdd.auditing.targets.labelled import Labelled, labelled
from privdd.auditing.targets.model_target import Settings, model_run
from privdd.auditing.targets.outside_run import check_free, write_outside
from privdd.auditing.targets.stated_limit import stated_limit
from privdd.auditing.targets.synthetic_target import synthetic_run
from privdd.reporting.schema import Findings
from privdd.runtime.engine import Engine

IN_PYTHON = ["privdd.api"]


def audit_model(
    model: Any,
    *,
    train: tuple[Any, Any],
    heldout: tuple[Any, Any],
    fit: Callable[..., Any] | None = None,
    stated: Mapping[str, Any] | None = None,
    shadows: int = 64,
    records: int = 10_000,
    seed: int = 0,
    name: str = "model",
    out: Path | str | None = None,
    engine: Engine | None = None,
) -> Findings:
    """Membership of a trained model's records -> what findings.json holds; the page lies in ``out``.

    model: a torch module, a scikit-learn estimator, or a function of records (see ``targets.predictor``); train,
    heldout: (x, y), x (n, ...) of any shape and y (n,) labels from 0, NumPy or torch, drawn from one distribution;
    fit: (x, y, seed) -> model, trained as this one was: with it, ``shadows`` models give each record its own scale
    (LiRA, RMIA); stated: {"epsilon": 3, "delta": 1e-5, "relation": "add_remove", "unit": "record"}, which a bound above
    it contradicts. Raises ValueError, one line, for what cannot be audited.
    """
    path = folder(out)
    check_free(path)
    given: dict[str, Any] = {"seed": seed, "records": records, "shadows": shadows, "engine": engine or Engine()}
    found = model_run(
        model, _pair("train", train), _pair("heldout", heldout), fit,
        stated_limit(stated or {}), Settings(**given), {"name": name, "data": "arrays"},
    )  # fmt: skip
    return write_outside(found, path, IN_PYTHON)


def audit_synthetic(
    synthetic: Any,
    *,
    train: tuple[Any, Any],
    heldout: tuple[Any, Any],
    generator: Callable[..., Any] | None = None,
    stated: Mapping[str, Any] | None = None,
    shadows: int = 64,
    records: int = 10_000,
    seed: int = 0,
    name: str = "synthetic set",
    out: Path | str | None = None,
    engine: Engine | None = None,
) -> Findings:
    """Membership, copies, singling out, linkability and inference of a synthetic set -> what findings.json holds.

    synthetic: (x, y), or x alone; generator: (x, y, seed) -> such a set, as this one was made: with it, shadow sets give
    each record its own scale. The rest as of ``audit_model``. Raises ValueError, one line, for what cannot be audited.
    """
    path = folder(out)
    check_free(path)
    given: dict[str, Any] = {"seed": seed, "records": records, "shadows": shadows, "engine": engine or Engine()}
    pair = synthetic if isinstance(synthetic, tuple | list) else (synthetic, None)
    found = synthetic_run(
        labelled("synthetic", *pair, least=2), _pair("train", train), _pair("heldout", heldout), generator,
        stated_limit(stated or {}), Settings(**given), {"name": name, "data": "arrays"},
    )  # fmt: skip
    return write_outside(found, path, IN_PYTHON)


def folder(out: Path | str | None) -> Path:
    """The one that was asked for, else a new one under ./outputs."""
    return Path(out) if out is not None else Path(time.strftime("outputs/%Y-%m-%d/%H-%M-%S-") + uuid.uuid4().hex[:6])


def _pair(key: str, pair: Any) -> Labelled:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{key}: a pair (x, y) is needed")
    return labelled(key, *pair)
