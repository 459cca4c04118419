"""Tests of ``privdd.auditing.replay_budget``: how replays are shared, and what a run then has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from privdd.auditing.replay_budget import ReplaySplit, split_replays
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.run import prepare_run_folder
from privdd.cli.settings import audit_settings
from privdd.cli.stored_config import check_finished_run, config_of_stored_run, load_stored_config
from privdd.core.validation import BadConfig
from tests.federations import TINY


@pytest.mark.parametrize(
    ("replays", "rounds", "worlds", "read"),
    [
        (24, 1, 12, 2),  # smoke, whatever the run's rounds
        (24, 100, 12, 2),
        (512, 1, 32, 16),  # default, up to sixteen rounds
        (512, 16, 32, 16),
        (512, 20, 25, 20),  # above, fewer worlds and all rounds
        (512, 32, 18, 28),
        (512, 1000, 18, 28),
        (1024, 32, 32, 32),
        (288, 1000, 18, 16),
        (35, 9, 17, 2),
        (4, 9, 2, 2),
    ],
)
def test_replays_are_shared(replays: int, rounds: int, worlds: int, read: int) -> None:
    assert split_replays(replays, rounds, 120) == ReplaySplit(worlds, read)


@pytest.mark.parametrize(
    ("records", "worlds", "read"),
    [(60, 18, 12), (120, 18, 12), (150, 15, 14), (167, 13, 16), (400, 13, 16)],
)
def test_many_records_need_fewer_shadow_models(records: int, worlds: int, read: int) -> None:
    """As long as half of their records, in all models, are a thousand non-members."""
    assert split_replays(216, 1000, records) == ReplaySplit(worlds, read)
    assert worlds * records / 2 > 1000 or records < 120


def test_records_that_are_not_there_do_not_count() -> None:
    """More are asked for than the audited client has."""
    more = ("audit.replays=216", "algo.rounds=40", "audit.records=100000")
    held = len(build_experiment(config_of(*more)).shards[0].train)
    assert held < 120
    assert numbers(*more)[0] == 18


@given(st.integers(4, 10**5), st.integers(1, 10**4), st.integers(1, 10**4))
def test_no_more_is_replayed_than_was_allowed(replays: int, rounds: int, records: int) -> None:
    split = split_replays(replays, rounds, records)
    assert 2 <= split.shadow_models <= 32 and split.rounds >= 2
    assert split.shadow_models * split.rounds <= replays < (split.rounds + 1) * split.shadow_models


def config_of(*typed: str) -> DictConfig:
    return compose_config("audit", [*TINY, "algo=fedavg", "attack=[lira]", *typed])


def numbers(*typed: str) -> tuple[int, int]:
    audit = build_experiment(config_of(*typed)).audit_settings
    return audit.worlds, audit.rounds


def test_a_run_of_many_rounds_reads_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are kept: 32, of a large network 8."""
    assert numbers() == (12, 2)
    assert numbers("audit.replays=512", "algo.rounds=16") == (32, 16)
    assert numbers("audit.replays=512", "algo.rounds=40") == (18, 28)
    monkeypatch.setattr("privdd.auditing.replay.most_kept_rounds", lambda plan: 8)
    assert numbers("audit.replays=512", "algo.rounds=40") == (32, 16)


def test_rounds_without_the_audited_client_are_none_to_replay() -> None:
    experiment = build_experiment(
        config_of("audit.replays=512", "algo.rounds=32", "participation=0.67")
    )
    plan = experiment.plan
    own = sum(plan.victim in plan.participants(t) for t in range(32))
    assert 18 < own < 28
    assert experiment.audit_settings.worlds == 512 // own


def test_what_is_set_stands_and_leaves_the_other_alone() -> None:
    more = ("audit.replays=512", "algo.rounds=40")
    assert numbers(*more, "audit.worlds=9") == (9, 16)
    assert numbers(*more, "audit.rounds=20") == (32, 20)
    assert numbers("algo.rounds=40", "audit.worlds=9", "audit.rounds=20") == (9, 20)


@pytest.mark.parametrize("value", ["3", "1.5", "many", "True"])
def test_a_number_of_replays_that_is_none_is_one_line(value: str) -> None:
    with pytest.raises(BadConfig, match=rf"^audit\.replays='?{value}'?: ") as refused:
        audit_settings(config_of(f"audit.replays={value}"))
    assert "\n" not in str(refused.value)


def test_the_same_command_is_known_again(tmp_path: Path) -> None:
    """The folder holds numbers, and the command leaves them to us."""
    config = config_of("audit.replays=512", "algo.rounds=20")
    build_experiment(config)
    prepare_run_folder(tmp_path, config)
    stored = load_stored_config(tmp_path)
    assert (
        OmegaConf.to_container(stored.audit).items()
        >= {
            "replays": 512,
            "worlds": 25,
            "rounds": 20,
        }.items()
    )
    assert audit_settings(stored).worlds == 25
    check_finished_run(tmp_path, config_of("audit.replays=512", "algo.rounds=20"))
    again = ["attack=[lira]", "audit.worlds=30"]
    more = config_of_stored_run(stored, "audit", again, again, "run")
    assert (more.audit.replays, more.audit.worlds, more.audit.rounds) == (None, 30, 20)
