"""Names of earlier versions: every class that an old config may name is found, and the way back is the same way."""

from __future__ import annotations

import pytest
from hydra.utils import get_class

from privdd.runtime.renames import ORIGINAL, RENAMED, RENAMED_KEYS, TARGET, original, renamed


@pytest.mark.parametrize("old", RENAMED)
def test_every_name_of_today_is_a_class(old):
    assert get_class(RENAMED[old]).__name__ in old.split(".")
    assert RENAMED[old] not in RENAMED, "a name that was renamed again: write the newest one"


def test_names_and_settings_change_at_any_depth_and_values_never():
    old = {
        "algo": {
            TARGET: "privdd.methods.feddm.FedDM.configured",
            "init": "real",
            "model": {TARGET: "privdd.models.ModelSpec", "init": "default"},
            "steps": [{TARGET: "privdd.distill.matching.Matching", "lr": 1.0}, None, "privdd.distill.matching.Matching"],
        }
    }
    new = {
        "algo": {
            TARGET: "privdd.methods.feddm.FedDM",
            "start": "real",
            "model": {TARGET: "privdd.models.ModelSpec", "init": "default"},
            "steps": [
                {TARGET: "privdd.distillation.distribution_matching.Matching", "lr": 1.0},
                None,
                "privdd.distill.matching.Matching",
            ],
        }
    }
    assert renamed(old) == new and original(new) == old
    assert renamed(new) == new and original(old) == old
    assert list(renamed(old)["algo"]) == list(new["algo"])  # in the order in which it was stored


def test_the_way_back_leads_to_the_first_name():
    assert ORIGINAL["attacks.inversion.synthetic.CopyDetection"] == "attacks.inversion.audit.CopyDetection"
    assert all(RENAMED[old] == new for new, old in ORIGINAL.items()) and set(RENAMED_KEYS) <= set(ORIGINAL.values())
