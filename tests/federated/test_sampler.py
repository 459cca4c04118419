"""``ClientContext.sample``, the sampler that amplification is claimed for: Poisson, at the mechanism's own rate.

Every test statistic is judged at a false-alarm rate of about 1e-6 with seeds that do not change; the same checks
must refuse two thirds and three halves of the rate, everybody, and samples that are not independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from scipy.stats import binomtest, chi2
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, State, Tensors
from privdd.distillation.noisy_embedding import release_class_counts, release_embeddings
from privdd.distillation.private_matching import release_gradients
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import Noise
from privdd.training.dp_sgd import count_private_steps, dp_local_sgd, train_privately

STEPS, COUNT, ALARM = 400, 50, 1e-6
RATES = [0.05, 0.25, 0.6]
CERTAIN = 1e-12  # a wrong rate must be this clear


@dataclass(frozen=True)
class Recording(ClippedSum):
    """A clipped sum that notes what it is given: records are told apart by which of their numbers is not zero."""

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


def context(name: str, mechanism: ClippedSum, *, round: int = 0, client: int = 0, source: str = "seed") -> ClientContext:
    keys = Keys(11).fold("round", round, "client", client)
    problem = Problem((1, 1, COUNT), 2, clients=3)
    return ClientContext(round, client, keys, problem, {name: mechanism}, {name: Surface.GRADIENT}, source)


def drawn(q: float, *, round: int = 0, client: int = 0, steps: int = STEPS, source: str = "seed") -> Tensor:
    """(steps, COUNT) bool of the sampler itself."""
    ctx = context("dpsgd", ClippedSum(1.0, 1.0, q), round=round, client=client, source=source)
    return torch.stack([ctx.sample("dpsgd", COUNT) for _ in range(steps)])


def rate_is(taken: Tensor, q: float, alarm: float = ALARM) -> bool:
    """Binomial, two-sided."""
    return binomtest(int(taken.sum()), taken.numel(), q).pvalue > alarm


def spread_is(totals: Tensor, trials: int, q: float) -> bool:
    """Totals of ``trials`` coins each vary as binomial ones do: neither more (shared coins) nor less (fixed sizes)."""
    scaled = ((totals.double() - trials * q).square() / (trials * q * (1 - q))).sum().item()
    below = chi2.cdf(scaled, len(totals))
    return min(below, 1 - below) > ALARM / 2


def poisson(taken: Tensor, q: float) -> bool:
    """The rate, and independence: of neighbours in both directions, of a step's records, of a record's steps."""
    steps, count = taken.shape
    records_together, steps_together = taken[:, ::2] & taken[:, 1::2], taken[::2] & taken[1::2]
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
def test_sample_is_poisson_at_the_mechanisms_rate(q: float, source: str, system_bytes: None) -> None:
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
        "every record equally often": torch.rand(STEPS, COUNT, generator=g).argsort(0) < round(q * STEPS),
    }


@pytest.mark.parametrize("q", [0.1, 0.5])
def test_the_check_itself_refuses_every_wrong_sampler(q: float) -> None:
    assert poisson(torch.rand(STEPS, COUNT, generator=torch.Generator().manual_seed(1)) < q, q)
    assert [name for name, taken in wrong_samplers(q).items() if poisson(taken, q)] == []


@pytest.mark.parametrize(("round", "client"), [(1, 0), (0, 1)])
def test_sample_is_independent_of_other_rounds_and_clients(round: int, client: int) -> None:
    """Step s of one and step s of the other: a record is in both with probability q squared."""
    q = 0.3
    first, second = drawn(q), drawn(q, round=round, client=client)
    assert poisson(second, q) and not torch.equal(first, second)
    assert rate_is(first & second, q * q) and rate_is(first ^ second, 2 * q * (1 - q))


def test_sample_of_probability_one_is_everybody_and_draws_nothing() -> None:
    ctx, other = context("dpsgd", ClippedSum(1.0, 1.0)), context("dpsgd", ClippedSum(1.0, 1.0))
    assert ctx.sample("dpsgd", COUNT).all() and ctx.sample("dpsgd", 0).shape == (0,)
    assert torch.equal(ctx.noise.normal((3,)), other.noise.normal((3,)))


# --- through the code that releases --------------------------------------------------------------


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

    ctx = context("dpsgd", mechanism)
    start = dict(model.named_parameters())
    dp_local_sgd(
        model, start, one_hot(), lr=0.0, momentum=0.0, weight_decay=0.0, steps=STEPS, ctx=ctx, loss=loss
    )  # fmt: skip


def by_noisy_embeddings(mechanism: Recording) -> None:
    maps = [lambda x: x.flatten(1)] * STEPS
    release_embeddings(maps, one_hot(), [0], context("embedding", mechanism))


def by_release_gradients(mechanism: Recording) -> None:
    ctx = context("synthetic_gradient", mechanism)
    for _ in range(STEPS):
        release_gradients(torch.zeros(1, 1, 1, 1, COUNT), lambda x: x.flatten(1), one_hot(), [0], ctx, chunk=64)


def by_class_counts(mechanism: Recording) -> None:
    ctx = context("class_counts", mechanism)
    for _ in range(STEPS):
        release_class_counts(one_hot(torch.arange(COUNT)), range(COUNT), ctx)


ROADS: list[Callable[[Recording], None]] = [by_dp_local_sgd, by_noisy_embeddings, by_release_gradients, by_class_counts]


@pytest.mark.parametrize("q", [0.15, 0.5])
@pytest.mark.parametrize("road", ROADS)
def test_what_is_released_is_a_poisson_sample_drawn_anew_for_every_release(
    road: Callable[[Recording], None], q: float
) -> None:
    """Who takes part in each application of the mechanism, read off the contributions that it was given."""
    mechanism = Recording(1.0, 10.0, q)
    road(mechanism)
    taken = taking_part(mechanism)
    assert taken.shape == (STEPS, COUNT) and poisson(taken, q) and refuses_other_rates(taken, q)


@pytest.mark.parametrize("road", ROADS)
def test_at_probability_one_everybody_takes_part(road: Callable[[Recording], None]) -> None:
    mechanism = Recording(1.0, 10.0, 1.0)
    road(mechanism)
    assert taking_part(mechanism).all()


@pytest.mark.parametrize("road", ROADS)
def test_a_sampler_that_is_switched_off_does_not_pass(
    road: Callable[[Recording], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that these tests exist for: everybody takes part while the ledger counts on a rate of 0.5."""
    drawn = ClientContext.sample
    monkeypatch.setattr(ClientContext, "sample", lambda self, name, count: drawn(self, name, count) | True)
    mechanism = Recording(1.0, 10.0, 0.5)
    road(mechanism)
    assert not poisson(taking_part(mechanism), 0.5)


def test_classes_are_sampled_each_by_themselves() -> None:
    """Of two classes, a release of one holds none of the other; each map has one sample of all records."""
    labels = torch.arange(COUNT) % 2
    for road in ("embedding", "synthetic_gradient"):
        mechanism = Recording(1.0, 10.0, 0.5)
        ctx = context(road, mechanism)
        for _ in range(100):
            if road == "embedding":
                release_embeddings([lambda x: x.flatten(1)], one_hot(labels), [0, 1], ctx)
            else:
                release_gradients(
                    torch.zeros(2, 1, 1, 1, COUNT), lambda x: x.flatten(1), one_hot(labels), [0, 1], ctx, chunk=64
                )  # fmt: skip
        taken = taking_part(mechanism)
        first, second = taken[::2], taken[1::2]
        assert not first[:, labels == 1].any() and not second[:, labels == 0].any()
        assert poisson(first | second, 0.5)


def test_noised_class_counts_estimate_all_records_of_the_class() -> None:
    """The mean of 400 noised counts at q = 0.5, divided by q: 40 and 10 within five standard errors."""
    labels = torch.cat([torch.zeros(40), torch.ones(10)]).long()
    ctx = context("class_counts", ClippedSum(0.5, 1.0, 0.5))
    counts = torch.stack([release_class_counts(one_hot(labels), [0, 1], ctx) for _ in range(STEPS)])
    error = torch.tensor([(40 * 0.25 + 0.25) ** 0.5, (10 * 0.25 + 0.25) ** 0.5]) / 0.5 / STEPS**0.5
    assert ((counts.mean(0) - torch.tensor([40.0, 10.0])).abs() < 5 * error).all()


@pytest.mark.parametrize(("epochs", "q", "steps"), [(3, 0.1, 30), (0.2, 0.1, 2), (0.01, 0.1, 1), (2, 1.0, 2), (1, 0.4, 2)])
def test_local_epochs_become_steps_of_expected_passes(epochs: float, q: float, steps: int) -> None:
    """epochs / q, rounded, at least one; through ``train_privately`` the mechanism is applied so often."""
    model, data = nn.Sequential(nn.Flatten(), nn.Linear(COUNT, 2)), one_hot()

    @dataclass(frozen=True)
    class Counting(ClippedSum):
        calls: list[int] = field(default_factory=list)

        def __call__(self, value: Tensors, noise: Noise) -> Output:
            self.calls.append(len(next(iter(value.values()))))
            return super().__call__(value, noise)

    mechanism = Counting(1.0, 1.0, q)
    params = {name: value.detach() for name, value in model.named_parameters()}
    _, taken = train_privately(
        model, params, data, lr=0.1, momentum=0.0, weight_decay=0.0, epochs=epochs, ctx=context("dpsgd", mechanism)
    )
    assert count_private_steps(mechanism, epochs) == taken == len(mechanism.calls) == steps
