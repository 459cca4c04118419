"""Tests of ``privdd.federated.channel``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import dp_accounting as dpa
import pytest
import torch
from scipy.stats import binomtest, chi2
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem, Records, State, Tensors
from privdd.distillation.private_matching import (
    release_class_counts,
    release_embeddings,
    release_gradients,
)
from privdd.federated.channel import (
    Channel,
    ClientContext,
    TranscriptEnded,
    UndeclaredArtifact,
    digest_tensors,
    find_answer,
)
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import Noise
from privdd.training.dp_sgd import count_private_steps, dp_local_sgd

# Nothing leaves a client but through the channel, and every value that leaves has its row.


PROBLEM = Problem((1, 2, 2), 10, 2)
UPLOADS = {"update": Surface.UPDATE, "count": Surface.COUNTS}


def context(**more) -> ClientContext:
    return ClientContext(0, 1, Keys(0).fold("round", 0, "client", 1), PROBLEM, **more)


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
    received, _ = Channel(UPLOADS).send(
        {"update": Artifact({"w": mine, "v": view}, private=private)}, context()
    )
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
            return Output(
                {"w": self.buffer}, dpa.GaussianDpEvent(1.0), sensitivity=1.0, noise_std=1.0
            )

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
    assert rows[0].event == dpa.GaussianDpEvent(2.0) and rows[0].digest == digest_tensors(
        received.values["update"]
    )
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
    names = {
        "private": {"private": True},
        "public": {"public": "labels under zero-out"},
        "plain": {},
    }
    channel = Channel({name: Surface.LABELS for name in names})
    upload = {name: Artifact({"y": torch.ones(1)}, **kind) for name, kind in names.items()}
    _, rows = channel.send(upload, context())
    kinds = {row.name: type(row.event) for row in rows}
    assert kinds == {
        "private": dpa.NoOpDpEvent,
        "public": dpa.NoOpDpEvent,
        "plain": dpa.NonPrivateDpEvent,
    }
    with pytest.raises(ValueError, match="not both"):
        Artifact({}, private=True, public="why")


def test_repeated_rows_merge_with_the_right_count():
    """Interleaved queries and cells: each kind once, with its own count; the events tell the whole
    story."""
    mechanisms = {"a": ClippedSum(1.0, 1.0), "b": ClippedSum(3.0, 1.0)}
    ctx = context(mechanisms=mechanisms, queries={"a": Surface.GRADIENT, "b": Surface.PROTOTYPES})
    for name, cell in [
        ("a", None),
        ("b", "label:0"),
        ("a", None),
        ("b", "label:1"),
        ("b", "label:0"),
        ("a", None),
    ]:
        ctx.mechanism(name, {"g": torch.ones(2, 3)}, partition=cell)
    counts = {(row.name, row.partition): row.count for row in ctx.rows}
    assert (
        counts == {("a", None): 3, ("b", "label:0"): 2, ("b", "label:1"): 1} and len(ctx.rows) == 3
    )
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
    assert [(row.count, type(row.event)) for row in ctx.rows] == [
        (2, dpa.GaussianDpEvent),
        (1, dpa.NonPrivateDpEvent),
    ]


HALF = {"g": ClippedSum(1.0, 1.0, 0.5)}


def release(ctx: ClientContext, *steps: str | None) -> None:
    """ "sample", or the cell to release (None = all records)."""
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
    assert len(ctx.rows) == len(
        {s for s in steps[:-1] if s != "sample"}
    )  # what was refused has no row


def test_one_sample_serves_each_cell_once():
    ctx = context(mechanisms=HALF, queries={"g": Surface.GRADIENT})
    release(ctx, "sample", "label:0", "label:1", "sample", "label:1", "sample", None)
    assert sum(row.count for row in ctx.rows) == 4
    every = context(mechanisms={"g": ClippedSum(1.0, 1.0)}, queries={"g": Surface.GRADIENT})
    release(every, None, None, "label:0")  # everybody takes part: there are no coins
    assert sum(row.count for row in every.rows) == 3


# ``ClientContext.sample``, the sampler that amplification is claimed for: Poisson, at the
# mechanism's own rate.
#
# Every test statistic is judged at a false-alarm rate of about 1e-6 with seeds that do not change;
# the same checks must refuse two thirds and three halves of the rate, everybody, and samples that
# are not independent.


STEPS = 400
COUNT = 50
ALARM = 1e-6
RATES = [0.05, 0.25, 0.6]
CERTAIN = 1e-12  # a wrong rate must be this clear


@dataclass(frozen=True)
class Recording(ClippedSum):
    """A clipped sum that notes what it is given: records are told apart by which of their numbers
    is not zero."""

    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        (rows,) = value.values()
        self.seen.append(rows.detach().flatten(1) != 0)
        return super().__call__(value, noise)


def taking_part(mechanism: Recording) -> Tensor:
    """(applications, records) bool: who took part in each."""
    assert all(bool((rows.sum(1) == 1).all()) for rows in mechanism.seen)  # each row is one record
    totals = [rows.sum(0) for rows in mechanism.seen]
    assert all(int(total.max()) <= 1 for total in totals)  # nobody takes part twice
    return torch.stack(totals).bool()


def context_sampler(
    name: str, mechanism: ClippedSum, *, round: int = 0, client: int = 0, source: str = "seed"
) -> ClientContext:
    keys = Keys(11).fold("round", round, "client", client)
    problem = Problem((1, 1, COUNT), 2, clients=3)
    return ClientContext(
        round, client, keys, problem, {name: mechanism}, {name: Surface.GRADIENT}, source
    )


def drawn(
    q: float, *, round: int = 0, client: int = 0, steps: int = STEPS, source: str = "seed"
) -> Tensor:
    """(steps, COUNT) bool of the sampler itself."""
    ctx = context_sampler(
        "dpsgd", ClippedSum(1.0, 1.0, q), round=round, client=client, source=source
    )
    return torch.stack([ctx.sample("dpsgd", COUNT) for _ in range(steps)])


def rate_is(taken: Tensor, q: float, alarm: float = ALARM) -> bool:
    """Binomial, two-sided."""
    return binomtest(int(taken.sum()), taken.numel(), q).pvalue > alarm


def spread_is(totals: Tensor, trials: int, q: float) -> bool:
    """Totals of ``trials`` coins each vary as binomial ones do: neither more (shared coins) nor
    less (fixed sizes)."""
    scaled = ((totals.double() - trials * q).square() / (trials * q * (1 - q))).sum().item()
    below = chi2.cdf(scaled, len(totals))
    return min(below, 1 - below) > ALARM / 2


def poisson(taken: Tensor, q: float) -> bool:
    """The rate, and independence: of neighbours in both directions, of a step's records, of a
    record's steps."""
    steps, count = taken.shape
    records_together = taken[:, ::2] & taken[:, 1::2]
    steps_together = taken[::2] & taken[1::2]
    return (
        rate_is(taken, q)
        and rate_is(records_together, q * q)
        and rate_is(steps_together, q * q)
        and spread_is(taken.sum(1), count, q)
        and spread_is(taken.sum(0), steps, q)
    )


def refuses_other_rates(taken: Tensor, q: float) -> bool:
    return all(not rate_is(taken, other, CERTAIN) for other in (2 / 3 * q, min(1.5 * q, 0.999)))


@pytest.mark.parametrize("q", RATES)
@pytest.mark.parametrize("source", ["seed", "os"])
def test_sample_is_poisson_at_the_mechanisms_rate(
    q: float, source: str, system_bytes: None
) -> None:
    """20,000 coins."""
    taken = drawn(q, source=source)
    assert poisson(taken, q) and refuses_other_rates(taken, q)


def wrong_samplers(q: float) -> dict[str, Tensor]:
    """What ``poisson`` must refuse at rate q; the last six take every record at the right rate."""
    g = torch.Generator().manual_seed(0)
    coins = torch.rand(STEPS, COUNT, generator=g) < q
    size = round(q * COUNT)
    return {
        "everybody": torch.ones(STEPS, COUNT, dtype=torch.bool),
        "two thirds": torch.rand(STEPS, COUNT, generator=g) < 2 / 3 * q,
        "three halves": torch.rand(STEPS, COUNT, generator=g) < 1.5 * q,
        "the same sample in every step": coins[:1].expand(STEPS, COUNT),
        "each sample twice": coins[: STEPS // 2].repeat_interleave(2, 0),
        "one coin for all records": coins[:, :1].expand(STEPS, COUNT),
        "pairs of records share a coin": coins[:, : COUNT // 2].repeat_interleave(2, 1),
        "a fixed number of records": torch.rand(STEPS, COUNT, generator=g).argsort(1) < size,
        "every record equally often": torch.rand(STEPS, COUNT, generator=g).argsort(0)
        < round(q * STEPS),
    }


@pytest.mark.parametrize("q", [0.1, 0.5])
def test_the_check_itself_refuses_every_wrong_sampler(q: float) -> None:
    assert poisson(torch.rand(STEPS, COUNT, generator=torch.Generator().manual_seed(1)) < q, q)
    assert [name for name, taken in wrong_samplers(q).items() if poisson(taken, q)] == []


@pytest.mark.parametrize(("round", "client"), [(1, 0), (0, 1)])
def test_sample_is_independent_of_other_rounds_and_clients(round: int, client: int) -> None:
    """Step s of one and step s of the other: a record is in both with probability q squared."""
    q = 0.3
    first = drawn(q)
    second = drawn(q, round=round, client=client)
    assert poisson(second, q) and not torch.equal(first, second)
    assert rate_is(first & second, q * q) and rate_is(first ^ second, 2 * q * (1 - q))


def test_sample_of_probability_one_is_everybody_and_draws_nothing() -> None:
    ctx = context_sampler("dpsgd", ClippedSum(1.0, 1.0))
    other = context_sampler("dpsgd", ClippedSum(1.0, 1.0))
    assert ctx.sample("dpsgd", COUNT).all() and ctx.sample("dpsgd", 0).shape == (0,)
    assert torch.equal(ctx.noise.normal((3,)), other.noise.normal((3,)))


def one_hot(label: Tensor | None = None) -> Records:
    """COUNT records, each an image with its own pixel white."""
    y = torch.zeros(COUNT, dtype=torch.long) if label is None else label
    return Records(torch.eye(COUNT).reshape(COUNT, 1, 1, COUNT), y, torch.arange(COUNT))


class Sum(nn.Module):
    """Whose gradient with respect to its weights is the sum of the images it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(COUNT, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


def by_dp_local_sgd(mechanism: Recording) -> None:
    model = Sum()

    def loss(params: State, x: Tensor, y: Tensor) -> Tensor:
        return F.linear(x.flatten(1), params["head.weight"]).sum()

    ctx = context_sampler("dpsgd", mechanism)
    start = dict(model.named_parameters())
    dp_local_sgd(
        model,
        start,
        one_hot(),
        lr=0.0,
        momentum=0.0,
        weight_decay=0.0,
        steps=STEPS,
        ctx=ctx,
        loss=loss,
    )


def by_noisy_embeddings(mechanism: Recording) -> None:
    maps = [lambda x: x.flatten(1)] * STEPS
    release_embeddings(maps, one_hot(), [0], context_sampler("embedding", mechanism))


def by_release_gradients(mechanism: Recording) -> None:
    ctx = context_sampler("synthetic_gradient", mechanism)
    for _ in range(STEPS):
        release_gradients(
            torch.zeros(1, 1, 1, 1, COUNT), lambda x: x.flatten(1), one_hot(), [0], ctx, chunk=64
        )


def by_class_counts(mechanism: Recording) -> None:
    ctx = context_sampler("class_counts", mechanism)
    for _ in range(STEPS):
        release_class_counts(one_hot(torch.arange(COUNT)), range(COUNT), ctx)


ROADS: list[Callable[[Recording], None]] = [
    by_dp_local_sgd,
    by_noisy_embeddings,
    by_release_gradients,
    by_class_counts,
]


@pytest.mark.nightly(but=["by_class_counts-0.15", "by_class_counts-0.5"])
@pytest.mark.parametrize("q", [0.15, 0.5])
@pytest.mark.parametrize("road", ROADS)
def test_what_is_released_is_a_poisson_sample_drawn_anew_for_every_release(
    road: Callable[[Recording], None], q: float
) -> None:
    """Who takes part in each application of the mechanism, read off the contributions that it was
    given."""
    mechanism = Recording(1.0, 10.0, q)
    road(mechanism)
    taken = taking_part(mechanism)
    assert taken.shape == (STEPS, COUNT) and poisson(taken, q) and refuses_other_rates(taken, q)


@pytest.mark.nightly(but=["by_class_counts"])
@pytest.mark.parametrize("road", ROADS)
def test_at_probability_one_everybody_takes_part(road: Callable[[Recording], None]) -> None:
    mechanism = Recording(1.0, 10.0, 1.0)
    road(mechanism)
    assert taking_part(mechanism).all()


@pytest.mark.nightly(but=["by_class_counts"])
@pytest.mark.parametrize("road", ROADS)
def test_a_sampler_that_is_switched_off_does_not_pass(
    road: Callable[[Recording], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that these tests exist for: everybody takes part while the ledger counts on a rate
    of 0.5."""
    drawn = ClientContext.sample
    monkeypatch.setattr(
        ClientContext, "sample", lambda self, name, count: drawn(self, name, count) | True
    )
    mechanism = Recording(1.0, 10.0, 0.5)
    road(mechanism)
    assert not poisson(taking_part(mechanism), 0.5)


def test_classes_are_sampled_each_by_themselves() -> None:
    """Of two classes, a release of one holds none of the other; each map has one sample of all
    records."""
    labels = torch.arange(COUNT) % 2
    for road in ("embedding", "synthetic_gradient"):
        mechanism = Recording(1.0, 10.0, 0.5)
        ctx = context_sampler(road, mechanism)
        for _ in range(100):
            if road == "embedding":
                release_embeddings([lambda x: x.flatten(1)], one_hot(labels), [0, 1], ctx)
            else:
                release_gradients(
                    torch.zeros(2, 1, 1, 1, COUNT),
                    lambda x: x.flatten(1),
                    one_hot(labels),
                    [0, 1],
                    ctx,
                    chunk=64,
                )
        taken = taking_part(mechanism)
        first = taken[::2]
        second = taken[1::2]
        assert not first[:, labels == 1].any() and not second[:, labels == 0].any()
        assert poisson(first | second, 0.5)


def test_noised_class_counts_estimate_all_records_of_the_class() -> None:
    """The mean of 400 noised counts at q = 0.5, divided by q: 40 and 10 within five standard
    errors."""
    labels = torch.cat([torch.zeros(40), torch.ones(10)]).long()
    ctx = context_sampler("class_counts", ClippedSum(0.5, 1.0, 0.5))
    counts = torch.stack([release_class_counts(one_hot(labels), [0, 1], ctx) for _ in range(STEPS)])
    error = torch.tensor([(40 * 0.25 + 0.25) ** 0.5, (10 * 0.25 + 0.25) ** 0.5]) / 0.5 / STEPS**0.5
    assert ((counts.mean(0) - torch.tensor([40.0, 10.0])).abs() < 5 * error).all()


@pytest.mark.parametrize(
    ("epochs", "q", "steps"),
    [(3, 0.1, 30), (0.2, 0.1, 2), (0.01, 0.1, 1), (2, 1.0, 2), (1, 0.4, 2)],
)
def test_local_epochs_become_steps_of_expected_passes(epochs: float, q: float, steps: int) -> None:
    """epochs / q, rounded, at least one; in these steps the mechanism is applied so often."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(COUNT, 2))
    data = one_hot()

    @dataclass(frozen=True)
    class Counting(ClippedSum):
        calls: list[int] = field(default_factory=list)

        def __call__(self, value: Tensors, noise: Noise) -> Output:
            self.calls.append(len(next(iter(value.values()))))
            return super().__call__(value, noise)

    mechanism = Counting(1.0, 1.0, q)
    params = {name: value.detach() for name, value in model.named_parameters()}
    taken = count_private_steps(mechanism, epochs)
    dp_local_sgd(model, params, data, lr=0.1, steps=taken, ctx=context_sampler("dpsgd", mechanism))
    assert taken == len(mechanism.calls) == steps


def test_a_transcript_answers_only_the_query_that_was_recorded_there():
    """A client that takes a step more asks another query where the next one was recorded: no
    tensors of that one reach it."""
    recorded = [{"a": torch.zeros(2)}, {"b": torch.ones(3)}]
    asked = {"a": torch.ones(2)}
    assert find_answer(recorded, 0, "steps", asked) is recorded[0]
    with pytest.raises(TranscriptEnded, match=r"'steps': release 2 was of \['b'\], not of \['a'\]"):
        find_answer(recorded, 1, "steps", asked)
    with pytest.raises(TranscriptEnded, match="more releases than the recorded 2"):
        find_answer(recorded, 2, "steps", asked)
