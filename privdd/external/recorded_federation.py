"""``privdd target recording=DIR model=...``: a federation of someone else's that was
recorded, and what its components claim.

The audited client's training records and held-out ones play the game of ``membership_game``. Its
updates are attacked by all recorded rounds together: each record's part in every update, solved for
together with the others', by itself and compared with its part in other clients' updates, where the
recording has these. The last update, which is compared with the others' as well, and the final
model are attacked by the loss and by a quantile regression. No shadow models: nobody told how the
app trains."""

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

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.membership.fedmia import FedMIA, stack_other_clients
from attacks.membership.quantile import QuantileRegression
from attacks.membership.source_inference import SourceInference
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Surface, View
from privdd.auditing.attack_tasks import error_budget
from privdd.blackbox.target import add_search_folder, load_target
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.arguments import TargetArguments, parse_target_arguments
from privdd.external.membership_game import (
    CoinGame,
    JudgedAttack,
    draw_coin_game,
    judge_attacks,
    target_facts,
    view_of_outputs,
)
from privdd.external.predictor import Predictor, build_predictor
from privdd.external.recorded_numbers import judge_reported_counts
from privdd.external.records import check_network_records
from privdd.external.run_folder import (
    ExternalAudit,
    HeldArtifact,
    StatedLimit,
    parse_stated_limit,
    write_audit_folder,
)
from privdd.external.runner import audit_settings, choose_output_folder, read_target_records
from privdd.privacy.mechanism import LedgerRow
from privdd.recording import network
from privdd.recording.recording import (
    RecordedMessage,
    Recording,
    all_client_nodes,
    find_client,
    read_recordings,
    recording_ledger,
)
from privdd.reporting.policy import policy_of_arguments
from privdd.reporting.terminal import conclude_audit
from privdd.runtime.run_folder import check_folder_free

AGGREGATES_SCOPE = (
    "the aggregates of all rounds; updates before them are not covered, so no bound is "
    "compared with it"
)
UPDATES_SCOPE = "the arrays of this client's updates of all recorded rounds"
MAX_ROUNDS_READ = 8  # recorded rounds whose updates are read, evenly spaced, the last included
MAX_RECORDS = 400  # audited: each needs a gradient in every round
RECORDED_NOTE = "as recorded"


@dataclass(frozen=True)
class ClaimedLimit(StatedLimit):
    """source: the component whose claim this is; also: claims that are shown and not compared with
    anything."""

    source: str = ""
    also: tuple[Mapping[str, Any], ...] = ()

    def claim_entries(self) -> list[dict[str, Any]]:
        mine = [
            {**claim, "source": self.source, "why": f"{UPDATES_SCOPE}; claimed, not proven here"}
            for claim in super().claim_entries()
        ]
        return mine + [dict(claim) for claim in self.also]


def find_claimed_limit(recording: Recording, node: int, stated: Mapping[str, Any]) -> StatedLimit:
    """The limit typed as ``stated.*``, else the one that a component claims for the client's
    updates, else none."""
    if stated:
        return parse_stated_limit(stated)
    ledger = recording_ledger(recording)
    proven = ledger.epsilon(surfaces=[Surface.GLOBAL_MODEL])
    whys = [row.why for row in ledger.releases if row.surface == Surface.GLOBAL_MODEL]
    also = tuple(
        _claim_entry(proven, ledger.delta, _claim_source(reason), AGGREGATES_SCOPE)
        for reason in whys
    )
    epsilon = ledger.epsilon(surfaces=[Surface.UPDATE], client=node)
    mine = [
        row.why for row in ledger.releases if row.surface == Surface.UPDATE and row.client == node
    ]
    why = next(filter(None, mine), "")
    if not math.isfinite(epsilon) or not epsilon > 0 or not why:
        return ClaimedLimit(delta=ledger.delta, also=also)
    try:
        return ClaimedLimit(epsilon, ledger.delta, "zero_out", "client", _claim_source(why), also)
    except ValueError:  # so large that nothing can contradict it
        mine_too = _claim_entry(epsilon, ledger.delta, _claim_source(why), UPDATES_SCOPE)
        return ClaimedLimit(delta=ledger.delta, also=(*also, mine_too))


def _claim_entry(epsilon: float, delta: float, source: str, why: str) -> dict[str, Any]:
    stated = "inf" if math.isinf(epsilon) else epsilon
    return {"source": source, "epsilon": stated, "sound": False, "why": why, "delta": delta}


def _claim_source(why: str) -> str:
    return why.removeprefix("claimed by ").removesuffix(", not checked here")


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
    rest = [item for item in argv if not item.startswith(("recording=", "target.client="))]
    if not any(item.startswith("target.") for item in rest):
        nodes = ", ".join(map(str, all_client_nodes(recordings)))
        raise BadConfig(
            f"recording={path}: a whole recording of clients {nodes}; to audit it, give "
            "target.model=module:Net, target.train=FILE.npz "
            "and target.heldout=FILE.npz (records of one client, and others like them), "
            "and target.client= of several"
        )
    typed = parse_target_arguments(rest, "recording")
    policy = policy_of_arguments(typed.given)
    out = choose_output_folder(typed.get("out"))
    check_folder_free(out)
    client = next(
        (item.removeprefix("target.client=") for item in argv if item.startswith("target.client=")),
        None,
    )
    if client is None:
        number = None
    elif client.isdecimal():
        number = int(client)
    else:
        number = -1
    if (place := find_client(recordings, number)) is None:
        raise BadConfig(
            f"target.client={client}: one of "
            f"{', '.join(map(str, all_client_nodes(recordings)))} is needed"
        )
    recording, node = place
    add_search_folder(Path.cwd())
    model = network.build_network(
        load_target(str(typed.get("target.model")), "target.model"), typed.args
    )
    audit = audit_recorded_client(recording, node, model, typed, began)
    result = write_audit_folder(audit, out, ["python", "-m", "privdd.audit", *argv])
    return conclude_audit(result, out, policy, sys.stdout)


def audit_recorded_client(
    recording: Recording, node: int, model: nn.Module, typed: TargetArguments, began: float
) -> ExternalAudit:
    """The audit of one client's recorded rounds. Raises BadConfig and DamagedRun, one line."""
    train, heldout = (read_target_records(typed, name) for name in ("train", "heldout"))
    check_network_records(train, heldout)
    settings = audit_settings(typed, records=MAX_RECORDS)
    keys = Keys(settings.seed).fold("target")
    game = draw_coin_game(train, heldout, settings.records, 0, keys)
    replies = [reply for reply in recording.replies_of(node) if reply.shapes]
    if not replies:
        raise BadConfig(f"target.client={node}: no update of this client was recorded")
    limit = find_claimed_limit(recording, node, typed.stated)
    views = [_update_view(recording, replies, model, game, keys, limit.exchange_limit()[1])]
    final = recording.final_message()
    if final is not None:
        network.load_parameters(model, final.read_arrays())
        views.append(
            _model_view(
                Surface.GLOBAL_MODEL, Adversary.PUBLIC, model, game, keys, limit.exchange_limit()[1]
            )
        )
    attacks = [_attacks_on_view(view, settings.confidence) for view in views]
    budget = error_budget(settings.confidence, sum(map(len, attacks)), 0)
    judged: list[JudgedAttack] = []
    for view, attacks_on_view in zip(views, attacks):
        judged += judge_attacks(
            view, attacks_on_view, {}, game, Keys(settings.seed), budget, RECORDED_NOTE
        )
    classes = 1 + int(torch.cat([train.y, heldout.y]).max())
    counts = judge_reported_counts(replies, train.y, classes)
    judged += counts
    about = {
        "recording": str(recording.head.get("library", "")),
        "client": node,
        "records": [len(train), len(heldout)],
    }
    accuracy = None
    if final is not None:
        outputs = build_predictor(model, "target.model")(heldout.x, int(heldout.y.max()) + 1)
        accuracy = float((outputs.argmax(1) == heldout.y).double().mean())
    facts = target_facts("recording", train, heldout, game, judged)
    done = time.monotonic()
    return ExternalAudit(
        str(typed.get("name") or "recorded federation"),
        typed.file_path("train").name,
        settings.seed,
        list(_held_artifacts(recording, replies)),
        judged,
        limit,
        budget,
        {"attacks": done - began, "total": done - began},
        facts,
        accuracy,
        about,
        len(recording.client_nodes),
        len(replies),
    )


def _model_view(
    surface: Surface,
    adversary: Adversary,
    model: nn.Module,
    game: CoinGame,
    keys: Keys,
    delta: float,
) -> View:
    """The loaded model's signals of the audited records."""
    predict: Predictor = build_predictor(model, "target.model")
    records = game.records
    reference = game.reference
    classes = predict.count_classes(records.x, torch.cat([records.y, reference.y]))
    reference_x = reference.x.to(records.x.dtype)
    logits = torch.cat([predict(records.x, classes), predict(reference_x, classes)])
    return view_of_outputs(surface, adversary, game, logits[None], classes, delta, keys)


def _update_view(
    recording: Recording,
    replies: Sequence[RecordedMessage],
    model: nn.Module,
    game: CoinGame,
    keys: Keys,
    delta: float,
) -> View:
    """Signals of the client's updates: "joint", over the rounds, and "confidence", of the last
    local model."""
    evenly = np.linspace(0, len(replies) - 1, min(MAX_ROUNDS_READ, len(replies)))
    rows = np.unique(evenly.round().astype(int))
    parts = []
    of_others = []
    for i in rows:
        reader = _UpdateReader(recording, replies[i], model, game)
        parts.append(reader.record_parts(replies[i]))
        other_updates = other_replies(recording, replies[i])
        of_others.append([reader.record_parts(reply) for reply in other_updates])
    scaled = [part / part.std(correction=0).clamp_min(1e-300) for part in parts]
    joint = torch.stack(scaled).sum(0)

    def view_of_local_model(reply: RecordedMessage) -> View:
        before = recording.broadcast_before(reply).read_arrays()
        state = {**before, **recording.replied_parameters(reply)}
        network.load_parameters(model, network.align_state(model, state))
        return _model_view(Surface.UPDATE, Adversary.SERVER, model, game, keys, delta)

    compared = _parts_by_round(parts, of_others)
    if compared:
        clients = len(compared["other_clients"]["joint"])
        last = other_replies(recording, replies[-1])[:clients]
        if len(last) == clients:
            models = [require_worlds(view_of_local_model(reply)) for reply in last]
            confidence = torch.cat([local.signals["confidence"] for local in models])
            compared["other_clients"]["confidence"] = confidence[..., None]
    view = view_of_local_model(replies[-1])
    worlds = require_worlds(view)
    changes: dict[str, Any] = {"signals": {**worlds.signals, "joint": joint[None]}, **compared}
    return replace(view, worlds=replace(worlds, **changes))


def other_replies(recording: Recording, reply: RecordedMessage) -> list[RecordedMessage]:
    """The finite updates of the same arrays that other clients made of the same broadcast."""
    start = recording.broadcast_before(reply).digest
    updates: list[RecordedMessage] = []
    for client in recording.client_nodes:
        if client != reply.heading.node:
            updates += recording.replies_of(client)
    comparable = [
        update
        for update in updates
        if update.heading.round == reply.heading.round
        and update.shapes == reply.shapes
        and recording.broadcast_before(update).digest == start
    ]
    # one client's NaN must not end the audit of another
    return [update for update in comparable if _is_finite(recording, update)]


def _is_finite(recording: Recording, reply: RecordedMessage) -> bool:
    replied = recording.replied_parameters(reply)
    return all(bool(np.isfinite(np.asarray(array)).all()) for array in replied.values())


def _parts_by_round(
    parts: Sequence[Tensor], of_others: Sequence[Sequence[Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """The fields of ``Worlds`` for attacks that compare with other clients: the records' parts in
    the client's updates, and in those of M others. {} if no other client took part.

    parts: (n,) of each round; of_others: (n,) of each other client in each round.
    """
    references = stack_other_clients(of_others)
    if references is None:
        return {}
    return {
        "rounds": {"joint": torch.stack(list(parts), -1)[None]},
        "other_clients": {"joint": references},
    }


class _UpdateReader:
    """Reads each audited record's part in updates of one round, by ridge regression on all
    descents; of a large network every k-th parameter is read."""

    def __init__(
        self, recording: Recording, reply: RecordedMessage, model: nn.Module, game: CoinGame
    ) -> None:
        self.recording = recording
        self.model = model
        self.before = recording.broadcast_before(reply).read_arrays()
        network.load_parameters(model, self.before)
        self.every = network.thinning_step(model, len(game.records))
        x = game.records.x.numpy()
        y = game.records.y.numpy()
        self.rows = network.record_descents(model, x, y, self.every).astype(np.float64)
        gram = self.rows @ self.rows.T
        ridge = 1e-2 * float(np.trace(gram)) / len(gram)
        self.gram = gram + max(ridge, 1e-12) * np.eye(len(gram))

    def record_parts(self, reply: RecordedMessage) -> Tensor:
        """(n,): each record's part in one client's update."""
        replied = self.recording.replied_parameters(reply)
        update = network.parameter_difference(self.model, self.before, replied)[:: self.every]
        return torch.from_numpy(np.linalg.solve(self.gram, self.rows @ update))


def _attacks_on_view(view: View, confidence: float) -> dict[str, MembershipAttack]:
    settings: dict[str, Any] = {"confidence": confidence}
    attacks: dict[str, MembershipAttack] = {
        "loss_threshold": LossThreshold(**settings, signal="confidence")
    }
    if view.worlds is not None and "joint" in view.worlds.signals:
        attacks["tracing"] = LossThreshold(**settings, signal="joint")
        attacks["fedmia"] = FedMIA(**settings, signal="joint")
        attacks["source_inference"] = SourceInference(**settings, signal="confidence")
    return attacks | {"quantile_regression": QuantileRegression(**settings, signal="confidence")}


def _held_artifacts(
    recording: Recording, replies: Sequence[RecordedMessage]
) -> Iterator[HeldArtifact]:
    """The artifacts that the server and the public hold: the client's replies, as client 0 in
    rounds from 0, and the final model."""
    for round, reply in enumerate(replies):
        why = _protection_note(reply.heading.claims)
        yield HeldMessage(Surface.UPDATE, "update", reply.read_arrays(), round, 0, why)
    if (final := recording.final_message()) is not None:
        why = _protection_note(final.heading.claims)
        yield HeldMessage(Surface.GLOBAL_MODEL, "final model", final.read_arrays(), why=why)


def _held_counts(
    replies: Sequence[RecordedMessage], judged: Sequence[JudgedAttack]
) -> Iterator[HeldArtifact]:
    """The numbers beside the replies, where some of them count records."""
    for round, reply in enumerate(replies) if judged else ():
        numbers = {
            name: torch.as_tensor(value)
            for name, value in reply.heading.metrics.items()
            if not _is_text(value)
        }
        yield HeldMessage(
            Surface.COUNTS, "metrics", numbers, round, 0, "no mechanism was recognised"
        )


def _is_text(value: Any) -> bool:
    return any(isinstance(item, str) for item in (value if isinstance(value, list) else [value]))


def _protection_note(claims: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(str(claim.get("component"))[:60] for claim in claims)
    if names:
        return f"protected as {names} claims; nothing here proves it"
    return "no mechanism was recognised"
