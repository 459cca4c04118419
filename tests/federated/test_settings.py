"""Typed settings refuse what cannot be meant, in one line that names the key, the value and what is
allowed."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from privdd.core.validation import BadConfig
from privdd.federated.settings import AuditSettings, GuaranteeBudget, PrivacySettings, RunSettings

AUDIT: dict[str, Any] = {
    "client": "auto",
    "records": 60,
    "worlds": 12,
    "federations": 0,
    "victims": 2,
    "confidence": 0.95,
    "guarantee": GuaranteeBudget(),
    "training": "auto",
    "waive": {"update": "not ours"},
}
PRIVACY: dict[str, Any] = {
    "name": "dpsgd",
    "delta": 1e-5,
    "epsilon": None,
    "noise_multiplier": 1.0,
    "clip_norm": 1,
    "noise_source": "seed",
    "relation": "add_remove",
    "unit": "record",
}
RUN: dict[str, Any] = {
    "algo": "fedavg",
    "data": "digits",
    "preset": "smoke",
    "seed": 0,
    "device": "cpu",
    "participation": 1.0,
    "fingerprint": "0f",
}
KINDS = [(AuditSettings, AUDIT), (PrivacySettings, PRIVACY), (RunSettings, RUN)]

WRONG = [
    (
        AuditSettings,
        AUDIT,
        "client",
        -1,
        "audit.client=-1: auto, or a client's number from 0, is needed",
    ),
    (AuditSettings, AUDIT, "client", "first", "audit.client='first': auto, or"),
    (AuditSettings, AUDIT, "client", True, "audit.client=True: auto, or"),
    (AuditSettings, AUDIT, "client", 2.0, "audit.client=2.0: auto, or"),
    (AuditSettings, AUDIT, "records", 0, "audit.records=0: at least 2 are needed"),
    (AuditSettings, AUDIT, "records", "60", "audit.records='60': a number is needed"),
    (AuditSettings, AUDIT, "records", True, "audit.records=True: a number is needed"),
    (
        AuditSettings,
        AUDIT,
        "replays",
        3,
        "audit.replays=3: at least 4 are needed (2 rounds, as they are and replayed once)",
    ),
    (AuditSettings, AUDIT, "worlds", None, "audit.worlds=None: a number is needed"),
    (
        AuditSettings,
        AUDIT,
        "worlds",
        0,
        "audit.worlds=0: at least 1 is needed (world 0 is the run itself)",
    ),
    (AuditSettings, AUDIT, "worlds", 2.5, "audit.worlds=2.5: a whole number is needed"),
    (AuditSettings, AUDIT, "worlds", math.nan, "audit.worlds=nan: a finite number"),
    (AuditSettings, AUDIT, "federations", -1, "audit.federations=-1: 0 or more is needed"),
    (AuditSettings, AUDIT, "victims", -1, "audit.victims=-1: 0 or more is needed"),
    (AuditSettings, AUDIT, "confidence", 1, "audit.confidence=1: a number in (0, 1) is needed"),
    (
        AuditSettings,
        AUDIT,
        "confidence",
        1e-300,
        "audit.confidence=1e-300: 1 - confidence must differ from 0",
    ),
    (AuditSettings, AUDIT, "confidence", math.nan, "audit.confidence=nan: a finite number"),
    (
        AuditSettings,
        AUDIT,
        "training",
        "fast",
        "audit.training=fast: allowed are auto, loop, vectorised",
    ),
    (AuditSettings, AUDIT, "waive", {"update": " "}, "audit.waive.update: a reason is needed"),
    (AuditSettings, AUDIT, "waive", {"update": 3}, "audit.waive.update=3: text is needed"),
    (AuditSettings, AUDIT, "waive", {"upload": "why"}, "audit.waive=upload: allowed are"),
    (PrivacySettings, PRIVACY, "delta", 0, "privacy.delta=0: a number in (0, 1) is needed"),
    (PrivacySettings, PRIVACY, "delta", 2, "privacy.delta=2: a number in (0, 1) is needed"),
    (PrivacySettings, PRIVACY, "delta", None, "privacy.delta=None: a number is needed"),
    (PrivacySettings, PRIVACY, "delta", math.nan, "privacy.delta=nan: a finite number"),
    (
        PrivacySettings,
        PRIVACY,
        "epsilon",
        "abc",
        "privacy.epsilon='abc': a number is needed (or null)",
    ),
    (PrivacySettings, PRIVACY, "epsilon", 0, "privacy.epsilon=0: a number above 0 is needed"),
    (PrivacySettings, PRIVACY, "epsilon", math.inf, "privacy.epsilon=inf: a finite number"),
    (
        PrivacySettings,
        PRIVACY,
        "noise_multiplier",
        True,
        "privacy.noise_multiplier=True: a number is needed (or null)",
    ),
    (PrivacySettings, PRIVACY, "clip_norm", math.nan, "privacy.clip_norm=nan: a finite number"),
    (
        PrivacySettings,
        PRIVACY,
        "noise_source",
        "dice",
        "privacy.noise_source=dice: allowed are seed, secret, os",
    ),
    (
        PrivacySettings,
        PRIVACY,
        "relation",
        "swap",
        "privacy.relation=swap: allowed are add_remove, zero_out, replace",
    ),
    (PrivacySettings, PRIVACY, "unit", 3, "privacy.unit=3: allowed are record, client"),
    (AuditSettings, AUDIT, "worlds", 10**9, "audit.worlds=1000000000: at most 1000000 are allowed"),
    (AuditSettings, AUDIT, "records", 1, "audit.records=1: at least 2 are needed"),
    (RunSettings, RUN, "seed", True, "seed=True: a number is needed"),
    (RunSettings, RUN, "seed", 1.0, "seed=1.0: a whole number from 0 is needed"),
    (RunSettings, RUN, "seed", -1, "seed=-1: a whole number from 0 is needed"),
    (RunSettings, RUN, "seed", 2**63, f"seed={2**63}: a finite number below 2**63"),
    (
        RunSettings,
        RUN,
        "device",
        "tpu",
        "device=tpu: must be cpu, or cuda if a GPU is present",
    ),
    (RunSettings, RUN, "participation", 0, "participation=0: a share in (0, 1] is needed"),
    (RunSettings, RUN, "participation", 1.5, "participation=1.5: a share in (0, 1] is needed"),
    (RunSettings, RUN, "data", None, "data.name=None: text is needed"),
]


@pytest.mark.parametrize(("kind", "settings", "name", "value", "said"), WRONG)
def test_what_cannot_be_meant_is_one_line(
    kind: Any, settings: dict[str, Any], name: str, value: Any, said: str
) -> None:
    with pytest.raises(BadConfig, match=f"^{re.escape(said)}") as caught:
        kind(**{**settings, name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_good_settings_are_kept_as_given_and_cannot_be_changed(
    kind: Any, settings: dict[str, Any]
) -> None:
    made = kind(**settings)
    assert {name: getattr(made, name) for name in settings} == settings
    with pytest.raises(FrozenInstanceError):
        setattr(made, next(iter(settings)), None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("runs", 19, "audit.guarantee.runs=19: a whole number from 20 to 1000000 is needed"),
        (
            "slow_runs",
            10**9,
            "audit.guarantee.slow_runs=1000000000: a whole number from 20 to 1000000 is needed",
        ),
        ("slow_runs", True, "audit.guarantee.slow_runs=True: a number is needed"),
        ("images", 0, "audit.guarantee.images=0: a whole number from 1 to 1000000 is needed"),
        ("images", 1.5, "audit.guarantee.images=1.5: a whole number from 1 to"),
    ],
)
def test_a_budget_that_is_too_small(name: str, value: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(said)):
        GuaranteeBudget(**{name: value})


def test_a_count_written_with_a_point_is_that_count() -> None:
    """``audit.worlds=1e3`` is a float to the parser."""
    made = AuditSettings(**{**AUDIT, "worlds": 1e3})
    assert type(made.worlds) is int and made.worlds == 1000
