"""The callable or class that a name stands for, its arguments, and what is made of them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from privdd.blackbox.fresh_randomness import is_randomness, needed_parameters, with_fresh_randomness
from privdd.core.user_modules import import_torchvision, import_user_module
from privdd.core.validation import BadConfig

FROM_THE_STATEMENT = {
    "epsilon": "epsilon",
    "eps": "epsilon",
    "target_epsilon": "epsilon",
    "delta": "delta",
    "target_delta": "delta",
}
ROWS = {
    "x",
    "data",
    "records",
    "rows",
    "dataset",
    "samples",
    "batch",
    "values",
    "table",
    "features",
}
UPDATES = {
    "update",
    "updates",
    "delta",
    "deltas",
    "gradient",
    "gradients",
    "grad",
    "grads",
    "weights",
    "parameters",
}
WEIGHTS = {
    "weights",
    "sizes",
    "counts",
    "num_examples",
    "examples",
}  # beside the updates of several clients


def load_target(name: str, key: str = "mechanism") -> Any:
    """``package.module:Name``, ``package.module.Name`` or ``folder/file.py:Name``. Raises
    BadConfig, one line. key: the setting that holds the name, for messages."""
    module, colon, attribute = name.rpartition(":")
    if not colon:
        module, _, attribute = name.rpartition(".")
    if not module or not attribute:
        raise BadConfig(f"{key}={name}: package.module:Name or file.py:Name is needed")
    try:
        found = (
            _load_from_file(Path(module)) if module.endswith(".py") else import_user_module(module)
        )
    except BadConfig:
        raise
    except Exception as error:  # whatever the module raises as it is imported
        raise BadConfig(f"{key}={name}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadConfig(f"{key}={name}: {module} has no {attribute}")
        found = getattr(found, part)
    if not callable(found):
        raise BadConfig(f"{key}={name}: it cannot be called")
    return found


def add_search_folder(folder: Path) -> None:
    """Modules of the folder that the command was started in can be named."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _load_from_file(path: Path) -> Any:
    if not path.is_file():
        raise BadConfig(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"_checked_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadConfig(f"{path}: no module of Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        import_torchvision()
        spec.loader.exec_module(module)
    return module


def make_target(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[Callable[[], Any], bool]:
    """A function that makes the callable, and whether it is made anew each time (classes). args:
    for a class, what it is made with; for a function, keyword arguments of every call. An argument
    named epsilon or delta that has no default and is not given is taken from the statement; a seed
    or generator that has none is a fresh one in every call. Raises BadConfig."""
    if not inspect.isclass(target):
        f = with_fresh_randomness(functools.partial(target, **args) if args else target)
        return lambda: f, False
    given = arguments_of_target(target, args, stated)
    if not callable(make_instance(target, given)):
        raise BadConfig(f"{target.__name__}: what it makes cannot be called")
    return lambda: with_fresh_randomness(target(**given)), True


def make_instance(target: Any, args: Mapping[str, Any], name: str = "") -> Any:
    """``target(**args)``. Raises BadConfig, one line, for whatever a stranger's constructor raises;
    name: for messages."""
    try:
        return target(**args)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in args.items())
        said = " ".join(str(error).split())[:200]
        raise BadConfig(
            f"{name or target.__name__}({given}): {type(error).__name__}: {said}"
        ) from error


def arguments_of_target(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> dict[str, Any]:
    """``args``, and for a class what it takes from the statement."""
    asked = needed_parameters(target) if inspect.isclass(target) else []
    return {
        p.name: stated[FROM_THE_STATEMENT[p.name]] for p in asked if p.name in FROM_THE_STATEMENT
    } | {**args}


def guess_kind(f: Any) -> str:
    """By the names of the arguments that must be given, those that are drawn for the mechanism
    apart. Raises BadConfig, which asks for ``kind=``, where the names say nothing."""
    asked = [
        p for p in needed_parameters(f) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = [p.name.lower() for p in asked if not is_randomness(p.name)]
    if len(names) == 1 and names[0] in ROWS:
        return "records"
    if len(names) == 1 and names[0] in UPDATES:
        return "update"
    if len(names) == 2 and names[0] in UPDATES and names[1] in WEIGHTS:
        return "aggregate"
    listed = ", ".join(p.name for p in asked)
    raise BadConfig(
        f"kind= is needed, as the arguments ({listed}) do not tell it: update is f(list "
        "of arrays), "
        "aggregate f(list of updates, list of weights), records f(array (n, d))"
    )


def target_place(target: Any) -> str:
    """file.py:Name of a function or class that a file defines at its top; "" for others."""
    name = str(getattr(target, "__qualname__", "<"))
    codes = (getattr(f, "__code__", None) for f in (target, getattr(target, "__init__", None)))
    file = next((str(code.co_filename) for code in codes if code is not None), "")
    return f"{file}:{name}" if "<" not in name and Path(file).is_file() else ""


def target_name(target: Any) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def make_plugin(what: str, target: Any, args: Mapping[str, Any]) -> Any:
    """An instance of the class. Raises BadConfig, one line, where it cannot be made or is none of
    its role."""
    if not isinstance(target, type):
        raise BadConfig(f"{what}={target!r}: a class is needed")
    from attacks.types import Attack  # loads torch, which checks do without

    made = make_instance(target, args)
    if what == "attack" and not isinstance(made, Attack):
        raise BadConfig(f"{target.__name__} is no Attack: it must inherit from privdd.api.Attack")
    return made
