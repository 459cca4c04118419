"""Names of earlier versions: every class that an old config may name is found, and the way back is
the same way."""

from __future__ import annotations

import importlib

import pytest
from hydra.utils import get_class

from privdd.runtime.renames import (
    MOVED_MODULES,
    ORIGINAL,
    RENAMED,
    RENAMED_KEYS,
    TARGET,
    use_current_names,
    use_original_names,
)


@pytest.mark.parametrize("old", RENAMED)
def test_every_name_of_today_is_a_class(old):
    assert isinstance(get_class(RENAMED[old]), type)
    assert RENAMED[old] not in RENAMED, "a name that was renamed again: write the newest one"


def test_names_and_settings_change_at_any_depth_and_values_never():
    old = {
        "algo": {
            TARGET: "privdd.methods.feddm.FedDM.configured",
            "init": "real",
            "model": {TARGET: "privdd.models.ModelSpec", "init": "default"},
            "steps": [
                {TARGET: "privdd.distill.matching.Matching", "lr": 1.0},
                None,
                "privdd.distill.matching.Matching",
            ],
        }
    }
    new = {
        "algo": {
            TARGET: "privdd.methods.feddm.FedDM",
            "start": "real",
            "model": {TARGET: "privdd.models.ModelSpec", "init": "default"},
            "steps": [
                {TARGET: "privdd.distillation.distribution_matching.MatchingSettings", "lr": 1.0},
                None,
                "privdd.distill.matching.Matching",
            ],
        }
    }
    assert use_current_names(old) == new and use_original_names(new) == old
    assert use_current_names(new) == new and use_original_names(old) == old
    assert list(use_current_names(old)["algo"]) == list(
        new["algo"]
    )  # in the order in which it was stored


def test_the_way_back_leads_to_the_first_name():
    assert (
        ORIGINAL["attacks.inversion.copy_detection.CopyDetection"]
        == "attacks.inversion.audit.CopyDetection"
    )
    assert all(RENAMED[old] == new for new, old in ORIGINAL.items()) and set(RENAMED_KEYS) <= set(
        ORIGINAL.values()
    )


@pytest.mark.parametrize(
    "old", [name for name, new in MOVED_MODULES.items() if new and "nvflare" not in name]
)
def test_a_moved_module_is_imported_under_its_old_name_with_a_word_of_the_new_one(old):
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED_MODULES[old]} now"):
        module = importlib.reload(importlib.import_module(old))
    today = importlib.import_module(MOVED_MODULES[old])
    assert {name: vars(module)[name] for name in vars(today) if not name.startswith("__")} == {
        name: value for name, value in vars(today).items() if not name.startswith("__")
    }
