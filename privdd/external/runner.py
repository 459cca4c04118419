"""Audits of external targets: as the command ``python -m privdd.audit target.*``, and as functions
for scripts and notebooks."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from privdd.blackbox.target import add_search_folder
from privdd.core.validation import BadConfig
from privdd.external.arguments import (
    FILE_KEYS,
    SGD_SETTINGS,
    TARGET_PREFIX,
    TargetArguments,
    parse_target_arguments,
)
from privdd.external.client_message import (
    MAP_KEY,
    audit_message_tensors,
    check_message,
    read_message,
)
from privdd.external.client_updates import (
    LocalTraining,
    audit_client_updates,
    read_captured_updates,
    training_function_of,
)
from privdd.external.predictor import load_target_model
from privdd.external.records import LabelledRecords, read_records, records_from_arrays
from privdd.external.run_folder import (
    ExternalAudit,
    StatedLimit,
    parse_stated_limit,
    write_audit_folder,
)
from privdd.external.shadow_models import SGD_NAME, NetworkRetraining, PlainSGD, TrainingFunction
from privdd.external.synthetic_data import RECIPE_NAMES, audit_synthetic_data, make_recipe
from privdd.external.trained_model import ExternalAuditSettings, audit_trained_model
from privdd.reporting.notebook import AuditFindings, with_views
from privdd.reporting.policy import policy_of_arguments
from privdd.reporting.terminal import conclude_audit
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import check_folder_free
from privdd.runtime.seal import file_sha256

PYTHON_COMMAND = ["privdd.api"]


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
    transform: Callable[..., Any] | None = None,
    queries: int = 18,
) -> AuditFindings:
    """Membership of a trained model's records -> what findings.json holds; the page lies in
    ``out``.

    model: a torch module, a scikit-learn estimator, or a function of records (see
    ``external.predictor``); train, heldout: (x, y), x (n, ...) of any shape and y (n,) labels from
    0, NumPy or torch, drawn from one distribution; fit: (x, y, seed) -> model, trained as this one
    was: with it, ``shadows`` models give each record its own scale (LiRA, RMIA); transform: (x,
    seed) -> x, as that training transforms a batch, if it does: these attacks then ask about
    ``queries`` copies of each record, the record among them; stated: {"epsilon": 3, "delta": 1e-5,
    "relation": "add_remove", "unit": "record"}, which a bound above it contradicts. Raises
    ValueError, one line, for what cannot be audited."""
    settings = ExternalAuditSettings(
        seed, records, shadows, engine=engine or Engine(), transform=transform, queries=queries
    )
    return _audit_arrays(
        audit_trained_model, model, train, heldout, fit, stated, settings, name, out
    )


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
) -> AuditFindings:
    """Membership, copies, singling out, linkability and inference of a synthetic set -> what
    findings.json holds.
    synthetic: (x, y), or x alone; generator: (x, y, seed) -> such a set, as this one was made: with
        it, shadow sets give each record its own scale. The rest as of ``audit_model``. Raises
        ValueError, one line, for what cannot be audited."""
    settings = ExternalAuditSettings(seed, records, shadows, engine=engine or Engine())
    if isinstance(synthetic, tuple | list):
        pair = synthetic
    else:
        pair = (synthetic, None)
    target = records_from_arrays("synthetic", *pair, least=2)
    return _audit_arrays(
        audit_synthetic_data, target, train, heldout, generator, stated, settings, name, out
    )


def audit_message(
    message: Any,
    *,
    surface: str,
    map: Callable[..., Any],
    train: tuple[Any, Any],
    heldout: tuple[Any, Any],
    stated: Mapping[str, Any] | None = None,
    shadows: int = 64,
    records: int = 10_000,
    seed: int = 0,
    name: str = "message",
    out: Path | str | None = None,
    engine: Engine | None = None,
) -> AuditFindings:
    """Membership, and labels if the surface tells them, of what one client sent -> what
    findings.json holds.

    Args:
        message: tensors by name, or ``ClientMessages``.
        surface: "logits", "prototypes", "statistics", "update" or another surface's name.
        map: (x, y, seed) -> the tensors that the client would have sent of these records.
        train, heldout: (x, y) of the client's records, and of others of the same kind.
        shadows: messages of other records that the map is asked for.
        stated, records, seed, name, out, engine: as of ``audit_model``.

    Raises:
        ValueError: one line, for what cannot be audited.
    """
    settings = ExternalAuditSettings(seed, records, shadows, engine=engine or Engine())

    audit = partial(audit_message_tensors, surface=surface)
    tensors = check_message(message, "message")
    return _audit_arrays(audit, tensors, train, heldout, map, stated, settings, name, out)


def _audit_arrays(
    audit: Callable[..., ExternalAudit],
    target: Any,
    train: Any,
    heldout: Any,
    function: Callable[..., Any] | None,
    stated: Mapping[str, Any] | None,
    settings: ExternalAuditSettings,
    name: str,
    out: Path | str | None,
) -> AuditFindings:
    path = choose_output_folder(out)
    check_folder_free(path)
    sets = [_records_of_pair(key, pair) for key, pair in (("train", train), ("heldout", heldout))]
    about = {"name": name, "data": "arrays"}
    result = audit(target, *sets, function, parse_stated_limit(stated or {}), settings, about)
    return with_views(write_audit_folder(result, path, PYTHON_COMMAND), path)


def choose_output_folder(out: Path | str | None) -> Path:
    """The one that was asked for, else a new one under ./outputs."""
    if out is not None:
        return Path(out)
    return Path(time.strftime("outputs/%Y-%m-%d/%H-%M-%S-") + uuid.uuid4().hex[:6])


def _records_of_pair(key: str, pair: Any) -> LabelledRecords:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{key}: a pair (x, y) is needed")
    return records_from_arrays(key, *pair)


def run_target_audit(argv: Sequence[str]) -> int:
    """-> exit status as of ``conclude_audit``. Raises ValueError with one line."""
    typed = parse_target_arguments(argv)
    policy = policy_of_arguments(typed.given)
    add_search_folder(Path.cwd())
    path = choose_output_folder(typed.get("out"))
    check_folder_free(path)
    run = _audit_target(typed)
    result = write_audit_folder(run, path, ["python", "-m", "privdd.audit", *argv])
    return conclude_audit(result, path, policy, sys.stdout)


def _audit_target(typed: TargetArguments) -> ExternalAudit:
    stated = parse_stated_limit(typed.stated)
    settings = audit_settings(typed)
    train = read_target_records(typed, "train")
    heldout = read_target_records(typed, "heldout")
    label = str(typed.get("name") or typed.get("target.model") or "synthetic set").rpartition(":")[
        2
    ]
    paths = {name: typed.file_path(name) for name in FILE_KEYS if typed.get(TARGET_PREFIX + name)}
    files = {name: file_sha256(path) for name, path in paths.items() if path.is_file()}
    about: dict[str, Any] = {"name": label, "data": typed.file_path("train").name, "files": files}
    if typed.get("target.synthetic"):
        synthetic = read_records(
            "target.synthetic", typed.file_path("synthetic"), least=2, labels=False
        )
        return audit_synthetic_data(
            synthetic, train, heldout, _generator_function(typed), stated, settings, about
        )
    if typed.get("target.message"):
        return _audit_message_file(typed, train, heldout, stated, settings, about)
    if typed.get("target.weights"):
        weights = typed.file_path("weights")
    else:
        weights = None
    model, notes = load_target_model(str(typed.get("target.model")), typed.args, weights)
    if notes:
        about |= {"notes": notes}
    if typed.get("target.updates"):
        if not isinstance(model, nn.Module):
            raise BadConfig("target.model: a torch module is needed to read updates")
        updates = read_captured_updates(
            typed.file_path("updates"), model, typed.get("target.kind") or "update"
        )
        client = typed.get("target.client")
        local = LocalTraining(**_sgd_settings(typed))
        if client is None:
            whose = min(capture.client for capture in updates.captures)
        else:
            whose = client
        fit = typed.get("target.training")
        return audit_client_updates(
            model, updates, whose, train, heldout, local, stated, settings, about, fit
        )
    return audit_trained_model(
        model, train, heldout, _training_function(typed, model), stated, settings, about
    )


def _audit_message_file(
    typed: TargetArguments,
    train: LabelledRecords,
    heldout: LabelledRecords,
    stated: StatedLimit,
    settings: ExternalAuditSettings,
    about: Mapping[str, Any],
) -> ExternalAudit:
    """Raises BadConfig, one line, for a file, surface or map that is missing or does not fit."""
    message = read_message(typed.file_path("message"))
    for key in ("target.surface", MAP_KEY):
        if not typed.get(key):
            raise BadConfig(f"{key}=... must be given with target.message")
    surface = str(typed.get("target.surface"))
    map = str(typed.get(MAP_KEY))
    name = str(typed.get("name") or map.rpartition(":")[2])
    about = {**about, "name": name}
    return audit_message_tensors(
        message, train, heldout, map, stated, settings, about, surface=surface
    )


def _training_function(typed: TargetArguments, model: Any) -> TrainingFunction | None:
    """The owner's training function, or plain SGD with the settings that were typed."""
    local = _sgd_settings(typed)
    if typed.get("target.training") != SGD_NAME:
        for name in local:
            raise BadConfig(f"target.{name}: read with target.training=sgd")
        return typed.get("target.training")
    if not isinstance(model, nn.Module):
        raise BadConfig("target.training=sgd: target.model has to be a class of torch modules")
    training = training_function_of(SGD_NAME, LocalTraining(**local))
    if isinstance(training, PlainSGD):
        return NetworkRetraining(model, training)
    return training


def _generator_function(typed: TargetArguments) -> TrainingFunction | None:
    """A recipe of privdd by its name, or the owner's function."""
    name = typed.get("target.generator")
    if name in RECIPE_NAMES:
        return make_recipe(str(name), dict(typed.args))
    if typed.args:
        raise BadConfig(
            f"target.args.*: read of target.model and of the generators {', '.join(RECIPE_NAMES)}"
        )
    return name


def _sgd_settings(typed: TargetArguments) -> dict[str, Any]:
    """Those that were typed."""
    settings = {name: typed.get(TARGET_PREFIX + name) for name in SGD_SETTINGS}
    return {name: value for name, value in settings.items() if value is not None}


def read_target_records(typed: TargetArguments, name: str) -> LabelledRecords:
    return read_records(f"target.{name}", typed.file_path(name, "(.npz with x and y)"))


def audit_settings(typed: TargetArguments, **usual: int) -> ExternalAuditSettings:
    """usual: settings that count where nothing else was typed."""
    engine: dict[str, Any] = {"kind": typed.get("engine") or "serial"}
    if typed.get("engine.workers") is not None:
        engine["workers"] = typed.get("engine.workers")
    typed_values: dict[str, Any] = {name: typed.get(name) for name in ("seed", "confidence")}
    typed_values |= {
        name: typed.get(TARGET_PREFIX + name)
        for name in ("records", "shadows", "transform", "queries")
    }
    set_values = {name: value for name, value in typed_values.items() if value is not None}
    return ExternalAuditSettings(**(usual | set_values), engine=Engine(**engine))
