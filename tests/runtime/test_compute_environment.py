"""``privdd.runtime.compute_environment``: what differs is seen, what is the same gives the same
digest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from privdd.runtime import compute_environment
from privdd.runtime.compute_environment import ComputeEnvironment, current_environment

SHOW = (
    "import json; from privdd.runtime.compute_environment import current_environment as e; "
    "print(json.dumps(e().to_json()))"
)


def environment_of_process(**variables: str) -> ComputeEnvironment:
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return ComputeEnvironment.from_json(json.loads(done.stdout))


@pytest.mark.nightly
def test_another_process_is_alike_and_one_with_other_kernels_is_not() -> None:
    own = current_environment()
    assert environment_of_process() == own
    other = environment_of_process(ATEN_CPU_CAPABILITY="default")
    if own.processor.endswith("DEFAULT"):
        pytest.skip("this processor has no other kernels than torch's default ones")
    assert other.processor.endswith("DEFAULT") and other.kernels != own.kernels
    assert "processor" in other.describe_difference(
        own
    ) and "torch" not in other.describe_difference(own)


@pytest.mark.parametrize("name", [field.name for field in fields(ComputeEnvironment)])
def test_each_part_is_told_apart_and_named(name: str) -> None:
    own = current_environment()
    other = replace(own, **{name: "1.2"})
    assert other.describe_difference(own) == f"{name} 1.2 (here {getattr(own, name)})"
    assert own.describe_difference(own) == ""


def test_one_changed_byte_and_one_more_file_change_the_source(tmp_path: Path) -> None:
    for package in compute_environment.SOURCE_PACKAGES:
        (tmp_path / package / "inner").mkdir(parents=True)
        (tmp_path / package / "inner" / "part.py").write_text("x = 1\n")
    digests = [compute_environment._digest_source(tmp_path)]
    (tmp_path / "attacks" / "inner" / "part.py").write_text("x = 2\n")
    digests.append(compute_environment._digest_source(tmp_path))
    (tmp_path / "privdd" / "more.py").write_text("")
    digests.append(compute_environment._digest_source(tmp_path))
    assert len(set(digests)) == 3
    (tmp_path / "privdd" / "notes.txt").write_text("no code")
    assert compute_environment._digest_source(tmp_path) == digests[-1]
