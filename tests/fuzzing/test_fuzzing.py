"""A small sample of ``tests.fuzzing.run``: every method, mechanism, partition and attack comes up,
and each case ends well."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from privdd.cli.compose import config_dir, group_choices
from tests.fuzzing.cases import Case, case, chosen
from tests.fuzzing.files import Damage, damage_cases, damaged, read_damaged, whole_runs
from tests.fuzzing.outcomes import FAULTS, Outcome, in_child, problems, run_case
from tests.fuzzing.run import Work, never_ran, told

pytestmark = pytest.mark.nightly

LIMIT = 60.0  # seconds for one case, on a busy machine
TRAIN = (
    "preset=smoke",
    "data.limit=90",
    "data.test_limit=40",
    "partition.clients=2",
    "model=mlp",
    "model.width=8",
    "algo.rounds=1",
    "algo.local_epochs=1",
)


def outcome(made: Case, place: Path) -> Outcome:
    (folder := place / "run").mkdir()
    return in_child(lambda: run_case(made, folder), place / "outcome.json", LIMIT)


@pytest.mark.parametrize("number", [1, 18])
def test_a_random_command_ends_well(number: int, tmp_path: Path) -> None:
    found = outcome(case(number), tmp_path)
    assert found.kind not in FAULTS, f"{case(number)}: {found}"


def test_all_methods_mechanisms_partitions_and_attacks_come_up() -> None:
    typed = "".join(
        f"{word} " for number in range(400) for word in chosen(number, random.Random(number))[1]
    )
    for group in ("algo", "partition", "privacy"):
        missing = [
            name for name in group_choices(group, [config_dir()]) if f"{group}={name} " not in typed
        ]
        assert not missing, (group, missing)
    listed = {
        name
        for part in typed.split()
        if part.startswith("attack=[")
        for name in part[8:-1].split(",")
    }
    assert listed == set(group_choices("attack", [config_dir()]))
    assert case(7) == case(7) != case(9)


def test_methods_that_were_only_refused_are_named(tmp_path: Path) -> None:
    kinds = {
        "a": ("privdd.audit algo=fedavg privacy=none", "ran"),
        "b": ("privdd.audit algo=fedrd", "refused"),
    }
    ran: list[str] = []

    def cases(number: int) -> Work:
        name, kind = list(kinds.values())[number]
        return name, lambda place: Outcome(kind, "", 0.0)

    told("configurations", cases, range(2), LIMIT, None, ran)
    missing = never_ran(ran)
    assert "fedrd" in missing and "fedavg" not in missing
    assert len(missing) == len(group_choices("algo", [config_dir()])) - 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    assert outcome(Case(0, "train", TRAIN, None), place).kind == "ran"
    return place / "run"


def test_nonsense_is_seen(trained: Path, tmp_path: Path) -> None:
    """The checks themselves: each planted fault in a good run is named."""
    assert problems(trained, "train") == []
    for name, old, new in (
        ("training.json", '"accuracy": 0', '"accuracy": 7'),
        ("ledger.json", "{", " {"),
    ):
        copy = tmp_path / name
        shutil.copytree(trained, copy)
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new, 1))
        assert problems(copy, "train")
    (copy / "ledger.json").unlink()
    assert problems(copy, "train") == ["ledger.json is missing"]


def test_a_crash_a_hang_and_a_death_are_told_apart(tmp_path: Path) -> None:
    def crash() -> Outcome:
        raise ZeroDivisionError("planted")

    def hang() -> Outcome:
        while True:
            pass

    def die() -> Outcome:
        os._exit(9)

    found = {
        work.__name__: in_child(work, tmp_path / work.__name__, 1.0).kind
        for work in (crash, hang, die)
    }
    assert found == {"crash": "traceback", "hang": "timeout", "die": "killed"}


def test_what_the_log_holds_is_counted_and_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    made = []

    def cases(number: int) -> Work:
        made.append(number)
        return f"case {number}", lambda place: Outcome(
            ("ran", "nonsense")[number % 2], "odd" * (number % 2)
        )

    assert told("things", cases, range(2), LIMIT, log) == {"ran": 1, "nonsense": 1}
    assert told("things", cases, range(3), LIMIT, log) == {"ran": 2, "nonsense": 1} and made == [
        0,
        1,
        2,
    ]
    assert capsys.readouterr().out.count("FAULT nonsense: 1: case 1\n    odd\n") == 2
    assert told("others", cases, range(1), LIMIT, log) == {"ran": 1} and made == [0, 1, 2, 0]


def test_a_bad_value_is_refused(tmp_path: Path) -> None:
    made = Case(0, "train", (*TRAIN, "algo.lr=nan"), ("algo.lr", "nan"))
    assert outcome(made, tmp_path).kind == "refused"


def test_damaged_folders_are_read_or_refused(tmp_path: Path) -> None:
    runs = whole_runs(tmp_path)
    picked = [made for made in damage_cases(runs, 60, 1) if made.reader == "verify"][:3]
    picked += [Damage(runs[0], "findings.json", 2, "verify", 5)]
    for number, made in enumerate(picked):
        found = in_child(
            lambda made=made: read_damaged(made, tmp_path / "copy"),
            tmp_path / f"{number}.json",
            LIMIT,
        )  # type: ignore[misc]
        assert found.kind not in FAULTS, f"{made}: {found}"
    assert {damaged(b'{"a": 0.5}', how, random.Random(0)) for how in range(12)} >= {b"", b"null"}
