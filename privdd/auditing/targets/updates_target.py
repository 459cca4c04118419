"""Updates that were captured in somebody's federation: membership, label counts and reconstruction of one client's records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.inversion.analytic import AnalyticInversion
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_attack import GradientInversion
from attacks.inversion.labels import LabelCounts
from attacks.inversion.update_attack import UpdateInversion
from attacks.membership.attack import MembershipAttack
from attacks.membership.lira import Lira
from attacks.membership.records_alone import records_alone
from attacks.membership.rmia import Rmia
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Attack, Family, Knowledge, Surface, Truth, View, Worlds
from privdd.auditing.attack_tasks import attack_stream
from privdd.auditing.error_budget import error_budget
from privdd.auditing.targets.captured_updates import Captured
from privdd.auditing.targets.coin_game import CoinGame, coin_game
from privdd.auditing.targets.judged import Judged, judged_all, not_attacked, said_of
from privdd.auditing.targets.labelled import Labelled, check_alike, check_numbered
from privdd.auditing.targets.model_target import GLOBAL_DRAWS, Settings
from privdd.auditing.targets.outside_run import Held, OutsideRun
from privdd.auditing.targets.predictor import predictor
from privdd.auditing.targets.shadow_training import Fit
from privdd.auditing.targets.shadow_updates import SGD, PlainSGD, shadow_updates
from privdd.auditing.targets.stated_limit import StatedLimit
from privdd.auditing.targets.target_facts import target_facts
from privdd.auditing.targets.update_signals import signals_of_worlds
from privdd.core.checks import check_number, whole
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys

READS = {"gradient_alignment": "alignment", "joint_gradients": "joint", "confidence_gain": "confidence"}
NO_PICTURES = "records are no pictures (c, h, w) in [0, 1] of at least 5 x 5 pixels"
NO_SHADOWS = "needs how the client trained: target.training, a function or sgd"
NO_STEPS = "needs how the client trained: target.lr and target.steps (and target.batch)"
MOST_IN_A_BATCH = 32  # records behind one gradient that are sought pixel by pixel
ITERATIONS, BUDGET, TV = 600, 6000, 1e-3


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
                object.__setattr__(self, name, whole(f"target.{name}", getattr(self, name), 1))  # 12.0 is 12

    def settings(self) -> dict[str, Any]:
        """As attacks know them; a single step of rate one where nothing is said."""
        return {
            "lr": self.lr or 1.0, "local_steps": self.steps or 1, "momentum": self.momentum, "batch_size": self.batch,
        }  # fmt: skip


def updates_run(
    model: Any,
    updates: Captured,
    client: int,
    train: Labelled,
    heldout: Labelled,
    local: LocalTraining,
    stated: StatedLimit,
    settings: Settings,
    about: Mapping[str, Any],
    fit: Fit | None = None,
) -> OutsideRun:
    """The audit of what one client sent; train: its own records. Raises BadConfig, one line, for what does not fit.

    fit: with it shadow updates are trained (``shadow_updates``); "sgd" stands for plain SGD as ``local`` describes it.
    """
    began = time.monotonic()
    if not isinstance(model, nn.Module):
        raise BadConfig("target.model: a torch module is needed to read updates")
    classes = _classes(model, train, heldout)
    mine, keys = updates.of(client), Keys(settings.seed).fold("target")
    shadows = settings.shadows if fit is not None else 0
    game = coin_game(train, heldout, settings.records, shadows, keys)
    note = f"what client {client} sent in {len(mine)} round{'s' if len(mine) > 1 else ''}, as it was captured"
    sent = updates.kind == "gradient"
    if sent and fit not in (None, SGD):
        raise BadConfig(f"target.training: of a captured gradient only {SGD} is read; no function is called")
    others, drew = (
        shadow_updates(None if sent else trained_by(fit, local), model, mine, game, keys, settings.engine)
        if shadows
        else ([], False)
    )
    signals = signals_of_worlds(model, [mine, *others], game.records, classes, sent)
    made = time.monotonic()
    known = _known(model, game, train, classes, local, stated)
    view = View(updates.surface, Adversary.SERVER, mine[:1], known, _worlds(signals, game, keys))
    attacks: dict[str, MembershipAttack] = {
        name: LossThreshold(signal, settings.confidence) for name, signal in READS.items() if signal in signals
    }
    best = "joint" if "joint" in signals else "alignment"
    attacks |= {"lira": Lira(best, settings.confidence), "rmia": Rmia(best, settings.confidence)} if shadows else {}
    missing = [] if shadows else ["lira", "rmia"]
    budget = error_budget(settings.confidence, len(attacks) + len(missing), 0)
    judged = judged_all(view, attacks, game, Keys(settings.seed), budget, note)
    judged += not_attacked(view.surface, missing, NO_SHADOWS, note)
    judged += _rebuilt(view, train, heldout, local, Keys(settings.seed), f"round {mine[0].round} alone; {note}")
    done, notes = time.monotonic(), {"note": GLOBAL_DRAWS} if drew else {}
    facts = target_facts("updates", train, heldout, game, judged, None, about.get("notes", []))
    clients, rounds = (1 + max(getattr(one, of) for one in updates.captures) for of in ("client", "round"))
    return OutsideRun(
        str(about.get("name", "updates")), str(about.get("data", "arrays")), settings.seed,
        [Held(updates.surface, updates.kind, one.value, one.round, one.client) for one in updates.captures],
        judged, stated, budget, {"worlds": made - began, "attacks": done - made, "total": done - began}, facts, None,
        {**about, **notes, "client": client, "records": [len(train), len(heldout)], "shape": list(train.shape)}, clients, rounds,
    )  # fmt: skip


def _classes(model: nn.Module, train: Labelled, heldout: Labelled) -> int:
    """How many classes the model has. Raises BadConfig where it, or the records, cannot be read by gradients."""
    check_alike("target.train", train, "target.heldout", heldout)
    for key, one in (("target.train", train), ("target.heldout", heldout)):
        check_numbered(key, one)
    predict = predictor(model, "target.model")
    classes = predict.classes(train.x, torch.cat([train.y, heldout.y]))
    if predict.answers(train.x[:2]).ndim == 1:
        raise BadConfig(
            "target.model: gives one number for each record; updates are read by the cross-entropy of its logits (b, classes)"
        )
    return classes


def _known(
    model: nn.Module, game: CoinGame, train: Labelled, classes: int, local: LocalTraining, stated: StatedLimit
) -> Knowledge:
    told = {**local.settings(), "batch_records": len(train), "delta": stated.exchanged()[1]}
    shape = train.shape if len(train.shape) == 3 else (1, 1, 1)
    kind = next(model.parameters()).dtype
    public = game.reference.x.to(kind) if game.reference.x.is_floating_point() else game.reference.x
    return Knowledge((shape[0], shape[1], shape[2]), classes, public, game.reference.y, model, settings=told)


def _worlds(signals: Mapping[str, Tensor], game: CoinGame, keys: Keys) -> Worlds:
    blind = records_alone(game.records.x, game.records.y, game.member, keys.fold("blind").torch())
    return Worlds(signals, game.masks, blind, game.records.y)


def trained_by(fit: Fit | None, local: LocalTraining) -> Fit | PlainSGD | None:
    """Plain SGD as ``local`` describes it where "sgd" is said, else the owner's function."""
    if fit != SGD:
        return fit
    if local.lr is None or local.steps is None:
        raise BadConfig("target.training=sgd: needs target.lr and target.steps (and target.batch, target.momentum)")
    return PlainSGD(local.lr, local.steps, local.batch, local.momentum)


def _rebuilt(
    view: View, train: Labelled, heldout: Labelled, local: LocalTraining, keys: Keys, note: str
) -> list[Judged]:
    """Label counts, and records rebuilt, from the first capture; what cannot be tried says why."""
    described = view.surface == Surface.GRADIENT or (local.lr is not None and local.steps is not None)
    pictures = train.pictures and min(train.shape[1:]) >= 5
    attacks = _inversions(view.surface, len(train)) if pictures and described else {}
    search = "update_inversion" if view.surface == Surface.UPDATE else "gradient_inversion"
    why = NO_PICTURES if not pictures else NO_STEPS if not described else _too_many(len(train))
    kind = next(view.knowledge.model.parameters()).dtype if view.knowledge.model is not None else torch.float32
    counts = torch.bincount(train.y, minlength=view.knowledge.classes)
    truth = Truth(train.x.to(kind), train.y, heldout.x.to(kind), heldout.y, counts)
    found = [_one(name, attack, view, truth, keys, note) for name, attack in attacks.items()]
    for name, family in (
        ("label_counts", Family.LABEL),
        *((n, Family.GRADIENT_INVERSION) for n in ("analytic_inversion", search)),
    ):
        found += not_attacked(view.surface, [name] if name not in attacks else [], why, note, family)
    return found


def _inversions(surface: Surface, records: int) -> dict[str, Attack]:
    search = InvertingGradients(objective="cosine", iterations=ITERATIONS, tv=TV, lr=0.03)
    found: dict[str, Attack] = {"label_counts": LabelCounts(), "analytic_inversion": AnalyticInversion()}
    if surface == Surface.UPDATE:
        found["update_inversion"] = UpdateInversion(search, BUDGET, min(records, MOST_IN_A_BATCH))
    elif records <= MOST_IN_A_BATCH:
        found["gradient_inversion"] = GradientInversion(search)
    return found


def _too_many(records: int) -> str:
    return f"{records} records stand behind one gradient; at most {MOST_IN_A_BATCH} are sought"


def _one(name: str, attack: Attack, view: View, truth: Truth, keys: Keys, note: str) -> Judged:
    why = attack.nothing_to_read(view)
    if why:
        return not_attacked(view.surface, [name], why, note, attack.family)[0]
    began = time.monotonic()
    evidence = attack.run(view, attack_stream(keys, name, str(view.surface), note))
    finding = attack.judge(evidence, view, truth)
    kept = {key: value for key, value in finding.figures.items() if not key.startswith("roc_")}
    return Judged(said_of(finding.with_measures(seconds=time.monotonic() - began), name, note), kept)
