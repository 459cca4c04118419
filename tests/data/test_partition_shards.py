"""Shards: training, test and held-out records never meet, and follow the client's distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from privdd.core.rng import Keys
from privdd.data import Partition, make_shards
from privdd.data.dataset import Dataset, dataset_from_pairs


def made(n: int = 1000, m: int = 500, classes: int = 5, seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    pairs = [(torch.rand(k, 1, 4, 4, generator=g), torch.randint(classes, (k,), generator=g)) for k in (n, m)]
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
    spec = Partition("dirichlet", clients=clients, alpha=1.0, heldout=heldout, test_fraction=fraction)
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
        a, b = (torch.bincount(r.y, minlength=5).double() / len(r) for r in (shard.train, shard.test))
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
        make_shards(made(20), Partition("iid", clients=10), Keys(0), heldout=1, test_fraction=0.5)


def test_domains_need_domains():
    with pytest.raises(ValueError, match="has no domains"):
        make_shards(made(), Partition("domains"), Keys(0))


def test_one_client_for_each_domain():
    flat = made(300, 90)
    domain, test_domain = torch.arange(300) % 3, torch.arange(90) % 3
    data = Dataset(flat.train, flat.test, 5, "made", "", ("a", "b", "c"), domain, test_domain)
    shards = make_shards(data, Partition("domains", heldout=0.25), Keys(0))
    assert len(shards) == 3
    for at, shard in enumerate(shards):
        assert np.unique(domain[shard.train.ids]).tolist() == [at]
        assert np.unique(test_domain[shard.test.ids - 300]).tolist() == [at]
    assert len(make_shards(data, Partition("corrupted", per_domain=2, alpha=2.0), Keys(0))) == 6
