"""Nothing leaves a client but through the channel, and every value that leaves has its row."""

from __future__ import annotations

import dp_accounting as dpa
import pytest
import torch

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem
from privdd.federated.channel import Channel, ClientContext, UndeclaredArtifact, digest_tensors
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from tests.federations import ALGOS, tiny, trained

PROBLEM = Problem((1, 2, 2), 10, 2)
UPLOADS = {"update": Surface.UPDATE, "count": Surface.COUNTS}


def context(**more) -> ClientContext:
    return ClientContext(0, 1, Keys(0).fold("round", 0, "client", 1), PROBLEM, **more)


@pytest.mark.parametrize("algo", ALGOS)
def test_ledger_rows_equal_what_the_server_received(algo):
    """Over a whole federation: same names in the same order, digests of the received tensors, their shapes."""
    progress, received, _ = trained(algo)
    rows = [r for r in progress.ledger.releases if r.client >= 0 and r.visible_to != ("analyst",)]
    sent = [(r.round, r.client, name, value) for r in received for name, value in r.values.items()]
    assert [(r.round, r.client, r.name) for r in rows] == [item[:3] for item in sent]
    assert [r.digest for r in rows] == [digest_tensors(value) for *_, value in sent]
    assert [dict(r.shape) for r in rows] == [{k: tuple(t.shape) for k, t in value.items()} for *_, value in sent]
    assert {str(tiny(algo).plan.method.uploads[r.name]) for r in rows} == {r.surface for r in rows}
    assert len(sent) >= 3 * min(2, tiny(algo).plan.method.rounds)  # some release once


@pytest.mark.parametrize("algo", ALGOS)
def test_rows_of_profiles_name_what_protects_them(algo):
    """Only a mechanism, what follows from one, or a written reason makes a row other than non-private."""
    for row in trained(algo)[0].ledger.releases:
        if row.client < 0:
            continue
        if isinstance(row.event, dpa.NonPrivateDpEvent):
            assert row.nonprivate_reason
        elif isinstance(row.event, dpa.NoOpDpEvent):
            assert row.why
        else:
            assert row.noise_std > 0 and row.sensitivity and all(row.flags.values())


def test_undeclared_artifact_and_query_are_refused():
    channel = Channel(UPLOADS)
    with pytest.raises(UndeclaredArtifact, match=r"'peek'.*count.*update"):
        channel.send({"peek": Artifact({"x": torch.ones(1)})}, context())
    ctx = context(mechanisms={"dpsgd": ClippedSum(1.0, 1.0)}, queries={})
    with pytest.raises(UndeclaredArtifact, match="'dpsgd'"):
        ctx.mechanism("dpsgd", {"g": torch.ones(1, 1)})


@pytest.mark.parametrize("private", [True, False])
def test_received_tensors_are_sealed(private):
    """The server's copies share no memory and no graph with the client's."""
    mine = torch.ones(3, requires_grad=True)
    view = torch.arange(6.0).reshape(2, 3).T
    received, _ = Channel(UPLOADS).send({"update": Artifact({"w": mine, "v": view}, private=private)}, context())
    theirs = received.values["update"]
    assert not theirs["w"].requires_grad and theirs["v"].is_contiguous()
    theirs["w"].mul_(7)
    theirs["v"].zero_()
    assert torch.equal(mine.detach(), torch.ones(3)) and view.sum() == 15
    with torch.no_grad():
        mine.fill_(5)
    assert torch.equal(theirs["w"], torch.full((3,), 7.0))


def test_mechanism_output_is_sealed_too():
    class Keeps:
        """A mechanism that hands out its own buffer."""

        buffer = torch.zeros(2)

        def __call__(self, value, noise):
            return Output({"w": self.buffer}, dpa.GaussianDpEvent(1.0), sensitivity=1.0, noise_std=1.0)

    channel = Channel(UPLOADS, {"update": Keeps()})
    received, _ = channel.send({"update": Artifact({"w": torch.ones(2)})}, context())
    received.values["update"]["w"].add_(1)
    assert torch.equal(Keeps.buffer, torch.zeros(2))


def test_a_mechanism_on_a_name_replaces_the_value_and_earns_the_row():
    mechanism = ClippedSum(2.0, 1.0)
    channel = Channel(UPLOADS, {"update": mechanism})
    value = {"w": torch.full((4, 3), 100.0)}
    received, rows = channel.send({"update": Artifact(value, private=True)}, context())
    assert not torch.equal(received.values["update"]["w"], value["w"].sum(0))
    assert rows[0].event == dpa.GaussianDpEvent(2.0) and rows[0].digest == digest_tensors(received.values["update"])
    expected = mechanism(value, context().noise).value
    assert torch.equal(received.values["update"]["w"], expected["w"])


@pytest.mark.parametrize("flag", [True, False])
def test_false_flag_makes_the_release_non_private(flag):
    channel = Channel(UPLOADS, {"update": ClippedSum(1.0, 1.0)})
    upload = {"update": Artifact({"w": torch.ones(1, 2)}, flags={"public_map": flag})}
    _, (row,) = channel.send(upload, context())
    from privdd.privacy.ledger import Ledger

    ledger = Ledger()
    ledger.append([row])
    assert isinstance(ledger.releases[0].event, dpa.NonPrivateDpEvent) is (not flag)
    assert (ledger.epsilon() == float("inf")) is (not flag)
    assert flag or "public_map" in ledger.releases[0].nonprivate_reason


def test_unprotected_is_infinite_public_and_private_are_free():
    names = {"private": {"private": True}, "public": {"public": "labels under zero-out"}, "plain": {}}
    channel = Channel({name: Surface.LABELS for name in names})
    upload = {name: Artifact({"y": torch.ones(1)}, **kind) for name, kind in names.items()}
    _, rows = channel.send(upload, context())
    kinds = {row.name: type(row.event) for row in rows}
    assert kinds == {"private": dpa.NoOpDpEvent, "public": dpa.NoOpDpEvent, "plain": dpa.NonPrivateDpEvent}
    with pytest.raises(ValueError, match="not both"):
        Artifact({}, private=True, public="why")


def test_repeated_rows_merge_with_the_right_count():
    """Interleaved queries and cells: each kind once, with its own count; the events tell the whole story."""
    mechanisms = {"a": ClippedSum(1.0, 1.0), "b": ClippedSum(3.0, 1.0)}
    ctx = context(mechanisms=mechanisms, queries={"a": Surface.GRADIENT, "b": Surface.PROTOTYPES})
    for name, cell in [("a", None), ("b", "label:0"), ("a", None), ("b", "label:1"), ("b", "label:0"), ("a", None)]:
        ctx.mechanism(name, {"g": torch.ones(2, 3)}, partition=cell)
    counts = {(row.name, row.partition): row.count for row in ctx.rows}
    assert counts == {("a", None): 3, ("b", "label:0"): 2, ("b", "label:1"): 1} and len(ctx.rows) == 3
    last = {(r.name, r.partition): r.digest for r in ctx.rows}[("a", None)]
    assert last == digest_tensors(ctx.outputs[-1])
    _, rows = Channel(UPLOADS).send({"update": Artifact({"w": torch.ones(1)}, private=True)}, ctx)
    assert rows[-1].post_of == (0, 1, 2)


def test_rows_of_different_flags_do_not_merge():
    class Sometimes:
        """Sound on non-empty batches only."""

        sampling_probability = 1.0

        def __call__(self, value, noise):
            holds = len(value["g"]) > 0
            return Output({"g": torch.zeros(1)}, dpa.GaussianDpEvent(1.0), flags={"some": holds})

    ctx = context(mechanisms={"a": Sometimes()}, queries={"a": Surface.GRADIENT})
    for count in (2, 0, 2):
        ctx.mechanism("a", {"g": torch.ones(count, 1)})
    assert [(row.count, type(row.event)) for row in ctx.rows] == [(2, dpa.GaussianDpEvent), (1, dpa.NonPrivateDpEvent)]


HALF = {"g": ClippedSum(1.0, 1.0, 0.5)}


def release(ctx: ClientContext, *steps: str | None) -> None:
    """"sample", or the cell to release (None = all records)."""
    for step in steps:
        if step == "sample":
            ctx.sample("g", 4)
        else:
            ctx.mechanism("g", {"g": torch.ones(2, 3)}, partition=step)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((None,), "no sample was drawn"),
        (("label:0",), "no sample was drawn"),
        (("sample", None, None), "released already"),
        (("sample", "label:0", "label:1", "label:0"), "released already"),
        (("sample", "label:0", None), "released already"),
        (("sample", None, "label:0"), "released already"),
    ],
)
def test_a_subsampled_release_without_a_sample_of_its_own_is_refused(steps, why):
    """The accounting counts on fresh coins for every release of a record."""
    ctx = context(mechanisms=HALF, queries={"g": Surface.GRADIENT})
    with pytest.raises(ValueError, match=rf"'g'.*0\.5.*{why}.*ctx\.sample"):
        release(ctx, *steps)
    assert len(ctx.rows) == len({s for s in steps[:-1] if s != "sample"})  # what was refused has no row


def test_one_sample_serves_each_cell_once():
    ctx = context(mechanisms=HALF, queries={"g": Surface.GRADIENT})
    release(ctx, "sample", "label:0", "label:1", "sample", "label:1", "sample", None)
    assert sum(row.count for row in ctx.rows) == 4
    every = context(mechanisms={"g": ClippedSum(1.0, 1.0)}, queries={"g": Surface.GRADIENT})
    release(every, None, None, "label:0")  # everybody takes part: there are no coins
    assert sum(row.count for row in every.rows) == 3
