"""The grid of base method, local distiller and released features: its points, and the methods that
some of them must equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from attacks.inversion.known_neighbour import KnownNeighbour
from attacks.types import Adversary, Surface, View
from privdd.auditing.replay import draw_membership_game, round_chain
from privdd.auditing.views import FinishedRun
from privdd.core.types import Records, Shard, State, Tensors, unpack
from privdd.core.validation import BadConfig
from privdd.distillation.virtual_images import images_in_memory
from privdd.federated.simulation import Plan
from privdd.methods.fedfed import FedFed
from privdd.methods.fedfed_virtual import FedFedVirtual
from tests.federations import equal, finished, tiny, trained

RELEASE = 1  # the round in which features are sent: one of phase A comes first


def values(upload):
    return {name: artifact.value for name, artifact in upload.items()}


# for gradient matching, which takes long
FEW = ("algo.virtual.ipc=2", "algo.virtual.networks=1", "algo.virtual.matches=1")


def pointed(*more: str, base: str = "fedavg") -> tuple[Plan, Shard]:
    """A point of the grid in the place of FedFed: the same federation, mechanism, noise and random
    streams."""
    words = () if base == "fedavg" else (f"algo/base={base}", "algo.base.rounds=2")
    plain = tiny("fedfed", *words)
    method = tiny("fedfed_virtual", *words, *more).plan.method
    assert isinstance(method, FedFedVirtual)
    return replace(plain.plan, method=method), plain.shards[0]


def sent_to(plan: Plan, round: int) -> Mapping[str, Tensors]:
    """What FedFed's server sends in a round: the rounds before it were FedFed's own."""
    return plan.method.broadcast(trained("fedfed")[2][round])


# --- reductions
# ---------------------------------------------------------------------------------------


@pytest.mark.nightly(cases=["scaffold-release"])
@pytest.mark.parametrize(
    ("base", "where"),
    [("fedavg", "everywhere"), ("scaffold", "release"), ("scaffold", "everywhere")],
)
def test_fedfed_with_records_for_images_is_fedfed(base: str, where: str) -> None:
    """The identity distiller: everything that every client sent, and the server after all rounds,
    to the bit; also where what a client remembers of one round of the base method decides what it
    sends in the next."""
    words = () if base == "fedavg" else (f"algo/base={base}", "algo.base.rounds=2")
    plan, _ = pointed("algo/virtual=records", f"algo.where={where}", base=base)
    experiment = tiny("fedfed", *words)
    ours = finished(replace(experiment, plan=plan))
    theirs = trained("fedfed", *words)[0]
    assert equal(ours.server, theirs.server) and equal(
        ours.memories.get(0, {}), theirs.memories.get(0, {})
    )
    digests = [[r.digest for r in progress.ledger.releases] for progress in (ours, theirs)]
    assert digests[0] == digests[1] and len(digests[0]) > 20


def test_no_virtual_data_is_the_method_itself() -> None:
    plain = tiny("virtual_data", "algo/virtual=records")
    plan = plain.plan
    shard = plain.shards[0]
    wrapped = plain.plan.method
    inner = wrapped.inner  # type: ignore[attr-defined]
    sent = inner.broadcast(inner.init(plan.problem, plan.keys.fold("public", "init")))
    ours, memory = wrapped.local(sent, {}, shard, plan.client_context(0, 0))
    assert (
        equal(values(ours), values(inner.local(sent, {}, shard, plan.client_context(0, 0))[0]))
        and memory == {}
    )


def test_fedlgd_without_its_own_ideas_is_fedavg_on_virtual_data() -> None:
    """All rounds selected, nothing refined or matched by the server, whole epochs: FedAvg with
    equal weights.

    One batch holds all images, so that the two differ by the order of a sum.
    """
    lgd = (
        "algo.tau_step=1",
        "algo.tau=2",
        "algo.virtual.refine.iterations=0",
        "algo.global_iterations=0",
    )
    same = (
        "algo.virtual.warmup.iterations=2",
        "algo.lr=0.05",
        "algo.local_epochs=2",
        "algo.batch_size=1000",
    )
    inner = tuple(s.replace("algo.", "algo.inner.") for s in same[1:])
    ours = trained("fedlgd", *lgd, *same, "algo.target=displacement")[0].server
    theirs = trained("virtual_data", same[0], *inner, "algo.inner.weighting=uniform")[0].server
    for name, value in unpack("model", theirs).items():
        torch.testing.assert_close(ours[f"model/{name}"], value, rtol=1e-4, atol=1e-5)
    start = trained("fedlgd", *lgd, *same, "algo.target=displacement")[2][0]
    assert (
        max(float((ours[n] - start[n]).abs().max()) for n in start if n.startswith("model/")) > 1e-2
    )


# --- the points between
# ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distiller", "where"),
    [("gradient", "everywhere"), ("distribution", "training"), ("unmatched", "release")],
)
def test_images_stand_where_they_are_asked_for(distiller: str, where: str) -> None:
    """Each round is FedFed's own on the client's images, or on its records."""
    few = FEW if distiller == "gradient" else FEW[:1]
    plan, shard = pointed(f"algo/virtual={distiller}", f"algo.where={where}", *few)
    memory: State = {}
    for round in range(3):
        sent = sent_to(plan, round)
        upload, after = plan.method.local(sent, memory, shard, plan.client_context(round, 0))
        images = images_in_memory(after)
        held = shard
        assert bool(images) == (where == "everywhere" or (where == "release") == (round <= RELEASE))
        if images:
            x = images["images/x"].flatten(0, 1)
            y = images["images/label"].repeat_interleave(2)
            held = shard.with_train(Records(x, y, torch.arange(len(x))))
        rest = {
            name: value for name, value in memory.items() if name not in images_in_memory(memory)
        }
        alone, _ = FedFed.local(plan.method, sent, rest, held, plan.client_context(round, 0))  # type: ignore[arg-type]
        assert equal(values(upload), values(alone))
        memory = after


def test_images_are_made_once_and_the_records_are_not_looked_at_again() -> None:
    plan, shard = pointed("algo/virtual=unmatched")
    _, memory = plan.method.local(sent_to(plan, 0), {}, shard, plan.client_context(0, 0))
    blind = replace(shard, train=shard.train.take(range(0)), nulls=shard.train.take([0]))
    sent = sent_to(plan, RELEASE)
    one, two = (
        plan.method.local(sent, memory, held, plan.client_context(RELEASE, 0))
        for held in (shard, blind)
    )
    assert (
        equal(values(one[0]), values(two[0]))
        and equal(one[1], two[1])
        and equal(images_in_memory(one[1]), memory)
    )


def test_unmatched_images_are_records_and_matched_ones_are_not() -> None:
    for distiller, same in (("unmatched", True), ("distribution", False), ("gradient", False)):
        more = (
            ("algo.virtual.warmup.iterations=0",)
            if same
            else FEW[1:]
            if distiller == "gradient"
            else ()
        )
        experiment = tiny(
            "virtual_data",
            f"algo/virtual={distiller}",
            "algo.virtual.start=real",
            "algo.virtual.ipc=2",
            *more,
        )
        plan = experiment.plan
        shard = experiment.shards[0]
        method = plan.method
        images = method.virtual.distil(method.model, shard, plan.client_context(0, 0))  # type: ignore[attr-defined]
        held = {
            int(label): shard.train.x[shard.train.y == label].flatten(1)
            for label in images["images/label"]
        }
        pairs = zip(images["images/x"].flatten(2), images["images/label"].tolist())
        gaps = torch.stack([torch.cdist(x, held[label]).amin(1) for x, label in pairs])
        assert bool((gaps < 1e-6).all()) == same and (same or bool((gaps > 1e-3).any()))


# --- what an audit is told
# ------------------------------------------------------------------------------


def finished_scene(*more: str) -> FinishedRun:
    experiment = tiny("fedfed_virtual", "algo/virtual=unmatched", *more)
    shards = list(experiment.shards)
    victim = experiment.plan.victim
    game = draw_membership_game(
        shards[victim], 10, 2, experiment.plan.keys.fold("audit", victim), experiment.plan.relation
    )
    return FinishedRun(experiment, finished(experiment), game, shards[victim])


@pytest.mark.nightly(but=["words1"])
@pytest.mark.parametrize(
    "words", [("algo.where=everywhere",), ("algo.where=training",), ("algo.where=release",)]
)
def test_rows_of_images_promise_no_record_anything(words: tuple[str, ...]) -> None:
    """The ledger, the labels, the claims, the calibration and the attack that pairs rows with
    records."""
    made = finished_scene(*words, "algo.shared_only=true", "privacy.relation=zero_out")
    method = made.plan.method
    plan = made.plan
    progress = made.progress
    paired = words == ("algo.where=training",)
    upload, _ = method.local(
        progress.snapshots[RELEASE].broadcast, {}, made.shard, plan.client_context(RELEASE, 0)
    )
    features = upload["features"]
    labels = upload["labels"]
    assert (
        ("row_per_record" not in features.flags)
        == bool(labels.public)
        == paired
        == method.rows_are_records()
    )
    assert len(features.value["x"]) == (
        len(made.shard.train) if paired else 10 * len(made.shard.train.y.unique())
    )
    assert bool(method.claims(plan, [made.shard])) == paired
    assert (method.releases_per_round(RELEASE, plan.mechanisms) == {"features": 1}) == paired
    view = View(Surface.FEATURES, Adversary.SERVER, (), made.adversary_knowledge(RELEASE))
    assert (
        bool(KnownNeighbour().nothing_to_read(view)) != paired
        and (made.ground_truth().rows is not None) == paired
    )
    row = next(r for r in progress.ledger.releases if r.name == "features")
    assert ("row_per_record" in (row.nonprivate_reason or "")) != paired


def test_what_images_stand_for_is_told_where_updates_come_of_them() -> None:
    for where, told in (("everywhere", True), ("training", True), ("release", False)):
        made = finished_scene(f"algo.where={where}")
        shown = made.ground_truth().virtual
        assert (shown is not None) == told
        if shown is not None:
            assert torch.equal(
                shown, made.progress.memories[made.plan.victim]["images/x"].flatten(0, 1)
            )


@pytest.mark.nightly(but=["fedfed-words0"])
@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ("fedfed", ("algo/base=scaffold", "algo.base.rounds=2")),
        ("fedfed_virtual", ("algo/virtual=unmatched", "algo.where=training", "algo.base.rounds=2")),
        ("fedfed_virtual", ("algo/virtual=unmatched", "algo.where=release", "algo/base=scaffold")),
    ],
)
def test_a_replay_of_the_rounds_that_a_method_names_gives_what_was_sent(
    algo: str, words: tuple[str, ...]
) -> None:
    """A client goes on from its control variates and its images: leaving out the rounds that made
    them changes the upload."""
    experiment = tiny(algo, *words)
    plan = experiment.plan
    progress = finished(experiment)
    for t, snapshot in progress.snapshots.items():
        memory: dict = {}
        for earlier in round_chain(plan, progress.snapshots, t):
            ctx = plan.client_context(earlier.round, plan.victim)
            upload, memory = plan.method.local(
                earlier.broadcast, memory, experiment.shards[plan.victim], ctx
            )
        assert equal(plan.channel.send(upload, ctx)[0].values, snapshot.sent), t


# --- settings
# -------------------------------------------------------------------------------------------


def test_settings_that_cannot_be_are_refused() -> None:
    method = tiny("fedfed_virtual").plan.method
    with pytest.raises(
        ValueError, match="where='images': allowed are everywhere, training, release"
    ):
        replace(method, where="images")
    with pytest.raises(ValueError, match="one record changes all embeddings"):
        tiny("fedfed_virtual", "model=convnet", "model.norm=batch")
    with pytest.raises(BadConfig, match="dpsgd"):
        tiny("fedfed_virtual", "privacy=fedfed_dp")
    with pytest.raises(ValueError, match="cannot refine images"):
        tiny("fedlgd", "algo/virtual=gradient")
