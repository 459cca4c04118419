"""Tests of ``privdd.cli.stored_config``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config, config_dir, default_attacks, group_choices
from privdd.cli.plain_config import to_plain_settings
from privdd.cli.run import prepare_run_folder, print_resume_command
from privdd.cli.stored_config import (
    ALLOWED_PARTS,
    check_outside_settings,
    check_targets,
    list_foreign_packages,
    load_allowed_class,
    load_stored_config,
    parse_trusted_packages,
    read_stored_config,
)
from privdd.core.validation import BadConfig
from privdd.federated.method import Method
from privdd.runtime.files import DamagedRun

# A stored config comes back as it was written, or not at all; what leads outside has to be typed
# again.


OWN = "algo._target_=tests.cli.canary_module.Own"


def test_a_config_comes_back_without_interpolations(tmp_path: Path) -> None:
    config = compose_config(
        "audit", ["algo=fedfed_dp", "attack=[lira,gradient_inversion]", "preset=smoke"]
    )
    prepare_run_folder(tmp_path, config)
    assert "${" not in (tmp_path / "config.yaml").read_text()
    assert load_stored_config(tmp_path) == OmegaConf.create(
        OmegaConf.to_container(config, resolve=True)
    )


def test_a_class_of_ones_own_needs_trust_and_the_hint_says_so(tmp_path: Path) -> None:
    config = compose_config("train", ["algo=fedavg", OWN, "data.root=/x/y"])
    prepare_run_folder(tmp_path, config)
    with pytest.raises(DamagedRun, match="add trust_code=tests"):
        load_stored_config(tmp_path)
    assert load_stored_config(tmp_path, ("tests",)) == read_stored_config(tmp_path)
    with (
        pytest.raises(KeyboardInterrupt, match=r"resume=\S+ data\.root=/x/y trust_code=tests$"),
        print_resume_command("train", tmp_path, config),
    ):
        raise KeyboardInterrupt


def test_places_outside_are_typed_again() -> None:
    config = compose_config("train", ["data.root=/x/y", "engine=ray", "engine.address=far"])
    for typed in ([], ["data.root=/x/y"], ["engine.address=far"]):
        with pytest.raises(BadConfig, match="repeat it"):
            check_outside_settings(config, typed)
    check_outside_settings(config, ["data.root=/x/y", "engine.address=far"])
    check_outside_settings(compose_config("train", []), [])


@pytest.mark.parametrize(
    "deep", ["[" * 100_000, "{a: " * 20_000, "".join(" " * n + "a:\n" for n in range(300))]
)
def test_a_deep_nest_is_refused_at_once(deep: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(deep)
    began = time.process_time()
    with pytest.raises(DamagedRun, match="nested more than 50 deep"):
        load_stored_config(tmp_path)
    assert time.process_time() - began < 1


# Which classes a stored config may name: everything that privdd ships, and nothing else, before any
# import.


CANARY = "tests.cli.canary_module"


def targets(node: Any) -> set[str]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    found = {name for one in inner for name in targets(one)}
    return found | ({node["_target_"]} if isinstance(node, dict) and "_target_" in node else set())


def shipped() -> set[str]:
    files = [yaml.safe_load(path.read_text()) for path in Path(config_dir()).rglob("*.yaml")]
    return {name for one in files for name in targets(one)} - {"???"}


def test_every_class_that_a_shipped_config_names_is_allowed() -> None:
    names = shipped()
    assert len(names) > 35
    for name in names:
        assert isinstance(load_allowed_class("x", name), type)


def test_every_listed_part_is_there_and_is_needed() -> None:
    for name in ALLOWED_PARTS:
        assert load_allowed_class("x", name).__module__.startswith(
            name.rpartition(".")[0].partition(".models")[0]
        )
    assert (
        len(ALLOWED_PARTS & shipped()) >= len(ALLOWED_PARTS) - 3
    )  # DLG, IDLG and SeeThrough stand in a comment


@pytest.mark.nightly(
    but=["dp_head", "fedavg", "fedfed", "fedfed_dp", "fedrd_personal_dp", "own_training"]
)
@pytest.mark.parametrize("algo", group_choices("algo", [config_dir()]))
def test_every_algo_with_every_attack_can_be_stored_and_read(algo: str) -> None:
    attacks = f"attack=[{','.join(default_attacks([config_dir()]))}]"
    config = to_plain_settings(compose_config("audit", [f"algo={algo}", attacks]))
    check_targets(config)
    assert list_foreign_packages(config) == []


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "subprocess.Popen",
        "torch.load",
        "torch.save",
        "joblib.load",
        "pickle.loads",
        "privdd.runtime.task_messages.decode_value",
        "privdd.runtime.task_messages.answer_call",
        "privdd.runtime.files.write_bytes",
        "privdd.integrations.flower.run_on_grid",
        "privdd.cli.build.instantiate_node",
        "privdd.data.readers.load_npz",
        "privdd.api.audit",
        "hydra.utils.instantiate",
        "attacks.images.load_pretrained_trunk",
        "attacks.inversion.evaluation.compare_with_records",
        "attacks.external_scores.load_scores",
        "attacks.membership.lira.Lira.run",
        "attacks.membership.lira.torch.load",
        "attacks.membership.attack.Callable",
        "privdd.methods.fedavg.Keys",
        "privdd.methods.fedavg.torch",
        "privdd.methods.fedavg.FedAvg.__init__",
        "privdd.methods",
        "privdd_evil.methods.X",
        "attacksx.Y",
        "privdd.methods..os.system",
        "privdd.methods.fedavg",
        "",
        "FedAvg",
        "..",
        None,
        3,
        ["os.system"],
        {"_target_": "os.system"},
        f"{CANARY}.sing",
        f"{CANARY}.Own",
        "privdd.methods.fedavg.FedAvg\n",
    ],
)
def test_functions_and_classes_of_others_are_refused(path: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        load_allowed_class("algo._target_", path)
    assert "\n" not in str(caught.value) and "algo._target_" in str(caught.value)


def test_a_module_outside_is_not_even_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVDD_CANARY", str(tmp_path / "sung"))
    monkeypatch.delitem(sys.modules, CANARY, raising=False)
    with pytest.raises(BadConfig, match="trust_code=tests"):
        check_targets({"algo": {"_target_": f"{CANARY}.Own"}})
    assert not (tmp_path / "sung").exists() and CANARY not in sys.modules
    assert issubclass(
        load_allowed_class("algo", f"{CANARY}.Own", ("tests.cli",)), Method
    )  # and the canary does sing
    assert (tmp_path / "sung").exists()


def test_a_trusted_package_may_bring_classes_but_no_functions() -> None:
    with pytest.raises(BadConfig, match="a function or a value"):
        load_allowed_class("algo", f"{CANARY}.sing", ("tests",))
    with pytest.raises(BadConfig, match="neither a method"):
        load_allowed_class("algo", f"{CANARY}.Path", ("tests",))  # a class that it only imports
    with pytest.raises(BadConfig, match="of privdd's own only"):
        load_allowed_class("algo", f"{CANARY}.Own", ("test", "tests.clix"))
    assert list_foreign_packages({"algo": {"_target_": f"{CANARY}.Own"}}) == ["tests"]
    own = {"model": {"_target_": "privdd.models.OwnModel", "target": f"{CANARY}:Own"}}
    check_targets(own, ("tests",))
    assert list_foreign_packages(own) == ["tests"]
    trained = {
        "algo": {
            "_target_": "privdd.methods.own_training.OwnTraining",
            "training": f"{CANARY}:sing",
        }
    }
    check_targets(trained, ("tests",))
    assert list_foreign_packages(trained) == ["tests"]
    trained["algo"]["training"] = "privdd.methods.own_training:example"
    check_targets(trained)
    assert list_foreign_packages(trained) == []
    check_targets({"algo": {"_target_": f"{CANARY}.Trains"}}, ("tests",))
    with pytest.raises(BadConfig, match=r"algo\.training=os:system: if os is your own module"):
        check_targets(
            {"algo": {"_target_": f"{CANARY}.Trains", "training": "os:system"}}, ("tests",)
        )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"algo": {"_target_": "attacks.membership.lira.Lira"}}, "must be a subclass of Method"),
        (
            {"attack": {"x": {"_target_": "privdd.methods.fedavg.FedAvg"}}},
            "must be a subclass of Attack",
        ),
        ({"attack": {"../x": {"_target_": "attacks.membership.lira.Lira"}}}, "not a plain name"),
        (
            {"privacy": {"mechanisms": {"update": {"_target_": "privdd.models.ModelSpec"}}}},
            "must be a subclass of Mechanism",
        ),
        (
            {"model": {"_target_": "attacks.membership.lira.Lira"}},
            "must be a subclass of ModelSpec",
        ),
        ({"algo": {"_target_": "privdd.methods.fedavg.FedAvg", "_partial_": True}}, "_partial_"),
        ({"algo": {"_target_": "privdd.methods.fedavg.FedAvg", "_args_": ["x"]}}, "_args_"),
        (
            {
                "model": {
                    "_target_": "privdd.models.OwnModel",
                    "target": "tests.cli.canary_module:Own",
                }
            },
            "add trust_code=tests.cli",
        ),
        (
            {"algo": {"g": {"_target_": "privdd.models.OwnModel", "target": "os"}}},
            "g.target=os: if os is your own module",
        ),
        ({"model": {"_target_": "privdd.models.OwnModel"}}, "model.target=None"),
        (
            {
                "algo": {
                    "_target_": "privdd.methods.own_training.OwnTraining",
                    "training": "os:system",
                }
            },
            "algo.training=os:system: if os is your own module",
        ),
        (
            {"model": {"_target_": "privdd.models.own.OwnModel", "target": "os:x"}},
            "of privdd's own only",
        ),
        ({"name": "${oc.env:HOME}"}, "interpolation"),
        ({"data": {"x": [{"${oc.env:HOME}": 1}]}}, "interpolation"),
    ],
)
def test_places_roles_and_other_keys_of_hydra(config: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        check_targets(config)


@pytest.mark.parametrize(
    "text", ["", "subprocess", "mine,os.path", "a b/c", "../x", "a,,b", "os;x", ".x"]
)
def test_trust_takes_names_of_packages(text: str) -> None:
    with pytest.raises(BadConfig, match="trust_code="):
        parse_trusted_packages(text)
    assert parse_trusted_packages("[mine, other.part]") == ("mine", "other.part")
