"""A trained model from outside: membership of its training records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attacks.membership.attack import MembershipAttack
from attacks.membership.base import Base
from attacks.membership.lira import Lira
from attacks.membership.quantile import QuantileRegression
from attacks.membership.records_alone import records_alone
from attacks.membership.rmia import Rmia
from attacks.membership.signals import logit_scaled
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Knowledge, Surface, View, Worlds
from privdd.auditing.error_budget import ErrorBudget, error_budget
from privdd.auditing.targets.coin_game import CoinGame, coin_game
from privdd.auditing.targets.judged import Judged, judged_all, not_attacked
from privdd.auditing.targets.label_queries import LabelQueries
from privdd.auditing.targets.labelled import Labelled, check_alike, complete
from privdd.auditing.targets.outside_run import Held, OutsideRun
from privdd.auditing.targets.predictor import READ_AS, Predictor, predictor, settled
from privdd.auditing.targets.shadow_training import Fit, shadow_outputs
from privdd.auditing.targets.stated_limit import StatedLimit
from privdd.auditing.targets.target_facts import MANY_ASKED, target_facts
from privdd.core.checks import check_share, whole
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys
from privdd.runtime.engine import Engine

NOTE = "the model as it was brought"
NEED_SHADOWS = {"lira": Lira, "rmia": Rmia, "base": Base}
NO_TRAINING = "needs a training function (target.training, in Python fit=)"
NO_COPIES = "disturbed copies need records of real numbers without gaps"
GUESSED = ("shares", "separate", "percent")  # readings that a reader has to know of
MANY = 2000  # records from which fewer disturbed copies of each are asked about
MOST = 10**6  # records, and shadow models
GLOBAL_DRAWS = "the training function draws from torch's global generator: another run gives other shadow models"


@dataclass(frozen=True)
class Settings:
    """records: audited at most; shadows: models that are trained where a training function is given, 0 = none."""

    seed: int = 0
    records: int = 10_000
    shadows: int = 64
    confidence: float = 0.95
    engine: Engine = Engine()

    def __post_init__(self) -> None:
        for name, least in (("records", 8), ("shadows", 0)):
            object.__setattr__(self, name, whole(f"target.{name}", getattr(self, name), least, most=MOST))  # 12.0 is 12
        if self.shadows == 1:
            raise BadConfig("target.shadows=1: at least 2 shadow models are needed, or 0 for none")
        check_share("confidence", self.confidence)


def model_run(
    model: Any,
    train: Labelled,
    heldout: Labelled,
    fit: Fit | None,
    stated: StatedLimit,
    settings: Settings,
    about: Mapping[str, Any],
) -> OutsideRun:
    """The audit of a model. Raises BadConfig, one line, for a model that cannot read the records, and the like."""
    began = time.monotonic()
    check_alike("target.train", train, "target.heldout", heldout)
    some = np.unique(np.linspace(0, len(train) - 1, min(len(train), MANY_ASKED)).astype(np.int64))
    predict, train, heldout, classes, told = settled(predictor(model, "target.model", train.form), train, heldout, some)
    names = np.arange(classes) if predict.names is None else predict.names
    keys = Keys(settings.seed).fold("target")
    shadows = settings.shadows if fit is not None else 0
    game = coin_game(train, heldout, settings.records, shadows, keys)
    logits, drew = _outputs(predict, fit, game, names, keys, settings.engine)
    trained = time.monotonic()
    attacks = _attacks(predict, game, classes, shadows, settings.confidence)
    missing = {} if shadows else dict.fromkeys(NEED_SHADOWS, NO_TRAINING)
    missing |= {} if "label_only" in attacks else {"label_only": NO_COPIES}
    budget = error_budget(settings.confidence, len(attacks) + len(missing), 0)
    judged = _judged(_view(game, logits, classes, stated, keys), attacks, missing, game, settings.seed, budget)
    at = torch.from_numpy(some)
    right = (_accuracy(predict, train.at(at), classes), _accuracy(predict, heldout, classes))
    read = READ_AS[predict.reading]
    told += [f"The model's outputs were read as {read}."] if predict.reading in GUESSED else []
    facts = target_facts("model", train, heldout, game, judged, right, [*about.get("notes", []), *told], outputs=read)
    value = model.state_dict() if isinstance(model, nn.Module) else {"outputs": logits[0]}
    done = time.monotonic()
    notes = {"note": GLOBAL_DRAWS} if drew else {}
    return OutsideRun(
        str(about.get("name", "model")), str(about.get("data", "arrays")), settings.seed,
        [Held(Surface.GLOBAL_MODEL, "model", value)], judged, stated, budget,
        {"worlds": trained - began, "attacks": done - trained, "total": done - began}, facts, right[1],
        {**about, **notes, "records": [len(train), len(heldout)], "shape": list(train.shape), "classes": classes},
    )  # fmt: skip


def _outputs(
    predict: Predictor, fit: Fit | None, game: CoinGame, names: NDArray[Any], keys: Keys, engine: Engine
) -> tuple[Tensor, bool]:
    """(K, n + m, C) outputs for audited and reference records, the target's first; see ``shadow_outputs``."""
    own = predict(torch.cat([game.records.x, game.reference.x.to(game.records.x.dtype)]), len(names))[None]
    if fit is None or len(game.masks) == 1:
        return own, False
    others, drew = shadow_outputs(fit, "target.training", game, names, keys, engine)
    if others.shape[1:] != own.shape[1:]:
        raise BadConfig(f"target.training: gives models of {others.shape[2]} classes, target.model has {own.shape[2]}")
    return torch.cat([own, others]), drew


def _view(game: CoinGame, logits: Tensor, classes: int, stated: StatedLimit, keys: Keys) -> View:
    records, count = game.records, len(game.records)
    own, public = logits[:, :count], logits[:, count:]
    x, reference = (records.x, game.reference.x)
    if records.gaps or game.reference.gaps:
        x, reference = complete(x, reference)
    blind = records_alone(x, records.y, game.member, keys.fold("blind").torch())
    signals = {"confidence": logit_scaled(own, records.y)}
    worlds = Worlds(signals, game.masks, blind, records.y, own, public, records=x.double())
    known = Knowledge(
        (1, 1, 1), classes, reference.double(), game.reference.y, settings={"delta": stated.exchanged()[1]}
    )
    return View(Surface.GLOBAL_MODEL, Adversary.PUBLIC, (), known, worlds)


def _attacks(
    predict: Predictor, game: CoinGame, classes: int, shadows: int, confidence: float
) -> dict[str, MembershipAttack]:
    given: dict[str, Any] = {"confidence": confidence}
    found: dict[str, MembershipAttack] = {"loss_threshold": LossThreshold(**given)}
    found["quantile_regression"] = QuantileRegression(**given)
    records = game.records
    if records.x.is_floating_point() and not records.form.coded and not records.gaps:
        found["label_only"] = LabelQueries(
            **given,
            labels_of=lambda x: predict(x.to(records.x.dtype), classes).argmax(1),
            pictures=records.pictures,
            copies=8 if len(records) <= MANY else 2,
        )
    if shadows:
        found |= {name: attack(**given) for name, attack in NEED_SHADOWS.items()}
    return found


def _judged(
    view: View,
    attacks: Mapping[str, MembershipAttack],
    missing: Mapping[str, str],
    game: CoinGame,
    seed: int,
    budget: ErrorBudget,
) -> list[Judged]:
    found = judged_all(view, attacks, game, Keys(seed), budget, NOTE)
    return found + [row for name, why in missing.items() for row in not_attacked(view.surface, [name], why, NOTE)]


def _accuracy(predict: Predictor, records: Labelled, classes: int) -> float:
    return float((predict(records.x, classes).argmax(1) == records.y).double().mean())
