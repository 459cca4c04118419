"""Settings that check themselves: what the shipped configs say is accepted, one wrong value is one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from privdd.core.errors import BadConfig
from privdd.federated.settings import AuditSettings, Budget, PrivacySettings, RunSettings

RUN = RunSettings("fedavg", "digits", "smoke", 0, "cpu", 1.0, "")
PRIVACY = PrivacySettings("none", 1e-5, "seed", "zero_out", "record")
AUDIT = AuditSettings("auto", 40, 8, 0, 1, 0.95, Budget())


@pytest.mark.parametrize(
    ("settings", "field", "value", "key"),
    [
        (RUN, "algo", 1, "name"), (RUN, "seed", -1, "seed"), (RUN, "seed", 0.5, "seed"), (RUN, "device", "tpu", "device"),
        (RUN, "participation", 0, "participation"), (RUN, "participation", 1.5, "participation"),
        (PRIVACY, "delta", 0, "privacy.delta"), (PRIVACY, "delta", 1, "privacy.delta"),
        (PRIVACY, "epsilon", 0, "privacy.epsilon"), (PRIVACY, "noise_source", "dice", "privacy.noise_source"),
        (PRIVACY, "relation", "other", "privacy.relation"), (PRIVACY, "unit", "household", "privacy.unit"),
        (Budget(), "runs", 19, "audit.guarantee.runs"), (Budget(), "images", 0.5, "audit.guarantee.images"),
        (AUDIT, "client", -1, "audit.client"), (AUDIT, "client", True, "audit.client"), (AUDIT, "client", "all", "audit.client"),
        (AUDIT, "records", 0, "audit.records"), (AUDIT, "worlds", 2.5, "audit.worlds"), (AUDIT, "victims", -1, "audit.victims"),
        (AUDIT, "confidence", 1, "audit.confidence"), (AUDIT, "training", "both", "audit.training"),
        (AUDIT, "waive", {"updates": "small"}, "audit.waive"), (AUDIT, "waive", {"update": " "}, "audit.waive.update"),
    ],
)  # fmt: skip
def test_one_wrong_value_is_one_line_that_names_its_key(settings: Any, field: str, value: Any, key: str) -> None:
    with pytest.raises(BadConfig) as caught:
        replace(settings, **{field: value})
    assert str(caught.value).startswith((f"{key}=", f"{key}:")) and "\n" not in str(caught.value)


def test_the_ends_of_ranges_are_allowed_and_counts_become_ints() -> None:
    assert replace(RUN, participation=1).participation == 1
    assert replace(PRIVACY, epsilon=None, noise_multiplier=0).noise_multiplier == 0
    made = replace(AUDIT, client=0, records=1.0, federations=0, victims=0, waive={"update": "small"})
    assert (made.client, made.records) == (0, 1) and isinstance(made.records, int)
