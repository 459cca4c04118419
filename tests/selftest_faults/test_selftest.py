"""The self-test at a small size: a fault of each group is caught, healthy runs are not, and a
missed one is told."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from privdd import selftest
from privdd.auditing import pipeline
from privdd.core.validation import BadConfig
from privdd.federated import channel
from privdd.selftest_faults import fault_trials
from privdd.selftest_faults.client_faults import DECISION_FAULTS, WIRE_FAULTS
from privdd.selftest_faults.fault import (
    PROFILE_TRAITS,
    Fault,
    FaultKind,
    FaultMoment,
    FaultProfile,
    FaultScope,
    swap_attributes,
)
from privdd.selftest_faults.fault_trials import (
    FAULT_GRID,
    FAULT_GROUPS,
    NAMED_FAULTS,
    TrialOutcome,
    draw_faults,
    fault_at_point,
    format_score_page,
    load_outcomes,
    outcome_word,
    run_trial,
    save_outcomes,
    score_to_json,
    select_faults,
    summarise_score,
    unexpected_outcomes,
)
from privdd.selftest_faults.mechanism_faults import ACCOUNTING_FAULTS, CLIPPING_FAULTS
from privdd.selftest_faults.noise_faults import NOISE_FAULTS, SAMPLING_FAULTS
from privdd.selftest_faults.profiles import PROFILES, select_profiles
from tests import stand_in_weights

stand_in_weights.install()

EACH = [  # one of each group, in the profile where it is cheapest
    ("noise_half", "fedavg_client", "T0 noise"),
    ("clip_missing", "fedavg_client", "T1 sensitivity"),
    ("row_round_missing", "fedavg_client", "T0 ledger"),
    ("clean_sent", "fedavg_client", "wire"),
    ("sampling_off", "feddm_dp", "T0 sampling"),
    ("contributions_odd", "feddm_dp", "T1 sensitivity"),
    ("clip_double_elsewhere", "feddm_dp", "T1 sensitivity"),
    ("data_none_of_few", "feddm_dp", "T1 sensitivity"),
    ("mean_hidden", "feddm_dp", "T1 messages"),
    ("unit_not_declared", "feddm_dp", "refused"),
    (
        "noise_one_number_bare",
        "dp_moments",
        "T0 noise",
    ),  # one release in a run: all clients' are needed to tell
    (
        "clip_missing",
        "dp_head",
        "T1 sensitivity",
    ),  # beside the mechanism the method bounds what it adds up: both are off
]


@pytest.mark.nightly(
    cases=[
        "clip_missing-fedavg_client-T1 sensitivity",
        "noise_one_number_bare-dp_moments-T0 noise",
        "clip_missing-dp_head-T1 sensitivity",
        "contributions_odd-feddm_dp-T1 sensitivity",
        "clip_double_elsewhere-feddm_dp-T1 sensitivity",
        "mean_hidden-feddm_dp-T1 messages",
        "sampling_off-feddm_dp-T0 sampling",
        "data_none_of_few-feddm_dp-T1 sensitivity",
    ]
)
@pytest.mark.parametrize(("fault", "profile", "tier"), EACH)
def test_a_fault_is_caught_by_the_test_that_is_meant_for_it(
    fault: str, profile: str, tier: str
) -> None:
    outcome = run_trial(PROFILES[profile], NAMED_FAULTS[fault], 0)
    assert outcome.tiers[:1] == (tier,), (outcome.verdict, outcome.says, outcome.error)


@pytest.mark.nightly
def test_the_command_runs_a_healthy_control_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "score.json"
    docs = tmp_path / "score.md"
    asked = [
        "profile=fedavg_client",
        "fault=noise_missing",
        "controls=1",
        f"out={out}",
        f"docs={docs}",
    ]
    assert selftest.main(asked) == 0
    said = capsys.readouterr().out
    assert "1 of 1 planted faults caught (1 kinds); 0 of 1 healthy runs with a false alarm." in said
    assert json.loads(out.read_text())["controls"] == {"runs": 1, "false_alarms": 0}
    assert "| T0 noise" in docs.read_text()
    kept = load_outcomes(out)
    save_outcomes(
        out,
        [
            TrialOutcome("", "fedavg_client", kept[0].seed, "contradiction", ("T1 sensitivity",)),
            *kept[1:],
        ],
    )
    assert (
        selftest.main([*asked, "resume=true"]) == selftest.EXIT_MISSED
    )  # what was stored counts, a false alarm too
    assert "FALSE ALARM" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_fault_that_nothing_notices_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planting nothing is such a fault: the command says so and ends with status 2."""
    monkeypatch.setitem(
        fault_trials.NAMED_FAULTS, "nothing", Fault("nothing", "all is well", nullcontext)
    )  # type: ignore[arg-type]
    assert (
        selftest.main(["profile=fedavg_client", "fault=nothing", "controls=0"])
        == selftest.EXIT_MISSED
    )
    assert "nothing, fedavg_client, seed 0: MISSED: verdict consistent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "refusal", "caught"),
    [
        (RuntimeError, "", False),
        (ValueError, "", False),
        (ValueError, "other words", False),
        (ValueError, "broke", True),
    ],
)
def test_a_run_that_the_fault_breaks_is_not_a_catch(
    kind: type[Exception], refusal: str, caught: bool
) -> None:
    """Unless it stops with the error that is the right answer to this fault."""

    def boom(*given: object) -> object:
        raise kind("it broke")

    fault = Fault(
        "boom",
        "breaks",
        lambda: swap_attributes((channel, "draw_coins", boom), (channel, "noise_for", boom)),
        refusal=refusal,
    )
    outcome = run_trial(PROFILES["fedavg_client"], fault, 0)
    # a user's error is one line, ours a traceback
    said = "it broke" if kind is ValueError else "RuntimeError: it broke"
    assert outcome.is_caught is caught and outcome.error == ("" if caught else said)


def test_a_faulty_run_that_no_test_looked_at_is_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run_log_tests", lambda subject, record: [])
    monkeypatch.setattr(pipeline, "guarantee_tests", lambda subject: [])
    outcome = run_trial(PROFILES["fedavg_client"], Fault("nothing", "all is well", nullcontext), 0)  # type: ignore[arg-type]
    assert (outcome.verdict, outcome_word(outcome)) == ("untested", "MISSED (untested)")


def test_a_healthy_run_that_is_not_called_consistent_is_a_false_alarm() -> None:
    amber = TrialOutcome("", "feddm_dp", 0, "untested")
    good = TrialOutcome("", "feddm_dp", 1, "consistent")
    assert (amber.is_as_expected, good.is_as_expected) == (False, True)
    assert score_to_json([amber, good])["controls"] == {"runs": 2, "false_alarms": 1}
    assert summarise_score([amber, good]).endswith("1 of 2 healthy runs with a false alarm.")
    assert [*unexpected_outcomes([amber, good])] == [
        "healthy run, feddm_dp, seed 0: FALSE ALARM: verdict untested"
    ]


def test_each_control_has_a_seed_of_its_own_and_only_what_is_asked_for_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(profile: FaultProfile, fault: Fault | None, seed: int) -> TrialOutcome:
        ran.append((fault.key if fault else "", seed))
        return TrialOutcome(
            fault.key if fault else "",
            profile.name,
            seed,
            "consistent",
            ("T0 noise",) if fault else (),
        )

    ran: list[tuple[str, int]] = []
    monkeypatch.setattr(fault_trials, "run_trial", fake)
    asked = ["profile=fedavg_client", "fault=noise_half", f"out={tmp_path / 'score.json'}"]
    assert selftest.main([*asked, "controls=2", "seeds=0-1"]) == 0
    assert (
        ran[2:] == [("noise_half", 0), ("noise_half", 1)]
        and len({seed for _, seed in ran[:2]}) == 2
    )
    assert selftest.main([*asked, "controls=9", "seeds=0-5", "resume=only"]) == 0 and len(ran) == 4
    assert selftest.main([*asked, "controls=3", "seeds=0", "resume=true"]) == 0 and len(ran) == 5
    assert ran[4][0] == "" and ran[4][1] not in [seed for _, seed in ran[:2]]
    ran.clear()
    drawn = ["fault=drawn", "draws=3", "controls=1", "profile=fedavg_client,feddm_dp"]
    assert (
        selftest.main(drawn) == selftest.main(drawn) == 0 and ran[:4] == ran[4:]
    )  # one seed, the same faults
    assert selftest.main([*drawn, "seed=1"]) == 0 and not {*ran[8:]} & {*ran[:4]}


def test_a_self_test_of_nothing_shows_nothing() -> None:
    assert (
        selftest.main(["profile=fedavg_client", "fault=none", "controls=0"]) == selftest.EXIT_MISSED
    )


def test_faults_are_many_and_each_profile_has_its_share() -> None:
    groups = (
        NOISE_FAULTS,
        SAMPLING_FAULTS,
        CLIPPING_FAULTS,
        ACCOUNTING_FAULTS,
        WIRE_FAULTS,
        DECISION_FAULTS,
    )
    assert tuple(FAULT_GROUPS.values()) == groups
    assert len(NAMED_FAULTS) == sum(map(len, groups)) >= 60  # so no two have one name
    for profile in PROFILES.values():
        assert sum(not fault.not_applicable(profile) for fault in NAMED_FAULTS.values()) >= 30
    for fault in NAMED_FAULTS.values():
        assert set(fault.needs) <= set(PROFILE_TRAITS)
        assert any(not fault.not_applicable(profile) for profile in PROFILES.values()), fault.key


def test_points_of_the_grid_are_drawn_by_the_seed_and_can_be_planted_again_by_name() -> None:
    profiles = list(PROFILES.values())
    drawn = draw_faults(5, 150, profiles)
    assert [(p.name, f.key) for p, f in drawn] == [
        (p.name, f.key) for p, f in draw_faults(5, 150, profiles)
    ]
    assert len({f.key for _, f in drawn}) == 150 and {
        f.key.partition(":")[0] for _, f in drawn
    } == {*FAULT_GRID}
    assert not {f.key for _, f in drawn} & {*NAMED_FAULTS} and not any(
        f.not_applicable(p) for p, f in drawn
    )
    places = [f.key.partition("/")[2].split("/") for _, f in drawn]
    assert all(len({place[at] for place in places}) > 2 for at in range(4))
    for _, fault in drawn:
        (again,) = select_faults(fault.key)
        assert (again.key, again.says, again.needs, again.rounds) == (
            fault.key,
            fault.says,
            fault.needs,
            fault.rounds,
        )
    for wrong in (
        "noise:missing",
        "noise:missing/all/every/all/third",
        "noise:cut/all/every/all/half",
        "memory:mean_1/last/every/all/all",
        "x:y/all/every/all/all",
    ):
        assert fault_at_point(wrong) is None


@pytest.mark.parametrize(
    ("place", "there"),
    [
        (FaultScope(), [(0, 0, 0), (0, 2, 1), (1, 0, 0), (2, 1, 5)]),
        (FaultScope(round="middle", client="audited"), [(1, 0, 0)]),
        (FaultScope(call="once"), [(0, 0, 0), (1, 0, 0)]),
        (FaultScope(call="later", client="other"), [(0, 2, 1)]),
        (FaultScope(round="last"), [(2, 1, 5)]),
    ],
)
def test_a_fault_is_in_force_at_its_place_only(
    place: FaultScope, there: list[tuple[int, int, int]]
) -> None:
    """(round, client, release) of three rounds."""
    assert [
        at for at in [(0, 0, 0), (0, 2, 1), (1, 0, 0), (2, 1, 5)] if place.holds_at(*at)
    ] == there
    assert FaultMoment(place).is_active() == place.is_everywhere  # outside a client round


@pytest.mark.nightly
def test_a_fault_that_was_hardly_in_force_does_not_count() -> None:
    fault = FaultKind(
        "nothing is changed", lambda moment: lambda: swap_attributes(), least=3
    ).fault_at("idle")
    outcome = run_trial(PROFILES["fedavg_client"], fault, 0)
    assert (outcome.verdict, outcome.touched) == ("too small", 0) and outcome_word(
        outcome
    ) == "too small (0)"
    assert (
        summarise_score([outcome]).startswith("no fault was planted")
        and [*unexpected_outcomes([outcome])] == []
    )


UNWRITTEN = [  # points of the grid that no named fault is
    ("noise:opposite/last/once/other/half", "fedavg_dpsgd"),
    ("noise:remembered/middle/every/audited/all", "fedavg_client"),
    ("noise:missing/first/later/all/hundredth", "feddm_dp"),
]


@pytest.mark.nightly(
    cases=[
        "noise:missing/first/later/all/hundredth-feddm_dp",
        "noise:opposite/last/once/other/half-fedavg_dpsgd",
    ]
)
@pytest.mark.parametrize(("key", "profile"), UNWRITTEN)
def test_noise_that_is_wrong_at_one_place_only_is_caught(key: str, profile: str) -> None:
    outcome = run_trial(PROFILES[profile], *select_faults(key), 3)
    assert outcome.tiers[:1] == ("T0 noise",) and outcome.touched >= 50, (
        outcome.verdict,
        outcome.error,
    )


def test_code_is_put_back() -> None:
    before = channel.noise_for, channel.ClientContext.sample
    for fault in NAMED_FAULTS.values():
        with fault.plant():
            pass
    assert (channel.noise_for, channel.ClientContext.sample) == before
    with pytest.raises(AttributeError), swap_attributes((channel, "no_such_name", None)):
        pass


def test_the_page_shows_what_was_missed_and_what_was_not_tried() -> None:
    profiles = select_profiles("fedavg_client,feddm_dp")
    outcomes = [
        TrialOutcome("noise_half", "fedavg_client", 0, "contradiction", ("T0 noise",), "half"),
        TrialOutcome("noise_half", "feddm_dp", 0, "consistent"),
        TrialOutcome("", "feddm_dp", 0, "consistent"),
    ]
    assert (
        summarise_score(outcomes)
        == "1 of 2 planted faults caught (1 kinds); 0 of 1 healthy runs with a false alarm."
    )
    text = format_score_page(outcomes, select_faults("noise_half,sampling_off"), profiles, "it")
    assert "- noise_half, feddm_dp, seed 0: MISSED" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| sampling_off")]
    assert row.split("|")[-2].strip() in ("–", "") and "–" in row


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("fault=noise", "fault=noise: allowed are all, none, drawn, noise_missing"),
        ("profile=feddm", "profile=feddm: allowed are all"),
        ("seeds=x", "seeds=x: a whole number from 0 is needed"),
        ("seeds=0-999999999", "seeds=0-999999999: from the smaller to the larger"),
        ("controls=-1", "controls=-1: a whole number from 0"),
        ("resume=true", "resume=true: can be used with out=FILE only"),
        ("colour=red", "colour: unknown; allowed are fault, "),
    ],
)
def test_a_bad_value_is_one_line(typed: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main([typed]) == 1
    line = capsys.readouterr().err.strip()
    assert says in line and "\n" not in line


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"schema": 1, "trials": [{"fault": "a"}]}')
    with pytest.raises(BadConfig, match="no results of a self-test"):
        load_outcomes(file)
    save_outcomes(file, [TrialOutcome("", "feddm_dp", 0, "consistent")])
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(BadConfig, match="no results of a self-test"):
        load_outcomes(file)
