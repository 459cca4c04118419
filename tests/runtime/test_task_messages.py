"""Messages of a whole audit: as long after the use of a task as before, nothing shared sent twice,
no secret, the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from joblib.externals.loky.backend.reduction import dumps

from privdd.auditing.attack_tasks import AttackTask
from privdd.auditing.dp_tests.runner import GuaranteeTest
from privdd.auditing.pipeline import audit_experiment
from privdd.auditing.shadow_models import run_federation_replay, run_replay_task
from privdd.cli.build import build_experiment
from privdd.federated.simulation import logged_step
from privdd.privacy.ledger import Ledger
from privdd.runtime import ray_pool
from privdd.runtime.engine import Engine
from privdd.runtime.ray_pool import RayCluster
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.task_messages import (
    PROTOCOL,
    _reduce_tensor,
    decode_call,
    decode_value,
    encode_value,
    find_shared_parts,
)
from privdd.runtime.worker_pool import map_in_chunks
from tests.auditing.test_attack_tasks import SMALL, attacks
from tests.federations import tiny_config
from tests.runtime.fake_ray import FakeRay
from tests.runtime.test_engine import bits

SECRET = "a secret of sixteen letters"
TASK_KINDS = {
    logged_step,
    run_replay_task,
    run_federation_replay,
    AttackTask.run,
    GuaranteeTest.run,
}


@dataclass(frozen=True)
class Measuring(Engine):
    """Runs every task here, and again on a fake cluster; keeps messages before and after use, and
    all bytes sent."""

    ray: FakeRay = field(default_factory=FakeRay)
    lengths: dict[Any, list[tuple[int, int, int]]] = field(default_factory=dict)
    answers: list[tuple[Any, Any]] = field(default_factory=list)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        work = list(items)
        shared = find_shared_parts(work)
        before = [len(encode_value(item)) for item in work]
        plain = [
            len(dumps(item, reducers={torch.Tensor: _reduce_tensor}, protocol=PROTOCOL))
            for item in work
        ]
        sent_before = len(self.ray.sent)
        cluster = RayCluster(self.ray, 0, shared=shared)
        if fn == GuaranteeTest.run:  # half of the audit's time: sent, and computed here alone
            cluster.send(cluster.encode(fn, work, 1))
            answers = [fn(item) for item in work]
        else:
            remote = list(map_in_chunks(cluster, fn, work))
            answers = [fn(item) for item in work]
            self.answers.extend(zip(answers, remote, strict=True))
        assert len(self.ray.sent) > sent_before or not work
        after = [len(encode_value(item)) for item in work]
        self.lengths.setdefault(fn, []).extend(zip(before, after, plain, strict=True))
        return iter(answers)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Measuring:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVDD_SECRET", SECRET)
        patch.setattr(ray_pool, "_worker_environments", {})
        overrides = [*SMALL, "audit.federations=2", "privacy.noise_source=secret"]
        experiment = build_experiment(tiny_config("fedavg", *overrides, command="audit"))
        measuring = Measuring()
        few = {name: attack for name, attack in attacks().items() if name in ("lira", "inverting")}
        audit_experiment(
            replace(experiment, engine=measuring), few, RunFolder(tmp_path_factory.mktemp("run"))
        )
    return measuring


@pytest.mark.nightly
def test_every_kind_of_task_is_as_long_after_its_use_as_before(engine: Measuring) -> None:
    assert engine.lengths.keys() >= TASK_KINDS, "a kind of task was not tried"
    changed = {
        fn.__name__: rows
        for fn, rows in engine.lengths.items()
        if any(row[0] != row[1] for row in rows)
    }
    assert changed == {}
    grown = {
        fn for fn, rows in engine.lengths.items() if any(row[2] > row[0] + 1000 for row in rows)
    }
    assert run_replay_task in grown, "no task had kept anything: the test tests nothing"


def test_no_byte_of_the_secret_is_sent_or_answered(engine: Measuring) -> None:
    everything = b"".join([*engine.ray.sent, *engine.ray.answered])
    for form in (SECRET.encode(), SECRET.encode().hex().encode()):
        assert form not in everything
    assert len(engine.ray.sent) > 20


def test_the_fake_cluster_gives_the_same_bits(engine: Measuring) -> None:
    """Shared parts are decoded once and used by many tasks: what one does to them, another must not
    see."""
    parts = [
        pair
        for own, remote in engine.answers
        for pair in zip(_flatten(own), _flatten(remote), strict=True)
    ]
    assert len(parts) > 10
    assert [bits_of(own) for own, _ in parts] == [bits_of(remote) for _, remote in parts]


def _flatten(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def bits_of(part: Any) -> Any:
    if hasattr(part, "measures") or hasattr(part, "finding"):
        return bits(part)
    if isinstance(part, dict):
        return {name: bits_of(value) for name, value in part.items()}
    if isinstance(part, torch.Tensor):
        return str(part.dtype), tuple(part.shape), part.numpy().tobytes()
    if isinstance(part, list | tuple):
        return [bits_of(each) for each in part]
    return (
        bits_of(vars(part))
        if hasattr(part, "values") and hasattr(part, "client")
        else type(part).__name__
    )


def test_totals_of_a_ledger_do_not_travel() -> None:
    ledger = Ledger(delta=1e-5)
    before = len(encode_value(ledger))
    ledger.totals(client=3)
    assert ledger._totals and len(encode_value(ledger)) == before


@dataclass(frozen=True)
class Squares:
    numbers: torch.Tensor

    @functools.cached_property
    def squares(self) -> torch.Tensor:
        return self.numbers**2


class Inherits(Squares):
    """A plain class below a dataclass."""


@pytest.mark.parametrize("kind", [Squares, Inherits])
def test_a_cached_property_stays_where_it_was_computed(kind: type[Squares]) -> None:
    value = kind(torch.arange(10_000.0))
    before = encode_value(value)
    assert value.squares[3] == 9
    assert encode_value(value) == before
    read = decode_value(encode_value([value, value]))
    assert (
        read[0] is read[1]
        and "squares" not in vars(read[0])
        and torch.equal(read[0].squares, value.squares)
    )
    assert "squares" in vars(value), "the sender lost what it had computed"


def test_shared_parts_are_the_outermost_and_come_back() -> None:
    inner = Squares(torch.arange(5_000.0))
    outer = [
        {"held": inner, "own": torch.full((9,), float(k)), "text": "t", "none": ()}
        for k in range(3)
    ]
    shared = find_shared_parts(outer)
    assert shared.parts == (inner,)
    message = shared.encode_call(len, outer[1:2], 1, locks_secrets=True)
    parts = shared.encode_parts(locks_secrets=True)
    assert len(message) < 1500 < len(parts)
    _, (read,), _ = decode_call(message, decode_value(parts))
    assert torch.equal(read["held"].numbers, inner.numbers) and torch.equal(
        read["own"], outer[1]["own"]
    )
    assert find_shared_parts([inner, Squares(torch.arange(5_000.0))]).parts == ()
