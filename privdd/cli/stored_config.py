"""config.yaml of a run folder, which may come from a stranger: read with limits, checked before
anything is built.

Hydra builds whatever ``_target_`` names. So every ``_target_`` of a stored config is checked before
any of them is imported: allowed are classes that privdd ships, by role or by name, and never a
function. A config that is composed from the user's own yaml files is the user's own program and is
not checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from attacks.types import Attack
from privdd.cli.compose import PRESETS, compose_config, override_value, user_config_folders
from privdd.cli.overrides import check_engine_settings_used
from privdd.cli.plain_config import NOT_FINGERPRINTED, mapping_at, to_plain_settings
from privdd.cli.secret import remove_secret
from privdd.cli.settings import split_replays_of
from privdd.cli.user_code import check_code_digests, user_code_of_config
from privdd.core.user_modules import import_user_module
from privdd.core.validation import BadConfig
from privdd.federated.method import Method
from privdd.federated.settings import SHARED_COUNTS
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism
from privdd.runtime.files import DamagedRun, check_plain_folder, check_schema, read_json_object
from privdd.runtime.run_files import CONFIG_KEYS, MANIFEST, TRUST_CODE
from privdd.runtime.yaml_files import TARGET, read_yaml

ALLOWED_ROLES = (Method, Mechanism, Attack)
# of the classes right below these keys
PARENT_ROLES = {
    "attack": Attack,
    "privacy.mechanisms": Mechanism,
}
ALLOWED_PACKAGES = (
    "privdd.methods",
    "privdd.privacy.mechanisms",
    "attacks.membership",
    "attacks.inversion",
    "attacks.malicious",
)
ALLOWED_PARTS = frozenset(  # classes without a role, of which methods and attacks are put together
    {
        "attacks.inversion.feature_inversion.DecoderTraining",
        "attacks.inversion.feature_inversion.WhiteBox",
        "attacks.inversion.generative.GenerativeInversion",
        "attacks.inversion.generative.WganGp",
        "attacks.inversion.gradient.InvertingGradients",
        "attacks.inversion.generative.EvaluationClassifier",
        "attacks.inversion.gradient.DLG",
        "attacks.inversion.gradient.IDLG",
        "attacks.inversion.model_inversion.MiFace",
        "attacks.inversion.gradient.SeeThrough",
        "privdd.distillation.distribution_matching.MatchingSettings",
        "privdd.distillation.feature_split.SplitLoss",
        "privdd.distillation.image_fitting.FittingSettings",
        "privdd.distillation.public_sets.PublicDistiller",
        "privdd.distillation.image_fitting.CoarsePixels",
        "privdd.distillation.gradient_matching.GradientImages",
        "privdd.distillation.image_fitting.GuidanceSettings",
        "privdd.distillation.alexnet.AlexNet",
        "privdd.distillation.random_cosine.RandomCosine",
        "privdd.distillation.public_map.PublicRows",
        "privdd.distillation.scattering.Scattering",
        "privdd.distillation.gradient_matching.SetGeneration",
        "privdd.distillation.virtual_images.OwnRecords",
        "privdd.distillation.virtual_images.VirtualImages",
        "privdd.models.ModelSpec",
        "privdd.models.OwnModel",
        "privdd.training.server.ServerTraining",
    }
)
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
# class -> (the setting that names something of the user's own, the module in which its default
# lies)
USER_CODE_SETTINGS = {
    "OwnModel": ("target", "privdd.models.own"),
    "OwnTraining": ("training", "privdd.methods.own_training"),
}
PLAIN_NAME = re.compile(r"\w[\w-]{0,100}")
PACKAGE_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*")
# settings that make a run read files or connect outside its folder
OUTSIDE_SETTINGS = ("data.root", "engine.address")
# Settings that do not affect what clients send, so they may change: a resumed run must give the
# result of one that was never interrupted, and a stored run that is attacked again keeps its own
# audited records.
CHANGEABLE_AUDIT_SETTINGS = (
    "worlds",
    "federations",
    "federation_rounds",
    "victims",
    "confidence",
    "require",
    "waive",
    "show_images",
    "transcripts",
    "processed_worlds",
    "processed_federations",
)
FEWER = {  # what makes findings weaker where it is less; of federation_rounds, 0 stands for all
    "worlds",
    "federations",
    "federation_rounds",
    "victims",
    "confidence",
    "transcripts",
    "processed_worlds",
    "processed_federations",
}
# key of a config in memory: the attacks that a command asked for, of all that the folder has
ASKED = "asked"
CHANGEABLE_SETTINGS = {
    "resume": ("engine",),
    "run": ("attack", "engine", *(f"audit.{key}" for key in CHANGEABLE_AUDIT_SETTINGS)),
}


def parse_trusted_packages(text: str) -> tuple[str, ...]:
    """The packages of ``trust_code=a,b.c``. Raises BadConfig for anything but names of packages."""
    names = tuple(text.strip("[]").replace(" ", "").split(","))
    if not all(PACKAGE_NAME.fullmatch(name) for name in names):
        raise BadConfig(
            f"{TRUST_CODE}={text}: the names of your own packages are needed, as in "
            f"{TRUST_CODE}=my_package"
        )
    if standard := [name for name in names if name.split(".")[0] in sys.stdlib_module_names]:
        raise BadConfig(
            f"{TRUST_CODE}={text}: {standard[0]} comes with Python and is not your package"
        )
    return names


def check_targets(config: dict[str, Any], trusted: Sequence[str] = ()) -> None:
    """Every ``_target_`` names a class that is allowed here, in its place. Nothing else is
    imported, nothing is built.

    trusted: the user's own packages, whose classes are allowed too. Raises BadConfig for the first
        other name, for other keys that Hydra reads (``_args_``, ``_partial_``), and for an
        interpolation.
    """
    for key, node in _iterate_mappings(config, ""):
        for name in node:
            if str(name).startswith("_") and name != TARGET:
                raise BadConfig(f"{key or 'config'}: {name} is not allowed in a stored config")
        if TARGET in node:
            cls = load_allowed_class(f"{key}.{TARGET}", node[TARGET], trusted)
            _check_role_of_class(key, cls)
            for kind in cls.__mro__:  # whatever the class is called in the user's own package
                if kind.__name__ in USER_CODE_SETTINGS and kind.__module__.startswith("privdd."):
                    _check_user_module(key, node, kind.__name__, trusted)
    attacks = config.get("attack") or {}
    for name in attacks if isinstance(attacks, dict) else ():
        if not PLAIN_NAME.fullmatch(str(name)):  # it becomes part of a file's name
            raise BadConfig(f"attack: {str(name)[:60]!r} is not a plain name")


def _check_user_module(key: str, node: dict[Any, Any], kind: str, trusted: Sequence[str]) -> None:
    """The module that something of the user's own is named in is imported too, so it has to be
    trusted."""
    name, default = USER_CODE_SETTINGS[kind]
    if name not in node and _class_name_of(node) != kind:
        return  # a subclass in a trusted package has its own
    target = str(node.get(name))
    module = target.partition(":")[0]
    if not DOTTED_NAME.fullmatch(f"{module}.x") or not (
        module == default or is_within_packages(module, trusted)
    ):
        raise BadConfig(
            f"{key}.{name}={target[:200]}: if {module[:80]} is your own module, add "
            f"{TRUST_CODE}={module[:80]}"
        )


def _class_name_of(node: dict[Any, Any]) -> str:
    return str(node.get(TARGET)).rpartition(".")[2]


def load_allowed_class(key: str, path: Any, trusted: Sequence[str] = ()) -> type:
    """The class that ``path`` names. Raises BadConfig, before any import, where it lies outside the
    allowed places."""
    if not isinstance(path, str) or not DOTTED_NAME.fullmatch(path):
        raise BadConfig(f"{key}={str(path)[:100]!r}: the name of a class is needed")
    module, _, name = path.rpartition(".")
    is_trusted = is_within_packages(module, trusted)
    if not is_allowed_path(path) and not is_trusted:
        first = path.split(".")[0]
        is_known = (
            first in sys.stdlib_module_names or first in ("privdd", "attacks") or len(first) > 80
        )
        if is_known:
            hint = ""
        else:
            hint = f"; if {first} is your own package, add {TRUST_CODE}={first}"
        raise BadConfig(
            f"{key}={path[:200]}: a stored run may name classes of privdd's own only{hint}"
        )
    try:
        cls = getattr(import_user_module(module), name)
    except Exception as error:  # importing a trusted module may raise anything
        raise BadConfig(
            f"{key}={path}: no such class ({' '.join(str(error).split())[:150]})"
        ) from None
    if not isinstance(cls, type):
        raise BadConfig(f"{key}={path}: a function or a value; a stored run may name classes only")
    plays_role = path in ALLOWED_PARTS or issubclass(cls, ALLOWED_ROLES)
    if not plays_role and not (is_trusted and is_within_packages(cls.__module__, trusted)):
        raise BadConfig(
            f"{key}={path}: neither a method, a mechanism nor an attack, nor a part of one"
        )
    return cls


def _check_role_of_class(key: str, found: type) -> None:
    """The class has the role of its place at the top of a config."""
    parent = key.rpartition(".")[0]
    place = {"algo": Method, "model": ModelSpec}.get(key) or PARENT_ROLES.get(parent or key)
    if place is not None and not issubclass(found, place):
        raise BadConfig(f"{key}: {found.__name__} must be a subclass of {place.__name__}")


def list_foreign_packages(config: dict[str, Any]) -> list[str]:
    """The packages, sorted, that ``trust_code=`` has to name before this config can be read from a
    run folder."""
    foreign = set()
    for _, node in _iterate_mappings(config, ""):
        if TARGET in node and not is_allowed_path(str(node[TARGET])):
            foreign.add(str(node[TARGET]).split(".")[0])
        if _class_name_of(node) in USER_CODE_SETTINGS:
            name, default = USER_CODE_SETTINGS[_class_name_of(node)]
            module = str(node.get(name)).partition(":")[0]
            foreign |= {module.split(".")[0]} if module != default else set()
    return sorted(foreign)


def is_allowed_path(path: str) -> bool:
    """Whether a class of this name may be imported for any stored run."""
    return path in ALLOWED_PARTS or is_within_packages(path.rpartition(".")[0], ALLOWED_PACKAGES)


def is_within_packages(module: str, packages: Sequence[str]) -> bool:
    """Whether a module is one of the packages or lies inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _iterate_mappings(value: Any, key: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    """(dotted key, mapping) of every mapping in a config. Raises BadConfig for a text with an
    interpolation."""
    if isinstance(value, str) and "${" in value:
        raise BadConfig(
            f"{key}: an interpolation ({value[:60]!r}) is not allowed in a stored config"
        )
    if isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _iterate_mappings(inner, f"{key}.{position}")
    if isinstance(value, dict):
        yield key, value
        for name, inner in value.items():
            if "${" in str(name):
                raise BadConfig(
                    f"{key}: an interpolation in a name is not allowed in a stored config"
                )
            yield from _iterate_mappings(inner, f"{key}.{name}" if key else str(name))


def load_stored_config(path: Path, trusted: Sequence[str] = ()) -> DictConfig:
    """config.yaml of a run folder, safe to build: see ``check_targets``.

    trusted: packages of the user's own whose classes it may name. Raises DamagedRun, one line, for
        a folder or a config that is damaged, another program's, or names what a stored run may not
        name.
    """
    config = read_stored_config(path)
    plain: Any = OmegaConf.to_container(config)
    try:
        check_targets(plain, trusted)
        preset = OmegaConf.select(config, "preset.name")
        if preset not in PRESETS:  # it is composed again, as a file's name
            raise BadConfig(f"preset.name={str(preset)[:60]!r}: allowed are {', '.join(PRESETS)}")
        if config.get("scores") is not None:
            raise BadConfig("scores: a stored run holds its own results and reads no other file")
    except (BadConfig, RecursionError) as error:
        raise DamagedRun(f"{path / 'config.yaml'}: {error}") from None
    return config


def read_stored_config(path: Path) -> DictConfig:
    """The same unchecked: to compare with, never to build from."""
    file = path / "config.yaml"
    if path.is_dir():
        check_plain_folder(path)
    if not file.is_file():
        raise DamagedRun(f"{path}: not a run folder (no config.yaml)")
    try:
        config = read_yaml(file)
        check_schema_of_run(path)
        if not isinstance(config, dict) or not config.keys() >= CONFIG_KEYS:
            raise ValueError("keys are missing")
        return OmegaConf.create(config)
    except DamagedRun:
        raise
    except Exception as error:  # OmegaConf has its own family of errors
        raise DamagedRun(
            f"{file}: not a config of privdd ({' '.join(str(error).split())[:100]})"
        ) from None


def check_schema_of_run(path: Path) -> None:
    """Raises DamagedRun, naming both versions, where another version of privdd wrote the run."""
    manifest = read_json_object(path / MANIFEST, optional=True)
    if "schema" in manifest:
        check_schema(path / MANIFEST, manifest)


def check_outside_settings(config: DictConfig, typed: Sequence[str]) -> None:
    """What a stored config would read or reach outside its folder has been typed as well.

    Raises BadConfig, one line with what to type.
    """
    keys = {item.split("=")[0] for item in typed}
    for key in OUTSIDE_SETTINGS:
        value = OmegaConf.select(config, key)
        if value is not None and key not in keys:
            raise BadConfig(
                f"{key}={str(value)[:200]}: a stored run reads and reaches nothing "
                "outside its folder by itself; "
                f"if you know this place, repeat it: {key}={str(value)[:200]}"
            )


def config_of_stored_run(
    config: DictConfig, command: str, argv: Sequence[str], given: Sequence[str], word: str
) -> DictConfig:
    """resume=DIR goes on as configured there; run=DIR attacks that run again, by default with all
    of its attacks.

    config: the stored one; given: what was typed; argv: the same with attack=all spelled out.
    """
    typed = [a for a in given if "=" in a and not a.startswith((f"{word}=", "-"))]
    before = config.copy()
    for item in typed:
        key = item.split("=")[0]
        is_same = key in OUTSIDE_SETTINGS and str(OmegaConf.select(config, key)) == override_value(
            item
        )
        if not is_same and not any(
            key == part or item.startswith(f"{part}.") for part in CHANGEABLE_SETTINGS[word]
        ):
            raise BadConfig(
                f"{item}: together with {word}= only "
                f"{', '.join(CHANGEABLE_SETTINGS[word])} can be changed"
            )
    spelled = [a for a in argv if a in typed or (a.startswith("attack=") and word == "run")]
    fresh = compose_config(
        command, [f"preset={config.preset.name}", *spelled], user_config_folders(argv)
    )
    threads = OmegaConf.select(config, "engine.threads")
    keys = [item.split("=")[0] for item in typed]
    for key in (key.split("@")[0] for key in keys):
        OmegaConf.update(config, key, OmegaConf.select(fresh, key), merge=False, force_add=True)
    if any(f"audit.{key}" in keys for key in SHARED_COUNTS):  # they are no longer shared by us
        OmegaConf.update(config, "audit.replays", None, force_add=True)
    check_outside_settings(config, [*keys, *(["engine.address"] if "engine" in keys else [])])
    if word == "resume" and threads is not None:
        _keep_threads(config, threads, "engine.threads" in keys)
    check_engine_settings_used(config, keys)
    if (
        word == "run" and "audit.require=some" in argv
    ):  # so ``expand_arguments`` says where certain attacks were asked for
        OmegaConf.update(config, "audit.require", "some", force_add=True)
    if command == "audit":
        add_attacks(config, before)
    return config


def add_attacks(config: DictConfig, stored: DictConfig) -> None:
    """Attacks that are asked for are added to those of the run's folder, whose findings stay.

    With other settings than there, an attack stands beside it under a name of its own: lira_2.
    """
    attacks = dict(to_plain_settings(stored.get("attack")) or {})
    requested = to_plain_settings(config.get("attack")) or {}
    names = []
    for name, node in requested.items():
        unique_name = _free_name(name, node, attacks)
        attacks[unique_name] = node
        names.append(unique_name)
    OmegaConf.update(config, "attack", attacks, merge=False, force_add=True)
    OmegaConf.update(config, ASKED, names, merge=False, force_add=True)


def _free_name(name: str, node: Mapping[str, Any], attacks: Mapping[str, Any]) -> str:
    """The name itself, or name_2 and so on where it is that of an attack with other settings."""
    candidate = name
    count = 1
    while candidate in attacks and attacks[candidate] != node:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def asked_of(config: DictConfig) -> list[str] | None:
    """The attacks that this command asked for, taken out of the config; None where it is not known
    yet."""
    if config.get(ASKED) is None:
        return None
    with open_dict(config):
        return [str(name) for name in config.pop(ASKED)]


def looks_further(config: DictConfig, stored: DictConfig) -> bool:
    """Whether attacks and tests have more to go by than those that the folder holds.

    Raises BadConfig where it is less: what they find would take the place of more.
    """
    has_more = False
    for key in sorted(FEWER):
        name = f"audit.{key}"
        old = OmegaConf.select(stored, name)
        new = OmegaConf.select(config, name)
        if old is None or old == new:
            continue
        if (new or inf) < (old or inf):
            raise BadConfig(
                f"{name}={new}: this run was attacked with {old}, and less cannot take "
                "the place of more; "
                "leave it out, or use another folder"
            )
        has_more = True
    return has_more


def _keep_threads(config: DictConfig, threads: int, asked_for: bool) -> None:
    """Another engine, but the same threads: with others a sum is rounded otherwise, so the bits
    would be others."""
    if asked_for and config.engine.threads != threads:
        raise BadConfig(
            f"engine.threads={config.engine.threads}: this run was begun with {threads}, "
            "and other threads round "
            f"otherwise; leave it at {threads}"
        )
    config.engine.threads = threads


def check_same_config(path: Path, config: DictConfig) -> None:
    """Raises BadConfig, one line, where what was begun in ``path`` is not what ``config`` asks
    for."""
    _compare_settings(
        path, deciding_settings(read_stored_config(path)), deciding_settings(remove_secret(config))
    )
    check_code_digests(path, user_code_of_config(config))


def check_finished_run(path: Path, config: DictConfig) -> None:
    """The same for a finished run and a config that was not assembled yet, of what an audit asks as
    well."""
    stored = read_stored_config(path)
    requested = config.copy()
    if (
        OmegaConf.select(requested, "privacy.epsilon") is not None
    ):  # its noise was chosen when the run began
        requested.privacy.noise_multiplier = stored.privacy.noise_multiplier
    if "audit" in requested:
        is_left_to_us = all(requested.audit.get(key) is None for key in SHARED_COUNTS)
        requested.audit = split_replays_of(mapping_at(requested, "audit"))
        if is_left_to_us:  # the replays were shared when the run began
            for key in SHARED_COUNTS:
                requested.audit[key] = stored.audit.get(key)
    check_same_config(path, requested)
    old = _audit_settings_of(stored)
    new = _audit_settings_of(requested)
    if all(
        old["attack"].get(name) == node for name, node in new["attack"].items()
    ):  # others may have been added
        new["attack"] = old["attack"]
    _compare_settings(path, old, new)


def _compare_settings(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if changed := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
        raise BadConfig(
            f"{path}: holds a run of another config ({', '.join(changed)} differ); use "
            "another folder"
        )


def _audit_settings_of(config: DictConfig) -> dict[str, Any]:
    """What an audit tries, apart from the surfaces that it was found to leave out."""
    audit = {
        f"audit.{k}": v
        for k, v in (to_plain_settings(config.get("audit")) or {}).items()
        if k != "waive"
    }
    return {**audit, "attack": to_plain_settings(config.get("attack")) or {}}


def deciding_settings(config: DictConfig) -> dict[str, Any]:
    """The parts of a config that affect what clients send."""
    parts = {str(k): v for k, v in to_plain_settings(config).items() if k not in NOT_FINGERPRINTED}
    audited = {f"audit.{k}": OmegaConf.select(config, f"audit.{k}") for k in ("client", "records")}
    tail = to_plain_settings(OmegaConf.select(config, "audit.tail")) or {}
    return parts | audited | {f"audit.tail.{k}": v for k, v in tail.items() if v}
