"""``private=True`` claims that an upload depends on the data only through what mechanisms released.

The test: record what one client's mechanisms gave out, replay it to a client with other data (and
other memory), and every upload that makes the claim must come out bit for bit the same, round
after round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
import torch

from privdd.core.types import Artifact, Records, Shard
from privdd.federated.simulation import ClientTask, Plan, client_step
from privdd.methods.fedavg import FedAvg
from privdd.training.dp_sgd import count_private_steps
from tests.federations import ALGOS, equal, tiny

# by name: to build every method takes each worker seconds while it collects tests
DPSGD = ("fedadam", "fedavg", "fedavgm", "fedmd", "fedmd_dp", "fednova", "fedprox", "scaffold")
CASES = {
    **{a: () for a in ALGOS if a.endswith("_dp") or a.startswith("dp_")},
    "feddm_dp carrying over": ("algo.carry_over=true",),
    "feddm_dp per gradient": ("privacy=clipped_gradient", "privacy.sampling_probability=0.5"),
    **{a: ("privacy=dpsgd",) for a in DPSGD},
}


def other_clients(shard: Shard, everyone: Records) -> dict[str, Shard]:
    """Clients whose data differs in everything that could leak: images, labels, classes held,
    number."""
    few = everyone.take(everyone.y < 3)
    fresh = Records(few.x.flip(-1) ** 2, few.y, few.ids + 10_000)
    return {
        "other records, other number": shard.with_train(fresh),
        "one record": shard.with_train(fresh.take([0])),
    }


def interference(
    plan: Plan, shards: list[Shard], others: Mapping[str, Shard]
) -> tuple[dict[str, list[str]], set[str], list[str]]:
    """(kind of other data -> "round t: name" of every private upload that changed with it, all
    names that made the claim, "round t: name" of every upload that is neither private, nor public,
    nor noised on its way out)."""
    method = plan.method
    victim = plan.victim
    server = method.init(plan.problem, plan.keys.fold("public", "init"))
    memories: dict[int, Mapping] = {}
    kept_of_others: dict[str, Mapping] = {kind: {} for kind in others}
    changed: dict[str, list[str]] = {kind: [] for kind in others}
    claimed = set[str]()
    bare = list[str]()
    for t in range(method.rounds):
        sent = method.broadcast(server)
        own = plan.client_context(t, victim)
        true, kept = method.local(sent, memories.get(victim, {}), shards[victim], own)
        bare += [
            f"round {t}: {n}"
            for n, a in true.items()
            if not (a.private or a.public or n in plan.channel.mechanisms)
        ]
        for kind, other in others.items():
            replayed = plan.client_context(t, victim, transcript=list(own.outputs))
            false, kept_of_others[kind] = method.local(sent, kept_of_others[kind], other, replayed)
            if len(replayed.outputs) != len(own.outputs):
                changed[kind].append(f"round {t}: number of queries")
            for name in sorted({*true, *false}):
                private = name in true and true[name].private
                if name not in true or name not in false or private != false[name].private:
                    changed[kind].append(f"round {t}: {name} is sent or not")
                elif private:
                    claimed.add(name)
                    if not equal(true[name].value, false[name].value):
                        changed[kind].append(f"round {t}: {name}")
        steps = [
            client_step(ClientTask(plan, t, s.client, sent, memories.get(s.client, {}), s))
            for s in shards
        ]
        memories = {received.client: m for received, _, m in steps} | {victim: kept}
        server = method.aggregate(
            server, [received for received, *_ in steps], plan.keys.fold("round", t, "server")
        )
    return changed, claimed, bare


def test_every_method_with_private_steps_is_a_case() -> None:
    others = ("fedfed", "feddm", "fedrd", "fedlgd", "dp_")
    averaging = [algo for algo in ALGOS if not algo.startswith(others)]
    private = [algo for algo in averaging if "dpsgd" in tiny(algo).plan.method.queries]
    assert private == [*DPSGD]


@pytest.mark.nightly(
    cases=[
        "feddm_public_dp",
        "fedmd_dp",
        "feddm_guided_dp",
        "feddm_dp carrying over",
        "fedrd_personal_dp",
        "fedlgd_dp",
        "fedrd_dp",
        "feddm_dp per gradient",
    ]
)
@pytest.mark.parametrize("case", CASES)
def test_private_uploads_do_not_read_the_data(case):
    """And every upload of a ``_dp`` profile is private, public with a reason, or noised on its way
    out."""
    experiment = tiny(case.split()[0], *CASES[case])
    everyone = Records.concat([s.train for s in experiment.shards])
    others = other_clients(experiment.shards[experiment.plan.victim], everyone)
    changed, claimed, bare = interference(experiment.plan, list(experiment.shards), others)
    assert claimed, "nothing claims to be private: the test would be empty"
    assert changed == {kind: [] for kind in others}
    if case.endswith("_dp") or case.startswith("dp_"):
        assert bare == []


class PeeksAtTheEnd(FedAvg):
    """Adds a billionth of a pixel to what it claims to be private."""

    def outcome(self, turn, trained):
        values, memory = super().outcome(turn, trained)
        first = next(iter(values["update"]))
        leak = values["update"][first] + 1e-9 + 1e-3 * turn.shard.train.x.mean()
        return {**values, "update": {**values["update"], first: leak}}, memory


class CountsItsRecords(FedAvg):
    """Trains longer on more records: the number of queries tells their number."""

    def _train_privately(self, turn):
        longer = replace(self, local_epochs=len(turn.shard.train) / 40)
        assert count_private_steps(turn.ctx.mechanisms["dpsgd"], longer.local_epochs) >= 1
        return FedAvg._train_privately(longer, turn)


class Remembers(FedAvg):
    """Private in its first round; in the next it sends what it kept of the data."""

    def local(self, broadcast, memory, shard, ctx):
        upload, _ = super().local(broadcast, memory, shard, ctx)
        if memory:
            upload = {
                n: Artifact({k: t + memory["mean"] for k, t in a.value.items()}, private=True)
                for n, a in upload.items()
            }
        return upload, {"mean": shard.train.x.mean()}


class SendsMoreForMore(FedAvg):
    """Whether an artifact is sent at all depends on the data."""

    def local(self, broadcast, memory, shard, ctx):
        upload, memory = super().local(broadcast, memory, shard, ctx)
        if len(shard.train) > 30:
            upload = {**upload, "count": Artifact({"n": torch.ones(1)}, private=True)}
        return upload, memory


@pytest.mark.parametrize("mutant", [PeeksAtTheEnd, CountsItsRecords, Remembers, SendsMoreForMore])
def test_mutants_that_peek_are_caught(mutant):
    experiment = tiny("fedavg", "privacy=dpsgd")
    plain = experiment.plan.method
    method = mutant(**{f.name: getattr(plain, f.name) for f in fields(plain) if f.init})
    everyone = Records.concat([s.train for s in experiment.shards])
    others = other_clients(experiment.shards[experiment.plan.victim], everyone)
    changed, *_ = interference(
        replace(experiment.plan, method=method), list(experiment.shards), others
    )
    assert any(changed.values())
