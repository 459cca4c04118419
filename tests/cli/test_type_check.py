"""Tests of ``privdd.cli.settings``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from omegaconf import OmegaConf

from privdd.api import audit, train
from privdd.cli.build import build_experiment, check_config_types
from privdd.cli.compose import CONFIG_GROUPS, compose_config, config_dir
from privdd.cli.main import check_command
from privdd.cli.overrides import check_overrides
from privdd.cli.run import run_audit
from privdd.cli.stored_config import load_stored_config
from privdd.cli.type_check import (
    TypeCheck,
    check_setting_numbers,
    declared_parameters,
    describe_type,
    fits_type,
)
from privdd.core.validation import BadConfig

# Every value against what the code declares for its place; one line names the key that was typed.


BASE = [
    "preset=smoke",
    "model=convnet",
    "attack=[lira,gradient_inversion,model_inversion]",
    "privacy=dpsgd",
]

WRONG = [
    ("attack.lira.online=7", "attack.lira.online=7: true or false is needed"),
    ("attack.lira.targets=1.5", "attack.lira.targets=1.5: a whole number is needed"),
    ("attack.lira.targets=true", "attack.lira.targets=True: a number is needed"),
    ("attack.lira.confidence=null", "attack.lira.confidence=None: a number is needed"),
    ("attack.lira.confidence=nan", "attack.lira.confidence=nan: a finite number"),
    ("attack.lira.delta=abc", "attack.lira.delta='abc': a number is needed (or null)"),
    (
        "attack.lira.variance=both",
        "attack.lira.variance='both': allowed are auto, bayes, per_record, pooled",
    ),
    ("attack.lira=3", "attack.lira=3: a mapping with a _target_ is needed"),
    (
        "attack.gradient_inversion.method.iterations=many",
        "attack.gradient_inversion.method.iterations='many': a number",
    ),
    (
        "attack.gradient_inversion.method=3",
        "attack.gradient_inversion.method=3: a mapping with a _target_",
    ),
    (
        "attack.gradient_inversion.method._target_=attacks.nowhere",
        "attack.gradient_inversion.method._target_='attacks.nowhere': ",
    ),
    (
        "attack.model_inversion.miface=null",
        "attack.model_inversion.miface=None: a mapping with a _target_",
    ),
    ("privacy.noise_multiplier=abc", "privacy.noise_multiplier='abc': a number is needed"),
    ("privacy.noise_multiplier=nan", "privacy.noise_multiplier=nan: a finite number"),
    ("privacy.clip_norm=true", "privacy.clip_norm=True: a number is needed"),
    ("privacy.sampling_probability=null", "privacy.sampling_probability=None: a number is needed"),
    ("privacy.mechanisms=3", "privacy.mechanisms=3: a mapping of settings is needed"),
    ("engine.threads=true", "engine.threads=True: a "),
    ("engine.address=3", "engine.address=3: would do nothing: "),
    ("engine.kind=null", "engine.kind=None: text is needed"),
    ("algo.lr=nan", "algo.lr=nan: a finite number"),
    ("algo.lr=true", "algo.lr=True: a number is needed"),
    ("algo.rounds=2.0", "algo.rounds=2.0: a whole number is needed"),
    ("algo.weighting=3", "algo.weighting=3: allowed are records, uniform"),
    ("algo.update_is_delta=0", "algo.update_is_delta=0: true or false is needed"),
    ("model.width=2.5", "model.width=2.5: a whole number is needed (or null)"),
    (
        "model._target_=own.Net",
        "model._target_='own.Net': No module named 'own'; a network of your own is "
        "model=own model.target=own:Net",
    ),
    (
        "model._target_=privdd.methods.fedavg.FedAvg",
        "model._target_='privdd.methods.fedavg.FedAvg': no ModelSpec; a network of your own is",
    ),
    ("model.pad_grey=1", "model.pad_grey=1: true or false is needed"),
    ("capture.rounds=3", "capture.rounds"),
    ("capture.surfaces=null", "capture.surfaces=None"),
    ("capture=3", "capture=3: a mapping of settings is needed"),
    ("partition.alpha=true", "partition.alpha=True: a number is needed"),
    ("data.limit=2.0", "data.limit=2.0: a whole number is needed (or null)"),
    ("name=3", "name=3: text is needed (or null)"),
    ("audit.guarantee=3", "audit.guarantee=3: a mapping of settings is needed"),
    ("audit.guarantee.images=true", "audit.guarantee.images=True"),
]


@pytest.mark.nightly(
    cases=[
        "attack.lira.online=7-attack.lira.online=7: true or false is needed",
        "partition.alpha=true-partition.alpha=True: a number is needed",
    ]
)
@pytest.mark.parametrize(("typed", "said"), WRONG)
def test_a_wrong_value_is_one_line_that_names_its_key(
    typed: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as caught:
        check_command("audit", [*BASE, typed])
    assert (
        "\n" not in str(caught.value) and not caplog.records
    )  # a logged line would be a second one


@pytest.mark.parametrize(
    "typed",
    [
        "algo.lr=1",
        "algo.local_epochs=0.5",
        "attack.lira.delta=null",
        "attack.lira.delta=0",
        "model.depth=null",
        "data.limit=5",
        "attack.model_inversion.prior=null",
        "privacy.clip_norm=2",
        "capture.rounds=[0,2]",
        "audit.worlds=1e1",
    ],
)
def test_a_right_value_is_taken(typed: str) -> None:
    check_command("audit", [*BASE, typed])


@pytest.mark.nightly(but=["attack.lira.online=7-attack.lira.online=7: true or false is needed"])
@pytest.mark.parametrize(
    ("typed", "said"),
    [w for w in WRONG if w[0].startswith(("attack.lira.o", "algo.w", "privacy.c", "engine.t"))],
)
def test_nothing_is_read_or_built_before_the_refusal(
    typed: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every door: the functions, the stored config, and assembly by itself."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("privdd.cli.build.load_dataset", never)
    monkeypatch.setattr("privdd.cli.build.instantiate", never)
    more = [*BASE, "data.limit=100"]
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        audit(*more, typed, out=tmp_path / "run")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        build_experiment(compose_config("audit", [*more, typed]))
    if not typed.startswith("attack"):
        with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
            train(*(m for m in more if not m.startswith("attack")), typed, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    stored = tmp_path / "stored"
    stored.mkdir()
    (stored / "config.yaml").write_text(
        OmegaConf.to_yaml(compose_config("audit", [*more, typed]), resolve=True)
    )
    with pytest.raises(
        ValueError, match=r"=(7|3|True): "
    ):  # resolved: where it was typed is not known any more
        run_audit(load_stored_config(stored), stored, [])
    assert sorted(p.name for p in stored.iterdir()) == ["config.yaml"]


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclass(frozen=True)
class Own:
    inner: Inner
    parts: tuple[float, ...] = ()
    more: Inner | None = None
    colour: Colour = Colour.RED
    anything: Any = None
    known: ClassVar[int] = 4


class Plain:
    def __init__(self, size: int, bare=None, **others: object) -> None:
        pass


def built(**values: Any) -> None:
    config = OmegaConf.create(
        {"shared": {"size": 2.5}, "own": {"_target_": f"{__name__}.Own", **values}}
    )
    TypeCheck(config).check_built_node("own", OmegaConf.to_container(config.own, resolve=True))


INNER = {"_target_": f"{__name__}.Inner"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"inner": {**INNER, "size": "big"}}, "own.inner.size='big': a whole number is needed"),
        (
            {"inner": {**INNER, "sise": 3}},
            "own.inner.sise: unknown key; did you mean own.inner.size?",
        ),
        (
            {"inner": {**INNER, "size": "${shared.size}"}},
            "shared.size=2.5: a whole number is needed",
        ),
        ({"inner": {"size": 3}}, "own.inner={...}: a mapping with a _target_ is needed"),
        ({"inner": INNER, "parts": [1, "b"]}, "own.parts=[1, 'b']: a list of numbers is needed"),
        ({"inner": INNER, "parts": 3}, "own.parts=3: a list of numbers is needed"),
        ({"inner": INNER, "more": 3}, "own.more=3: a mapping with a _target_ is needed (or null)"),
        ({"inner": INNER, "colour": "blue"}, "own.colour='blue': one of red is needed"),
        (
            {"inner": INNER, "anything": {"deep": [{**INNER, "size": None}]}},
            "own.anything.deep.0.size=None: a whole number",
        ),
        ({"inner": INNER, "known": 3}, "own.known: unknown key; known there: inner, parts"),
    ],
)
def test_a_class_of_ones_own_is_checked_at_every_depth(values: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=f"^{re.escape(said)}"):
        built(**values)


def test_what_a_class_of_ones_own_takes() -> None:
    built(
        inner={**INNER, "size": 4},
        parts=[1, 2.5],
        more=None,
        colour="red",
        anything={"deep": [INNER]},
    )
    assert declared_parameters(Plain) == ({"size": int, "bare": Any}, True)
    assert declared_parameters(Own)[0]["parts"] == tuple[float, ...] and set(
        declared_parameters(Own)[0]
    ) == {"inner", "parts", "more", "colour", "anything"}


@pytest.mark.parametrize(
    ("value", "kind", "expected", "words"),
    [
        (True, int, False, "a whole number is needed"),
        (1, float, True, "a number is needed"),
        (1.0, int, False, "a whole number is needed"),
        (None, int | None, True, "a whole number is needed (or null)"),
        (True, Literal[1], False, "allowed are 1"),
        ("a", Literal["a", "b"] | None, True, "allowed are a, b, null"),
        (
            [0.1],
            float | Sequence[float] | None,
            True,
            "a number or a list of numbers is needed (or null)",
        ),
        ("abc", Sequence[str], False, "a list of texts is needed"),
        ({"a": 1}, Mapping[str, float], True, "a mapping is needed"),
        ({"a": "b"}, dict[str, float], False, "a mapping is needed"),
        ("here", Path | None, True, "text is needed (or null)"),
        (3, Annotated[str, "a label"], False, "text is needed"),
        ("a", Annotated[str, "a label"], True, "text is needed"),
        (3, object, True, None),
        ({"a": 1}, Any, True, None),
    ],
)
def test_plain_values_and_declared_types(
    value: Any, kind: Any, expected: bool, words: str | None
) -> None:
    assert fits_type(value, kind) is expected
    assert words is None or describe_type(kind) == words


@pytest.mark.nightly
def test_every_shipped_file_is_accepted() -> None:
    """Annotations are right about every value of every yaml, in every preset."""
    # groups of one algo's own
    within = {
        "algo/base": ["algo=fedfed"],
        "algo/inner": ["algo=virtual_data"],
        "algo/virtual": ["algo=virtual_data"],
    }
    for group in sorted(set(CONFIG_GROUPS) - {"attack", "preset", "base"}):
        for name in sorted(p.stem for p in (Path(config_dir()) / group).glob("[!_]*.yaml")):
            check_config_types(compose_config("train", [*within.get(group, []), f"{group}={name}"]))
    for preset in ("smoke", "default", "paper"):
        check_command("audit", [f"preset={preset}", *BASE[1:]])


# What cannot end is refused before it begins, in one line that names the key.


ENDLESS = [
    "algo.local_epochs=1e15",
    "algo.rounds=1000001",
    "algo=feddm algo.server.epochs=1e15",
    "algo=feddm algo.matching.iterations=10000000",
    "algo=fedfed algo.distill_epochs=10000000",
    "algo=fedrd algo.projection_epochs=1e9",
    "algo=dp_psg algo.generation.networks=100000000",
    "algo=fedlgd algo.global_iterations=100000000",
    "algo=fedfed algo.base.local_epochs=1e15",
    "attack=[gradient_inversion] attack.gradient_inversion.method.iterations=1000000000",
    "attack=[model_inversion] attack.model_inversion.miface.iterations=10000000",
]


@pytest.mark.nightly(
    but=[
        "algo.local_epochs=1e15",
        "algo.rounds=1000001",
        "algo=feddm algo.matching.iterations=10000000",
        "algo=fedfed algo.base.local_epochs=1e15",
    ]
)
@pytest.mark.parametrize("typed", ENDLESS)
def test_what_cannot_end_is_refused(typed: str) -> None:
    key = typed.split()[-1].split("=")[0]
    for check in (check_command, check_overrides):  # after all is imported, and before
        with pytest.raises(BadConfig, match=rf"^{key}=\d.*: at most 1000000 are allowed$"):
            check("audit", ["preset=smoke", *typed.split()])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algo.rounds", 10**6),
        ("algo.seed", 10**9),
        ("algo.steps_of", 10**9),
        ("audit.worlds", 10**9),
        ("capture.rounds", [10**9]),
        ("algo.name", "steps"),
    ],
)
def test_other_large_numbers_are_left_to_their_own_checks(key: str, value: object) -> None:
    check_setting_numbers(key, value, key)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, [1.0, math.nan]])
def test_what_is_no_number_is_refused_anywhere(value: object) -> None:
    with pytest.raises(
        BadConfig, match=r"^typed\.key=.*: a finite number below 2\*\*63 is needed$"
    ):
        check_setting_numbers("partition.alpha", value, "typed.key")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("data.size=-1", "data.size=-1: an integer >= 1 or null is needed"),
        ("data.size=100000", "data.size=100000: from 1 to "),
        ("data.test_limit=0", "data.test_limit=0: an integer >= 1 or null is needed"),
        ("data.name=nosuch", "data.name='nosuch': one of digits"),
    ],
)
def test_settings_of_data_are_refused_before_data_are_read(typed: str, line: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_config_types(compose_config("train", [typed]))
    assert str(refused.value).startswith(line)
