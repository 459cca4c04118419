"""Shadow models for adversaries who see only what the server sends: the whole federation is trained again.

Each replayed federation (a world) flips the coins of the audited records anew. Where only the last rounds are replayed, the
rounds before them are played once for all worlds, with coins of their own: not those of the run, of which such an
adversary saw less than its replays would then know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.membership import signals as sig
from attacks.types import Adversary, Surface, View
from privdd.auditing.game import Game
from privdd.auditing.readers import POPULATION, READERS, Signals
from privdd.auditing.replay import content_key
from privdd.auditing.signals import Lens
from privdd.auditing.views import Scene
from privdd.core.placement import placed
from privdd.core.types import Shard, State, Tensors
from privdd.federated.channel import shapes
from privdd.federated.method import Method
from privdd.federated.simulation import Plan, Progress, start, step
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from privdd.runtime.files import DamagedRun
from privdd.runtime.progress import Bar, stage
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors

FEWER = "the ledger says that this is computed from noised sums alone; noised_reads attacks these, so there were only"
SENT_AS = {Surface.GLOBAL_IMAGES: Surface.SYNTHETIC_IMAGES}


def sent_at_the_end(scene: Scene, whole: Shard, folder: RunFolder, federations: int) -> dict[str, Tensor]:
    """Signals (K, n) of what the server sends at the end; K = 1 below two ``federations``.

    whole: the audited client's data before any coin flip.
    """
    plan, experiment = scene.plan, scene.experiment
    kept = scene.progress.memories.get(plan.victim, {})  # after the last round, as in every replay
    lens = replace(scene.lens(max(scene.progress.snapshots)), memory=kept)
    final = plan.method.broadcast(scene.progress.server)
    real = server_signals(plan, scene.progress.server, lens, final)
    worlds = min(federations, len(scene.game.masks))
    if worlds < 2:
        return {key: value[None] for key, value in real.items()}
    with stage("shadow federations", worlds) as bar:
        return replay_federations(
            plan, experiment.ledger(), experiment.shards, whole, scene.game, lens, real, worlds, folder,
            experiment.engine, experiment.run.fingerprint, bar, experiment.audit.federation_rounds,
        )  # fmt: skip


def replayed(scene: Scene, view: View) -> str:
    """For a finding's note: that replays were left out, or which rounds of those of the whole federation are their own;
    "" where all are there and all rounds are."""
    method, audit = scene.plan.method, scene.experiment.audit
    apart, asked = audit.federation_rounds, min(audit.federations, audit.worlds)
    if view.worlds is None:
        return ""
    sent = view.adversary in (Adversary.PEER, Adversary.PUBLIC) and view.surface != Surface.SHARED_FEATURES
    if not sent:
        few = view.adversary in (Adversary.SERVER, Adversary.PEER) and len(view.worlds.masks) < audit.worlds
        return f"{FEWER} {len(view.worlds.masks)} of {audit.worlds} replays (audit.processed_worlds)" if few else ""
    if len(view.worlds.masks) < asked:
        count = len(view.worlds.masks) if len(view.worlds.masks) > 1 else 0  # one is the run itself
        return f"{FEWER} {count} of {asked} replays of the federation (audit.processed_federations)"
    if len(view.worlds.masks) < 2 or not shared_rounds(method, apart):
        return ""
    return f"replayed federations differ in the last {apart} of {method.rounds} rounds: replays of all rounds may show more"


def server_signals(plan: Plan, server: State, lens: Lens, final: Mapping[str, Tensors]) -> Signals:
    """ "surface|signal" -> (n,) of everything that the server sends at the end.

    A model that cannot predict without a client's own part gets the audited client's: the most that this adversary
    could hold. Shared features are left out: they are rows that the clients sent themselves, through a map that
    was broadcast earlier, so the signals of the round that released them are used.
    """
    lens, (server, final) = lens.there, placed((server, final), lens.problem.device)
    found: Signals = {}
    with torch.no_grad():
        for name, value in final.items():
            surface = plan.method.broadcasts[name]
            if surface == Surface.GLOBAL_MODEL and f"{surface}|confidence" in found:
                continue  # of several networks: the method predicts with one, whichever names they have
            if surface == Surface.GLOBAL_MODEL:
                logits = plan.method.predict(server, lens.memory, lens.candidates.x)
                public = plan.method.predict(server, lens.memory, lens.public.x[:POPULATION])
                confidence = sig.logit_scaled(logits, lens.candidates.y)
                signals = {"confidence": confidence, "logits": logits, "public_logits": public}
            elif name == "labels" or surface == Surface.SHARED_FEATURES:
                continue
            else:
                signals = dict(READERS[SENT_AS.get(surface, surface)](lens, name, value, final))
            found |= {f"{surface}|{signal}": scores.float() for signal, scores in signals.items()}
    return placed(found, "cpu")


@dataclass(frozen=True)
class Federation:
    """One world: the rounds from ``begun`` on of every client, the audited client on the records that are in.

    The public initial model is the run's own; everything drawn later comes from the world's own streams.
    """

    plan: Plan
    shards: Sequence[Shard]
    lens: Lens
    world: int
    begun: Progress

    def run(self) -> Signals:
        plan = replace(self.plan, keys=self.plan.keys.fold("world", self.world))
        progress = played(plan, self.begun, self.shards, plan.method.rounds)
        final = plan.method.broadcast(progress.server)
        own = replace(self.lens, memory=progress.memories.get(plan.victim, {}))
        return server_signals(plan, progress.server, own, final)


def played(plan: Plan, progress: Progress, shards: Sequence[Shard], rounds: int) -> Progress:
    """``progress`` after all rounds before ``rounds``."""
    serial, seen = Engine(threads=torch.get_num_threads()), None
    while progress.round < rounds:
        progress, _, seen = step(plan, progress, shards, serial, seen)
    return progress


def shared_rounds(method: Method, replayed: int) -> int:
    """How many first rounds all worlds have in common, if the last ``replayed`` are each world's own; 0 = all are."""
    return max(0, method.rounds - replayed) if replayed else 0


def _common_start(
    plan: Plan, ledger: Ledger, shards: Sequence[Shard], whole: Shard, game: Game, rounds: int
) -> Progress:
    """The rounds that all worlds share, with fresh coins; before the first round where there are none.

    ledger: an empty one of the run's own relation, unit and delta.
    """
    begun = start(plan, ledger)
    if not rounds:
        return begun
    keys = plan.keys.fold("world", "shared")
    coins = torch.rand(1, game.masks.shape[1], generator=keys.fold("secret", "coins").torch()) < 0.5
    own = list(shards)
    own[plan.victim] = replace(game, masks=coins).shard(whole, 0)
    return played(replace(plan, keys=keys), begun, own, rounds)


def run_federation(task: Federation) -> Signals:
    return task.run()


def replay_federations(
    plan: Plan, ledger: Ledger, shards: Sequence[Shard], whole: Shard, game: Game, lens: Lens, real: Signals,
    worlds: int, folder: RunFolder, engine: Engine, config: str, bar: Bar, replayed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """(K, n) signals of what the server sends; world 0 is ``real``, the others are replayed and kept.

    ledger: an empty one of the run's own relation, unit and delta; replayed: how many last rounds are each world's
    own, 0 = all.
    """
    shared = shared_rounds(plan.method, replayed)
    config = f"{config} from round {shared}" if shared else config
    place = folder.path / "worlds" / f"federation-{content_key(plan, (lens.snapshot,), game, config)}"
    found: dict[int, Signals] = {0: real}
    for world in range(1, worlds):
        with contextlib.suppress(DamagedRun):  # a damaged file is computed again
            signals = read_tensors(place / f"world_{world:04d}.safetensors")
            if shapes(signals) == shapes(real):
                found[world] = signals
    missing = [w for w in range(1, worlds) if w not in found]
    bar.advance(by=len(found))
    tasks = []
    begun = _common_start(plan, ledger, shards, whole, game, shared if missing else 0)
    for w in missing:
        own = list(shards)
        own[plan.victim] = game.shard(whole, w)
        tasks.append(Federation(plan, own, lens, w, begun))
    for w, signals in zip(missing, engine.map(run_federation, tasks)):
        write_tensors(place / f"world_{w:04d}.safetensors", signals)
        found[w] = signals
        bar.advance()
    return {key: torch.stack([found[w][key] for w in sorted(found)]) for key in real}
