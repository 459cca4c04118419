"""What cannot end is refused before it begins, in one line that names the key."""

from __future__ import annotations

import math

import pytest

from privdd.cli.main import check_command
from privdd.cli.overrides import check_overrides
from privdd.cli.type_check import check_setting_numbers
from privdd.core.validation import BadConfig

ENDLESS = [
    "algo.local_epochs=1e15", "algo.rounds=1000001", "algo=feddm algo.server.epochs=1e15", "algo=feddm algo.matching.iterations=10000000",
    "algo=fedfed algo.distill_epochs=10000000", "algo=fedrd algo.projection_epochs=1e9", "algo=dp_psg algo.generation.networks=100000000",
    "algo=fedlgd algo.global_iterations=100000000", "algo=fedfed algo.base.local_epochs=1e15",
    "attack=[gradient_inversion] attack.gradient_inversion.method.iterations=1000000000",
    "attack=[model_inversion] attack.model_inversion.miface.iterations=10000000",
]  # fmt: skip


@pytest.mark.parametrize("typed", ENDLESS)
def test_what_cannot_end_is_refused(typed: str) -> None:
    key = typed.split()[-1].split("=")[0]
    for check in (check_command, check_overrides):  # after all is imported, and before
        with pytest.raises(BadConfig, match=rf"^{key}=\d.*: at most 1000000 are allowed$"):
            check("audit", ["preset=smoke", *typed.split()])


@pytest.mark.parametrize(
    ("key", "value"),
    [("algo.rounds", 10**6), ("algo.seed", 10**9), ("algo.steps_of", 10**9), ("audit.worlds", 10**9), ("capture.rounds", [10**9]), ("algo.name", "steps")],
)  # fmt: skip
def test_other_large_numbers_are_left_to_their_own_checks(key: str, value: object) -> None:
    check_setting_numbers(key, value, key)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, [1.0, math.nan]])
def test_what_is_no_number_is_refused_anywhere(value: object) -> None:
    with pytest.raises(BadConfig, match=r"^typed\.key=.*: a finite number below 2\*\*63 is needed$"):
        check_setting_numbers("partition.alpha", value, "typed.key")
