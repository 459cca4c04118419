"""A run's recorded command is the one that was typed, and typed again it means the same."""

from __future__ import annotations

import pytest

from privdd.cli.compose import expand_arguments, overrides_as_typed

CASES = {
    "nothing typed": ["algo=fedfed", "preset=smoke"],
    "all": ["algo=fedfed", "attack=all"],
    "all and one more": ["attack=[all,label_only]", "algo=feddm"],
    "a few": ["algo=fedavg", "attack=[lira,rmia]"],
    "a few, all of them required": ["algo=fedavg", "attack=[lira]", "audit.require=all"],
    "a pattern of one": ["algo=glob(feddm)"],
}


@pytest.mark.parametrize("kind", CASES)
def test_what_was_typed_comes_back_and_means_the_same(kind: str) -> None:
    given = CASES[kind]
    ran = expand_arguments(given, "audit")  # Hydra's list of a run without a sweep
    shown = overrides_as_typed(ran, given)
    typed = [item.replace("glob(feddm)", "feddm") for item in given]
    assert sorted(shown) == sorted(typed)
    assert sorted(expand_arguments(shown, "audit")) == sorted(ran)


def test_of_a_sweep_the_value_of_this_run_is_shown() -> None:
    given = ["-m", "algo=feddm,fedavg", "attack=[lira],[rmia]"]
    assert overrides_as_typed(["algo=fedavg", "attack=[rmia]", "audit.require=some"], given) == ["algo=fedavg", "attack=[rmia]"]
