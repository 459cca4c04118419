"""A trained model from outside: membership of its training records, from its outputs or from its
predicted labels alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attacks.membership.attack import PUBLISHED_QUERY_COUNT, MembershipAttack, require_worlds
from attacks.membership.base_attack import Base
from attacks.membership.label_only import NOISE_LEVELS, label_robustness
from attacks.membership.lira import Lira
from attacks.membership.quantile import QuantileRegression
from attacks.membership.rmia import Rmia
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Evidence, Surface, View
from privdd.auditing.attack_tasks import error_budget
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig, check_integer, check_share
from privdd.external import membership_game as games
from privdd.external.predictor import OUTPUT_KINDS, Predictor, build_predictor, resolve_classes
from privdd.external.records import LabelledRecords, check_same_shape
from privdd.external.run_folder import (
    AuditTimes,
    ExternalAudit,
    HeldArtifact,
    StatedLimit,
    audit_of_arrays,
)
from privdd.external.shadow_models import TrainingFunction, shadow_outputs, transformed_copies
from privdd.external.stored_rows import describe_stored_rows
from privdd.runtime.engine import Engine

MODEL_NOTE = "the external model"
SHADOW_ATTACKS = {"lira": Lira, "rmia": Rmia, "base": Base}
NO_TRAINING = "needs a training function (target.training, in Python fit=)"
NO_COPIES = "disturbed copies need records of real numbers without gaps"
GUESSED_KINDS = ("shares", "separate", "percent")  # readings that a reader has to know of
MANY_RECORDS = 2000  # records from which fewer disturbed copies of each are asked about
MAX_COUNT = 10**6  # records, and shadow models


@dataclass(frozen=True)
class LabelQueries(MembershipAttack):
    """The share of a record's disturbed copies that keep its label. labels_of: records (b, ...) ->
    labels (b,). Pictures are shifted and noised as in ``attacks.membership.label_only``, others
    noised, in units of each coordinate's spread."""

    labels_of: Callable[[Tensor], Tensor] = lambda x: x
    pictures: bool = False
    copies: int = 8
    name: ClassVar[str] = "label_only"
    least_worlds: ClassVar[int] = 1

    def nothing_to_read(self, view: View) -> str:
        if require_worlds(view).records is None:
            return "the audited records are not known"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (1, n): of the target."""
        worlds = require_worlds(view)
        if worlds.records is None:
            raise ValueError(f"{self.name}: the view holds no records")
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        noise_stream = torch.Generator().manual_seed(seed)
        ask = label_robustness if self.pictures else noised_robustness
        scores = ask(self.labels_of, worlds.records, worlds.labels, self.copies, noise_stream)
        return Evidence(scores=scores[None], notes={"signal": "labels", "seed": seed})


def noised_robustness(
    labels_of: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    copies: int,
    generator: torch.Generator,
) -> Tensor:
    """(n,) in [0, 1]: the share of copies of each record (n, ...) with noise at LEVELS spreads that
    get its label (n,)."""
    values = x.double()
    spread = values.std(0)
    right = [(labels_of(x) == y).double()]
    for level in NOISE_LEVELS:
        for _ in range(copies):
            noise = torch.randn(x.shape[1:], generator=generator, dtype=torch.float64)
            right.append((labels_of((values + level * spread * noise).to(x.dtype)) == y).double())
    return torch.stack(right).mean(0)


@dataclass(frozen=True)
class ExternalAuditSettings:
    """records: audited at most; shadows: models that are trained where a training function is
    given, 0 = none; transform: (x, seed) -> x, as training transforms a batch, or its name;
    queries: copies of a record that are then asked about."""

    seed: int = 0
    records: int = 10_000
    shadows: int = 64
    confidence: float = 0.95
    engine: Engine = Engine()
    transform: TrainingFunction | None = None
    queries: int = PUBLISHED_QUERY_COUNT

    def __post_init__(self) -> None:
        for name, least in (("records", 8), ("shadows", 0), ("queries", 1)):
            value = check_integer(f"target.{name}", getattr(self, name), least, most=MAX_COUNT)
            object.__setattr__(self, name, value)  # 12.0 is 12
        if self.shadows == 1:
            raise BadConfig("target.shadows=1: at least 2 shadow models are needed, or 0 for none")
        check_share("confidence", self.confidence)


def audit_trained_model(
    model: Any,
    train: LabelledRecords,
    heldout: LabelledRecords,
    fit: TrainingFunction | None,
    stated: StatedLimit,
    settings: ExternalAuditSettings,
    about: Mapping[str, Any],
) -> ExternalAudit:
    """The audit of a model. Raises BadConfig, one line, for a model that cannot read the records,
    and the like."""
    began = time.monotonic()
    check_same_shape("target.train", train, "target.heldout", heldout)
    probed_rows = _evenly_spaced_rows(len(train))
    predict = build_predictor(model, "target.model", train.form)
    predict, train, heldout, classes, class_notes = resolve_classes(
        predict, train, heldout, probed_rows
    )
    names = np.arange(classes) if predict.names is None else predict.names
    keys = Keys(settings.seed).fold("target")
    shadows = settings.shadows if fit is not None else 0
    game = games.draw_coin_game(train, heldout, settings.records, shadows, keys)
    transform = settings.transform if shadows else None
    copies = transformed_copies(transform, game.records, settings.queries, keys)
    logits, draws_randomly = _model_outputs(
        predict, fit, game, _join_queries(game, copies), names, keys, settings.engine
    )
    training_end = time.monotonic()
    attacks = _model_attacks(predict, game, classes, shadows, settings.confidence)
    missing = _missing_attacks(attacks, shadows)
    budget = error_budget(settings.confidence, len(attacks) + len(missing), 0)
    delta = stated.exchange_limit()[1]
    view = games.view_of_outputs(
        Surface.GLOBAL_MODEL, Adversary.PUBLIC, game, logits, classes, delta, keys
    )
    attack_keys = Keys(settings.seed)
    judged = games.judge_attacks(view, attacks, missing, game, attack_keys, budget, MODEL_NOTE)
    probed_train = train.select_rows(torch.from_numpy(probed_rows))
    accuracies = (
        _accuracy_of(predict, probed_train, classes),
        _accuracy_of(predict, heldout, classes),
    )
    remarks = [*about.get("notes", []), *class_notes, *_query_remarks(predict, len(copies))]
    remarks += describe_stored_rows(model, train)
    outputs = OUTPUT_KINDS[predict.reading]
    facts = games.target_facts(
        "model", train, heldout, game, judged, accuracies, remarks, outputs=outputs
    )
    done = time.monotonic()
    return audit_of_arrays(
        "model",
        about,
        seed=settings.seed,
        times=AuditTimes(began, training_end, done),
        train=train,
        sizes=[len(train), len(heldout)],
        seen=[_model_artifact(model, logits[0])],
        judged=judged,
        stated=stated,
        budget=budget,
        target=facts,
        draws_randomly="training function" if draws_randomly else "",
        accuracy=accuracies[1],
        classes=classes,
    )


def _join_queries(game: games.CoinGame, copies: Sequence[Tensor]) -> Tensor:
    """All that the models are asked about: audited records, reference records, and the copies."""
    return torch.cat([game.records.x, game.reference.x.to(game.records.x.dtype), *copies])


def _evenly_spaced_rows(count: int) -> np.ndarray:
    """The rows (m,) of ``count`` records on which accuracy is measured."""
    rows = np.linspace(0, count - 1, min(count, games.MAX_ACCURACY_RECORDS))
    return np.unique(rows.astype(np.int64))


def _missing_attacks(attacks: Collection[str], shadows: int) -> dict[str, str]:
    """Attacks that could not be tried, each with the reason."""
    missing: dict[str, str] = {}
    if not shadows:
        missing = dict.fromkeys(SHADOW_ATTACKS, NO_TRAINING)
    if "label_only" not in attacks:
        missing["label_only"] = NO_COPIES
    return missing


def _model_artifact(model: Any, outputs: Tensor) -> HeldArtifact:
    """The parameters of a network; of another model, its outputs."""
    if isinstance(model, nn.Module):
        return HeldArtifact(Surface.GLOBAL_MODEL, "model", model.state_dict())
    return HeldArtifact(Surface.GLOBAL_MODEL, "model", {"outputs": outputs})


def _query_remarks(predict: Predictor, copies: int) -> list[str]:
    """How the outputs were read if that was guessed, and how often a record was asked about."""
    remarks = []
    if predict.reading in GUESSED_KINDS:
        remarks.append(f"The model's outputs were read as {OUTPUT_KINDS[predict.reading]}.")
    if copies:
        remarks.append(
            f"Each record was asked about as it is and in {copies} copies under the training's "
            "transform."
        )
    return remarks


def _model_outputs(
    predict: Predictor,
    fit: TrainingFunction | None,
    game: games.CoinGame,
    queries: Tensor,
    names: NDArray[Any],
    keys: Keys,
    engine: Engine,
) -> tuple[Tensor, bool]:
    """(K, a, C) outputs for ``queries`` (a, ...), the target's first; see ``shadow_outputs``."""
    target_outputs = predict(queries, len(names))[None]
    if fit is None or len(game.masks) == 1:
        return target_outputs, False
    shadow_model_outputs, draws_randomly = shadow_outputs(
        fit, "target.training", game, queries, names, keys, engine
    )
    if shadow_model_outputs.shape[1:] != target_outputs.shape[1:]:
        raise BadConfig(
            f"target.training: gives models of {shadow_model_outputs.shape[2]} classes, "
            "target.model "
            f"has {target_outputs.shape[2]}"
        )
    return torch.cat([target_outputs, shadow_model_outputs]), draws_randomly


def _model_attacks(
    predict: Predictor, game: games.CoinGame, classes: int, shadows: int, confidence: float
) -> dict[str, MembershipAttack]:
    settings: dict[str, Any] = {"confidence": confidence}
    attacks: dict[str, MembershipAttack] = {"loss_threshold": LossThreshold(**settings)}
    attacks["quantile_regression"] = QuantileRegression(**settings)
    records = game.records
    if records.x.is_floating_point() and not records.form.has_codes and not records.has_gaps:
        attacks["label_only"] = LabelQueries(
            **settings,
            labels_of=lambda x: predict(x.to(records.x.dtype), classes).argmax(1),
            pictures=records.has_pictures,
            copies=8 if len(records) <= MANY_RECORDS else 2,
        )
    if shadows:
        attacks |= {name: attack(**settings) for name, attack in SHADOW_ATTACKS.items()}
    return attacks


def _accuracy_of(predict: Predictor, records: LabelledRecords, classes: int) -> float:
    return float((predict(records.x, classes).argmax(1) == records.y).double().mean())
