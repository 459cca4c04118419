"""``resume=`` of a run that went to its end: nothing is left to do, and its result is told at
once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from privdd.cli.plain_config import to_plain_settings
from privdd.runtime.files import DamagedRun, read_json_object
from privdd.runtime.run_files import MANIFEST
from privdd.runtime.seal import is_sealed

ASKS_FOR_MORE = ("attack", "audit.")  # other attacks than the run's own, or more of them


def check_stored_data(path: Path) -> None:
    """Hold the data of a finished run against the digest that it began with, where they are here.

    Raises:
        DamagedRun: The data have changed.
    """
    from privdd.cli.stored_data import compare_stored_data

    changed, _ = compare_stored_data(path, read_json_object(path / MANIFEST))
    if changed:
        raise DamagedRun(f"{path}: its data have changed since it began: {changed[0]}")


def report_finished_run(command: str, config: DictConfig, typed: Sequence[str]) -> int | None:
    """Print the result of the finished run that ``resume=`` names -> its exit status; None for one
    that is to go on.

    command: audit or train. Raises PolicyError for a policy that cannot be used, and DamagedRun
    where its data have changed.
    """
    if config.get("resume") is None or any(item.startswith(ASKS_FOR_MORE) for item in typed):
        return None
    path = Path(str(config.resume))
    if not is_sealed(path, command):
        return None
    check_stored_data(path)
    if command == "train":
        print(f"{path}: this training is finished; its figures are in {path / 'training.json'}")
        return 0
    print(
        f"privdd: {path}: this audit is finished; privdd attack {path} attack=[NAME] adds attacks "
        "to it",
        file=sys.stderr,
    )
    from privdd.reporting.policy import policy_of_settings
    from privdd.reporting.schema import load_findings
    from privdd.reporting.terminal import conclude_audit

    policy = policy_of_settings(
        {"policy": config.get("policy"), "fail_on": to_plain_settings(config.get("fail_on"))}
    )
    return conclude_audit(load_findings(path), path, policy, sys.stdout)
