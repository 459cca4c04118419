"""One released row in three is a record as it is: the nearest row identifies members in every
distilling method, and only then."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from attacks.inversion.copy_detection import CopyDetection
from attacks.membership.nearest_row import NearestRow
from privdd.auditing.pipeline import attack_views, replay_client, train_federation
from privdd.cli.build import build_experiment
from privdd.runtime.run_folder import RunFolder
from privdd.selftest_faults.client_faults import WIRE_FAULTS
from tests.federations import tiny_config

(COPIED,) = [fault for fault in WIRE_FAULTS if fault.key == "records_copied"]
SETTINGS = (
    "audit.records=30",
    "audit.worlds=2",
    "audit.federations=0",
    "audit.victims=0",
    "engine=serial",
    "partition.heldout=0.5",
)
METHODS = {
    "feddm": ("algo.start=noise",),
    "fedrd": ("algo.start=noise", "model.width=4"),
    "feddm_dp": (),
    "fedrd_dp": ("model.width=4",),
    "dp_psg": ("model.width=4", "algo.ipc=2"),
}


def findings_of(algo: str, folder: Path, faulty: bool) -> dict[str, Any]:
    """The measures of both attacks on what the audited client sends in its last round."""
    attacks = {"nearest_row": NearestRow(signal="distance"), "copy_detection": CopyDetection()}
    with COPIED.plant() if faulty else nullcontext():
        experiment = build_experiment(tiny_config(algo, *SETTINGS, *METHODS[algo], command="audit"))
        state = attack_views(
            replay_client(train_federation(experiment, attacks, RunFolder(folder)))
        )
    own = [one for one in state.findings if str(one.surface).startswith("synthetic_")]
    return {one.attack: one.measures.to_row() for one in own}


# the two methods that send what they start from stay
@pytest.mark.nightly(but=["feddm", "fedrd"])
@pytest.mark.parametrize("algo", METHODS)
def test_copied_records_are_identified_and_counted_and_noise_is_not(
    algo: str, tmp_path: Path
) -> None:
    found, null = (findings_of(algo, tmp_path / f"{faulty}", faulty) for faulty in (True, False))
    test = found["nearest_row"]["copy_test"]
    assert test["p_value"] < 1e-4 and test["false_alarms"] == 0
    assert test["identified"] >= min(test["members"], 6)
    counts = found["copy_detection"]["diagnostics"]
    copies = -(-counts["released"] // 3)
    assert counts["near_copies"] >= copies
    assert null["nearest_row"]["copy_test"]["p_value"] > 1e-3
    assert null["copy_detection"]["diagnostics"]["exact_copies"] == 0
