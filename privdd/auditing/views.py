"""What each adversary holds about each surface of a finished run, and the ground truth that only
the evaluator holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.malicious.chosen_model import ChosenModel
from attacks.membership.nearest_row import ROW_SURFACES
from attacks.types import (
    Adversary,
    Attack,
    Capture,
    Family,
    Knowledge,
    Surface,
    Truth,
    View,
    Worlds,
)
from privdd.auditing.adversary_view import QUERIED_CONFIDENCE, AdversaryView
from privdd.auditing.client_hooks import method_of_client
from privdd.auditing.replay import (
    SUM_GRANTED,
    SUM_NOT_GRANTED,
    MembershipGame,
    other_uploads,
    replay_context,
    uploads_seen_by_server,
)
from privdd.auditing.signal_extraction import signal_group
from privdd.core.types import Records, Shard, State, Tensors, pack
from privdd.federated.experiment import Experiment
from privdd.federated.method import Method
from privdd.federated.noise_log import NoiseLog
from privdd.federated.simulation import Plan, Progress, Snapshot
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedproto import FedProto
from privdd.runtime.run_folder import same_tensors

PUBLIC_RECORDS = 500  # records of the test set that attackers may hold


# Messages of the server that hold facts of all clients' records.
OF_ALL_CLIENTS = frozenset({Surface.SHARED_FEATURES, Surface.GENERATOR})
# Surfaces whose rows may be combined over rounds: the same rows, if the map did not change in
# between.
MAPPED_SURFACES = (Surface.FEATURES, Surface.PROTOTYPES)
# Nothing of the run itself changes: the client answers in a first round with its own records,
# channel and mechanisms.
CHOSEN_MODEL_NOTE = (
    "one round with a model that the server chose; its architecture, three linear layers, is "
    "part of the choice"
)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run as the evaluator sees it."""

    experiment: Experiment
    progress: Progress
    game: MembershipGame
    shard: Shard  # the audited client as it really trained
    record: NoiseLog | None = None  # the noise and the sampling of the run, where they were noted

    @property
    def plan(self) -> Plan:
        return self.experiment.plan

    @property
    def method(self) -> Method:
        """The method as the audited client runs it."""
        return method_of_client(self.plan.method, self.plan.victim)

    @property
    def public_records(self) -> Records:
        """Records of the same distribution that belong to no client."""
        return self.experiment.test_records.take(
            torch.arange(min(PUBLIC_RECORDS, len(self.experiment.test_records)))
        )

    def adversary_view(self, round: int) -> AdversaryView:
        snapshot = self.progress.snapshots[round]
        waived = frozenset(self.experiment.auditing.waive if self.experiment.auditing else ())
        plan = self.plan
        candidates = self.game.audited_records
        noise = feature_noise_constants(plan)
        opening = self.method.audit_hooks.initial_classifier(plan.problem, plan.keys.seed)
        public_images = self.method.audit_hooks.public_images(plan.problem, plan.keys.seed)
        held = (
            snapshot,
            candidates,
            self.public_records,
            self.memory_after(round),
            waived,
            noise,
            opening,
        )
        return AdversaryView(
            self.method,
            plan.problem,
            *held,
            query_keys=plan.keys.fold("audit", "queries"),
            public_images=public_images,
        )

    def memory_after(self, round: int) -> State:
        """What the audited client kept after a round: behind what it sent in it, and what it began
        its next one with."""
        later = min((t for t in self.progress.snapshots if t > round), default=None)
        if later is None:
            return self.progress.memories.get(self.plan.victim, {})
        return self.progress.snapshots[later].memory

    def ground_truth(self) -> Truth:
        train = self.shard.train
        out = self.shard.heldout
        counts = torch.bincount(train.y, minlength=self.shard.classes)
        memory = self.progress.memories.get(self.plan.victim, {})
        stand_ins = self.method.audit_hooks.surrogate_images(memory, self.plan.problem)
        rows = self._rows_of_records(self.shard)
        matching = self.method.audit_hooks.distillation()
        distiller = ""
        if matching is not None and not self.plan.mechanisms:
            distiller = matching.distiller
        held = (train.x, train.y, out.x, out.y, counts)
        return Truth(*held, stand_ins, rows, distiller)

    def ground_truth_of(self, view: View) -> Truth:
        """The truth that a view is compared with; for a shared pool, the records of all clients
        whose rows it holds, and for a generator, those whose class shares travel with it."""
        if view.surface not in OF_ALL_CLIENTS:
            return self.ground_truth()
        held_shards = {self.plan.victim: self.shard}
        clients: Sequence[int] = range(len(self.experiment.shards))
        if view.surface == Surface.GENERATOR:  # its class shares are of the last round's clients
            clients = self.plan.participants(self.plan.method.rounds - 1)
        shards = [held_shards.get(client, self.experiment.shards[client]) for client in clients]
        held = zip(*((s.train.x, s.train.y, s.heldout.x, s.heldout.y) for s in shards))
        x, y, held_x, held_y = map(torch.cat, held)
        counts = torch.bincount(y, minlength=self.shard.classes)
        if view.surface == Surface.SHARED_FEATURES:
            rows = self._rows_in_pool(shards, view)
        else:
            rows = None
        return Truth(x, y, held_x, held_y, counts, rows=rows)

    def _rows_in_pool(self, shards: Sequence[Shard], view: View) -> Tensor | None:
        """The first row of each record in a pool of all clients' rows, client after client, each in
        its copies."""
        copies = int(feature_noise_constants(self.plan).get("copies", 1))
        before = 0
        positions = []
        for shard in shards:
            if (rows := self._rows_of_records(shard)) is None:
                return None
            positions.append(rows + before)
            before += copies * (len(shard.train) + (0 if shard.nulls is None else len(shard.nulls)))
        is_whole_client = any(len(c.value["x"]) == before for c in view.captures if "x" in c.value)
        # another pool than that: its rows say nothing of their owners
        return torch.cat(positions) if is_whole_client else None

    def _rows_of_records(self, shard: Shard) -> Tensor | None:
        """The position of each record's row in a release of one row per record (ordered by id);
        None for any other release."""
        if not self.method.audit_hooks.rows_are_records():
            return None
        if shard.nulls is None:
            ids = shard.train.ids
        else:
            ids = torch.cat([shard.train.ids, shard.nulls.ids])
        return torch.searchsorted(ids.sort().values, shard.train.ids)

    def known_records(self, batch: int = 64) -> dict[str, Tensor]:
        """One record of every release batch that an insider happens to hold; none where no row is a
        record's own."""
        train = self.shard.train
        if (rows := self._rows_of_records(self.shard)) is None:
            return {}
        batches = rows // batch
        first = [int((batches == number).nonzero()[0]) for number in batches.unique()]
        return {"x": train.x[first], "row": rows[first]}

    def adversary_knowledge(self, round: int) -> Knowledge:
        """The protocol, the architecture, public records; maps that the broadcast makes known."""
        adversary = self.adversary_view(round)
        method = self.method
        problem = self.plan.problem
        # not an architecture whose values never travel
        if adversary.broadcast_state is not None:
            model = adversary.model
        else:
            model = None
        if model is not None and adversary.broadcast_state is not None:
            model.load_state_dict(adversary.broadcast_state, strict=False)
        maps = dict(
            method.audit_hooks.maps(adversary.snapshot.broadcast, adversary.memory, problem)
        )
        size = len(self.shard.train)
        public = self.public_records
        noise = feature_noise_constants(self.plan)
        if "std" in noise:
            noise["noise_std"] = noise.pop("std")
        public_constants = {"delta": self.experiment.privacy.delta, **noise}
        settings = {**method.audit_hooks.settings(size), **public_constants, "batch_records": size}
        known_records = self.known_records(int(settings.get("broadcast_batch") or 64))
        return Knowledge(
            problem.shape,
            problem.classes,
            public.x,
            public.y,
            model,
            maps,
            settings,
            known_records,
            problem.columns,
            adversary.public_images,
        )


def feature_noise_constants(plan: Plan) -> dict[str, Any]:
    """The public constants of the mechanism on released features: {} where there is none."""
    released = [
        m
        for name, m in plan.mechanisms.items()
        if plan.method.uploads.get(name) == Surface.FEATURES
    ]
    if released:
        return dict(released[0].public_constants(math.prod(plan.problem.shape)))
    return {}


SignalsByRound = Mapping[int, Mapping[str, Tensor]]  # audited round -> signals by "surface|signal"


def collect_views(
    run: FinishedRun,
    stacked: SignalsByRound,
    rounds: SignalsByRound,
    sent: Mapping[str, Tensor],
    others: SignalsByRound | None = None,
) -> Iterator[tuple[View, Truth, str]]:
    """Every view with its truth, and words for where it comes from. rounds: the signals in all
    replayed rounds; others: those of other clients' uploads in them, (M, n, R)."""
    truth = run.ground_truth()
    several = len({run.progress.snapshots[t].phase for t in stacked}) > 1
    for t, signals in stacked.items():
        phase = run.progress.snapshots[t].phase
        for view in client_views(run, t, signals, rounds[t], (others or {}).get(t)):
            yield view, truth, f"{phase} phase, round {t}" if several else f"round {t}"
    final = run.plan.method.broadcast(run.progress.server)
    for view in server_views(run, final, {**sent, **_pooled_feature_signals(stacked)}):
        yield view, run.ground_truth_of(view), "after the last round"
    yield from _single_record_views(run)


def _pooled_feature_signals(stacked: SignalsByRound) -> dict[str, Tensor]:
    """A peer sees the client's features among everybody's: the same rows, so the same matched
    filter."""
    pooled = {}
    for signals in stacked.values():
        for key, value in signals.items():
            if key.startswith("features|"):
                pooled[key.replace("features|", f"{Surface.SHARED_FEATURES}|")] = value
    return pooled


def _single_record_views(run: FinishedRun) -> Iterator[tuple[View, Truth, str]]:
    count = run.experiment.audit_settings.victims
    generator = run.plan.keys.fold("audit", "probes").torch()
    chosen = torch.randperm(len(run.shard.train), generator=generator)[:count].tolist()
    updates = [t for t, s in run.progress.snapshots.items() if s.phase == "train"]
    for t in sorted({min(updates), max(updates)} if updates else set()):
        probe = single_record_view(run, t, chosen)
        if probe is not None:
            yield *probe, f"a client that holds one record, round {t}"


def client_views(
    run: FinishedRun,
    round: int,
    stacked: Mapping[str, Tensor],
    rounds: Mapping[str, Tensor] | None = None,
    others: Mapping[str, Tensor] | None = None,
) -> Iterator[View]:
    """One view for each message that the audited client sent in ``round``, as the server holds it.
    rounds: the same signals in all replayed rounds, (K, n, R); others: of other clients."""
    snapshot = run.progress.snapshots[round]
    knowledge = run.adversary_knowledge(round)
    for name in snapshot.sent:
        surface = run.plan.method.uploads[name]
        group = signal_group(run.plan.method, name)
        # not where it is waived and unreadable
        read = any(key.startswith(f"{group}|") for key in stacked)
        if read:
            held = (run.game, run.public_records, rounds, others)
            replays = signals_to_worlds(stacked, group, *held)
        else:
            replays = None
        captures: tuple[Capture, ...] = (_capture_message(run, snapshot, name),)
        if surface in MAPPED_SURFACES:
            same_map = _rounds_with_same_map(run, round)
            captures += tuple(
                _capture_message(run, snapshot_then, name)
                for snapshot_then in same_map
                if name in snapshot_then.sent
            )
        if surface in ROW_SURFACES:
            other_rounds = tuple(_views_of_other_rounds(run, round, name))
        else:
            other_rounds = ()
        yield View(surface, Adversary.SERVER, captures, knowledge, replays, other_rounds)


def _views_of_other_rounds(run: FinishedRun, round: int, name: str) -> Iterator[View]:
    """The message in the other kept rounds of the phase, each with what its adversary knew then."""
    surface = run.plan.method.uploads[name]
    snapshots = run.progress.snapshots
    for t, snapshot in snapshots.items():
        if t != round and snapshot.phase == snapshots[round].phase and name in snapshot.sent:
            knowledge = run.adversary_knowledge(t)
            # nobody else asks for it here
            if surface == Surface.PROTOTYPES:
                model = knowledge.model
            else:
                model = None
            captures = (_capture_message(run, snapshot, name),)
            yield View(surface, Adversary.SERVER, captures, replace(knowledge, model=model))


def _rounds_with_same_map(run: FinishedRun, round: int) -> Iterator[Snapshot]:
    """The other kept rounds of a phase whose known map is the same, judged by its outputs on public
    records."""

    def map_outputs(at: Snapshot) -> dict[str, Tensor]:
        memory = run.memory_after(at.round)
        maps = run.method.audit_hooks.maps(at.broadcast, memory, run.plan.problem)
        with torch.no_grad():
            return {name: f(run.public_records.x[:4]) for name, f in maps.items()}

    snapshots = run.progress.snapshots
    outputs = map_outputs(snapshots[round])
    for t in sorted(set(snapshots) - {round}, reverse=True) if outputs else ():
        other_outputs = map_outputs(snapshots[t])
        if snapshots[t].phase == snapshots[round].phase and same_tensors(outputs, other_outputs):
            yield snapshots[t]


def _capture_message(run: FinishedRun, snapshot: Snapshot, name: str) -> Capture:
    """A message as the server holds it; models as whole prefix-free states, images beside their
    labels."""
    method = run.plan.method
    adversary = run.adversary_view(snapshot.round)
    value = snapshot.sent[name]
    broadcast: Tensors = {}
    if method.uploads[name] == Surface.UPDATE:
        state = adversary.state_of_upload(name, value)
        if state is not None and adversary.broadcast_state is not None:
            value = {**state, **_batch_norm_statistics(method, snapshot.sent)}
            broadcast = adversary.broadcast_state
    elif "labels" in snapshot.sent and name != "labels":
        value = {**value, **snapshot.sent["labels"]}
    if method.uploads[name] == Surface.LOGITS:
        broadcast = _broadcast_logits(method, snapshot.broadcast)
    return Capture(snapshot.round, run.plan.victim, name, value, broadcast)


def _broadcast_logits(method: Method, broadcast: Mapping[str, Tensors]) -> Tensors:
    """The logits that the server had sent before the clients sent theirs, if any."""
    for name, value in broadcast.items():
        if method.broadcasts.get(name) == Surface.LOGITS:
            return value
    return {}


def _batch_norm_statistics(method: Method, sent: Mapping[str, Tensors]) -> Tensors:
    """The batch-norm statistics that travelled with an update, if any."""
    if "buffers" in sent and method.uploads.get("buffers") == Surface.STATISTICS:
        return sent["buffers"]
    return {}


def server_views(
    run: FinishedRun, final: Mapping[str, Tensors], stacked: Mapping[str, Tensor]
) -> Iterator[View]:
    """Views of the server's last messages, as a peer and the public hold them. stacked: signals (K,
    n) by "surface|signal"; K = 1, the real run alone, where no federation is replayed."""
    method = run.plan.method
    round = max(run.progress.snapshots)
    for surface in dict.fromkeys(method.broadcasts[name] for name in final):
        values = {
            name: value for name, value in final.items() if method.broadcasts[name] == surface
        }
        if surface == Surface.GLOBAL_MODEL:
            adversary = Adversary.PUBLIC
        else:
            adversary = Adversary.PEER
        has_signals = any(key.startswith(f"{surface}|") for key in stacked)
        if has_signals:
            replays = signals_to_worlds(stacked, str(surface), run.game, run.public_records)
        else:
            replays = None
        captures = tuple(
            Capture(method.rounds, -1, name, value, {})
            for name, value in _values_with_labels(values)
        )
        knowledge = run.adversary_knowledge(round)
        if surface == Surface.GLOBAL_MODEL and knowledge.model is not None:
            knowledge.model.load_state_dict(
                _matching_parameters(values, knowledge.model), strict=False
            )
        yield View(surface, adversary, captures, knowledge, replays)


def _matching_parameters(values: Mapping[str, Tensors], model: nn.Module) -> State:
    """The parameters of this model among the server's messages; with several networks, those of the
    first that has them."""
    model_state: Mapping[str, Tensor] = model.state_dict()
    state: State = {}
    for _, message in _values_with_labels(values):
        for name, tensor in message.items():
            own = model_state.get(name)
            if own is not None and own.shape == tensor.shape:
                state.setdefault(name, tensor)
    return state


def describe_other_networks(view: View) -> str:
    """For a finding's note: the networks that the server sends beside the protocol's classifier; ""
    where there are none."""
    if view.surface != Surface.GLOBAL_MODEL or view.knowledge.model is None:
        return ""
    state: Mapping[str, Tensor] = view.knowledge.model.state_dict()
    shapes = {name: value.shape for name, value in state.items()}
    names = [
        c.name for c in view.captures if any(shapes.get(k) != t.shape for k, t in c.value.items())
    ]
    if not names:
        return ""
    says = (
        "signals are read from the model that predicts, parameters and labels from the classifier"
    )
    return (
        f"the server sends {', '.join(names)} with the classifier: {says}, and nothing from "
        "the rest"
    )


def _values_with_labels(values: Mapping[str, Tensors]) -> list[tuple[str, Tensors]]:
    labels = values.get("labels", {})
    messages: list[tuple[str, Tensors]] = []
    for name, value in values.items():
        if name in ("features", "images"):
            messages.append((name, {**value, **labels}))
        else:
            messages.append((name, value))
    return messages


def describe_granted_knowledge(plan: Plan, view: View, family: Family) -> str:
    """A sentence for the finding's note on what an attack is given beyond its adversary's position;
    "" if nothing."""
    method = plan.method
    if plan.trust.is_summed and view.adversary in (Adversary.SERVER, Adversary.MALICIOUS_SERVER):
        # only replays hold the others' part
        if family == Family.MEMBERSHIP:
            return SUM_GRANTED
        return SUM_NOT_GRANTED
    personal = method.audit_hooks.accuracy_kind == "personal"
    if view.surface == Surface.GLOBAL_MODEL and personal and family == Family.MEMBERSHIP:
        return (
            "the adversary is granted the audited client's own part of the model (kept "
            "by the client, never sent), "
            "without which the server's model predicts nothing"
        )
    return method.audit_hooks.granted_knowledge(view.surface)


def single_record_view(
    run: FinishedRun, round: int, records: Sequence[int]
) -> tuple[View, Truth] | None:
    """The same local step by a client that holds one record: the worst case for an update or
    gradient. Each of ``records`` (positions in what the client trained on) is replayed alone, from
    the same broadcast."""
    plan = run.plan
    snapshot = run.progress.snapshots[round]
    names = [n for n in snapshot.sent if plan.method.uploads[n] == Surface.UPDATE]
    adversary = run.adversary_view(round)
    if not names or adversary.broadcast_state is None or not records:
        return None
    uploads = other_uploads(plan, round, snapshot.broadcast, run.experiment.shards)
    captures = []
    virtual = []
    for position in records:
        alone = replace(run.shard, train=run.shard.train.take([position]))
        ctx = replay_context(replace(plan, keys=plan.keys.fold("probe", position)), round)
        upload, memory = plan.method.local(snapshot.broadcast, {}, alone.client_data, ctx)
        virtual.append(run.method.audit_hooks.surrogate_images(memory, plan.problem))
        read = {name: upload[name] for name in (*names, "buffers") if name in upload}
        received = plan.channel.send(read, ctx)[0]
        sent = uploads_seen_by_server(plan, round, received.values, uploads)
        state = adversary.state_of_upload(names[0], sent[names[0]])
        if state is None:
            return None
        state = {**state, **_batch_norm_statistics(plan.method, sent)}
        captures.append(Capture(round, plan.victim, names[0], state, adversary.broadcast_state))
    chosen = run.shard.train.take(list(records))
    knowledge = run.adversary_knowledge(round)
    settings = {**knowledge.settings, **run.method.audit_hooks.settings(1), "batch_records": 1}
    view = View(
        Surface.UPDATE, Adversary.SERVER, tuple(captures), replace(knowledge, settings=settings)
    )
    counts = torch.bincount(chosen.y, minlength=run.shard.classes)
    images = [v for v in virtual if v is not None]
    stand_ins = None
    if images:
        stand_ins = torch.cat(images)
    heldout = run.shard.heldout
    return view, Truth(chosen.x, chosen.y, heldout.x, heldout.y, counts, stand_ins)


def signals_to_worlds(
    stacked: Mapping[str, Tensor],
    surface: str,
    game: MembershipGame,
    public: Records,
    rounds: Mapping[str, Tensor] | None = None,
    others: Mapping[str, Tensor] | None = None,
) -> Worlds:
    """The (K, n) signals of one surface, with the membership masks and a control that never sees
    the artifact."""
    mine = _signals_of_surface(stacked, surface)
    logits = mine.pop("logits", None)
    population = mine.pop("public_logits", None)
    queries = {}
    if QUERIED_CONFIDENCE in mine:
        queries["confidence"] = mine.pop(QUERIED_CONFIDENCE)
    candidates = game.audited_records
    masks = game.masks[: len(next(iter(mine.values())))]
    blind = blind_scores(candidates, public)
    later = _signals_of_surface(rounds or {}, surface)
    arguments = (masks, blind, candidates.y, logits, population)
    return Worlds(
        mine,
        *arguments,
        rounds=later,
        records=candidates.x,
        kinds=game.kinds,
        queries=queries,
        other_clients=_signals_of_surface(others or {}, surface),
    )


def _signals_of_surface(stacked: Mapping[str, Tensor], surface: str) -> dict[str, Tensor]:
    prefix = f"{surface}|"
    return {
        key.removeprefix(prefix): value for key, value in stacked.items() if key.startswith(prefix)
    }


def blind_scores(candidates: Records, public: Records) -> Tensor:
    """How typical each record (n,) is of its class, by public records alone: a control, whose AUC
    should be 0.5."""
    overall = public.x.mean(0)
    means = {int(label): public.x[public.y == label].mean(0) for label in public.y.unique()}
    gaps = []
    for x, label in zip(candidates.x, candidates.y):
        typical = means.get(int(label), overall)
        gaps.append((x - typical).norm())
    return -torch.stack(gaps)


def malicious_server_views(
    run: FinishedRun, attacks: Mapping[str, Attack]
) -> Iterator[tuple[View, Truth, str, str, Attack]]:
    """(view, truth, note, name, attack) of every attack by a chosen model that the run's method can
    be asked to answer."""
    for name, attack in attacks.items():
        if isinstance(attack, ChosenModel) and isinstance(run.plan.method, FedAvg):
            view = _answer_to_attack(run, attack, run.plan.method, name)
            if view is not None:
                yield view, run.ground_truth(), CHOSEN_MODEL_NOTE, name, attack


def _answer_to_attack(
    run: FinishedRun, attack: ChosenModel, method: FedAvg, name: str
) -> View | None:
    """The view of a server that handed out the attack's model; None where it reads nothing that the
    method sends."""
    problem = run.plan.problem
    shard = run.shard
    surface = next((s for s in method.uploads.values() if s in attack.surfaces), None)
    if surface is None:
        return None
    width = attack.hidden_width(shard.train.x[0].numel(), problem.classes)
    network = replace(
        method.model, name="mlp", width=width, depth=2, norm=None, pooling=None, scale=None
    )
    method_asked = replace(method, model=network)
    plan = replace(run.plan, method=method_asked, keys=run.plan.keys.fold("chosen", name))
    model = method_asked.classifier(problem)
    attack.set_parameters(
        model, run.public_records.x, len(shard.train), plan.keys.fold("plant").torch()
    )
    broadcast, memory = _broadcast_of_state(plan, method_asked, dict(model.state_dict()))
    ctx = replay_context(plan, 0)
    upload, _ = method_asked.local(broadcast, memory, shard.client_data, ctx)
    uploads = other_uploads(plan, 0, broadcast, run.experiment.shards)
    sent = uploads_seen_by_server(plan, 0, plan.channel.send(upload, ctx)[0].values, uploads)
    message = next(key for key in sent if method.uploads[key] == surface)
    value = sent[message]
    if surface == Surface.UPDATE:
        value = method_asked.model_state("update", value, broadcast) or value
    capture = Capture(0, plan.victim, message, value, broadcast.get("model", {}))
    settings = {**method_asked.settings(len(shard.train)), "batch_records": len(shard.train)}
    public = run.public_records
    knowledge = Knowledge(
        problem.shape,
        problem.classes,
        public.x,
        public.y,
        model,
        settings=settings,
        columns=problem.columns,
    )
    return View(surface, Adversary.MALICIOUS_SERVER, (capture,), knowledge)


def _broadcast_of_state(plan: Plan, method: FedAvg, state: State) -> tuple[dict[str, State], State]:
    """The broadcast and the client's memory that put ``state`` where a client's training begins.
    Where no model is broadcast, all begin with the same first model, and it is that one which was
    chosen."""
    server = method.init(plan.problem, plan.keys.fold("public", "init"))
    memory: State = {}
    if isinstance(method, FedProto):
        memory = pack("personal", state)
    else:
        server = {**server, **pack("model", state)}
    broadcast = method.broadcast(server)
    return {name: dict(message) for name, message in broadcast.items()}, memory
