"""Tests of ``privdd.data.partition``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from privdd.core.rng import Keys
from privdd.data.dataset import Dataset, dataset_from_pairs
from privdd.data.partition import Partition, classes_per_client, dirichlet, iid, make_shards, subset

# Partition rules: nobody shares a record, nothing is lost, sizes hold, and skew follows alpha.


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(classes: int = 10, each: int = 200) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


def shares(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """(clients, classes): the fraction of each class that each client holds."""
    counts = np.stack([np.bincount(labels[p], minlength=labels.max() + 1) for p in parts])
    return counts / counts.sum(0)


def check(parts: list[np.ndarray], clients: int, total: int, complete: bool = True) -> None:
    joined = np.concatenate(parts)
    assert len(parts) == clients
    assert len(np.unique(joined)) == len(joined)
    assert all(p.dtype == np.int64 and (np.diff(p) > 0).all() for p in parts)
    if complete:
        assert np.array_equal(np.sort(joined), np.arange(total))


labels_strategy = st.lists(st.integers(0, 6), min_size=60, max_size=300).map(np.array)


@settings(max_examples=60, deadline=None)
@given(
    labels=labels_strategy,
    clients=st.integers(1, 5),
    alpha=st.floats(0.05, 50),
    seed=st.integers(0, 99),
)
def test_dirichlet_is_disjoint_complete_and_meets_the_minimum(labels, clients, alpha, seed):
    parts = dirichlet(labels, clients, alpha, rng(seed), min_size=2)
    check(parts, clients, len(labels))
    assert min(map(len, parts)) >= 2


@settings(max_examples=60, deadline=None)
@given(
    labels=labels_strategy, clients=st.integers(1, 9), main=st.floats(0, 1), seed=st.integers(0, 99)
)
def test_iid_and_subset_are_disjoint_and_complete(labels, clients, main, seed):
    even = iid(labels, clients, rng(seed))
    check(even, clients, len(labels))
    assert max(map(len, even)) - min(map(len, even)) <= 1
    try:
        check(subset(labels, clients, main, rng(seed)), clients, len(labels))
    except ValueError as error:
        assert "partition.min_size" in str(error)


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 20), held=st.integers(1, 10), seed=st.integers(0, 99))
def test_classes_per_client_holds_exactly_so_many(clients, held, seed):
    labels = balanced()
    parts = classes_per_client(labels, clients, held, rng(seed))
    check(parts, clients, len(labels), complete=clients >= 10)
    assert all(len(np.unique(labels[p])) == held for p in parts)
    assert all(client % 10 in labels[p] for client, p in enumerate(parts))
    given_out = np.unique(np.concatenate([labels[p] for p in parts]))
    assert sum(map(len, parts)) == len(given_out) * 200


def test_same_generator_same_partition():
    for rule in (
        lambda g: dirichlet(balanced(), 8, 0.3, g),
        lambda g: classes_per_client(balanced(), 8, 2, g),
    ):
        first = rule(rng(1))
        again = rule(rng(1))
        other = rule(rng(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other))


def test_dirichlet_first_class_follows_the_dirichlet_law():
    """No client is full before the first class, so its shares are Dirichlet: variance (K-1)/(K^2 (K
    a + 1))."""
    alpha = 0.5
    clients = 4
    draws = np.stack(
        [
            shares(dirichlet(balanced(3, 400), clients, alpha, rng(s), 1), balanced(3, 400))[:, 0]
            for s in range(600)
        ]
    )
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    np.testing.assert_allclose(draws.mean(0), 1 / clients, atol=0.04)
    np.testing.assert_allclose(draws.var(0).mean(), expected, rtol=0.15)


def test_skew_falls_with_alpha():
    spread = [
        shares(dirichlet(balanced(), 10, a, rng(3)), balanced()).std(0).mean()
        for a in (0.05, 0.5, 5, 500)
    ]
    assert spread == sorted(spread, reverse=True) and spread[0] > 5 * spread[-1]


def test_full_clients_are_skipped():
    """Before each class only clients below the even share take part: nobody exceeds it by a whole
    class."""
    labels = balanced(10, 100)
    for seed in range(20):
        sizes = [len(p) for p in dirichlet(labels, 10, 0.05, rng(seed), min_size=1)]
        assert max(sizes) < 100 + 100


def test_subset_gives_each_client_its_class():
    labels = balanced(10, 1000)
    held = shares(subset(labels, 10, 0.91, rng()), labels)
    np.testing.assert_allclose(np.diag(held), 0.91, atol=0.002)
    np.testing.assert_allclose(held[~np.eye(10, dtype=bool)], 0.01, atol=0.002)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y: dirichlet(y, 10, 0.0, rng()), "alpha=0.0"),
        (lambda y: dirichlet(y, 10, float("nan"), rng()), "alpha=nan"),
        (lambda y: dirichlet(y, 10, -1, rng()), "alpha=-1"),
        (lambda y: dirichlet(y, 0, 1.0, rng()), "clients=0"),
        (lambda y: dirichlet(y, np.int64(0), 1.0, rng()), "clients=0"),
        (lambda y: dirichlet(y, 10**6, 1.0, rng()), "more clients than"),
        (lambda y: dirichlet(y, 10, 1.0, rng(), min_size=10**6), "min_size=1000000"),
        (lambda y: dirichlet(y, 100, 0.001, rng(), min_size=20), "not reached"),
        (lambda y: classes_per_client(y, 5, 11, rng()), "classes=11"),
        (lambda y: classes_per_client(y, 5, 0, rng()), "classes=0"),
        (lambda y: subset(y, 5, 1.5, rng()), "main=1.5"),
        (lambda y: iid(y.astype(float), 5, rng()), "integer array"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(balanced())
    assert "\n" not in str(caught.value)


def test_a_number_of_clients_may_be_numpys() -> None:
    for mine, other in zip(
        iid(balanced(), np.int64(5), rng()), iid(balanced(), 5, rng()), strict=True
    ):
        np.testing.assert_array_equal(mine, other)


# Shards: training, test and held-out records never meet, and follow the client's distribution.


def made(n: int = 1000, m: int = 500, classes: int = 5, seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    pairs = [
        (torch.rand(k, 1, 4, 4, generator=g), torch.randint(classes, (k,), generator=g))
        for k in (n, m)
    ]
    return dataset_from_pairs("made", "random images", classes, pairs[0], pairs[1])


@settings(max_examples=40, deadline=None)
@given(
    heldout=st.one_of(st.floats(0, 0.5), st.integers(0, 60)),
    fraction=st.sampled_from([0.0, 0.2]),
    clients=st.integers(1, 8),
    seed=st.integers(0, 9),
)
def test_no_record_is_in_two_places(heldout, fraction, clients, seed):
    data = made()
    spec = Partition(
        "dirichlet", clients=clients, alpha=1.0, heldout=heldout, test_fraction=fraction
    )
    shards = make_shards(data, spec, Keys(seed))
    own = (
        [s.train.ids for s in shards]
        + [s.heldout.ids for s in shards]
        + ([s.test.ids for s in shards] if fraction else [])
    )
    joined = torch.cat(own)
    assert len(joined.unique()) == len(joined) == len(data.train)
    assert all(int(s.test.ids.min()) >= len(data.train) for s in shards) or fraction
    for shard in shards:
        dealt = len(shard.train) + len(shard.heldout) + (len(shard.test) if fraction else 0)
        wanted = round(heldout * dealt) if isinstance(heldout, float) else heldout
        assert len(shard.heldout) == min(wanted, dealt // 2)
        assert torch.equal(shard.train.x, data.train.x[shard.train.ids])


def test_heldout_follows_the_clients_own_distribution_and_no_other():
    def p_value(one: torch.Tensor, two: torch.Tensor) -> float:
        table = np.stack([np.bincount(y.numpy(), minlength=5) for y in (one, two)]) + 1
        return float(chi2_contingency(table).pvalue)

    shards = make_shards(made(20000, 100), Partition(clients=5, alpha=0.3, heldout=0.5), Keys(0))
    own = [p_value(s.train.y, s.heldout.y) for s in shards]
    others = [p_value(s.train.y, shards[s.client - 1].heldout.y) for s in shards]
    assert min(own) > 1e-3 and max(others) < 1e-6


def test_common_test_records_match_the_clients_classes():
    data = made(20000, 5000)
    for shard in make_shards(data, Partition(clients=4, alpha=0.5), Keys(0)):
        a, b = (
            torch.bincount(r.y, minlength=5).double() / len(r) for r in (shard.train, shard.test)
        )
        assert float((a - b).abs().max()) < 0.03
        assert len(shard.test.ids.unique()) == len(shard.test)


def test_same_keys_same_shards():
    first, again, other = (make_shards(made(), Partition(clients=3), Keys(s)) for s in (1, 1, 2))
    assert all(torch.equal(a.train.ids, b.train.ids) for a, b in zip(first, again))
    assert not all(torch.equal(a.train.ids, b.train.ids) for a, b in zip(first, other))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "dirichlett"}, "partition.name='dirichlett'"),
        ({"heldout": 1.0}, "heldout=1.0"),
        ({"heldout": float("nan")}, "heldout=nan"),
        ({"heldout": -1}, "heldout=-1"),
        ({"test_fraction": 1.0}, "test_fraction=1.0"),
        ({"clients": None}, "clients=None"),
        ({"name": "domains", "per_domain": 0}, "per_domain=0"),
    ],
)
def test_bad_partitions_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Partition(**fields)


def test_a_client_without_training_records_is_refused():
    with pytest.raises(ValueError, match="leave none to train on"):
        make_shards(made(20), Partition("iid", clients=10, heldout=1, test_fraction=0.5), Keys(0))


def test_domains_need_domains():
    with pytest.raises(ValueError, match="has no domains"):
        make_shards(made(), Partition("domains"), Keys(0))


def test_one_client_for_each_domain():
    flat = made(300, 90)
    domain = torch.arange(300) % 3
    test_domain = torch.arange(90) % 3
    data = Dataset(flat.train, flat.test, 5, "made", "", ("a", "b", "c"), domain, test_domain)
    shards = make_shards(data, Partition("domains", heldout=0.25), Keys(0))
    assert len(shards) == 3
    for at, shard in enumerate(shards):
        assert np.unique(domain[shard.train.ids]).tolist() == [at]
        assert np.unique(test_domain[shard.test.ids - 300]).tolist() == [at]
    assert len(make_shards(data, Partition("corrupted", per_domain=2, alpha=2.0), Keys(0))) == 6
