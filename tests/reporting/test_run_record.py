"""Tests of ``privdd.reporting.run_record``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privdd.reporting.run_record import _check_evidence, read_run_record, reproduction_recipe
from privdd.runtime.files import DamagedRun

# The command on the page: the recorded one where there is one, otherwise one from the findings.


SHARED = ["python", "-m", "privdd.audit"]


@pytest.mark.parametrize(
    ("manifest", "command", "exact"),
    [
        ({"command": " privdd-audit algo=fedavg "}, ["privdd-audit", "algo=fedavg"], True),
        ({"command": ["a b", "name=it's"]}, ["a b", "name=it's"], True),
        ({"command": "  "}, None, False),
        ({}, None, False),
    ],
)
def test_the_command_comes_from_the_manifest_or_the_run(
    runs, manifest: dict[str, Any], command: list[str] | None, exact: bool
) -> None:
    record = replace(read_run_record(runs["unprotected"]), manifest=manifest)
    run = record.findings.run
    made = reproduction_recipe(record)
    own = [
        *SHARED,
        f"algo={run.algo}",
        f"data={run.data}",
        f"preset={run.preset}",
        f"seed={run.seed}",
    ]
    assert shlex.split(made.command) == (command or own)  # a shell reads it back word for word
    assert made.exact is exact and made.seed == run.seed and made.version == run.version


def test_machine_and_digests_are_flat_text(runs) -> None:
    record = replace(
        read_run_record(runs["unprotected"]),
        manifest={"machine": {"cores": 2, "more": {}}, "digests": {"model": "abc"}},
    )
    assert reproduction_recipe(record).machine == "cores 2" and reproduction_recipe(
        record
    ).digests == (("model", "abc"),)
    bare = reproduction_recipe(replace(record, manifest={"digests": ["model"]}))
    assert bare.machine == "" and bare.digests == ()


# Evidence that no picture can be drawn of is refused by name.


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 1, 0, 0), "at least one pixel"),
        ((2, 1, 4, 0), "at least one pixel"),
        ((2, 2, 4, 4), "1 or 3 channels"),
    ],
)
def test_pictures_that_cannot_be_drawn(shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(DamagedRun, match=said):
        _check_evidence(
            {"real": np.zeros(shape), "reconstructed": np.zeros(shape)},
            Path("evidence.safetensors"),
        )
