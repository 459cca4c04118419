"""Whatever is typed gives a config that runs, or one line that names the key: never a traceback."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from privdd.cli.build import build_attacks, build_experiment, check_config_types
from privdd.cli.compose import compose_config
from privdd.cli.errors import explain_error
from privdd.cli.main import check_command
from privdd.cli.overrides import _check_known_key
from privdd.cli.plain_config import iterate_settings, to_plain_settings
from privdd.cli.run import waive_unread_surfaces
from privdd.core.validation import BadConfig
from tests.federations import tiny

BASE = ["preset=smoke", "attack=[lira]", "model=mlp", "partition.clients=3"]
RUNS = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@lru_cache
def base() -> Any:
    return compose_config("audit", BASE)


@lru_cache
def leaves() -> dict[str, Any]:
    found = dict(iterate_settings(to_plain_settings(base())))
    hidden = ("preset", "attack", "algo.model.")  # chosen as groups, or shown twice
    return {k: v for k, v in found.items() if "_target_" not in k and not k.startswith(hidden)}


def line_of(error: BaseException) -> str:
    line = explain_error(error)
    assert line, f"a traceback: {error!r}"
    assert "\n" not in line and 0 < len(line) < 700
    return line


def outcome(arguments: Sequence[str]) -> str:
    """ "" where the command line was accepted, else its one line."""
    try:
        check_command("audit", arguments)
    except Exception as error:
        return line_of(error)
    return ""


@lru_cache
def known_keys() -> set[str]:
    """Leaves, the nodes that hold them, and groups."""
    return {
        part
        for leaf in dict(iterate_settings(to_plain_settings(base())))
        for part in (leaf, leaf.split(".")[0], leaf.rsplit(".", 1)[0])
    }


words = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12)
odd = st.text(max_size=25)


@RUNS
@given(
    words,
    st.sampled_from(
        ["", "algo.", "data.", "privacy.", "audit.", "audit.waive.", "engine.", "capture."]
    ),
)
def test_unknown_keys_are_refused_by_name(word: str, prefix: str) -> None:
    key = prefix + word
    if key not in known_keys():
        with pytest.raises(BadConfig, match=re.escape(f"{key}: unknown key; ")) as caught:
            _check_known_key(base(), key)
        line_of(caught.value)


WRONG = [
    "-1",
    "nan",
    "inf",
    "-inf",
    "1" + "0" * 30,
    "1e400",
    "abc",
    "[1,2]",
    "{a: 1}",
    "null",
    "true",
    "''",
    "0.5",
    "0",
]


@pytest.mark.nightly
@RUNS
@given(st.sampled_from(sorted(leaves())), st.sampled_from(WRONG))
def test_wrong_values_are_refused_or_run(key: str, value: str) -> None:
    """As the command does it, from the typed value to assembled objects (the parser itself is
    tested below)."""
    config = base().copy()
    typed = OverridesParser.create().parse_override(f"key={value}").value()
    OmegaConf.update(config, key, typed, merge=False)
    try:
        check_config_types(config)
        experiment = build_experiment(config)
        build_attacks(config)
        experiment.new_ledger()
    except Exception as error:
        line = line_of(error)
        assert key.rsplit(".", 1)[-1] in line or str(typed) in line, line
    else:
        assert not isinstance(typed, float) or abs(typed) < 2**63, f"{key}={value} was accepted"


@settings(RUNS, max_examples=8)
@given(odd)
def test_odd_arguments_are_one_line(text: str) -> None:
    for argument in (text, f"algo.lr={text}", f"{text}=1", f"algo={text}"):
        line = outcome([*BASE, argument])
        assert line or "=" in argument or argument.startswith("-")


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("algo", "fedfedd"),
        ("data", "../../etc/passwd"),
        ("model", "a b"),
        ("privacy", "<script>"),
        ("engine", "${oc.env:HOME}"),
        ("attack", "lirra"),
        ("partition", "'x"),
        ("preset", "huge"),
    ],
)
def test_unknown_choices_of_a_group(group: str, name: str) -> None:
    value = f"[{name}]" if group == "attack" else name
    assert outcome(["preset=smoke", "attack=[lira]", f"{group}={value}"])


@pytest.mark.nightly(cases=["algo.rounds=2.5-algo.rounds=2.5: a whole number"])
@pytest.mark.parametrize(
    ("argument", "needs"),
    [
        ("algo.rond=3", "did you mean algo.rounds"),
        ("algo.lr=nan", "algo.lr=nan: a finite number"),
        ("algo.rounds=2.5", "algo.rounds=2.5: a whole number"),
        ("algo.rounds=abc", "algo.rounds='abc'"),
        ("partition.alpha={a: 1}", "partition.alpha={...}"),
        ("partition.clients=0", "partition.clients=0: from 1"),
        ("partition.alpha=null", "partition.alpha=None"),
        ("data.root=3", "data.root=3: text is needed"),
        ("privacy.epsilon=abc", "privacy.epsilon='abc': a number is needed"),
        ("audit.confidence=1", "audit.confidence=1: a number in (0, 1)"),
        ("audit.worlds=0", "audit.worlds=0: at least 1"),
        ("audit.waive.update=3", "audit.waive.update=3: text is needed"),
        ("privacy.delta=2", "privacy.delta=2"),
        ("+algo.new=3", "adding or deleting"),
        ("~algo.lr", "adding or deleting"),
        ("algo.lr", "key=value"),
    ],
)
def test_the_line_says_what_is_allowed(argument: str, needs: str) -> None:
    with pytest.raises(BadConfig) as caught:
        check_command("audit", [*BASE, argument])
    assert needs in line_of(caught.value)


def test_the_base_is_accepted() -> None:
    assert outcome(BASE) == ""


def test_more_rounds_than_can_be_planned_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"^algo: 1400001 rounds; at most 1000000 are allowed$"):
        tiny("fedfed", "algo.distill_rounds=700000", "algo.base.rounds=700000")


def test_attacks_that_need_more_replays_are_told_how_many_there_are() -> None:
    """They read what is released, and one replay is the run itself."""
    config = compose_config("audit", [*BASE, "audit.worlds=1"])
    with pytest.raises(BadConfig, match=r"releases, with audit.worlds=1, audit.federations=0$"):
        waive_unread_surfaces(config)
