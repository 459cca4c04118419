"""Which classes a stored config may name: those that privdd ships, by role or by name, and never a function.

A run folder may come from a stranger, and Hydra builds whatever ``_target_`` names. So every ``_target_`` of a stored
config is checked here before any of them is imported. A config that is composed from the user's own yaml files is the
user's own program and is not checked.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from attacks.types import Attack
from privdd.core.errors import BadConfig
from privdd.federated.method import Method
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism
from privdd.runtime.renames import TARGET

ROLES = (Method, Mechanism, Attack)
PLACES = ("privdd.methods", "privdd.privacy.mechanisms", "attacks.membership", "attacks.inversion", "attacks.malicious")
PARTS = frozenset(  # classes without a role, of which methods and attacks are put together
    {
        "attacks.inversion.decoder.DecoderTraining",
        "attacks.inversion.features.WhiteBox",
        "attacks.inversion.generative.GenerativeInversion",
        "attacks.inversion.generative.WganGp",
        "attacks.inversion.gradient.InvertingGradients",
        "attacks.inversion.judge.Judge",
        "attacks.inversion.lbfgs.DLG",
        "attacks.inversion.lbfgs.IDLG",
        "attacks.inversion.model.ModelInversion",
        "attacks.inversion.seethrough.SeeThrough",
        "privdd.distillation.distribution_matching.Matching",
        "privdd.distillation.feature_split.SplitLoss",
        "privdd.distillation.fitting.Fitting",
        "privdd.distillation.coarse_pixels.CoarsePixels",
        "privdd.distillation.gradient_images.GradientImages",
        "privdd.distillation.guided_images.Guiding",
        "privdd.distillation.public_features.AlexNet",
        "privdd.distillation.random_features.RandomCosine",
        "privdd.distillation.public_head.PublicRows",
        "privdd.distillation.private_set.SetGeneration",
        "privdd.distillation.stand_ins.OwnRecords",
        "privdd.distillation.virtual_images.Virtual",
        "privdd.models.ModelSpec",
        "privdd.models.OwnModel",
        "privdd.training.server.ServerTraining",
    }
)
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
OWN = {  # class -> (the setting that names something of the user's own, the module in which its default lies)
    "OwnModel": ("target", "privdd.models.own"),
    "OwnTraining": ("training", "privdd.methods.own_training"),
}
PLAIN = re.compile(r"\w[\w-]{0,100}")
PACKAGE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*")


def trusted_packages(text: str) -> tuple[str, ...]:
    """The packages of ``trust=a,b.c``. Raises BadConfig for anything but names of packages."""
    names = tuple(text.strip("[]").replace(" ", "").split(","))
    if not all(PACKAGE.fullmatch(name) for name in names):
        raise BadConfig(f"trust={text}: the names of your own packages are needed, as in trust=my_package")
    if known := [name for name in names if name.split(".")[0] in sys.stdlib_module_names]:
        raise BadConfig(f"trust={text}: {known[0]} comes with Python and is no package of yours")
    return names


def check_targets(config: dict[str, Any], trusted: Sequence[str] = ()) -> None:
    """Every ``_target_`` names a class that is allowed here, in its place. Nothing else is imported, nothing is built.

    trusted: the user's own packages, whose classes are allowed too. Raises BadConfig for the first other name, for
    other keys that Hydra reads (``_args_``, ``_partial_``), and for an interpolation.
    """
    for key, node in _nodes(config, ""):
        for name in node:
            if str(name).startswith("_") and name != TARGET:
                raise BadConfig(f"{key or 'config'}: {name} is not allowed in a stored config")
        if TARGET in node:
            found = allowed_class(f"{key}.{TARGET}", node[TARGET], trusted)
            _check_class(key, found)
            for kind in found.__mro__:  # whatever the class is called in the user's own package
                if kind.__name__ in OWN and kind.__module__.startswith("privdd."):
                    _check_own(key, node, kind.__name__, trusted)
    attacks = config.get("attack") or {}
    for name in attacks if isinstance(attacks, dict) else ():
        if not PLAIN.fullmatch(str(name)):  # it becomes part of a file's name
            raise BadConfig(f"attack: {str(name)[:60]!r} is no plain name")


def _check_own(key: str, node: dict[Any, Any], kind: str, trusted: Sequence[str]) -> None:
    """The module that something of the user's own is named in is imported too, so it has to be trusted."""
    name, default = OWN[kind]
    if name not in node and _class_of(node) != kind:
        return  # a subclass in a trusted package has its own
    target = str(node.get(name))
    module = target.partition(":")[0]
    if not NAME.fullmatch(f"{module}.x") or not (module == default or within(module, trusted)):
        raise BadConfig(f"{key}.{name}={target[:200]}: if {module[:80]} is your own module, add trust={module[:80]}")


def _own_module(node: dict[Any, Any]) -> str:
    return str(node.get(OWN[_class_of(node)][0])).partition(":")[0]


def _class_of(node: dict[Any, Any]) -> str:
    return str(node.get(TARGET)).rpartition(".")[2]


def allowed_class(key: str, path: Any, trusted: Sequence[str] = ()) -> type:
    """The class that ``path`` names. Raises BadConfig, before any import, where it lies outside the allowed places."""
    if not isinstance(path, str) or not NAME.fullmatch(path):
        raise BadConfig(f"{key}={str(path)[:100]!r}: the name of a class is needed")
    module, _, name = path.rpartition(".")
    own = within(module, trusted)
    if path not in PARTS and not within(module, PLACES) and not own:
        first = path.split(".")[0]
        known = first in sys.stdlib_module_names or first in ("privdd", "attacks") or len(first) > 80
        hint = "" if known else f"; if {first} is your own package, add trust={first}"
        raise BadConfig(f"{key}={path[:200]}: a stored run may name classes of privdd's own only{hint}")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing a trusted module may raise anything
        raise BadConfig(f"{key}={path}: no such class ({' '.join(str(error).split())[:150]})") from None
    if not isinstance(found, type):
        raise BadConfig(f"{key}={path}: a function or a value; a stored run may name classes only")
    if path not in PARTS and not issubclass(found, ROLES) and not (own and within(found.__module__, trusted)):
        raise BadConfig(f"{key}={path}: neither a method, a mechanism nor an attack, nor a part of one")
    return found


def _check_class(key: str, found: type) -> None:
    """The class has the role of its place at the top of a config."""
    first, _, rest = key.partition(".")
    place = {"algo": Method, "model": ModelSpec}.get(key)
    if first == "attack" and "." not in rest:
        place = Attack
    if key.startswith("privacy.mechanisms.") and key.count(".") == 2:
        place = Mechanism
    if place is not None and not issubclass(found, place):
        raise BadConfig(f"{key}: {found.__name__} is no {place.__name__}")


def foreign_packages(config: dict[str, Any]) -> list[str]:
    """The packages, sorted, that ``trust=`` has to name before this config can be read from a run folder."""
    paths = [str(node[TARGET]) for _, node in _nodes(config, "") if TARGET in node]
    inside = [path in PARTS or within(path.rpartition(".")[0], PLACES) for path in paths]
    own = [_own_module(node) for _, node in _nodes(config, "") if _class_of(node) in OWN]
    foreign = {path.split(".")[0] for path, known in zip(paths, inside, strict=True) if not known}
    return sorted(
        foreign | {name.split(".")[0] for name in own if name not in [default for _, default in OWN.values()]}
    )


def within(module: str, packages: Sequence[str]) -> bool:
    """Whether a module is one of the packages or lies inside one."""
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def _nodes(value: Any, key: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    """(dotted key, mapping) of every mapping in a config. Raises BadConfig for a text with an interpolation."""
    if isinstance(value, str) and "${" in value:
        raise BadConfig(f"{key}: an interpolation ({value[:60]!r}) is not allowed in a stored config")
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _nodes(inner, f"{key}.{at}")
    if isinstance(value, dict):
        yield key, value
        for name, inner in value.items():
            if "${" in str(name):
                raise BadConfig(f"{key}: an interpolation in a name is not allowed in a stored config")
            yield from _nodes(inner, f"{key}.{name}" if key else str(name))
