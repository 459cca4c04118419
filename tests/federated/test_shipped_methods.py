"""What holds of every shipped profile: of each, one short federation is trained once for all tests
here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dp_accounting as dpa
import pytest

from attacks.validation import declared_hooks
from privdd.federated.audit_hooks import PROTOCOLS
from privdd.federated.channel import digest_tensors
from privdd.federated.method import Method
from privdd.federated.simulation import run_round, start_training
from privdd.privacy.mechanism import Mechanism
from privdd.runtime.engine import Engine
from tests.federations import ALGOS, equal, tiny, trained


@pytest.mark.parametrize("algo", ALGOS)
def test_every_method_keeps_the_contract(algo: str) -> None:
    assert isinstance(tiny(algo).plan.method, Method)
    assert all(isinstance(m, Mechanism) for m in tiny(algo).plan.mechanisms.values())


def test_shipped_methods_inherit_the_protocols_that_they_answer() -> None:
    """A hook that a shipped method defines belongs to a protocol of its own, for its types."""
    for algo in ALGOS:
        kind = type(tiny(algo).plan.method)
        for protocol in PROTOCOLS:
            answered = [name for name in declared_hooks(protocol) if hasattr(kind, name)]
            assert not answered or issubclass(kind, protocol), (algo, answered)


# Nothing leaves a client but through the channel, and every value that leaves has its row.


@pytest.mark.parametrize("algo", ALGOS)
def test_ledger_rows_equal_what_the_server_received(algo: str) -> None:
    """Over a whole federation: same names in the same order, digests of the received tensors, their
    shapes."""
    progress, received, _ = trained(algo)
    rows = [r for r in progress.ledger.releases if r.client >= 0 and r.visible_to != ("analyst",)]
    sent = [(r.round, r.client, name, value) for r in received for name, value in r.values.items()]
    assert [(r.round, r.client, r.name) for r in rows] == [item[:3] for item in sent]
    assert [r.digest for r in rows] == [digest_tensors(value) for *_, value in sent]
    assert [dict(r.shape) for r in rows] == [
        {k: tuple(t.shape) for k, t in value.items()} for *_, value in sent
    ]
    assert {str(tiny(algo).plan.method.uploads[r.name]) for r in rows} == {r.surface for r in rows}
    assert len(sent) >= 3 * min(2, tiny(algo).plan.method.rounds)  # some release once


@pytest.mark.parametrize("algo", ALGOS)
def test_rows_of_profiles_name_what_protects_them(algo: str) -> None:
    """Only a mechanism, what follows from one, or a written reason makes a row other than
    non-private."""
    for row in trained(algo)[0].ledger.releases:
        if row.client < 0:
            continue
        if isinstance(row.event, dpa.NonPrivateDpEvent):
            assert row.nonprivate_reason
        elif isinstance(row.event, dpa.NoOpDpEvent):
            assert row.why
        else:
            assert row.noise_std > 0 and row.sensitivity and all(row.flags.values())


# The order in which clients work or report changes nothing, bit for bit.


class Backwards(Engine):
    """Works on the last client first and reports in the order asked."""

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        done = [fn(item) for item in reversed(list(items))]
        yield from reversed(done)


@pytest.mark.nightly(
    cases=[
        "feddm_dp",
        "feddm_guided_dp",
        "feddm_guided_scattering",
        "feddm_public_dp",
        "fedfed_dp",
        "fedfed_virtual",
        "fedlgd",
        "fedlgd_dp",
        "fedlgd_released",
        "fedrd",
        "fedrd_dp",
        "fedrd_printed",
        "own_training",
        "fedfed_released",
        "fedfed_flbench",
        "fedmd_dp",
        "dp_psg",
        "dp_head_scattering",
    ]
)
@pytest.mark.parametrize("algo", ALGOS)
def test_clients_working_backwards(algo: str) -> None:
    experiment, (expected, *_) = tiny(algo), trained(algo)
    progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        progress, _, _ = run_round(experiment.plan, progress, experiment.shards, Backwards())
    assert equal(progress.server, expected.server) and equal(progress.memories, expected.memories)
    assert progress.ledger.to_json() == expected.ledger.to_json()


@pytest.mark.nightly(
    cases=[
        "feddm_guided_dp",
        "feddm_guided_scattering",
        "fedlgd_dp",
        "fedlgd_released",
        "fedrd_dp",
        "fedrd_printed",
    ]
)
@pytest.mark.parametrize("algo", ALGOS)
def test_aggregation_of_a_shuffled_inbox(algo: str) -> None:
    plan, (_, received, servers) = tiny(algo).plan, trained(algo)
    for t, server in enumerate(servers):
        inbox = [r for r in received if r.round == t]
        keys = plan.keys.fold("round", t, "server")
        assert equal(
            plan.method.aggregate(server, inbox, keys),
            plan.method.aggregate(server, inbox[::-1], keys),
        )
        assert len(inbox) == 3
