"""Several seeds as one setting: the cautious epsilon, the median attack, and no rate that the sample cannot show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privdd.reporting.findings_file import validate_findings
from privdd.reporting.frontier import Setting
from privdd.reporting.run_record import RunRecord
from tests.reporting.test_decision import row
from tests.reporting.test_decision import run as released


def rates(small: float, large: float, *, resolvable: bool = True) -> dict[str, Any]:
    """At 1 and at 10 false alarms in 1 000; only the first may be too small a rate for the sample."""
    return {
        "0.001": {"tpr": small, "ci": [small - 0.01, small + 0.01], "resolvable": resolvable},
        "0.01": {"tpr": large, "ci": [large - 0.01, large + 0.01], "resolvable": True},
    }


def record(
    seed: int, pld: Any = 2.0, rdp: Any = 3.0, claims: tuple[float, ...] = (), found: tuple[dict[str, Any], ...] = (), **privacy: Any
) -> RunRecord:
    """A run that released features, and its attacks with these rates (``rates``)."""
    attacks = [row(one, epsilon_measured=0.25 + seed, epsilon_validity="finite_sample") for one in found]
    data = released(attacks, "consistent", pld).model_dump(mode="json", by_alias=True, exclude_none=True)
    data["run"]["seed"] = seed
    said = [{"source": "s", "epsilon": one, "sound": False, "why": "w"} for one in claims]
    data["privacy"] |= {"epsilon": {"pld": pld, "rdp": rdp}, "claims": said, **privacy}
    data["utility"] = {"accuracy": 0.5 + seed / 10, "accuracy_kind": "global", "uploaded_bytes_per_client": 800 + seed}
    return RunRecord(Path(str(seed)), validate_findings(data), config={"privacy": {"noise": 1}})


def setting(*runs: RunRecord, label: str = "m z=1") -> Setting:
    return Setting(label, label.split()[0], (("z", "1"),), runs)


def test_of_several_seeds_the_cautious_number_counts() -> None:
    """Seeds can change the data's split, and with it the sampling rate and the epsilon."""
    made = setting(record(0, 1.0, 1.5, (0.7,)), record(1, 2.0, 2.5, (0.4, 0.9)))
    assert (made.epsilon, made.epsilon_rdp, made.claim, made.uploaded) == (2.0, 2.5, 0.4, 801)


def test_the_rate_of_a_setting_is_the_strongest_attack_of_the_seed_in_the_middle() -> None:
    seeds = [record(at, found=(rates(tpr, 0.9), rates(0.05, 0.1))) for at, tpr in enumerate((0.3, 0.1, 0.2))]
    at = setting(*seeds).tpr("0.001")
    assert at is not None and at.tpr == 0.2


def test_a_rate_that_the_sample_cannot_show_is_none() -> None:
    hidden = record(0, found=(rates(0.9, 0.5, resolvable=False),))
    assert setting(hidden).tpr("0.001") is None
    beside = setting(record(0, found=(rates(0.9, 0.5, resolvable=False), rates(0.2, 0.4)))).tpr("0.001")
    assert beside is not None and beside.tpr == 0.2
