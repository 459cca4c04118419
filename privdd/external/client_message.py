"""A message of any surface that a client of somebody's federation sent: logits, prototypes,
statistics, a body without its head.

What the attacker knows is a function from records to what the same client would have sent. It makes
messages of other records, from which the attacker learns how a record shows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.inversion.labels import CLASS_SURFACES, LabelCounts
from attacks.membership.attack import MembershipAttack, unreadable_finding
from attacks.membership.lira import Lira
from attacks.membership.rmia import Rmia
from attacks.membership.signals import predicted_inclusion
from attacks.membership.threshold import LossThreshold
from attacks.types import (
    SENT_BY_SERVER,
    Adversary,
    Capture,
    Knowledge,
    Surface,
    Truth,
    View,
)
from privdd.auditing.attack_tasks import attack_stream, error_budget
from privdd.core.rng import Keys
from privdd.core.types import State
from privdd.core.validation import BadConfig, check_choice
from privdd.external import membership_game as games
from privdd.external.records import LabelledRecords
from privdd.external.run_folder import (
    AuditTimes,
    ExternalAudit,
    HeldArtifact,
    StatedLimit,
    audit_of_arrays,
)
from privdd.external.shadow_models import (
    TrainingFunction,
    call_user_function,
    draw_shadow_seeds,
    run_tasks,
)
from privdd.external.trained_model import ExternalAuditSettings
from privdd.recording.client_messages import ClientMessages
from privdd.runtime.engine import Engine
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import read_tensors

MESSAGE_KEY = "target.message"
MAP_KEY = "target.map"
LEAST_SHADOWS = 8  # messages from which a record's part in one is learned
MESSAGE_NOTE = "the message as it was captured; its map made {} messages of other records"
SIGNAL = "inclusion"  # bits of membership, predicted from the message
FAR = 2.0  # times as far as the farthest message of the map: the map made no such message
SMALLEST_SPREAD = 1e-9  # of a number's size: it is the same in all messages of the map
MAP_DOUBT = (
    "the message is unlike the {count} that the map made of other records ({times} as far from "
    "their mean as the farthest of them): if this client computes something else than the map, "
    "nothing can be read from its message, and that nothing was found says nothing"
)


def read_message(path: Path) -> State:
    """The tensors of a safetensors file, by name.

    Raises:
        BadConfig: it is no such file, holds no number, or holds NaN or infinity.
    """
    try:
        message = read_tensors(path)
    except DamagedRun as error:
        raise BadConfig(f"{MESSAGE_KEY}={error}") from None
    return check_message(message, f"{MESSAGE_KEY}={path}")


def check_message(message: Any, where: str) -> State:
    """The tensors of a message, by name.

    Raises:
        BadConfig: it is no mapping of names to finite tensors; ``where`` begins the line.
    """
    if isinstance(message, ClientMessages):
        message = message.tensors
    if not isinstance(message, Mapping) or not message:
        kind = type(message).__name__
        raise BadConfig(f"{where}: gives {kind}; must give tensors by name")
    tensors = {str(name): torch.as_tensor(value).detach() for name, value in message.items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor.double()).all():
            raise BadConfig(f"{where}: NaN or infinity in {name}")
    if not sum(tensor.numel() for tensor in tensors.values()):
        raise BadConfig(f"{where}: holds no number")
    return tensors


@dataclass(frozen=True)
class ShadowMessageTask:
    """One message of other records; like: the audited one, whose names and shapes it has."""

    map: TrainingFunction
    records: LabelledRecords
    seed: int
    like: State


def make_shadow_message(task: ShadowMessageTask) -> tuple[State, bool]:
    """What the client would have sent of these records; whether torch's global generator was drawn
    from."""
    returned, draws_randomly = call_user_function(task.map, MAP_KEY, task.records, task.seed)
    message = check_message(returned, MAP_KEY)
    for name, tensor in task.like.items():
        if name not in message:
            raise BadConfig(f"{MAP_KEY}: gives no {name}, which {MESSAGE_KEY} holds")
        if message[name].shape != tensor.shape:
            raise BadConfig(
                f"{MAP_KEY}: {name} is {tuple(message[name].shape)}, in {MESSAGE_KEY} it is "
                f"{tuple(tensor.shape)}"
            )
    return {name: message[name] for name in task.like}, draws_randomly


def audit_message_tensors(
    message: State,
    train: LabelledRecords,
    heldout: LabelledRecords,
    map: TrainingFunction,
    stated: StatedLimit,
    settings: ExternalAuditSettings,
    about: Mapping[str, Any],
    *,
    surface: str,
) -> ExternalAudit:
    """The audit of what one client sent.

    Args:
        message: its tensors by name; those of several rounds as ``ClientMessages`` names them.
        train, heldout: the client's records, and others of the same kind.
        map: (x, y, seed) -> the tensors that the client would have sent of these records.
        stated, settings, about: as of other external targets.
        surface: the name of a ``Surface``.

    Raises:
        BadConfig: one line, for what does not fit.
    """
    began = time.monotonic()
    _check_message_settings(surface, settings.shadows)
    kind = Surface(surface)
    keys = Keys(settings.seed).fold("target")
    game = games.draw_coin_game(train, heldout, settings.records, settings.shadows, keys)
    shadows, draws_randomly = _make_shadow_messages(map, message, game, keys, settings.engine)
    training_end = time.monotonic()
    view = _message_view(kind, message, shadows, game, train, stated, keys)
    attacks: dict[str, MembershipAttack] = {
        "tracing": LossThreshold(SIGNAL, settings.confidence),
        "lira": Lira(SIGNAL, settings.confidence),
        "rmia": Rmia(SIGNAL, settings.confidence),
    }
    budget = error_budget(settings.confidence, len(attacks), 0)
    note = MESSAGE_NOTE.format(len(shadows))
    keys = Keys(settings.seed)
    judged = games.judge_attacks(view, attacks, {}, game, keys, budget, note)
    judged += _judge_labels(view, train, heldout, keys, note)
    done = time.monotonic()
    facts = games.target_facts("message", train, heldout, game, judged)
    facts["doubts"] = facts["doubts"] or _doubts_of_map(_message_rows(message, shadows), judged)
    return audit_of_arrays(
        "message",
        about,
        seed=settings.seed,
        times=AuditTimes(began, training_end, done),
        train=train,
        sizes=[len(train), len(heldout)],
        seen=[HeldArtifact(kind, "message", message, 0, 0)],
        judged=judged,
        stated=stated,
        budget=budget,
        target=facts,
        draws_randomly="map" if draws_randomly else "",
        clients=1,
        rounds=len(_split_rounds(message)),
    )


def _make_shadow_messages(
    map: TrainingFunction, message: State, game: games.CoinGame, keys: Keys, engine: Engine
) -> tuple[list[State], bool]:
    """What the client would have sent of each shadow set, and whether the map draws from torch's
    global generator."""
    tasks = []
    for index, seed in enumerate(draw_shadow_seeds(game, keys), 1):
        tasks.append(ShadowMessageTask(map, game.shadow_set(index), seed, message))
    return run_tasks(make_shadow_message, tasks, "messages", engine)


def _message_rows(message: State, shadows: Sequence[State]) -> Tensor:
    """(1 + shadows, d): each message as one row, the audited one first."""
    return torch.stack([_flatten_message(tensors) for tensors in (message, *shadows)])


def _check_message_settings(surface: str, shadows: int) -> None:
    check_choice("target.surface", surface, tuple(member.value for member in Surface))
    if shadows < LEAST_SHADOWS:
        raise BadConfig(
            f"target.shadows={shadows}: at least {LEAST_SHADOWS} messages of other "
            "records are needed"
        )


def _message_view(
    surface: Surface,
    message: State,
    shadows: Sequence[State],
    game: games.CoinGame,
    train: LabelledRecords,
    stated: StatedLimit,
    keys: Keys,
) -> View:
    rows = _message_rows(message, shadows)
    records = game.records
    signals = {SIGNAL: predicted_inclusion(rows, game.masks)}
    labels = torch.cat([records.y, game.reference.y, game.rest.y])
    last = _split_rounds(message)[-1]
    classes = max(int(labels.max()) + 1, _count_sent_classes(surface, last))
    settings = {"delta": stated.exchange_limit()[1], "batch_records": len(train)}
    knowledge = Knowledge(
        (1, 1, 1), classes, game.reference.x.double(), game.reference.y, settings=settings
    )
    adversary = Adversary.PUBLIC if surface in SENT_BY_SERVER else Adversary.SERVER
    captures = (Capture(0, 0, "message", last),)
    return games.view_of_signals(surface, adversary, game, signals, knowledge, keys, captures)


def message_unlikeness(rows: Tensor) -> float:
    """How far a message lies from those of a map, over the farthest of these.

    Args:
        rows: (1 + S, p) the message, then S >= 3 messages of the map.

    Returns:
        About 1 or less if the map made it too.
    """
    # d_i^2 = mean_j ((x_ij - m_j) / s_j)^2, with m, s of all S + 1 messages: then a number that one
    # message alone has counts alike whichever message that is
    rows = rows.double()
    centre = rows.mean(0)
    spread = rows.std(0)
    varies = spread > SMALLEST_SPREAD * centre.abs().clamp_min(1)
    if not bool(varies.any()):
        return 0.0
    scaled = (rows - centre)[:, varies] / spread[varies]
    distances = scaled.square().mean(1).sqrt()
    return float(distances[0] / distances[1:].max().clamp_min(SMALLEST_SPREAD))


def _doubts_of_map(rows: Tensor, judged: Sequence[games.JudgedAttack]) -> list[str]:
    """Whether the message can be one of the map's; a wrong map hides leaks and makes none, so that
    nothing is doubted where an attack found one."""
    intervals = [measures.auc_ci for measures in games.membership_measures_of(judged)]
    if any(interval is not None and interval[0] > 0.5 for interval in intervals):
        return []
    unlikeness = message_unlikeness(rows)
    if unlikeness <= FAR:
        return []
    return [MAP_DOUBT.format(count=len(rows) - 1, times=f"{unlikeness:.1f} times")]


def _count_sent_classes(surface: Surface, value: State) -> int:
    """How many classes a message speaks of, records of some of which the files may lack; 0 if it
    does not say."""
    if surface == Surface.LOGITS and "logits" in value:
        return value["logits"].shape[-1]
    if surface in CLASS_SURFACES:
        named = [value[name] for name in ("mean", "sum", "count") if name in value]
        return max((len(tensor) for tensor in named), default=0)
    return 0


def _flatten_message(message: State) -> Tensor:
    """(p,) float64."""
    return torch.cat([tensor.double().flatten() for tensor in message.values()])


def _split_rounds(message: State) -> list[State]:
    """The messages of each round, where names are "round/name"; else all as one."""
    rounds: dict[int, State] = {}
    for name, tensor in message.items():
        number, slash, rest = name.partition("/")
        if not slash or not number.isdecimal():
            return [message]
        rounds.setdefault(int(number), {})[rest] = tensor
    return [rounds[number] for number in sorted(rounds)]


def _judge_labels(
    view: View, train: LabelledRecords, heldout: LabelledRecords, keys: Keys, note: str
) -> list[games.JudgedAttack]:
    """How many records of each class the client has, as far as the surface's own tensors tell."""
    named = {Surface.LOGITS: "logits", Surface.LABELS: "y"}
    value = view.captures[0].value
    readable = view.surface in CLASS_SURFACES or named.get(view.surface) in value
    attack = LabelCounts()
    if not readable:
        return []
    if why := attack.nothing_to_read(view):
        unread = unreadable_finding(attack, view, why)
        return [games.JudgedAttack(games.annotate_finding(unread, attack.name, note))]
    counts = torch.bincount(train.y, minlength=view.knowledge.classes)
    truth = Truth(train.x, train.y, heldout.x, heldout.y, counts)
    evidence = attack.run(view, attack_stream(keys, attack.name, str(view.surface), note))
    finding = attack.judge(evidence, view, truth)
    return [games.JudgedAttack(games.annotate_finding(finding, attack.name, note))]
