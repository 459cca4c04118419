"""``python -m privdd.audit target.*``: files in, a run folder and an exit status out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from privdd.auditing.targets.captured_updates import captured
from privdd.auditing.targets.from_python import folder
from privdd.auditing.targets.labelled import Labelled, read
from privdd.auditing.targets.model_target import Settings, model_run
from privdd.auditing.targets.outside_run import OutsideRun, check_free, write_outside
from privdd.auditing.targets.recipes import RECIPES, recipe
from privdd.auditing.targets.shadow_training import Fit
from privdd.auditing.targets.shadow_updates import SGD, PlainSGD
from privdd.auditing.targets.stated_limit import StatedLimit, stated_limit
from privdd.auditing.targets.synthetic_target import synthetic_run
from privdd.auditing.targets.target_command import FILES, PREFIX, TargetCommand, read_command
from privdd.auditing.targets.trained_anew import TrainedAnew
from privdd.auditing.targets.updates_target import LocalTraining, trained_by, updates_run
from privdd.auditing.targets.weights import model_of
from privdd.checking.child import add_folder
from privdd.core.errors import BadConfig
from privdd.reporting.terminal import print_summary
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.seal import sha256

LOCAL = ("lr", "steps", "batch", "momentum")  # how plain SGD trained


def run_target(argv: Sequence[str]) -> int:
    """-> 0 done, whatever leaks; 2 a stated epsilon is contradicted. Raises ValueError with one line."""
    typed = read_command(argv)
    add_folder(Path.cwd())
    path = folder(typed.get("out"))
    check_free(path)
    run = _run(typed)
    result = write_outside(run, path, ["python", "-m", "privdd.audit", *argv])
    print_summary(result, sys.stdout)
    print(f"\nreport: {path / 'report.html'}\nresult: {RunFolder(path).findings}")
    return 2 if result.verdict == "contradiction" else 0


def _run(typed: TargetCommand) -> OutsideRun:
    stated, settings = stated_limit(typed.stated), _settings(typed)
    train, heldout = _records(typed, "train"), _records(typed, "heldout")
    about = {"name": _label(typed), "data": typed.path("train").name, "files": _digests(typed)}
    if typed.get("target.synthetic"):
        made = read("target.synthetic", typed.path("synthetic"), least=2, labels=False)
        return synthetic_run(made, train, heldout, _generator(typed), stated, settings, about)
    weights = typed.path("weights") if typed.get("target.weights") else None
    model, notes = model_of(str(typed.get("target.model")), typed.args, weights)
    about |= {"notes": notes} if notes else {}
    if typed.get("target.updates"):
        return _updates(typed, model, train, heldout, stated, settings, about)
    return model_run(model, train, heldout, _fit(typed, model), stated, settings, about)


def _fit(typed: TargetCommand, model: Any) -> Fit | None:
    """The owner's training function, or plain SGD with the settings that were typed."""
    local = {name: typed.get(PREFIX + name) for name in LOCAL if typed.get(PREFIX + name) is not None}
    if typed.get("target.training") != SGD:
        for name in local:
            raise BadConfig(f"target.{name}: read with target.training=sgd")
        return typed.get("target.training")
    if not isinstance(model, nn.Module):
        raise BadConfig("target.training=sgd: target.model has to be a class of torch modules")
    training = trained_by(SGD, LocalTraining(**local))
    return TrainedAnew(model, training) if isinstance(training, PlainSGD) else training


def _generator(typed: TargetCommand) -> Fit | None:
    """A recipe of privdd by its name, or the owner's function."""
    name = typed.get("target.generator")
    if name in RECIPES:
        return recipe(str(name), dict(typed.args))
    if typed.args:
        raise BadConfig(f"target.args.*: read of target.model and of the generators {', '.join(RECIPES)}")
    return name


def _updates(
    typed: TargetCommand,
    model: Any,
    train: Labelled,
    heldout: Labelled,
    stated: StatedLimit,
    settings: Settings,
    about: dict[str, Any],
) -> OutsideRun:
    if not isinstance(model, nn.Module):
        raise BadConfig("target.model: a torch module is needed to read updates")
    updates = captured(typed.path("updates"), model, typed.get("target.kind") or "update")
    client = typed.get("target.client")
    local = {name: typed.get(PREFIX + name) for name in LOCAL}
    known = LocalTraining(**{name: value for name, value in local.items() if value is not None})
    whose = min(one.client for one in updates.captures) if client is None else client
    return updates_run(model, updates, whose, train, heldout, known, stated, settings, about,
                       typed.get("target.training"))  # fmt: skip


def _records(typed: TargetCommand, name: str) -> Labelled:
    return read(f"target.{name}", typed.path(name, "(.npz with x and y)"))


def _settings(typed: TargetCommand) -> Settings:
    engine: dict[str, Any] = {"kind": typed.get("engine") or "serial"}
    if typed.get("engine.workers") is not None:
        engine["workers"] = typed.get("engine.workers")
    given = {"seed": typed.get("seed"), "confidence": typed.get("confidence")}
    given |= {name: typed.get(PREFIX + name) for name in ("records", "shadows")}
    return Settings(**{name: value for name, value in given.items() if value is not None}, engine=Engine(**engine))


def _label(typed: TargetCommand) -> str:
    given = typed.get("name") or typed.get("target.model") or "synthetic set"
    return str(given).rpartition(":")[2]


def _digests(typed: TargetCommand) -> dict[str, str]:
    """sha256 of every file that was read."""
    paths = {name: typed.path(name) for name in FILES if typed.get(PREFIX + name)}
    return {name: sha256(path) for name, path in paths.items() if path.is_file()}
