"""Tests of ``privdd.auditing.replay``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from attacks.types import Adversary, Family, Knowledge, Surface, View
from privdd.auditing import shadow_models as replays
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.replay import (
    ClientReplay,
    MembershipGame,
    draw_membership_game,
    other_uploads,
    replay_cache_key,
    replay_context,
    restore_memories,
    round_chain,
    scale_noise,
    uploads_seen_by_server,
)
from privdd.auditing.shadow_models import ShadowTraining
from privdd.auditing.views import FinishedRun, describe_granted_knowledge
from privdd.cli.compose import compose_config
from privdd.cli.settings import settings_fingerprint
from privdd.core.rng import Keys
from privdd.core.types import State, Tensors, remote_memory_marker
from privdd.federated.simulation import Plan, Progress, Snapshot, run_round, start_training
from privdd.methods.fedrd import FedRD
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms.noise_share import SHARE_CLASSES, ClientShare
from privdd.privacy.noise import CustomNoise, Noise, SeededNoise
from privdd.runtime.engine import Engine
from privdd.runtime.progress import ProgressBar
from privdd.runtime.run_folder import RunFolder
from tests.federations import equal, tiny, trained

# What a client keeps, without what it sends: the same bits, whichever way they are had.


def same(a: Any, b: Any) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("algo", ["fedrd", "fedrd_dp"])
def test_fedrd_recalls_what_its_local_work_keeps(algo: str) -> None:
    experiment = tiny(algo)
    plan = experiment.plan
    shard = experiment.shards[experiment.plan.victim]
    broadcast = plan.method.broadcast(
        plan.method.init(plan.problem, plan.keys.fold("public", "init"))
    )
    memory: dict[str, torch.Tensor] = {}
    for t in range(2):
        expected = plan.method.local(broadcast, memory, shard, plan.client_context(t, plan.victim))[
            1
        ]
        found = plan.method.memory_after(
            broadcast, memory, shard, plan.client_context(t, plan.victim)
        )  # type: ignore[attr-defined]
        assert same(found, expected) and not same(found, memory)
        memory = found


def test_a_replay_that_recalls_sends_what_one_that_distils_every_round_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = tiny("fedrd")
    snapshots = trained("fedrd")[0].snapshots
    plan = experiment.plan
    chain = round_chain(plan, snapshots, max(snapshots))
    shard = experiment.shards[plan.victim]
    game = draw_membership_game(shard, 20, 2, plan.keys.fold("audit", plan.victim), plan.relation)
    assert len(chain) > 1
    (found,) = ClientReplay(plan, chain, shard, game, [1]).run()
    monkeypatch.delattr(FedRD, "memory_after")
    (expected,) = ClientReplay(plan, chain, shard, game, [1]).run()
    assert (
        all(same(found[name], expected[name]) for name in expected)
        and found.keys() == expected.keys()
    )


@pytest.mark.parametrize("algo", ["fedrd", "scaffold"])
def test_a_memory_that_stayed_with_its_client_is_worked_out_again(algo: str) -> None:
    experiment = tiny(algo)
    whole = trained(algo)[0]
    plan = experiment.plan
    away = replace(
        whole,
        memories=dict.fromkeys(whole.memories, remote_memory_marker()),
        snapshots={
            t: replace(s, memory=remote_memory_marker() if s.memory else {})
            for t, s in whole.snapshots.items()
        },
    )
    found = restore_memories(plan, away, experiment.shards[plan.victim])
    assert same(found.memories[plan.victim], whole.memories[plan.victim])
    assert all(same(found.snapshots[t].memory, s.memory) for t, s in whole.snapshots.items())
    assert restore_memories(plan, whole, experiment.shards[plan.victim]) is whole


# Worlds: the real one is row 0, coins are fair and independent, replays are the client's own
# computation.


PHASES = {
    "fedavg": [],
    "fedfed": ["algo.distill_rounds=2"],
    "fedfed_released": ["algo.distill_rounds=2"],
    "fedfed_dp": [],
    "scaffold": [],
    "feddm": [],
}


@lru_cache
def scene(algo: str) -> FinishedRun:
    """A finished run of the federation whose victim plays world 0."""
    experiment = tiny(algo, *PHASES[algo])
    shards = list(experiment.shards)
    victim = experiment.plan.victim
    game = draw_membership_game(
        shards[victim], 20, 5, experiment.plan.keys.fold("audit", victim), experiment.plan.relation
    )
    shards[victim] = game.shard_of_replay(shards[victim], 0)
    progress: Progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        progress, _, _ = run_round(experiment.plan, progress, shards, Engine())
    return FinishedRun(experiment, progress, game, shards[victim])


@pytest.mark.parametrize("name", ["fedavg", "fedfed", "fedfed_dp"])
def test_row_0_is_what_the_run_trained_on(audited, name):
    """From disk: the masks' first row, the manifest's client, and the count of its records where it
    sends one."""
    from privdd.cli.build import build_experiment
    from privdd.cli.stored_config import load_stored_config
    from privdd.runtime.files import read_json
    from privdd.runtime.run_folder import read_tensors

    path = audited(name).path
    experiment = build_experiment(load_stored_config(path))
    game = membership_game_of(experiment)
    victim = read_json(path / "manifest.json")["audited_client"]
    real = game.shard_of_replay(experiment.shards[victim], 0)
    inside = torch.isin(game.audited_records.ids, real.train.ids)
    assert torch.equal(inside, game.masks[0]) and 0 < inside.sum() < len(inside)
    sent = read_tensors(path / "artifacts" / "round_000" / f"client_{victim}.safetensors")
    assert ("count/n" in sent) == (name != "fedfed_dp")
    if "count/n" in sent:
        assert int(sent["count/n"]) == len(real.train)
    kept = read_tensors(next((path / "evidence").glob("*.lira.safetensors")))
    row0 = kept["members"][kept["world"] == 0]
    assert torch.equal(row0.bool(), game.masks[0])


@pytest.mark.nightly(but=["fedavg", "scaffold"])
@pytest.mark.parametrize("algo", PHASES)
def test_world_0_replayed_with_the_runs_own_keys_is_the_run(algo):
    """Bit for bit, in every phase that was captured."""
    made = scene(algo)
    plan = made.plan
    snapshots = made.progress.snapshots
    phases = set()
    for t, snapshot in snapshots.items():
        memory: State = {}
        for link in round_chain(plan, snapshots, t):
            ctx = plan.client_context(link.round, plan.victim)
            upload, memory = plan.method.local(link.broadcast, memory, made.shard, ctx)
        received, _ = plan.channel.send(upload, ctx)
        assert equal(received.values, snapshot.sent), f"round {t}"
        phases.add(snapshot.phase)
    assert phases == ({"distill", "release", "train"} if algo.startswith("fedfed") else {"train"})


def test_replays_use_other_noise_and_other_batches_in_each_world():
    """Same records, other world: other coins of the client; same world twice: the same bits."""
    made = scene("fedfed")
    release = made.plan.method.distill_rounds
    chain = round_chain(made.plan, made.progress.snapshots, release)
    whole = made.experiment.shards[made.plan.victim]
    same = replace(made.game, masks=made.game.masks[:1].expand(3, -1))
    one, again, two = (ClientReplay(made.plan, chain, whole, same, [w]).run()[0] for w in (1, 1, 2))
    assert equal(one, again)
    a, b, real = (v["features"]["x"] for v in (one, two, made.progress.snapshots[release].sent))
    std = 0.3872983346207417
    for x, y in ((a, b), (a, real), (b, real)):
        gap = ((x - y) / (std * 2**0.5)).flatten().double().numpy()
        assert (
            stats.kstest(gap, "norm").pvalue > 1e-6
        )  # the clean features agree, the noise is independent


def test_remembered_methods_replay_the_chain():
    """SCAFFOLD's client keeps a control variate: a replay of the last round needs the rounds before
    it."""
    made = scene("scaffold")
    snapshots = made.progress.snapshots
    last = max(snapshots)
    assert [s.round for s in round_chain(made.plan, snapshots, last)] == list(range(last + 1))
    client = made.experiment.shards[made.plan.victim]
    (short,) = ClientReplay(made.plan, (snapshots[last],), client, made.game, [1]).run()
    (whole,) = ClientReplay(
        made.plan, round_chain(made.plan, snapshots, last), client, made.game, [1]
    ).run()
    assert not equal(short, whole)
    forgetful = scene("fedavg")
    assert (
        len(
            round_chain(
                forgetful.plan, forgetful.progress.snapshots, max(forgetful.progress.snapshots)
            )
        )
        == 1
    )


@pytest.mark.parametrize("seed", range(3))
def test_coins_are_fair_and_independent(seed):
    shard = tiny("fedavg").shards[0]
    game = draw_membership_game(shard, 30, 400, Keys(seed).fold("audit"))
    heads = game.masks.sum().item()
    assert stats.binomtest(heads, game.masks.numel()).pvalue > 1e-4
    for axis in (0, 1):  # variance of row and column sums, as independent coins have it
        sums = game.masks.double().sum(axis)
        count = game.masks.shape[axis]
        z = (sums - count / 2) / (count / 4) ** 0.5
        assert stats.kstest(z.numpy(), "norm").pvalue > 1e-6
    agree = (
        (game.masks[:, None] == game.masks[None]).double().mean(2)[*torch.triu_indices(400, 400, 1)]
    )
    assert abs(agree.mean() - 0.5) < 0.01
    pairs = (game.masks[:, :-1] == game.masks[:, 1:]).sum().item()
    assert stats.binomtest(pairs, game.masks[:, 1:].numel()).pvalue > 1e-4


def test_more_worlds_keep_the_first_ones():
    """Cached worlds of a smaller audit stay valid when more are asked for."""
    shard = tiny("fedavg").shards[0]
    few, many = (draw_membership_game(shard, 20, worlds, Keys(1)) for worlds in (5, 64))
    assert torch.equal(few.masks, many.masks[:5]) and torch.equal(few.audited, many.audited)


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_a_world_partitions_the_clients_records(relation):
    """In or out, nothing lost: every id is in train or in heldout; who is not audited always
    stays."""
    shard = tiny("fedavg").shards[0]
    game = draw_membership_game(shard, 1000, 6, Keys(1), relation)
    assert 1 <= len(shard.train) - len(game.audited) <= len(shard.train) // 4 + 1
    for world in range(6):
        mine = game.shard_of_replay(shard, world)
        assert sorted([*mine.train.ids.tolist(), *mine.heldout.ids.tolist()]) == sorted(
            [*shard.train.ids.tolist(), *shard.heldout.ids.tolist()]
        )
        never = game.whole.take(~torch.isin(torch.arange(len(game.whole)), game.audited))
        assert torch.isin(never.ids, mine.train.ids).all()
        out = game.audited_records.ids[~game.masks[world]]
        assert not torch.isin(out, mine.train.ids).any() and torch.isin(out, mine.heldout.ids).all()
        if relation == "zero_out":
            assert mine.nulls is not None and torch.equal(
                mine.nulls.ids.sort().values, out.sort().values
            )
            assert (mine.nulls.x == 0).all()
        else:
            assert mine.nulls is None


def test_too_few_records_to_audit():
    shard = tiny("fedavg").shards[0]
    with pytest.raises(ValueError, match="too few to audit"):
        draw_membership_game(shard.with_train(shard.train.take([0, 1, 2])), 2, 2, Keys(0))


def stage(
    made: FinishedRun,
    folder: Path,
    game: MembershipGame | None = None,
    config: str = "config",
    t: int | None = None,
) -> ShadowTraining:
    t = max(made.progress.snapshots) if t is None else t
    whole = made.experiment.shards[made.plan.victim]
    return ShadowTraining(
        made.plan,
        made.progress.snapshots,
        t,
        whole,
        game or made.game,
        made.adversary_view(t),
        RunFolder(folder),
        Engine(),
        config,
        "loop",
    )


def test_cached_worlds_are_reused_and_any_change_misses(tmp_path, monkeypatch):
    """Counts the replays that really run."""
    made = scene("fedavg")
    ran = []
    real = replays.run_replay_task

    def counting(task):
        ran.extend(task.replay.worlds)
        return real(task)

    monkeypatch.setattr(replays, "run_replay_task", counting)

    def signals(**more):
        ran.clear()
        return stage(made, tmp_path, **more).collect_signals(ProgressBar("worlds", 5, StringIO()))

    first = signals()
    assert ran == [1, 2, 3, 4]
    assert equal(signals(), first) and ran == []
    next(tmp_path.glob("worlds/*/world_0003.safetensors")).unlink()
    assert equal(signals(), first) and ran == [3]
    victim = made.experiment.shards[made.plan.victim]
    more = draw_membership_game(victim, 20, 7, made.plan.keys.fold("audit", made.plan.victim))
    assert torch.equal(
        signals(game=more)["update|confidence"][:5], first["update|confidence"]
    ) and ran == [5, 6]
    signals(config="another")
    assert ran == [1, 2, 3, 4]
    signals(t=0)  # another round has another broadcast
    assert ran == [1, 2, 3, 4]


def test_content_key_reads_config_broadcast_and_records():
    made = scene("fedavg")
    chain = round_chain(made.plan, made.progress.snapshots, max(made.progress.snapshots))
    base = replay_cache_key(made.plan, chain, made.game, "c")
    assert base == replay_cache_key(made.plan, chain, made.game, "c")
    (last,) = chain
    nudged = {n: {k: t + 1e-7 for k, t in v.items()} for n, v in last.broadcast.items()}
    others = [
        replay_cache_key(made.plan, chain, made.game, "d"),
        replay_cache_key(made.plan, [replace(last, broadcast=nudged)], made.game, "c"),
        replay_cache_key(made.plan, [replace(last, round=99)], made.game, "c"),
        replay_cache_key(
            made.plan,
            chain,
            replace(made.game, audited=made.game.audited[1:], masks=made.game.masks[:, 1:]),
            "c",
        ),
        replay_cache_key(replace(made.plan, keys=Keys(9)), chain, made.game, "c"),
    ]
    assert len({base, *others}) == 6


def test_fingerprint_reads_what_is_sent_and_nothing_else():
    base = compose_config("audit", ["algo=fedavg", "preset=smoke"])
    same = compose_config(
        "audit",
        [
            "algo=fedavg",
            "preset=smoke",
            "audit.worlds=99",
            "engine=processes",
            "name=x",
            "attack=[lira]",
        ],
    )
    assert settings_fingerprint(base) == settings_fingerprint(same)
    for change in (
        "seed=1",
        "algo.lr=0.5",
        "data.limit=99",
        "privacy=dpsgd",
        "partition.alpha=9",
        "participation=0.5",
        "model=mlp",
    ):
        assert settings_fingerprint(
            compose_config("audit", ["algo=fedavg", "preset=smoke", change])
        ) != settings_fingerprint(base), change


def test_fast_worlds_equal_the_slow_loop_with_the_same_coins():
    """All worlds of distribution matching in one pass against ``local`` of each world."""
    made = scene("feddm")
    plan = made.plan
    game = made.game
    snapshot = made.progress.snapshots[0]
    whole = made.experiment.shards[plan.victim]
    shards = [game.shard_of_replay(whole, world) for world in range(len(game.masks))]
    contexts = [plan.client_context(0, plan.victim) for _ in shards]
    fast = [
        upload
        for upload, _ in plan.method.local_batched(
            snapshot.broadcast, [{}] * len(shards), shards, contexts
        )
    ]
    for world in range(len(game.masks)):
        slow, _ = plan.method.local(
            snapshot.broadcast,
            {},
            game.shard_of_replay(whole, world),
            plan.client_context(0, plan.victim),
        )
        assert torch.equal(fast[world]["labels"].value["y"], slow["labels"].value["y"])
        assert torch.allclose(
            fast[world]["images"].value["x"], slow["images"].value["x"], atol=1e-5
        )


# Replays under secure aggregation: the view is the victim's upload among the others', under the
# noise of all shares.


torch.set_num_threads(1)
PLAIN = ("fedavg", "algo.weighting=uniform", "trust=secagg", "model=mlp")
NOISED = ("fedavg", "privacy=client", "trust=secagg", "model=mlp")


def state(*settings: str) -> tuple[Plan, Snapshot, list[object]]:
    experiment = tiny(*settings)
    return experiment.plan, trained(*settings)[0].snapshots[0], list(experiment.shards)


def replayed(plan: Plan, snapshot: Snapshot, shards: list[object]) -> dict[str, torch.Tensor]:
    others = other_uploads(plan, 0, snapshot.broadcast, shards)  # type: ignore[arg-type]
    ctx = replay_context(plan, 0)
    upload, _ = plan.method.local(snapshot.broadcast, {}, shards[plan.victim], ctx)  # type: ignore[arg-type]
    return dict(
        uploads_seen_by_server(plan, 0, plan.channel.send(upload, ctx)[0].values, others)["update"]
    )


def test_without_noise_a_replay_on_the_same_records_is_what_the_server_saw() -> None:
    plan, snapshot, shards = state(*PLAIN)
    again = replayed(plan, snapshot, shards)
    for key, value in snapshot.sent["update"].items():
        assert torch.allclose(again[key], value, atol=1e-6)


def test_the_noise_of_a_replay_is_that_of_all_shares() -> None:
    """Accepted at its closed form, refused at that of one share, of the audited client alone."""
    plan, snapshot, shards = state(*NOISED)
    plans = [replace(plan, keys=plan.keys.fold("world", w)) for w in (1, 2)]
    one, two = (
        torch.cat([t.flatten() for t in replayed(p, snapshot, shards).values()]) for p in plans
    )
    share = float(plan.mechanisms["update"].noise_std)  # type: ignore[attr-defined]
    square = float((one - two).double().square().sum()) * 9  # of the sum over three clients, twice
    spread = stats.chi2.cdf(square / (2 * 3 * share**2), len(one))
    assert 1e-6 < spread < 1 - 1e-6
    assert stats.chi2.cdf(square / (2 * share**2), len(one)) > 1 - 1e-6
    assert math.isclose(share * math.sqrt(2), 1.0)  # dealt among two of three: one may collude


def test_where_every_upload_is_seen_nothing_is_added() -> None:
    experiment = tiny("fedavg", "model=mlp")
    assert other_uploads(experiment.plan, 0, {}, experiment.shards) == {}
    sent = {"update": {"w": torch.ones(2)}}
    assert uploads_seen_by_server(experiment.plan, 0, sent, {}) is sent


def test_laplace_noise_is_not_dealt() -> None:
    with pytest.raises(ValueError, match="Laplace"):
        replay_context(tiny(*NOISED).plan, 0).noise.laplace((1,))


def scales_by_factors(mechanism: Mechanism) -> bool:
    """Whether ``scale_noise`` multiplies all of a mechanism's noise, but for rounding."""
    value = {"x": torch.ones(4, 50)}

    def noise_of_release(times: float) -> torch.Tensor:
        output = mechanism(value, scale_noise(SeededNoise(Keys(0).torch()), times))
        assert output.exact is not None
        return output.value["x"].double() - output.exact["x"].double()

    noise = noise_of_release(1.0)
    assert float(noise.abs().max()) > 0.1
    is_scaled = torch.allclose(noise_of_release(1.5), 1.5 * noise, atol=1e-3)
    return is_scaled and float(noise_of_release(0.0).abs().max()) < 1e-3


@dataclass(frozen=True)
class UniformShare(ClientShare):
    """Its noise is made of the draws that toss coins."""

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        uniform = CustomNoise.around(noise, normal=lambda shape: noise.uniform(shape) - 0.5)
        return super().__call__(value, uniform)


@pytest.mark.parametrize("share", SHARE_CLASSES.values())
def test_a_factor_on_the_noise_reaches_all_that_is_dealt(share: type[Mechanism]) -> None:
    assert scales_by_factors(share(2.0, 1.5, parts=3))  # type: ignore[call-arg]


def test_a_factor_that_does_not_reach_the_noise_is_seen() -> None:
    assert not scales_by_factors(UniformShare(2.0, 1.5, parts=3))


def test_a_note_grants_the_others_part_to_the_attacks_that_have_it() -> None:
    """The sum less the others' part is in no view: only replays of the client are made with it."""
    view = View(
        Surface.UPDATE,
        Adversary.SERVER,
        (),
        Knowledge((1, 8, 8), 10, torch.zeros(1, 1, 8, 8), torch.zeros(1)),
    )
    summed = tiny(*PLAIN).plan
    local = tiny("fedavg", "model=mlp").plan
    said = {family: describe_granted_knowledge(summed, view, family) for family in Family}
    assert {family for family, words in said.items() if "knows the other" in words} == {
        Family.MEMBERSHIP
    }
    assert all("sees the sum" in words for words in said.values())
    assert not any(describe_granted_knowledge(local, view, family) for family in Family)
