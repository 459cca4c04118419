"""From a config to typed settings: what is missing or unknown is named, and calibrated noise is what counts."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf, open_dict

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.resume import deciding_settings
from privdd.cli.settings import audit_settings, privacy_settings, run_settings, settings_fingerprint
from privdd.core.validation import BadConfig

TINY = ["preset=smoke", "data.limit=120", "partition=iid", "partition.clients=3"]


def test_each_value_is_in_its_place() -> None:
    config = compose_config("audit", [*TINY, "privacy=dpsgd", "audit.waive.update=why", "seed=4", "participation=0.5", "audit.client=2"])
    run, privacy, audit = run_settings(config), privacy_settings(config), audit_settings(config)
    assert (run.algo, run.data, run.preset, run.seed, run.participation) == ("fedavg", "digits", "smoke", 4, 0.5)
    assert run.fingerprint == settings_fingerprint(config)
    assert (privacy.name, privacy.delta, privacy.noise_multiplier, privacy.unit) == ("dpsgd", 1e-5, 1.0, "record")
    assert audit is not None and (audit.client, audit.records, audit.worlds, audit.waive) == (2, 60, 12, {"update": "why"})
    assert (audit.guarantee.runs, audit.guarantee.slow_runs, audit.guarantee.images) == (200, 20, 2)
    config.name = "mine"
    assert run_settings(config).algo == "mine"


def test_a_config_of_training_alone_has_no_audit() -> None:
    config = compose_config("train", TINY)
    assert audit_settings(config) is None
    with pytest.raises(BadConfig, match="this config only trains"):
        _ = build_experiment(config).audit_settings


def test_a_stored_config_that_lacks_a_setting_or_has_one_too_many() -> None:
    stored = OmegaConf.create(OmegaConf.to_container(compose_config("audit", TINY), resolve=True))
    with open_dict(stored):
        del stored.audit["training"]
    assert audit_settings(stored).training == "auto"  # from before there was a choice
    with open_dict(stored):
        del stored.audit["worlds"]
    with pytest.raises(BadConfig, match=r"audit\.worlds: a value is needed"):
        audit_settings(stored)
    stored.audit = {**stored.audit, "worlds": 3, "guarantee": {**stored.audit.guarantee, "walks": 3}}
    with pytest.raises(BadConfig, match=r"audit\.guarantee\.walks: unknown key; known there: runs, slow_runs, images"):
        audit_settings(stored)


def test_the_calibrated_noise_is_that_of_the_run_and_of_its_fingerprint() -> None:
    config = compose_config("audit", [*TINY, "algo.rounds=1", "algo.local_epochs=1", "privacy=dpsgd", "privacy.epsilon=3"])
    before = settings_fingerprint(config)
    made = build_experiment(config)
    assert made.privacy.noise_multiplier == config.privacy.noise_multiplier == made.plan.mechanisms["dpsgd"].noise_multiplier
    assert made.run.fingerprint == settings_fingerprint(config) != before
    assert build_experiment(config).run.fingerprint == made.run.fingerprint  # as a stored config is assembled again


@pytest.mark.parametrize("typed", ["trust=secagg", "seed=1", "participation=0.5", "data.limit=90", "data.standardise=true", "privacy=client", "algo.lr=0.5"])
def test_what_clients_send_has_another_fingerprint_under_other_settings(typed: str) -> None:
    """Shadow models are kept under it, and a training of another entry is taken for this one by it."""
    assert settings_fingerprint(compose_config("audit", [*TINY, typed])) != settings_fingerprint(compose_config("audit", TINY))


@pytest.mark.parametrize("typed", ["attack=[lira]", "engine=processes", "audit.worlds=3", "name=mine"])
def test_how_it_is_attacked_and_computed_has_not(typed: str) -> None:
    assert settings_fingerprint(compose_config("audit", [*TINY, typed])) == settings_fingerprint(compose_config("audit", TINY))


@pytest.mark.parametrize("typed", ["audit.tail.mislabelled=-1", "audit.tail.near_duplicates=1.5", "audit.worst_pictures=7"])
def test_a_bad_value_for_hard_records_or_pictures_is_named(typed: str) -> None:
    with pytest.raises(BadConfig, match=typed.replace(".", r"\.")):
        audit_settings(compose_config("audit", [*TINY, typed]))


def test_stored_configs_without_hard_records_have_none_and_are_the_same_run() -> None:
    config = compose_config("audit", TINY)
    stored = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    with open_dict(stored):
        del stored.audit["tail"], stored.audit["worst_pictures"]
    audit = audit_settings(stored)
    assert audit is not None and audit.tail.size == 0 and audit.worst_pictures
    changed = compose_config("audit", [*TINY, "audit.tail.mislabelled=3"])
    assert deciding_settings(stored) == deciding_settings(config) != deciding_settings(changed)
