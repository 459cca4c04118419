"""``python -m privdd.audit run=DIR target.model=...``: a federation of someone else's that ``privdd.adapters.flower_tap`` recorded.

The audited client's training records and held-out ones play the game of ``coin_game``. Its updates are attacked by
all recorded rounds together (each record's part in every update, solved for together with the others'), the last
update and the final model by the loss and by a quantile regression. No shadow models: nobody told how the app trains.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks.membership.attack import MembershipAttack
from attacks.membership.quantile import QuantileRegression
from attacks.membership.records_alone import records_alone
from attacks.membership.signals import logit_scaled
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Knowledge, Surface, View, Worlds
from privdd.auditing.error_budget import error_budget
from privdd.auditing.targets.claimed_limit import claimed_limit
from privdd.auditing.targets.coin_game import CoinGame, coin_game
from privdd.auditing.targets.from_python import folder
from privdd.auditing.targets.judged import Judged, judged_all
from privdd.auditing.targets.labelled import Labelled, check_alike, check_numbered, read
from privdd.auditing.targets.model_target import Settings
from privdd.auditing.targets.outside_run import Held, OutsideRun, check_free, write_outside
from privdd.auditing.targets.predictor import Predictor, predictor
from privdd.auditing.targets.target_command import TargetCommand, read_command
from privdd.auditing.targets.target_facts import target_facts
from privdd.checking.child import add_folder
from privdd.checking.named import load_target
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys
from privdd.privacy.mechanism import Row
from privdd.reporting.terminal import print_summary
from privdd.runtime.run_folder import RunFolder
from privdd.tapping.recorded_network import aligned, built, descents, difference, load, thinning
from privdd.tapping.recording import Recorded, Recording, read_all

ROUNDS = 8  # recorded rounds whose updates are read, evenly spaced, the last included
RECORDS = 400  # audited: each needs a gradient in every round
NOTE = "as recorded"


@dataclass(frozen=True)
class HeldMessage(Held):
    """A recorded message; why: what its row says of its protection."""

    why: str = ""

    def row(self) -> Row:
        return replace(super().row(), nonprivate_reason=self.why)


def run_recorded(path: Path, argv: Sequence[str]) -> int:
    """-> 0 done, whatever leaks; 2 a stated or claimed epsilon is contradicted. Raises ValueError with one line."""
    began = time.monotonic()
    recordings = read_all(path)
    rest = [item for item in argv if not item.startswith(("run=", "target.client="))]
    if not any(item.startswith("target.") for item in rest):
        nodes = ", ".join(map(str, _nodes(recordings)))
        raise BadConfig(
            f"run={path}: a whole recording of clients {nodes}; to audit it, give target.model=module:Net, target.train=FILE.npz "
            "and target.heldout=FILE.npz (records of one client, and others like them), and target.client= of several"
        )
    typed = read_command(rest, "recording")
    out = folder(typed.get("out"))
    check_free(out)
    client = [item.removeprefix("target.client=") for item in argv if item.startswith("target.client=")]
    recording, node = chosen(recordings, client[0] if client else None)
    add_folder(Path.cwd())
    model = built(load_target(str(typed.get("target.model")), "target.model"), typed.args)
    found = recorded_run(recording, node, model, typed, began)
    result = write_outside(found, out, ["python", "-m", "privdd.audit", *argv])
    print_summary(result, sys.stdout)
    print(f"\nreport: {out / 'report.html'}\nresult: {RunFolder(out).findings}")
    return 2 if result.verdict == "contradiction" else 0


def _nodes(recordings: Sequence[Recording]) -> list[int]:
    return list(dict.fromkeys(node for recording in recordings for node in recording.nodes))


def chosen(recordings: Sequence[Recording], client: str | None) -> tuple[Recording, int]:
    """The server's recording of a client, else its own. client: its node, or its partition where its own tap told it.

    Raises BadConfig where that is none of them, and for several without a choice.
    """
    nodes = _nodes(recordings)
    partitions = {
        m.heading.partition: m.heading.node for r in recordings for m in r.messages if m.heading.partition is not None
    }
    number = int(client) if client is not None and client.isdecimal() else None
    node = (
        nodes[0]
        if client is None and len(nodes) == 1
        else number
        if number in nodes
        else partitions.get(-1 if number is None else number)
    )
    for recording in recordings:
        if node is not None and node in recording.nodes:
            return recording, node
    raise BadConfig(f"target.client={client}: one of {', '.join(map(str, nodes))} is needed")


def recorded_run(recording: Recording, node: int, model: nn.Module, typed: TargetCommand, began: float) -> OutsideRun:
    """The audit of one client's recorded rounds. Raises BadConfig and DamagedRun, one line."""
    train, heldout = (read(f"target.{n}", typed.path(n, "(.npz with x and y)")) for n in ("train", "heldout"))
    check_alike("target.train", train, "target.heldout", heldout)
    for key, one in (("target.train", train), ("target.heldout", heldout)):
        check_numbered(key, one)
    given = {"seed": typed.get("seed"), "records": typed.get("target.records"), "confidence": typed.get("confidence")}
    settings = Settings(**{"records": RECORDS, **{name: value for name, value in given.items() if value is not None}})
    keys = Keys(settings.seed).fold("target")
    game = coin_game(train, heldout, settings.records, 0, keys)
    replies = [reply for reply in recording.replies(node) if reply.shapes]
    if not replies:
        raise BadConfig(f"target.client={node}: no update of this client was recorded")
    limit = claimed_limit(recording, node, typed.stated)
    views = [_update_view(recording, replies, model, game, keys, limit.exchanged()[1])]
    final = recording.final()
    if final is not None:
        load(model, final.arrays())
        views.append(_view(Surface.GLOBAL_MODEL, Adversary.PUBLIC, model, game, keys, limit.exchanged()[1]))
    attacks = [_attacks(view, settings.confidence) for view in views]
    budget = error_budget(settings.confidence, sum(map(len, attacks)), 0)
    judged: list[Judged] = []
    for view, those in zip(views, attacks):
        judged += judged_all(view, those, game, Keys(settings.seed), budget, NOTE)
    about = {"recording": str(recording.head.get("library", "")), "client": node, "records": [len(train), len(heldout)]}
    accuracy = float((_outputs(model, heldout).argmax(1) == heldout.y).double().mean()) if final is not None else None
    facts = target_facts("recording", train, heldout, game, judged)
    done = time.monotonic()
    return OutsideRun(
        str(typed.get("name") or "recorded federation"), typed.path("train").name, settings.seed, list(_held(recording, replies)),
        judged, limit, budget, {"attacks": done - began, "total": done - began}, facts, accuracy, about,
        len(recording.nodes), len(replies),
    )  # fmt: skip


# --- what is read --------------------------------------------------------------------------------


def _outputs(model: nn.Module, records: Labelled) -> Tensor:
    return predictor(model, "target.model")(records.x, int(records.y.max()) + 1)


def _view(
    surface: Surface, adversary: Adversary, model: nn.Module, game: CoinGame, keys: Keys, delta: float, **more: Tensor
) -> View:
    """What the model that is loaded says of the audited records. more: further signals, (n,)."""
    predict: Predictor = predictor(model, "target.model")
    records, reference = game.records, game.reference
    classes = predict.classes(records.x, torch.cat([records.y, reference.y]))
    own = predict(records.x, classes)[None]
    public = predict(reference.x.to(records.x.dtype), classes)[None]
    blind = records_alone(records.x, records.y, game.member, keys.fold("blind").torch())
    signals = {"confidence": logit_scaled(own, records.y), **{name: value[None] for name, value in more.items()}}
    worlds = Worlds(signals, game.masks, blind, records.y, own, public, records=records.x.double())
    known = Knowledge((1, 1, 1), classes, reference.x.double(), reference.y, settings={"delta": delta})
    return View(surface, adversary, (), known, worlds)


def _update_view(
    recording: Recording, replies: Sequence[Recorded], model: nn.Module, game: CoinGame, keys: Keys, delta: float
) -> View:
    """Signals of the client's updates: "joint", over the rounds, and "confidence", of the last local model."""
    at = np.unique(np.linspace(0, len(replies) - 1, min(ROUNDS, len(replies))).round().astype(int))
    parts = [_parts(recording, replies[i], model, game) for i in at]
    joint = torch.stack([part / part.std(correction=0).clamp_min(1e-300) for part in parts]).sum(0)
    load(model, aligned(model, {**recording.broadcast(replies[-1]).arrays(), **recording.replied(replies[-1])}))
    return _view(Surface.UPDATE, Adversary.SERVER, model, game, keys, delta, joint=joint)


def _parts(recording: Recording, reply: Recorded, model: nn.Module, game: CoinGame) -> Tensor:
    """(n,): each audited record's part in one update, all solved for together by ridge regression on their descents.

    Of a large network every k-th parameter is read.
    """
    before = recording.broadcast(reply).arrays()
    load(model, before)
    every = thinning(model, len(game.records))
    rows = descents(model, game.records.x.numpy(), game.records.y.numpy(), every).astype(np.float64)
    gram = rows @ rows.T
    ridge = 1e-2 * float(np.trace(gram)) / len(gram)
    update = difference(model, before, recording.replied(reply))[::every]
    return torch.from_numpy(np.linalg.solve(gram + max(ridge, 1e-12) * np.eye(len(gram)), rows @ update))


def _attacks(view: View, confidence: float) -> dict[str, MembershipAttack]:
    given: dict[str, Any] = {"confidence": confidence}
    found: dict[str, MembershipAttack] = {"loss_threshold": LossThreshold(**given, signal="confidence")}
    if view.worlds is not None and "joint" in view.worlds.signals:
        found["tracing"] = LossThreshold(**given, signal="joint")
    return found | {"quantile_regression": QuantileRegression(**given, signal="confidence")}


def _held(recording: Recording, replies: Sequence[Recorded]) -> Iterator[Held]:
    """What the server and everybody hold: the client's replies, as client 0 in rounds from 0, and the final model."""
    for round, reply in enumerate(replies):
        yield HeldMessage(Surface.UPDATE, "update", reply.arrays(), round, 0, _why(reply.heading.claims))
    final = recording.final()
    if final is not None:
        yield HeldMessage(Surface.GLOBAL_MODEL, "final model", final.arrays(), why=_why(final.heading.claims))


def _why(claims: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(str(claim.get("component"))[:60] for claim in claims)
    return f"protected as {names} claims; nothing here proves it" if names else "no mechanism was recognised"
