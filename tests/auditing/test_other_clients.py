"""What other clients sent, computed again: bit by bit what the server received, and what FedMIA and
source inference make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attacks.membership.fedmia import FedMIA
from attacks.membership.source_inference import SourceInference
from privdd.auditing.other_clients import _stack_clients, repeat_upload
from privdd.auditing.pipeline import audit_experiment
from privdd.cli.build import build_experiment
from privdd.core.types import State
from privdd.runtime.run_folder import RunFolder
from tests.federations import equal, tiny, tiny_config, trained

torch.set_num_threads(1)


@pytest.mark.parametrize("algo", ["fedavg", "feddm", "fedmd"])
def test_uploads_are_those_that_the_server_received(algo: str) -> None:
    """fedmd's clients keep their networks from round to round."""
    experiment = tiny(algo)
    plan = experiment.plan
    progress, inboxes, _ = trained(algo)
    chain = [progress.snapshots[t] for t in sorted(progress.snapshots)]
    received = {(message.client, message.round): message.values for message in inboxes}
    for client in (1, 2):
        memory: State = {}
        for snapshot in chain:
            sent, memory = repeat_upload(plan, snapshot, client, experiment.shards[client], memory)
            assert equal(sent, received[client, snapshot.round])


AUDIT = [
    "audit.records=20",
    "audit.worlds=2",
    "audit.federations=0",
    "audit.victims=0",
    "partition.clients=4",
    "algo.local_epochs=10",
    "algo.rounds=2",
]


def test_an_audit_reads_all_rounds_of_the_others(tmp_path: Path) -> None:
    config = tiny_config("fedavg", *AUDIT, "audit.require=some", command="audit")
    attacks = {"fedmia": FedMIA(), "source_inference": SourceInference()}
    state = audit_experiment(build_experiment(config), attacks, RunFolder(tmp_path))
    (signals,) = state.signals.of_others.values()
    assert signals["update|confidence"].shape == (3, 20, 2)
    of_updates = [finding for finding in state.findings if finding.surface == "update"]
    findings = {finding.attack: finding for finding in of_updates}
    assert findings["fedmia"].measures.rounds == 2
    assert "3 others" in findings["fedmia"].measures.note
    assert (
        "among 4; only the difference is about membership (chance level 25%)"
        in findings["source_inference"].measures.note
    )


def test_nothing_is_known_of_others_where_the_server_sees_sums(tmp_path: Path) -> None:
    summed = ["audit.require=some", "trust=secagg", "algo.weighting=uniform"]
    config = tiny_config("fedavg", *AUDIT, *summed, command="audit")
    state = audit_experiment(build_experiment(config), {"fedmia": FedMIA()}, RunFolder(tmp_path))
    assert not state.signals.of_others
    (finding,) = [finding for finding in state.findings if finding.attack == "fedmia"]
    assert "not known" in finding.measures.note


def test_uploads_that_cannot_be_repeated_are_not_read(tmp_path: Path) -> None:
    """fedmd's clients also remember rounds in which the audited client took no part."""
    few = ["participation=0.5", "algo.rounds=4", "audit.require=some"]
    config = tiny_config("fedmd", *AUDIT[:5], *few, command="audit")
    state = audit_experiment(build_experiment(config), {"fedmia": FedMIA()}, RunFolder(tmp_path))
    assert state.signals.of_others == {}
    findings = [finding for finding in state.findings if finding.attack == "fedmia"]
    assert findings and all(finding.measures.auc is None for finding in findings)


def test_a_lonely_round_leaves_the_others_compared() -> None:
    sent = [
        {"update|confidence": torch.full((4,), float(k)), "update|norm": torch.ones(())}
        for k in range(3)
    ]
    for by_round in ([sent, []], [[], sent], [sent[:1], sent]):
        ((name, stacked),) = _stack_clients(by_round).items()
        assert name == "update|confidence" and stacked.shape == (3, 4, 2)
        assert stacked.isnan().all(0).all(0).sum() == 1
    assert _stack_clients([[], []]) == {}
