"""A class enters the fingerprint of a run, and so the seeds of its noise, by its oldest name."""

from __future__ import annotations

from privdd.runtime.renames import ORIGINAL, RENAMED, use_original_names

VIRTUAL = "privdd.distillation.virtual_images.VirtualImages"


def test_a_renamed_class_has_its_oldest_name_at_any_depth() -> None:
    config = {"algo": {"parts": [{"_target_": VIRTUAL, "rounds": 2}]}}
    assert use_original_names(config) == {
        "algo": {"parts": [{"_target_": ORIGINAL[VIRTUAL], "rounds": 2}]}
    }
    assert RENAMED[ORIGINAL[VIRTUAL]] == VIRTUAL != ORIGINAL[VIRTUAL]


def test_a_key_that_was_renamed_with_its_class_has_its_old_name() -> None:
    old = "privdd.methods.feddm.FedDM.configured"
    node = {"_target_": RENAMED[old], "start": "noise"}
    assert use_original_names(node) == {"_target_": old, "init": "noise"}


def test_a_class_that_was_never_renamed_stays() -> None:
    node = {"_target_": "privdd.methods.moon.Moon", "mu": 1.0, "model": None}
    assert use_original_names(node) == node
