"""Updates that were captured in somebody's federation: membership, label counts and reconstruction
of one client's records.

``DIR/round_000/client_0.safetensors`` holds tensors under the names of the model's state_dict. What
they are is said by
``target.kind``: "update" (what the client's weights changed by), "model" (its weights) or
    "gradient". The model that it started from is ``DIR/round_000/server.safetensors``; of a single
    round it may be ``target.weights``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attacks.inversion.analytic import AnalyticInversion
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_attack import GradientInversion, UpdateInversion
from attacks.inversion.labels import LabelCounts
from attacks.membership.attack import MembershipAttack
from attacks.membership.lira import Lira
from attacks.membership.rmia import Rmia
from attacks.membership.threshold import LossThreshold
from attacks.types import (
    Adversary,
    Attack,
    Capture,
    Family,
    Knowledge,
    Surface,
    Truth,
    View,
)
from privdd.auditing.attack_tasks import attack_stream, error_budget
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig, check_choice, check_integer, check_number
from privdd.external import membership_game as games
from privdd.external.predictor import build_predictor
from privdd.external.records import LabelledRecords, check_network_records
from privdd.external.run_folder import (
    AuditTimes,
    ExternalAudit,
    HeldArtifact,
    StatedLimit,
    audit_of_arrays,
)
from privdd.external.shadow_models import (
    SGD_NAME,
    PlainSGD,
    TrainingFunction,
    compute_shadow_updates,
    target_and_shadow_signals,
)
from privdd.external.trained_model import ExternalAuditSettings
from privdd.runtime.files import DamagedRun, list_plain_files
from privdd.runtime.run_folder import read_tensors

UPDATE_FILE = re.compile(r"round_(\d{1,6})/client_(\d{1,6})\.safetensors")
# beside the clients' files of a round: the model that they were sent
SERVER_FILE = "server.safetensors"
UPDATE_KINDS = ("update", "model", "gradient")
SIGNAL_OF_ATTACK = {
    "gradient_alignment": "alignment",
    "joint_gradients": "joint",
    "confidence_gain": "confidence",
}
NO_PICTURES = "records are not images (c, h, w) in [0, 1] of at least 5 x 5 pixels"
NO_SHADOWS = "needs how the client trained: target.training, a function or sgd"
NO_STEPS = "needs how the client trained: target.lr and target.steps (and target.batch)"
MAX_BATCH_RECORDS = 32  # records behind one gradient that are sought pixel by pixel
INVERSION_ITERATIONS = 600
INVERSION_BUDGET = 6000
TOTAL_VARIATION_WEIGHT = 1e-3


@dataclass(frozen=True)
class CapturedUpdates:
    """captures: by round, then client; each value is the client's weights, or its gradient."""

    captures: tuple[Capture, ...]
    surface: Surface
    kind: str

    def captures_of_client(self, client: int) -> tuple[Capture, ...]:
        """The captures of one client. Raises BadConfig if there are none."""
        captures = tuple(capture for capture in self.captures if capture.client == client)
        if not captures:
            clients = sorted({capture.client for capture in self.captures})
            listing = ", ".join(map(str, clients))
            raise BadConfig(
                f"target.client={client}: nothing was captured of it; there are {listing}"
            )
        return captures


def read_captured_updates(folder: Path, model: nn.Module, kind: str) -> CapturedUpdates:
    """Every file of the folder. Raises BadConfig, one line, where there are none, or one does not
    fit the model."""
    check_choice("target.kind", kind, UPDATE_KINDS)
    if not folder.is_dir():
        raise BadConfig(f"target.updates={folder}: no such folder")
    try:
        names = sorted(name for name in list_plain_files(folder) if UPDATE_FILE.fullmatch(name))
    except DamagedRun as error:
        raise BadConfig(f"target.updates={error}") from None
    if not names:
        raise BadConfig(f"target.updates={folder}: holds no round_000/client_0.safetensors")
    rounds = sorted({name.split("/")[0] for name in names})
    unknown = [
        round
        for round in rounds
        if len(rounds) > 1 and not (folder / round / SERVER_FILE).is_file()
    ]
    if unknown:
        why = "of several rounds, each started from its own model"
        raise BadConfig(f"target.updates={folder}: {unknown[0]}/{SERVER_FILE} is needed: {why}")
    if kind == "gradient":
        surface = Surface.GRADIENT
    else:
        surface = Surface.UPDATE
    captures = [_read_capture(folder, name, model, kind) for name in names]
    return CapturedUpdates(
        tuple(sorted(captures, key=lambda round: (round.round, round.client))), surface, kind
    )


def _read_capture(folder: Path, name: str, model: nn.Module, kind: str) -> Capture:
    match = UPDATE_FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: no name of a captured update")
    state = dict(model.state_dict())
    server = folder / name.split("/")[0] / SERVER_FILE
    if server.is_file():
        sent = {**state, **_read_update_file(server, state)}
    else:
        sent = state
    value = _read_update_file(folder / name, state)
    missing = sorted({key for key, _ in model.named_parameters()} - value.keys())
    if missing:
        raise BadConfig(f"target.updates={folder / name}: lacks {', '.join(missing[:4])}")
    if kind == "update":
        value = {key: sent[key] + change.to(sent[key].dtype) for key, change in value.items()}
    return Capture(int(match[1]), int(match[2]), kind, value, sent)


def _read_update_file(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, if each has a name and a shape of the model's. Raises BadConfig for another, and
    for NaN."""
    try:
        value = read_tensors(path)
    except DamagedRun as error:
        raise BadConfig(f"target.updates={error}") from None
    for name, tensor in value.items():
        if name not in expected or expected[name].shape != tensor.shape:
            if name in expected:
                comparison = f"the model's is {tuple(expected[name].shape)}"
            else:
                comparison = "the model has none of this name"
            raise BadConfig(f"target.updates={path}: {name} {tuple(tensor.shape)}: {comparison}")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise BadConfig(f"target.updates={path}: NaN or infinity in {name}")
    return dict(value)


@dataclass(frozen=True)
class LocalTraining:
    """How the captured client trained, as far as it is known: plain SGD."""

    lr: float | None = None
    steps: int | None = None
    batch: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_number("target.lr", self.lr, optional=True)
        check_number("target.momentum", self.momentum)
        if self.lr is not None and not self.lr > 0:
            raise BadConfig(f"target.lr={self.lr}: a number above 0 is needed")
        if not 0 <= self.momentum < 1:
            raise BadConfig(f"target.momentum={self.momentum}: a number in [0, 1) is needed")
        for name in ("steps", "batch"):
            if getattr(self, name) is not None:
                # 12.0 is 12
                object.__setattr__(
                    self, name, check_integer(f"target.{name}", getattr(self, name), 1)
                )

    def attack_settings(self) -> dict[str, Any]:
        """The local settings that attacks assume; a single step of rate one by default."""
        return {
            "lr": self.lr or 1.0,
            "local_steps": self.steps or 1,
            "momentum": self.momentum,
            "batch_size": self.batch,
        }


@dataclass(frozen=True)
class UpdateSignals:
    """What the server reads from the client's updates and from shadow updates of other records.

    captures: the client's own; shadows: how many shadow updates there are; draws_randomly: whether
        the training function draws from torch's global generator.
    """

    game: games.CoinGame
    captures: tuple[Capture, ...]
    classes: int
    shadows: int
    signals: Mapping[str, Tensor]
    draws_randomly: bool


def audit_client_updates(
    model: Any,
    updates: CapturedUpdates,
    client: int,
    train: LabelledRecords,
    heldout: LabelledRecords,
    local: LocalTraining,
    stated: StatedLimit,
    settings: ExternalAuditSettings,
    about: Mapping[str, Any],
    fit: TrainingFunction | None = None,
) -> ExternalAudit:
    """The audit of what one client sent; train: its own records; fit: trains shadow updates, "sgd"
    for plain SGD as ``local`` describes it. Raises BadConfig, one line, for what does not fit."""
    began = time.monotonic()
    if not isinstance(model, nn.Module):
        raise BadConfig("target.model: a torch module is needed to read updates")
    signals = _read_update_signals(model, updates, client, train, heldout, local, settings, fit)
    training_end = time.monotonic()
    game = signals.game
    keys = Keys(settings.seed)
    knowledge = _attacker_knowledge(model, game, train, signals.classes, local, stated)
    view = games.view_of_signals(
        updates.surface,
        Adversary.SERVER,
        game,
        signals.signals,
        knowledge,
        keys.fold("target"),
        signals.captures[:1],
    )
    rounds = "rounds" if len(signals.captures) > 1 else "round"
    note = f"what client {client} sent in {len(signals.captures)} {rounds}, as it was captured"
    attacks = _membership_attacks(signals.signals, signals.shadows, settings.confidence)
    missing = {} if signals.shadows else dict.fromkeys(("lira", "rmia"), NO_SHADOWS)
    budget = error_budget(settings.confidence, len(attacks) + len(missing), 0)
    judged = games.judge_attacks(view, attacks, missing, game, keys, budget, note)
    inversion_note = f"round {signals.captures[0].round} alone; {note}"
    judged += _judge_inversions(view, train, heldout, local, keys, inversion_note)
    done = time.monotonic()
    notes = about.get("notes", [])
    facts = games.target_facts("updates", train, heldout, game, judged, None, notes)
    return audit_of_arrays(
        "updates",
        about,
        seed=settings.seed,
        times=AuditTimes(began, training_end, done),
        train=train,
        sizes=[len(train), len(heldout)],
        seen=_held_artifacts(updates),
        judged=judged,
        stated=stated,
        budget=budget,
        target=facts,
        draws_randomly="training function" if signals.draws_randomly else "",
        clients=1 + max(capture.client for capture in updates.captures),
        rounds=1 + max(capture.round for capture in updates.captures),
        client=client,
    )


def _read_update_signals(
    model: nn.Module,
    updates: CapturedUpdates,
    client: int,
    train: LabelledRecords,
    heldout: LabelledRecords,
    local: LocalTraining,
    settings: ExternalAuditSettings,
    fit: TrainingFunction | None,
) -> UpdateSignals:
    """Draw the game, train its shadow updates, and read the signals of all of them. Raises
    BadConfig as ``audit_client_updates``."""
    classes = _count_classes(model, train, heldout)
    captures = updates.captures_of_client(client)
    keys = Keys(settings.seed).fold("target")
    shadows = settings.shadows if fit is not None else 0
    game = games.draw_coin_game(train, heldout, settings.records, shadows, keys)
    is_gradient = updates.kind == "gradient"
    if is_gradient and fit not in (None, SGD_NAME):
        raise BadConfig(
            f"target.training: of a captured gradient only {SGD_NAME} is read; no "
            "function is called"
        )
    shadow_updates: list[tuple[Capture, ...]] = []
    draws_randomly = False
    if shadows:
        training = None if is_gradient else training_function_of(fit, local)
        shadow_updates, draws_randomly = compute_shadow_updates(
            training, model, captures, game, keys, settings.engine
        )
    signals = target_and_shadow_signals(
        model, [captures, *shadow_updates], game.records, classes, is_gradient
    )
    return UpdateSignals(game, captures, classes, shadows, signals, draws_randomly)


def _held_artifacts(updates: CapturedUpdates) -> list[HeldArtifact]:
    return [
        HeldArtifact(updates.surface, updates.kind, capture.value, capture.round, capture.client)
        for capture in updates.captures
    ]


def _membership_attacks(
    signals: Mapping[str, Tensor], shadows: int, confidence: float
) -> dict[str, MembershipAttack]:
    """A threshold on each signal that can be read; with shadow updates, LiRA and RMIA on the
    strongest one."""
    attacks: dict[str, MembershipAttack] = {}
    for name, signal in SIGNAL_OF_ATTACK.items():
        if signal in signals:
            attacks[name] = LossThreshold(signal, confidence)
    if shadows:
        strongest = "joint" if "joint" in signals else "alignment"
        attacks["lira"] = Lira(strongest, confidence)
        attacks["rmia"] = Rmia(strongest, confidence)
    return attacks


def _count_classes(model: nn.Module, train: LabelledRecords, heldout: LabelledRecords) -> int:
    """How many classes the model has. Raises BadConfig where it, or the records, cannot be read by
    gradients."""
    check_network_records(train, heldout)
    predict = build_predictor(model, "target.model")
    classes = predict.count_classes(train.x, torch.cat([train.y, heldout.y]))
    if predict.query_outputs(train.x[:2]).ndim == 1:
        needed = "updates are read by the cross-entropy of its logits (b, classes)"
        raise BadConfig(f"target.model: gives one number for each record; {needed}")
    return classes


def _attacker_knowledge(
    model: nn.Module,
    game: games.CoinGame,
    train: LabelledRecords,
    classes: int,
    local: LocalTraining,
    stated: StatedLimit,
) -> Knowledge:
    settings = {
        **local.attack_settings(),
        "batch_records": len(train),
        "delta": stated.exchange_limit()[1],
    }
    if len(train.record_shape) == 3:
        shape = train.record_shape
    else:
        shape = (1, 1, 1)
    kind = next(model.parameters()).dtype
    if game.reference.x.is_floating_point():
        public = game.reference.x.to(kind)
    else:
        public = game.reference.x
    return Knowledge(
        (shape[0], shape[1], shape[2]), classes, public, game.reference.y, model, settings=settings
    )


def training_function_of(
    fit: TrainingFunction | None, local: LocalTraining
) -> TrainingFunction | PlainSGD | None:
    """Plain SGD as ``local`` describes it where "sgd" is said, else the owner's function."""
    if fit != SGD_NAME:
        return fit
    if local.lr is None or local.steps is None:
        raise BadConfig(
            "target.training=sgd: needs target.lr and target.steps (and target.batch, "
            "target.momentum)"
        )
    return PlainSGD(local.lr, local.steps, local.batch, local.momentum)


def _judge_inversions(
    view: View,
    train: LabelledRecords,
    heldout: LabelledRecords,
    local: LocalTraining,
    keys: Keys,
    note: str,
) -> list[games.JudgedAttack]:
    """Label counts, and records rebuilt, from the first capture; what cannot be tried says why."""
    described = view.surface == Surface.GRADIENT or (
        local.lr is not None and local.steps is not None
    )
    pictures = train.has_pictures and min(train.record_shape[1:]) >= 5
    if pictures and described:
        attacks = _inversion_attacks(view.surface, len(train))
    else:
        attacks = {}
    if view.surface == Surface.UPDATE:
        search = "update_inversion"
    else:
        search = "gradient_inversion"
    many = f"{len(train)} records stand behind one gradient; at most {MAX_BATCH_RECORDS} are sought"
    if not pictures:
        why = NO_PICTURES
    elif not described:
        why = NO_STEPS
    else:
        why = many
    if view.knowledge.model is not None:
        kind = next(view.knowledge.model.parameters()).dtype
    else:
        kind = torch.float32
    counts = torch.bincount(train.y, minlength=view.knowledge.classes)
    truth = Truth(train.x.to(kind), train.y, heldout.x.to(kind), heldout.y, counts)
    judged = [
        _judge_inversion(name, attack, view, truth, keys, note) for name, attack in attacks.items()
    ]
    for name in ("label_counts", "analytic_inversion", search):
        if name == "label_counts":
            family = Family.LABEL
        else:
            family = Family.GRADIENT_INVERSION
        if name not in attacks:
            judged += games.findings_without_attack(view.surface, [name], why, note, family)
    return judged


def _inversion_attacks(surface: Surface, records: int) -> dict[str, Attack]:
    search = InvertingGradients(
        objective="cosine", iterations=INVERSION_ITERATIONS, tv=TOTAL_VARIATION_WEIGHT, lr=0.03
    )
    attacks: dict[str, Attack] = {
        "label_counts": LabelCounts(),
        "analytic_inversion": AnalyticInversion(),
    }
    if surface == Surface.UPDATE:
        attacks["update_inversion"] = UpdateInversion(
            search, INVERSION_BUDGET, min(records, MAX_BATCH_RECORDS)
        )
    elif records <= MAX_BATCH_RECORDS:
        attacks["gradient_inversion"] = GradientInversion(search)
    return attacks


def _judge_inversion(
    name: str, attack: Attack, view: View, truth: Truth, keys: Keys, note: str
) -> games.JudgedAttack:
    why = attack.nothing_to_read(view)
    if why:
        return games.findings_without_attack(view.surface, [name], why, note, attack.family)[0]
    began = time.monotonic()
    evidence = attack.run(view, attack_stream(keys, name, str(view.surface), note))
    finding = attack.judge(evidence, view, truth)
    figures = {key: value for key, value in finding.figures.items() if not key.startswith("roc_")}
    return games.JudgedAttack(
        games.annotate_finding(finding.with_measures(seconds=time.monotonic() - began), name, note),
        figures,
    )
