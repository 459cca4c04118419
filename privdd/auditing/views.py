"""What each adversary holds about each surface of a finished run, and the truth that only the evaluator holds.

Worlds are replays of the audited client, the source of one shadow model each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.types import Adversary, Capture, Family, Knowledge, Surface, Truth, View, Worlds
from privdd.auditing.game import Game
from privdd.auditing.seen_sums import GRANTED, NOT_GRANTED, of_others, replaying, seen
from privdd.auditing.signals import Lens, maps_of
from privdd.core.types import Records, Shard, State, Tensors
from privdd.federated.experiment import Experiment
from privdd.federated.method import Method
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.simulation import Plan, Progress, Snapshot
from privdd.runtime.run_folder import same_tensors

PUBLIC = 500  # records of the test set that attackers may hold


# Surfaces whose rows may be combined over rounds: the same rows, if the map did not change in between. Synthetic
# representations start afresh each round, so their rows are different ones.
THROUGH_A_MAP = (Surface.FEATURES, Surface.PROTOTYPES)


@dataclass(frozen=True)
class Scene:
    """A finished run as the evaluator sees it."""

    experiment: Experiment
    progress: Progress
    game: Game
    shard: Shard  # the audited client as it really trained
    record: NoiseRecord | None = None  # the noise and the sampling of the run, where they were noted

    @property
    def plan(self) -> Plan:
        return self.experiment.plan

    @property
    def public(self) -> Records:
        """Records of the same distribution that belong to no client."""
        return self.experiment.test.take(torch.arange(min(PUBLIC, len(self.experiment.test))))

    def lens(self, round: int) -> Lens:
        snapshot = self.progress.snapshots[round]
        waived = frozenset(self.experiment.auditing.waive if self.experiment.auditing else ())
        plan, candidates = self.plan, self.game.candidates
        noise, opening = feature_noise(plan), plan.method.opening(plan.problem, plan.keys.seed)
        return Lens(
            plan.method, plan.problem, snapshot, candidates, self.public, snapshot.memory, waived, noise, opening
        )

    def truth(self) -> Truth:
        train, out = self.shard.train, self.shard.heldout
        counts = torch.bincount(train.y, minlength=self.shard.classes)
        memory = self.progress.memories.get(self.plan.victim, {})
        return Truth(
            train.x,
            train.y,
            out.x,
            out.y,
            counts,
            self.plan.method.stand_ins(memory, self.plan.problem),
            self._rows(self.shard),
        )

    def truth_of(self, view: View) -> Truth:
        """What a view is judged by: of a pool that is sent on, the records of all clients whose rows it holds."""
        if view.surface != Surface.SHARED_FEATURES:
            return self.truth()
        own = {self.plan.victim: self.shard}
        shards = [own.get(client, shard) for client, shard in enumerate(self.experiment.shards)]
        x, y, held_x, held_y = (
            torch.cat(parts) for parts in zip(*((s.train.x, s.train.y, s.heldout.x, s.heldout.y) for s in shards))
        )
        counts = torch.bincount(y, minlength=self.shard.classes)
        return Truth(x, y, held_x, held_y, counts, rows=self._pool_rows(shards, view))

    def _pool_rows(self, shards: Sequence[Shard], view: View) -> Tensor | None:
        """The first row of each record in a pool of all clients' rows, client after client, each in its copies."""
        copies, before, found = int(feature_noise(self.plan).get("copies", 1)), 0, []
        for shard in shards:
            if (rows := self._rows(shard)) is None:
                return None
            found.append(rows + before)
            before += copies * (len(shard.train) + (0 if shard.nulls is None else len(shard.nulls)))
        whole = any(len(c.value["x"]) == before for c in view.captures if "x" in c.value)
        return torch.cat(found) if whole else None  # another pool than that: its rows say nothing of their owners

    def _rows(self, shard: Shard) -> Tensor | None:
        """Where each record's row stands in a release of one row per record (ordered by id); None for any other release."""
        if not self.plan.method.rows_are_records():
            return None
        ids = shard.train.ids if shard.nulls is None else torch.cat([shard.train.ids, shard.nulls.ids])
        return torch.searchsorted(ids.sort().values, shard.train.ids)

    def known(self, batch: int = 64) -> dict[str, Tensor]:
        """One record of every release batch that an insider happens to hold; none where no row is a record's own."""
        train = self.shard.train
        if (rows := self._rows(self.shard)) is None:
            return {}
        first = [int((rows // batch == b).nonzero()[0]) for b in (rows // batch).unique()]
        return {"x": train.x[first], "row": rows[first]}

    def knowledge(self, round: int) -> Knowledge:
        """The protocol, the architecture, public records; maps that the broadcast makes known."""
        lens, method, problem = self.lens(round), self.plan.method, self.plan.problem
        model = lens.model if lens.start is not None else None  # an architecture whose values never travel
        if model is not None and lens.start is not None:
            model.load_state_dict({k: v for k, v in lens.start.items()}, strict=False)
        maps = maps_of(method, lens.snapshot, lens.snapshot.memory, problem)
        size = len(self.shard.train)
        settings = {**method.settings(size), **self._settings(), "batch_records": size}
        known = self.known(int(settings.get("broadcast_batch") or 64))
        return Knowledge(problem.shape, problem.classes, self.public.x, self.public.y, model, maps, settings, known)

    def _settings(self) -> dict[str, Any]:
        noise = feature_noise(self.plan)
        delta = self.experiment.privacy.delta
        return {"delta": delta, **{f"noise_{k}" if k == "std" else k: v for k, v in noise.items()}}


def feature_noise(plan: Plan) -> dict[str, Any]:
    """The public constants of the mechanism on released features: {} where there is none."""
    released = [m for name, m in plan.mechanisms.items() if plan.method.uploads.get(name) == Surface.FEATURES]
    return dict(released[0].public_constants(math.prod(plan.problem.shape))) if released else {}


def client_views(
    scene: Scene, round: int, stacked: Mapping[str, Tensor], rounds: Mapping[str, Tensor] | None = None
) -> Iterator[View]:
    """One view for each surface that the audited client sent in ``round``, as the server holds it.

    rounds: the same signals in all replayed rounds, (K, n, R).
    """
    snapshot = scene.progress.snapshots[round]
    knowledge = scene.knowledge(round)
    for surface in dict.fromkeys(scene.plan.method.uploads[name] for name in snapshot.sent):
        read = any(key.startswith(f"{surface}|") for key in stacked)  # not where it is waived and unreadable
        worlds = as_worlds(stacked, str(surface), scene.game, scene.public, rounds) if read else None
        captures = tuple(_captures(scene, snapshot, surface))
        if surface in THROUGH_A_MAP:
            captures += tuple(
                c for other in _through_the_same_map(scene, round) for c in _captures(scene, other, surface)
            )
        yield View(surface, Adversary.SERVER, captures, knowledge, worlds)


def _through_the_same_map(scene: Scene, round: int) -> Iterator[Snapshot]:
    """The other kept rounds of a phase whose known map is the same, judged by its outputs on public records."""

    def images(at: Snapshot) -> dict[str, Tensor]:
        maps = maps_of(scene.plan.method, at, at.memory, scene.plan.problem)
        with torch.no_grad():
            return {name: f(scene.public.x[:4]) for name, f in maps.items()}

    snapshots = scene.progress.snapshots
    own = images(snapshots[round])
    for t in sorted(set(snapshots) - {round}, reverse=True) if own else ():
        other = images(snapshots[t])
        if snapshots[t].phase == snapshots[round].phase and same_tensors(own, other):
            yield snapshots[t]


def _captures(scene: Scene, snapshot: Snapshot, surface: Surface) -> Iterator[Capture]:
    """The surface's artifacts; models as whole prefix-free states, images beside their labels."""
    method, lens = scene.plan.method, scene.lens(snapshot.round)
    for name, value in snapshot.sent.items():
        if method.uploads[name] != surface:
            continue
        broadcast: Tensors = {}
        if surface == Surface.UPDATE:
            state = lens.state(name, value)
            if state is not None and lens.start is not None:
                value, broadcast = {**state, **_statistics(method, snapshot.sent)}, lens.start
        elif "labels" in snapshot.sent and name != "labels":
            value = {**value, **snapshot.sent["labels"]}
        yield Capture(snapshot.round, scene.plan.victim, name, value, broadcast)


def _statistics(method: Method, sent: Mapping[str, Tensors]) -> Tensors:
    """The batch-norm statistics that travelled with an update, if any."""
    return sent["buffers"] if "buffers" in sent and method.uploads.get("buffers") == Surface.STATISTICS else {}


def server_views(scene: Scene, final: Mapping[str, Tensors], stacked: Mapping[str, Tensor]) -> Iterator[View]:
    """What the server sent at the end, as a peer and the public hold it.

    stacked: signals (K, n) by "surface|signal"; K = 1, the real run alone, where no federation is replayed.
    """
    method = scene.plan.method
    round = max(scene.progress.snapshots)
    for surface in dict.fromkeys(method.broadcasts[name] for name in final):
        values = {name: value for name, value in final.items() if method.broadcasts[name] == surface}
        adversary = Adversary.PUBLIC if surface == Surface.GLOBAL_MODEL else Adversary.PEER
        known = any(key.startswith(f"{surface}|") for key in stacked)
        worlds = as_worlds(stacked, str(surface), scene.game, scene.public) if known else None
        captures = tuple(Capture(method.rounds, -1, name, value, {}) for name, value in _flattened(values))
        knowledge = scene.knowledge(round)
        if surface == Surface.GLOBAL_MODEL and knowledge.model is not None:
            knowledge.model.load_state_dict(_fitting(values, knowledge.model), strict=False)
        yield View(surface, adversary, captures, knowledge, worlds)


def _fitting(values: Mapping[str, Tensors], model: nn.Module) -> State:
    """Of what the server sends, the parameters of this model: of several networks, the first that has them."""
    own: Mapping[str, Tensor] = model.state_dict()
    state: State = {}
    for _, value in _flattened(values):
        state |= {k: t for k, t in value.items() if k in own and own[k].shape == t.shape and k not in state}
    return state


def other_networks(view: View) -> str:
    """For a finding's note: the networks that the server sends beside the protocol's classifier; "" where there are none."""
    if view.surface != Surface.GLOBAL_MODEL or view.knowledge.model is None:
        return ""
    own: Mapping[str, Tensor] = view.knowledge.model.state_dict()
    shapes = {name: value.shape for name, value in own.items()}
    names = [c.name for c in view.captures if any(shapes.get(k) != t.shape for k, t in c.value.items())]
    if not names:
        return ""
    return (
        f"the server sends {', '.join(names)} beside the classifier: signals are read from what the method predicts "
        "with, parameters and labels from the classifier, and nothing from the rest"
    )


def _flattened(values: Mapping[str, Tensors]) -> list[tuple[str, Tensors]]:
    labels = values.get("labels", {})
    return [(n, {**v, **labels} if n in ("features", "images") else v) for n, v in values.items()]


def granted(plan: Plan, view: View, family: Family) -> str:
    """A sentence for the finding's note on what an attack is given beyond its adversary's position; "" if nothing."""
    method = plan.method
    if plan.trust.summed and view.adversary in (Adversary.SERVER, Adversary.MALICIOUS_SERVER):
        return GRANTED if family == Family.MEMBERSHIP else NOT_GRANTED  # only replays hold the others' part
    personal = method.accuracy_kind == "personal"
    if view.surface == Surface.GLOBAL_MODEL and personal and family == Family.MEMBERSHIP:
        return (
            "the adversary is granted the audited client's own part of the model (kept by the client, never sent), "
            "without which the server's model predicts nothing"
        )
    return method.grants(view.surface)


def probe_view(scene: Scene, round: int, records: Sequence[int]) -> tuple[View, Truth] | None:
    """The same local step by a client that holds one record: the worst case for an update or gradient.

    Each of ``records`` (positions in what the client trained on) is replayed alone, from the same broadcast, by the
    method's own local work and through the same channel.
    """
    plan, snapshot = scene.plan, scene.progress.snapshots[round]
    names = [n for n in snapshot.sent if plan.method.uploads[n] == Surface.UPDATE]
    lens = scene.lens(round)
    others = of_others(plan, round, snapshot.broadcast, scene.experiment.shards) if names else {}
    if not names or lens.start is None or not records:
        return None
    captures, virtual = [], []
    for at in records:
        alone = replace(scene.shard, train=scene.shard.train.take([at]))
        ctx = replaying(replace(plan, keys=plan.keys.fold("probe", at)), round)
        upload, memory = plan.method.local(snapshot.broadcast, {}, alone, ctx)
        virtual.append(plan.method.stand_ins(memory, plan.problem))
        sent = plan.channel.send({n: upload[n] for n in (*names, "buffers") if n in upload}, ctx)[0].values
        sent = seen(plan, round, sent, others)
        state = lens.state(names[0], sent[names[0]])
        if state is None:
            return None
        state = {**state, **_statistics(plan.method, sent)}
        captures.append(Capture(round, plan.victim, names[0], state, lens.start))
    chosen = scene.shard.train.take(list(records))
    knowledge = scene.knowledge(round)
    settings = {**knowledge.settings, **plan.method.settings(1), "batch_records": 1}
    view = View(Surface.UPDATE, Adversary.SERVER, tuple(captures), replace(knowledge, settings=settings))
    counts = torch.bincount(chosen.y, minlength=scene.shard.classes)
    stand_ins = torch.cat([v for v in virtual if v is not None]) if any(v is not None for v in virtual) else None
    return view, Truth(chosen.x, chosen.y, scene.shard.heldout.x, scene.shard.heldout.y, counts, stand_ins)


def as_worlds(
    stacked: Mapping[str, Tensor],
    surface: str,
    game: Game,
    public: Records,
    rounds: Mapping[str, Tensor] | None = None,
) -> Worlds:
    """The (K, n) signals of one surface, with the membership masks and a control that never sees the artifact."""
    mine = _of_surface(stacked, surface)
    logits, population = mine.pop("logits", None), mine.pop("public_logits", None)
    candidates = game.candidates
    masks = game.masks[: len(next(iter(mine.values())))]
    blind, later = blind_scores(candidates, public), _of_surface(rounds or {}, surface)
    return Worlds(
        mine, masks, blind, candidates.y, logits, population, rounds=later, records=candidates.x, kinds=game.kinds
    )


def _of_surface(stacked: Mapping[str, Tensor], surface: str) -> dict[str, Tensor]:
    return {key.split("|", 1)[1]: value for key, value in stacked.items() if key.split("|", 1)[0] == surface}


def blind_scores(candidates: Records, public: Records) -> Tensor:
    """(n,) how typical each record is of its class, by public records alone: must sit at AUC 0.5."""
    means = {int(c): public.x[public.y == c].mean(0) for c in public.y.unique()}
    overall = public.x.mean(0)
    gaps = [(x - means.get(int(c), overall)).norm() for x, c in zip(candidates.x, candidates.y)]
    return -torch.stack(gaps)
