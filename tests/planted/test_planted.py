"""The self-test at a small size: a fault of each group is caught, healthy runs are not, and a missed one is told."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from privdd import selftest
from privdd.core.errors import BadConfig
from privdd.federated import channel
from privdd.planted import catalogue
from privdd.planted.accounting_faults import ACCOUNTING_FAULTS
from privdd.planted.catalogue import FAULTS, GROUPS, chosen_faults
from privdd.planted.clipping_faults import CLIPPING_FAULTS
from privdd.planted.fault import Fault, swapped
from privdd.planted.noise_faults import NOISE_FAULTS
from privdd.planted.sampling_faults import SAMPLING_FAULTS
from privdd.planted.score import load, page, save, summary
from privdd.planted.small_runs import NEEDS, PROFILES, chosen_profiles
from privdd.planted.trial import Outcome, tried
from privdd.planted.wire_faults import WIRE_FAULTS

EACH = [  # one of each group, in the profile where it is cheapest
    ("noise_half", "fedavg_client", "T0 noise"),
    ("clip_missing", "fedavg_client", "T1 sensitivity"),
    ("row_round_missing", "fedavg_client", "T0 ledger"),
    ("clean_sent", "fedavg_client", "wire"),
    ("sampling_off", "feddm_dp", "T0 sampling"),
    ("contributions_odd", "feddm_dp", "T1 sensitivity"),
    ("mean_hidden", "feddm_dp", "T1 told"),
    ("unit_not_declared", "feddm_dp", "refused"),
    ("noise_one_number_bare", "dp_moments", "T0 noise"),  # one release in a run: all clients' are needed to tell
    ("clip_missing", "dp_head", "T1 sensitivity"),  # beside the mechanism the method bounds what it adds up: both are off
]


@pytest.mark.parametrize(("fault", "profile", "tier"), EACH)
def test_a_fault_is_caught_by_the_test_that_is_meant_for_it(fault: str, profile: str, tier: str) -> None:
    if absent := PROFILES[profile].missing():
        pytest.skip(absent)
    outcome = tried(PROFILES[profile], FAULTS[fault], 0)
    assert outcome.tiers == (tier,), (outcome.verdict, outcome.says, outcome.error)


def test_the_command_runs_a_healthy_control_and_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, docs = tmp_path / "score.json", tmp_path / "score.md"
    asked = ["profile=fedavg_client", "fault=noise_missing", "controls=1", f"out={out}", f"docs={docs}"]
    assert selftest.main(asked) == 0
    said = capsys.readouterr().out
    assert "1 of 1 planted faults caught (1 kinds); 0 of 1 healthy runs with a false alarm." in said
    assert json.loads(out.read_text())["controls"] == {"runs": 1, "false_alarms": 0}
    assert "| T0 noise" in docs.read_text()
    kept = load(out)
    save(out, [Outcome("", "fedavg_client", 0, "contradiction", ("T1 sensitivity",)), *kept[1:]])
    assert selftest.main([*asked, "resume=true"]) == selftest.MISSED  # what was stored counts, a false alarm too
    assert "FALSE ALARM" in capsys.readouterr().out


def test_a_fault_that_nothing_notices_is_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Planting nothing is such a fault: the command says so and ends with status 2."""
    monkeypatch.setitem(catalogue.FAULTS, "nothing", Fault("nothing", "all is well", nullcontext))  # type: ignore[arg-type]
    assert selftest.main(["profile=fedavg_client", "fault=nothing", "controls=0"]) == selftest.MISSED
    assert "nothing, fedavg_client, seed 0: MISSED: verdict consistent" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_run_that_the_fault_breaks_is_not_a_catch(kind: type[Exception]) -> None:
    def boom(*given: object) -> object:
        raise kind("broke")

    fault = Fault("boom", "breaks", lambda: swapped((channel, "coins", boom), (channel, "noise_for", boom)))
    outcome = tried(PROFILES["fedavg_client"], fault, 0)
    assert not outcome.caught and outcome.error == f"{kind.__name__}: broke"


def test_faults_are_many_and_each_profile_has_its_share() -> None:
    groups = (NOISE_FAULTS, SAMPLING_FAULTS, CLIPPING_FAULTS, ACCOUNTING_FAULTS, WIRE_FAULTS)
    assert tuple(GROUPS.values()) == groups
    assert len(FAULTS) == sum(map(len, groups)) >= 60  # so no two have one name
    for profile in PROFILES.values():
        assert sum(not fault.not_applicable(profile) for fault in FAULTS.values()) >= 30
    for fault in FAULTS.values():
        assert set(fault.needs) <= set(NEEDS)
        assert any(not fault.not_applicable(profile) for profile in PROFILES.values()), fault.key


def test_code_is_put_back() -> None:
    before = channel.noise_for, channel.ClientContext.sample
    for fault in FAULTS.values():
        with fault.plant():
            pass
    assert (channel.noise_for, channel.ClientContext.sample) == before
    with pytest.raises(AttributeError), swapped((channel, "no_such_name", None)):
        pass


def test_the_page_shows_what_was_missed_and_what_was_not_tried() -> None:
    profiles = chosen_profiles("fedavg_client,feddm_dp")
    outcomes = [
        Outcome("noise_half", "fedavg_client", 0, "contradiction", ("T0 noise",), "half"),
        Outcome("noise_half", "feddm_dp", 0, "consistent"),
        Outcome("", "feddm_dp", 0, "consistent"),
    ]
    assert summary(outcomes) == "1 of 2 planted faults caught (1 kinds); 0 of 1 healthy runs with a false alarm."
    text = page(outcomes, chosen_faults("noise_half,sampling_off"), profiles, "it")
    assert "- noise_half, feddm_dp, seed 0: MISSED" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| sampling_off")]
    assert row.split("|")[-2].strip() in ("–", "") and "–" in row


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("fault=noise", "fault=noise: allowed are all, none, noise_missing"), ("profile=feddm", "profile=feddm: allowed are all"),
        ("seeds=x", "seeds=x: a whole number from 0 is needed"), ("seeds=0-999999999", "seeds=0-999999999: from the smaller to the larger"), ("controls=-1", "controls=-1: a whole number from 0"),
        ("resume=true", "resume=true: with out=FILE only"), ("colour=red", "colour=red: allowed, once each, are fault="),
    ],
)  # fmt: skip
def test_a_bad_value_is_one_line(typed: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main([typed]) == 1
    line = capsys.readouterr().err.strip()
    assert says in line and "\n" not in line


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"schema": 1, "trials": [{"fault": "a"}]}')
    with pytest.raises(BadConfig, match="no results of a self-test"):
        load(file)
