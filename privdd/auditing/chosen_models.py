"""One round with a model that a malicious server chose: the audited client follows the protocol and answers.

Nothing of the run itself changes. The round is the first one, with the client's own records and through the same
channel and mechanisms, so noise that a client adds acts here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from attacks.malicious.chosen import ChosenModel
from attacks.types import Adversary, Attack, Capture, Knowledge, Surface, Truth, View
from privdd.auditing.seen_sums import of_others, replaying, seen
from privdd.auditing.views import Scene
from privdd.core.state import pack
from privdd.core.types import State
from privdd.federated.simulation import Plan
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedproto import FedProto

NOTE = "one round with a model that the server chose; its architecture, three linear layers, is part of the choice"


def chosen_views(scene: Scene, attacks: Mapping[str, Attack]) -> Iterator[tuple[View, Truth, str, str, Attack]]:
    """(view, truth, note, name, attack) of every attack by a chosen model that the run's method can be asked to answer."""
    for name, attack in attacks.items():
        if isinstance(attack, ChosenModel) and isinstance(scene.plan.method, FedAvg):
            view = _answer(scene, attack, scene.plan.method, name)
            if view is not None:
                yield view, scene.truth(), NOTE, name, attack


def _answer(scene: Scene, attack: ChosenModel, method: FedAvg, name: str) -> View | None:
    """The view of a server that handed out the attack's model; None where it reads nothing that the method sends."""
    problem, shard = scene.plan.problem, scene.shard
    surface = next((s for s in method.uploads.values() if s in attack.surfaces), None)
    if surface is None:
        return None
    width = attack.width(shard.train.x[0].numel(), problem.classes)
    network = replace(method.model, name="mlp", width=width, depth=2, norm=None, pooling=None, scale=None)
    asked = replace(method, model=network)
    plan = replace(scene.plan, method=asked, keys=scene.plan.keys.fold("chosen", name))
    model = asked.classifier(problem)
    attack.plant(model, scene.public.x, len(shard.train), plan.keys.fold("plant").torch())
    broadcast, memory = _handed_out(plan, asked, dict(model.state_dict()))
    ctx = replaying(plan, 0)
    upload, _ = asked.local(broadcast, memory, shard, ctx)
    others = of_others(plan, 0, broadcast, scene.experiment.shards)
    sent = seen(plan, 0, plan.channel.send(upload, ctx)[0].values, others)
    value = next(value for key, value in sent.items() if method.uploads[key] == surface)
    if surface == Surface.UPDATE:
        value = asked.model_state("update", value, broadcast) or value
    capture = Capture(0, plan.victim, str(surface), value, broadcast.get("model", {}))
    settings = {**asked.settings(len(shard.train)), "batch_records": len(shard.train)}
    public = scene.public
    knowledge = Knowledge(problem.shape, problem.classes, public.x, public.y, model, settings=settings)
    return View(surface, Adversary.MALICIOUS_SERVER, (capture,), knowledge)


def _handed_out(plan: Plan, method: FedAvg, state: State) -> tuple[dict[str, State], State]:
    """The broadcast and the client's memory that put ``state`` where a client's training begins.

    Where no model is broadcast, all begin with the same first model, and it is that one which was chosen.
    """
    server = method.init(plan.problem, plan.keys.fold("public", "init"))
    if isinstance(method, FedProto):
        return {k: dict(v) for k, v in method.broadcast(server).items()}, pack("personal", state)
    return {k: dict(v) for k, v in method.broadcast({**server, **pack("model", state)}).items()}, {}
