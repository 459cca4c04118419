"""Random streams are addressed, never drawn in order; no global generator is touched; noise has its
scale."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privdd.core.rng import Keys
from privdd.core.types import Problem
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanisms import ClippedSum, FeatureNoise
from privdd.privacy.noise import SeededNoise, SystemNoise, noise_for
from privdd.training import dp_sgd as dpsgd
from tests.federations import tiny

word = st.one_of(st.text(max_size=5), st.text("a\x1b\x1f", max_size=3), st.integers(0, 99))
names = st.lists(word, max_size=4)


@given(st.integers(0, 2**63 - 1), names, names)
def test_paths_are_streams(seed, a, b):
    """Equal paths, equal bits; other paths, other bits, a separator in a name or not; ``fold`` is
    concatenation."""
    one = Keys(seed).fold(*a)
    two = Keys(seed).fold(*b)
    assert (one.integer() == two.integer()) is ([str(x) for x in a] == [str(x) for x in b])
    assert Keys(seed).fold(*a, *b) == one.fold(*b) and 0 <= one.integer() < 2**63


def test_a_separator_in_a_name_is_no_boundary():
    """All lists of up to three names that are made of a letter, the separator and its escape, up to
    two of them each."""
    parts = [a + b for a in ("", "a", "\x1b", "\x1f") for b in ("", "a", "\x1b", "\x1f")]
    parts = sorted(set(parts))
    paths = [p for n in range(4) for p in itertools.product(parts, repeat=n)]
    assert len({Keys(7).fold(*p).integer() for p in paths}) == len(paths) == 1 + 13 + 13**2 + 13**3


def test_streams_do_not_depend_on_the_order_of_calls():
    keys = Keys(5).fold("round", 1)
    first = torch.rand(4, generator=keys.fold("batch").torch())
    torch.rand(1000, generator=keys.fold("noise").torch())
    keys.fold("batch").numpy().random(7)
    assert torch.equal(first, torch.rand(4, generator=keys.fold("batch").torch()))
    assert not torch.equal(
        first, torch.rand(4, generator=Keys(6).fold("round", 1, "batch").torch())
    )


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "0", None])
def test_only_whole_seeds(seed):
    with pytest.raises(ValueError, match="seed="):
        Keys(seed)


def context(round: int = 0, client: int = 0, source: str = "seed") -> ClientContext:
    keys = Keys(3).fold("round", round, "client", client)
    return ClientContext(round, client, keys, Problem((1, 2, 2), 10, 2), noise_source=source)


def test_public_streams_are_shared_and_secret_ones_are_not():
    """``ctx.public`` is the same for all clients of a round and no secret stream equals a public
    one."""
    assert context(0, 0).public("networks") == context(0, 1).public("networks")
    assert context(0, 0).public("networks") != context(1, 0).public("networks")
    draws = [context(t, k).noise.normal((64,)) for t in range(3) for k in range(3)]
    flat = torch.stack(draws)
    assert len(torch.unique(flat)) == flat.numel()
    public = [torch.randn(64, generator=context(t).public("networks").torch()) for t in range(3)]
    assert not any(torch.equal(a, b) for a in draws for b in public)
    batch = torch.randn(64, generator=context().keys.fold("batch").torch())
    assert not any(torch.equal(batch, d) for d in draws)


def batches_seen(
    monkeypatch: pytest.MonkeyPatch, multiplier: float, *more: str
) -> list[torch.Tensor]:
    """The records of each DP-SGD step of one client, as the images that its gradients are taken
    of."""
    experiment = tiny("fedavg", "privacy=dpsgd", f"privacy.noise_multiplier={multiplier}", *more)
    seen: list[torch.Tensor] = []
    real = dpsgd.record_gradients

    def spy(loss, params, x, y, draws=()):
        seen.append(x.clone())
        return real(loss, params, x, y, draws)

    monkeypatch.setattr(dpsgd, "record_gradients", spy)
    plan = experiment.plan
    server = plan.method.init(plan.problem, plan.keys.fold("public", "init"))
    plan.method.local(
        plan.method.broadcast(server), {}, experiment.shards[0], plan.client_context(0, 0)
    )
    monkeypatch.undo()
    return seen


def alike(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, two))


def test_two_points_of_a_sweep_share_poisson_samples_only_where_noise_is_paired(monkeypatch):
    """Two runs with the same samples are not two subsampled releases: a record is in both, or in
    neither."""
    one, eight = (batches_seen(monkeypatch, z, "privacy.paired_noise=true") for z in (1.0, 8.0))
    assert len(one) == len(eight) >= 2 and alike(one, eight)
    assert not all(alike([a], [b]) for a, b in itertools.pairwise(one))
    first, second, again = (batches_seen(monkeypatch, z) for z in (1.0, 8.0, 1.0))
    assert not alike(first, second) and alike(first, again)
    assert not alike(one, batches_seen(monkeypatch, 1.0, "privacy.noise_source=os"))


def test_noise_multiplier_scales_one_direction():
    value = {"g": torch.zeros(3, 500)}
    small, large = (ClippedSum(z, 1.0)(value, context().noise).value["g"] for z in (1.0, 3.0))
    assert (
        torch.allclose(3 * small, large, atol=1e-3) and small.std() > 0.9
    )  # each on a lattice of its own


def test_clients_do_not_move_with_sigma_and_sampling_is_public():
    parts = [
        tiny("fedavg", "participation=0.67", "privacy=dpsgd", f"privacy.noise_multiplier={z}")
        for z in (1, 4)
    ]
    a, b = ([e.plan.participants(t) for t in range(20)] for e in parts)
    assert a == b and {len(c) for c in a} == {2} and len({tuple(c) for c in a}) == 3
    assert all(c == sorted(c) for c in a)


@pytest.mark.nightly(cases=["fedfed_released"])
@pytest.mark.parametrize(
    "name", ["fedavg", "fedfed", "fedfed_released", "fedfed_dp", "fedavg_dpsgd"]
)
def test_no_global_generator_is_consumed(audited, name):
    """A whole audit (data, training, worlds, attacks, report) leaves torch's, numpy's and Python's
    alone."""
    before, after = audited(name).random_states
    assert before[0] == after[0], "torch"
    assert before[1] == after[1], "numpy"
    assert before[2] == after[2], "random"


SECRET = b"sixteen letters and more"
DRAWS = {
    "seed normal": (lambda: SeededNoise(Keys(1).torch()).normal, stats.norm),
    "secret normal": (lambda: noise_for("secret", Keys(1, secret=SECRET)).normal, stats.norm),
    "secret laplace": (lambda: noise_for("secret", Keys(1, secret=SECRET)).laplace, stats.laplace),
    "seed laplace": (lambda: SeededNoise(Keys(1).torch()).laplace, stats.laplace),
    "system normal": (lambda: SystemNoise().normal, stats.norm),
    "system laplace": (lambda: SystemNoise().laplace, stats.laplace),
}
N = 20_000


@pytest.mark.parametrize("kind", DRAWS)
def test_noise_has_its_scale_both_ways(kind):
    """Kolmogorov-Smirnov accepts the stated scale and rejects 2/3 and 3/2 of it."""
    draw, law = DRAWS[kind]
    x = draw()((N // 4, 4)).flatten().double().numpy()
    assert stats.kstest(x, law.cdf).pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(x / wrong, law.cdf).pvalue < 1e-12
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / N**0.5


@pytest.mark.parametrize("source", ["seed", "secret", "os"])
def test_uniform_noise_stays_inside(source):
    x = noise_for(source, Keys(2, secret=SECRET)).uniform((N,)).numpy()
    assert x.min() > 0 and x.max() < 1 and stats.kstest(x, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("source", ["seed", "secret", "os"])
@pytest.mark.parametrize(
    "mechanism",
    [ClippedSum(2.0, 0.5, normaliser=4.0), FeatureNoise(clip_norm=0.5, noise_multiplier=2.0)],
)
def test_mechanisms_add_what_they_state(source, mechanism):
    """The released value minus the exact one has the standard deviation of the row, by KS both
    ways."""
    output = mechanism({"g": torch.ones(5, 4000)}, noise_for(source, Keys(4, secret=SECRET)))
    x = (output.value["g"] - output.exact["g"]).flatten().double().numpy() / output.noise_std
    assert stats.kstest(x, "norm").pvalue > 1e-6
    assert (
        stats.kstest(x * 3 / 2, "norm").pvalue < 1e-4
        and stats.kstest(x * 2 / 3, "norm").pvalue < 1e-4
    )


def test_system_noise_does_not_repeat():
    assert not torch.equal(SystemNoise().normal((8,)), SystemNoise().normal((8,)))
    with pytest.raises(ValueError, match="noise_source"):
        noise_for("clock", Keys(0))
