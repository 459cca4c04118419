"""``python -m privdd.audit run=DIR target.model=...``: a federation of someone else's that was recorded, and what its components claim.

The audited client's training records and held-out ones play the game of ``membership_game``. Its updates are attacked by
all recorded rounds together (each record's part in every update, solved for together with the others'), the last
update and the final model by the loss and by a quantile regression. No shadow models: nobody told how the app trains.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks.membership.attack import MembershipAttack, blind_record_scores
from attacks.membership.quantile import QuantileRegression
from attacks.membership.signals import logit_scaled
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Knowledge, Surface, View, Worlds
from privdd.auditing.attack_tasks import error_budget
from privdd.blackbox.mechanism import add_search_folder
from privdd.blackbox.target import load_target
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.arguments import TargetArguments, parse_target_arguments
from privdd.external.membership_game import CoinGame, JudgedAttack, draw_coin_game, judge_attacks, target_facts
from privdd.external.predictor import Predictor, build_predictor
from privdd.external.records import LabelledRecords, check_integer_labels, check_same_shape, read_records
from privdd.external.run_folder import (
    ExternalAudit,
    HeldArtifact,
    StatedLimit,
    parse_stated_limit,
    write_audit_folder,
)
from privdd.external.runner import choose_output_folder
from privdd.external.trained_model import ExternalAuditSettings
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.recording.network import (
    align_state,
    build_network,
    load_parameters,
    parameter_difference,
    record_descents,
    thinning_step,
)
from privdd.recording.recording import RecordedMessage, Recording, read_recordings, recording_ledger
from privdd.reporting.policy import policy_of_arguments
from privdd.reporting.terminal import conclude_audit
from privdd.runtime.run_folder import check_folder_free

AGGREGATES_SCOPE = (
    "the aggregates of all rounds; updates before them are not covered, so no bound here is compared with it"
)
UPDATES_SCOPE = "the arrays of this client's updates of all recorded rounds"


@dataclass(frozen=True)
class ClaimedLimit(StatedLimit):
    """source: the component whose claim this is; also: claims that are shown and not compared with anything."""

    source: str = ""
    also: tuple[Mapping[str, Any], ...] = ()

    def claim_entries(self) -> list[dict[str, Any]]:
        mine = [
            {**claim, "source": self.source, "why": f"{UPDATES_SCOPE}; claimed, not proven here"}
            for claim in super().claim_entries()
        ]
        return mine + [dict(claim) for claim in self.also]


def find_claimed_limit(recording: Recording, node: int, stated: Mapping[str, Any]) -> StatedLimit:
    """The limit typed as ``stated.*``, else the one that a component claims for the client's updates, else none."""
    if stated:
        return parse_stated_limit(stated)
    ledger = recording_ledger(recording)
    also = tuple(_aggregate_claim(ledger, row.why) for row in ledger.releases if row.surface == Surface.GLOBAL_MODEL)
    epsilon = ledger.epsilon(surfaces=[Surface.UPDATE], client=node)
    why = next(
        (row.why for row in ledger.releases if row.surface == Surface.UPDATE and row.client == node and row.why), ""
    )
    if not math.isfinite(epsilon) or not epsilon > 0 or not why:
        return ClaimedLimit(delta=ledger.delta, also=also)
    try:
        return ClaimedLimit(epsilon, ledger.delta, "zero_out", "client", _claim_source(why), also)
    except ValueError:  # so large that nothing can contradict it
        return ClaimedLimit(
            delta=ledger.delta, also=(*also, _claim_entry(epsilon, ledger.delta, _claim_source(why), UPDATES_SCOPE))
        )


def _aggregate_claim(ledger: Ledger, why: str) -> dict[str, Any]:
    return _claim_entry(
        ledger.epsilon(surfaces=[Surface.GLOBAL_MODEL]), ledger.delta, _claim_source(why), AGGREGATES_SCOPE
    )


def _claim_entry(epsilon: float, delta: float, source: str, why: str) -> dict[str, Any]:
    told = "inf" if math.isinf(epsilon) else epsilon
    return {"source": source, "epsilon": told, "sound": False, "why": why, "delta": delta}


def _claim_source(why: str) -> str:
    return why.removeprefix("claimed by ").removesuffix(", not checked here")


MAX_ROUNDS_READ = 8  # recorded rounds whose updates are read, evenly spaced, the last included
MAX_RECORDS = 400  # audited: each needs a gradient in every round
RECORDED_NOTE = "as recorded"


@dataclass(frozen=True)
class HeldMessage(HeldArtifact):
    """A recorded message; why: what its row says of its protection."""

    why: str = ""

    def ledger_row(self) -> LedgerRow:
        return replace(super().ledger_row(), nonprivate_reason=self.why)


def run_recorded_audit(path: Path, argv: Sequence[str]) -> int:
    """-> exit status as of ``conclude_audit``. Raises ValueError with one line."""
    began = time.monotonic()
    recordings = read_recordings(path)
    rest = [item for item in argv if not item.startswith(("run=", "target.client="))]
    if not any(item.startswith("target.") for item in rest):
        nodes = ", ".join(map(str, _node_ids(recordings)))
        raise BadConfig(
            f"run={path}: a whole recording of clients {nodes}; to audit it, give target.model=module:Net, target.train=FILE.npz "
            "and target.heldout=FILE.npz (records of one client, and others like them), and target.client= of several"
        )
    typed = parse_target_arguments(rest, "recording")
    policy = policy_of_arguments(typed.given)
    out = choose_output_folder(typed.get("out"))
    check_folder_free(out)
    client = [item.removeprefix("target.client=") for item in argv if item.startswith("target.client=")]
    recording, node = select_client(recordings, client[0] if client else None)
    add_search_folder(Path.cwd())
    model = build_network(load_target(str(typed.get("target.model")), "target.model"), typed.args)
    found = audit_recorded_client(recording, node, model, typed, began)
    result = write_audit_folder(found, out, ["python", "-m", "privdd.audit", *argv])
    return conclude_audit(result, out, policy, sys.stdout)


def _node_ids(recordings: Sequence[Recording]) -> list[int]:
    return list(dict.fromkeys(node for recording in recordings for node in recording.client_nodes))


def select_client(recordings: Sequence[Recording], client: str | None) -> tuple[Recording, int]:
    """The server's recording of a client, else its own. client: its node, or its partition where its own tap told it.

    Raises BadConfig where that is none of them, and for several without a choice.
    """
    nodes = _node_ids(recordings)
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
        if node is not None and node in recording.client_nodes:
            return recording, node
    raise BadConfig(f"target.client={client}: one of {', '.join(map(str, nodes))} is needed")


def audit_recorded_client(
    recording: Recording, node: int, model: nn.Module, typed: TargetArguments, began: float
) -> ExternalAudit:
    """The audit of one client's recorded rounds. Raises BadConfig and DamagedRun, one line."""
    train, heldout = (
        read_records(f"target.{n}", typed.file_path(n, "(.npz with x and y)")) for n in ("train", "heldout")
    )
    check_same_shape("target.train", train, "target.heldout", heldout)
    for key, one in (("target.train", train), ("target.heldout", heldout)):
        check_integer_labels(key, one)
    given = {"seed": typed.get("seed"), "records": typed.get("target.records"), "confidence": typed.get("confidence")}
    settings = ExternalAuditSettings(
        **{"records": MAX_RECORDS, **{name: value for name, value in given.items() if value is not None}}
    )
    keys = Keys(settings.seed).fold("target")
    game = draw_coin_game(train, heldout, settings.records, 0, keys)
    replies = [reply for reply in recording.replies_of(node) if reply.shapes]
    if not replies:
        raise BadConfig(f"target.client={node}: no update of this client was recorded")
    limit = find_claimed_limit(recording, node, typed.stated)
    views = [_update_view(recording, replies, model, game, keys, limit.exchange_limit()[1])]
    final = recording.final_message()
    if final is not None:
        load_parameters(model, final.read_arrays())
        views.append(_model_view(Surface.GLOBAL_MODEL, Adversary.PUBLIC, model, game, keys, limit.exchange_limit()[1]))
    attacks = [_attacks_on_view(view, settings.confidence) for view in views]
    budget = error_budget(settings.confidence, sum(map(len, attacks)), 0)
    judged: list[JudgedAttack] = []
    for view, those in zip(views, attacks):
        judged += judge_attacks(view, those, {}, game, Keys(settings.seed), budget, RECORDED_NOTE)
    about = {"recording": str(recording.head.get("library", "")), "client": node, "records": [len(train), len(heldout)]}
    accuracy = (
        float((_model_outputs(model, heldout).argmax(1) == heldout.y).double().mean()) if final is not None else None
    )
    facts = target_facts("recording", train, heldout, game, judged)
    done = time.monotonic()
    return ExternalAudit(
        str(typed.get("name") or "recorded federation"), typed.file_path("train").name, settings.seed, list(_held_artifacts(recording, replies)),
        judged, limit, budget, {"attacks": done - began, "total": done - began}, facts, accuracy, about,
        len(recording.client_nodes), len(replies),
    )  # fmt: skip


def _model_outputs(model: nn.Module, records: LabelledRecords) -> Tensor:
    return build_predictor(model, "target.model")(records.x, int(records.y.max()) + 1)


def _model_view(
    surface: Surface, adversary: Adversary, model: nn.Module, game: CoinGame, keys: Keys, delta: float, **more: Tensor
) -> View:
    """The loaded model's signals of the audited records. more: further signals, (n,)."""
    predict: Predictor = build_predictor(model, "target.model")
    records, reference = game.records, game.reference
    classes = predict.count_classes(records.x, torch.cat([records.y, reference.y]))
    own = predict(records.x, classes)[None]
    public = predict(reference.x.to(records.x.dtype), classes)[None]
    blind = blind_record_scores(records.x, records.y, game.member_mask, keys.fold("blind").torch())
    signals = {"confidence": logit_scaled(own, records.y), **{name: value[None] for name, value in more.items()}}
    worlds = Worlds(signals, game.masks, blind, records.y, own, public, records=records.x.double())
    known = Knowledge((1, 1, 1), classes, reference.x.double(), reference.y, settings={"delta": delta})
    return View(surface, adversary, (), known, worlds)


def _update_view(
    recording: Recording, replies: Sequence[RecordedMessage], model: nn.Module, game: CoinGame, keys: Keys, delta: float
) -> View:
    """Signals of the client's updates: "joint", over the rounds, and "confidence", of the last local model."""
    at = np.unique(np.linspace(0, len(replies) - 1, min(MAX_ROUNDS_READ, len(replies))).round().astype(int))
    parts = [_record_parts(recording, replies[i], model, game) for i in at]
    joint = torch.stack([part / part.std(correction=0).clamp_min(1e-300) for part in parts]).sum(0)
    load_parameters(
        model,
        align_state(
            model,
            {**recording.broadcast_before(replies[-1]).read_arrays(), **recording.replied_parameters(replies[-1])},
        ),
    )
    return _model_view(Surface.UPDATE, Adversary.SERVER, model, game, keys, delta, joint=joint)


def _record_parts(recording: Recording, reply: RecordedMessage, model: nn.Module, game: CoinGame) -> Tensor:
    """(n,): each audited record's part in one update, all solved for together by ridge regression on their descents.

    Of a large network every k-th parameter is read.
    """
    before = recording.broadcast_before(reply).read_arrays()
    load_parameters(model, before)
    every = thinning_step(model, len(game.records))
    rows = record_descents(model, game.records.x.numpy(), game.records.y.numpy(), every).astype(np.float64)
    gram = rows @ rows.T
    ridge = 1e-2 * float(np.trace(gram)) / len(gram)
    update = parameter_difference(model, before, recording.replied_parameters(reply))[::every]
    return torch.from_numpy(np.linalg.solve(gram + max(ridge, 1e-12) * np.eye(len(gram)), rows @ update))


def _attacks_on_view(view: View, confidence: float) -> dict[str, MembershipAttack]:
    given: dict[str, Any] = {"confidence": confidence}
    found: dict[str, MembershipAttack] = {"loss_threshold": LossThreshold(**given, signal="confidence")}
    if view.worlds is not None and "joint" in view.worlds.signals:
        found["tracing"] = LossThreshold(**given, signal="joint")
    return found | {"quantile_regression": QuantileRegression(**given, signal="confidence")}


def _held_artifacts(recording: Recording, replies: Sequence[RecordedMessage]) -> Iterator[HeldArtifact]:
    """The artifacts that the server and the public hold: the client's replies, as client 0 in rounds from 0, and the final model."""
    for round, reply in enumerate(replies):
        yield HeldMessage(
            Surface.UPDATE, "update", reply.read_arrays(), round, 0, _protection_note(reply.heading.claims)
        )
    final = recording.final_message()
    if final is not None:
        yield HeldMessage(
            Surface.GLOBAL_MODEL, "final model", final.read_arrays(), why=_protection_note(final.heading.claims)
        )


def _protection_note(claims: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(str(claim.get("component"))[:60] for claim in claims)
    return f"protected as {names} claims; nothing here proves it" if names else "no mechanism was recognised"
