"""A Ray cluster of two nodes that exists already: both work, one may die, the results are those of
a loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.runtime.compute_environment import current_environment
from privdd.runtime.engine import Engine, describe_mixed_workers
from privdd.runtime.ray_pool import UnlikeWorker
from privdd.runtime.worker_pool import TooManyLostWorkers
from tests.runtime import crash_tasks
from tests.runtime.crash_tasks import Deadly

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
SECRET = "a secret of sixteen letters"
ROOT = Path(__file__).resolve().parents[2]
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
}


def tasks(folder: Path) -> list[Deadly]:
    return [Deadly(i, str(folder / "met")) for i in range(10)]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[object]:
    """Two nodes of one processor each, on ports of their own."""
    from ray.cluster_utils import Cluster

    from privdd.runtime.ray_pool import disconnect_ray

    disconnect_ray()
    with pytest.MonkeyPatch.context() as patch:  # nodes hand their environment on to their workers
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PRIVDD_SECRET", SECRET)
        cluster = Cluster()
        cluster.add_node(num_cpus=1, include_dashboard=False, _system_config=QUICK)
        cluster.add_node(num_cpus=1)
        try:
            yield cluster
        finally:
            disconnect_ray()
            cluster.shutdown()


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return [task.run() for task in tasks(Path())]


def test_both_nodes_work_and_give_the_bits_of_a_loop(two_nodes, expected, tmp_path) -> None:
    engine = Engine("ray", address=two_nodes.address)
    found = list(engine.map(crash_tasks.placed, tasks(tmp_path)))
    assert len({node for node, _ in found}) == 2
    assert all(torch.equal(mine, other) for (_, mine), other in zip(found, expected, strict=True))


def test_a_node_that_dies_takes_no_result_with_it(two_nodes, expected, tmp_path) -> None:
    victim = next(iter(two_nodes.worker_nodes))
    found = []
    engine = Engine("ray", address=two_nodes.address)
    for node, draw in engine.map(crash_tasks.placed, tasks(tmp_path)):
        found.append((node, draw))
        if node == victim.node_id and victim in two_nodes.worker_nodes:
            two_nodes.remove_node(victim, allow_graceful=False)
    assert victim not in two_nodes.worker_nodes, "no node was killed: the test tested nothing"
    assert all(torch.equal(mine, other) for (_, mine), other in zip(found, expected, strict=True))
    two_nodes.add_node(num_cpus=1)  # in its place, for the next test too, whichever it is
    (tmp_path / "later").mkdir()
    later = list(engine.map(crash_tasks.placed, tasks(tmp_path / "later")))
    assert victim.node_id not in {
        node for node, _ in later
    }  # what it had finished before may have come after its end
    assert all(torch.equal(mine, other) for (_, mine), other in zip(later, expected, strict=True))


def test_a_killed_worker_takes_no_result_with_it(two_nodes, tmp_path) -> None:
    calm = [Deadly(i, "") for i in range(6)]
    deadly = [Deadly(i, str(tmp_path / "mark"), times=2 * int(i == 3)) for i in range(6)]
    results = list(Engine("ray", address=two_nodes.address, retries=3).map(crash_tasks.run, deadly))
    assert (tmp_path / "mark.3.1").exists(), "no worker was killed twice: the test tested nothing"
    assert all(torch.equal(result, task.run()) for result, task in zip(results, calm, strict=True))


def test_workers_draw_with_the_secret_of_their_environment(two_nodes, monkeypatch) -> None:
    engine = Engine("ray", address=two_nodes.address)
    keys = [Keys(3, ("noise", str(k)), SECRET.encode()) for k in range(4)]
    assert list(engine.map(Keys.private, keys)) == [key.private() for key in keys]
    other = [replace(key, secret=b"not what the nodes were given") for key in keys]
    with pytest.raises(BadConfig, match="a worker holds another secret"):
        list(engine.map(Keys.private, other))


@contextmanager
def node_with_other_kernels(cluster: Any) -> Iterator[None]:
    """A node as an older processor would be, beside those that are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("ATEN_CPU_CAPABILITY", "default")
        node = cluster.add_node(num_cpus=1)
    try:
        yield
    finally:
        cluster.remove_node(node)


def test_a_node_with_other_kernels_is_refused_or_recorded(two_nodes, expected, tmp_path) -> None:
    if current_environment().processor.endswith("DEFAULT"):
        pytest.skip("this processor has no other kernels than torch's default ones")
    with node_with_other_kernels(two_nodes):
        engine = Engine("ray", address=two_nodes.address)
        with pytest.raises(
            UnlikeWorker, match=r"processor x86_64 DEFAULT.*engine\.mixed=true"
        ) as caught:
            list(engine.map(crash_tasks.placed, tasks(tmp_path)))
        assert "\n" not in str(caught.value)
        (tmp_path / "mixed").mkdir()
        mixed = replace(engine, mixed=True)
        list(mixed.map(crash_tasks.placed, tasks(tmp_path / "mixed") * 3))
        assert "DEFAULT" in describe_mixed_workers(mixed)


@dataclass(frozen=True)
class Heavy:
    shared: torch.Tensor
    number: int

    def add(self) -> float:
        return float(self.shared.sum()) + self.number


STORE_BYTES = 80 * 2**20
# nothing may go to the disk
NO_DISK = {
    "automatic_object_spilling_enabled": False,
    "local_fs_capacity_threshold": 0.0,
}


def test_a_full_object_store_ends_in_one_line_and_an_emptied_one_goes_on(two_nodes) -> None:
    """The last: it ends the cluster of two and starts a small one that may not spill onto the
    disk."""
    import ray

    from privdd.runtime.ray_pool import disconnect_ray

    disconnect_ray()
    two_nodes.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _system_config=NO_DISK,
        )
    try:
        work = [Heavy(torch.ones(10 * 2**20), k) for k in range(1)]
        work += [replace(work[0], number=k) for k in (1, 2)]
        filling = ray.put(torch.zeros(60 * 2**20, dtype=torch.uint8).numpy())
        engine = Engine("ray", workers=2, retries=1)
        with pytest.raises(
            TooManyLostWorkers, match=r"ObjectStoreFullError|OutOfDiskError"
        ) as caught:
            list(engine.map(Heavy.add, work))
        assert "\n" not in str(caught.value)
        del filling
        assert list(replace(engine, retries=5).map(Heavy.add, work)) == [
            task.add() for task in work
        ]
    finally:
        disconnect_ray()
