"""A Ray cluster of two nodes that exists already: both work, one may die, the results are those of a loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from privdd.runtime.engine import Engine
from tests.runtime import crash_tasks
from tests.runtime.crash_tasks import Deadly

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}


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
    assert victim.node_id not in {node for node, _ in later}  # what it had finished before may have come after its end
    assert all(torch.equal(mine, other) for (_, mine), other in zip(later, expected, strict=True))
