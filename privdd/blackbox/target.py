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

# name of a parameter -> the field of the statement that it is filled with
FROM_THE_STATEMENT = {
    "epsilon": "epsilon",
    "eps": "epsilon",
    "target_epsilon": "epsilon",
    "delta": "delta",
    "target_delta": "delta",
}
# names of parameters that tell the kind of a mechanism
ROWS = frozenset(
    {
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
)
UPDATES = frozenset(
    {
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
)
# of several clients
WEIGHTS = frozenset(
    {
        "weights",
        "sizes",
        "counts",
        "num_examples",
        "examples",
    }
)
LONGEST = 200  # characters of a message


def load_target(name: str, key: str = "mechanism") -> Any:
    """The callable that a name stands for.

    Args:
        name: ``package.module:Name``, ``package.module.Name`` or ``folder/file.py:Name``.
        key: the setting that holds the name, for messages.

    Raises:
        BadConfig: one line.
    """
    module, colon, attribute = name.rpartition(":")
    if not colon:
        module, _, attribute = name.rpartition(".")
    if not module or not attribute:
        raise BadConfig(f"{key}={name}: package.module:Name or file.py:Name is needed")
    try:
        if module.endswith(".py"):
            target = _load_from_file(Path(module))
        else:
            target = import_user_module(module)
    except BadConfig:
        raise
    except Exception as error:  # whatever the module raises as it is imported
        raise BadConfig(f"{key}={name}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise BadConfig(f"{key}={name}: {module} has no {attribute}")
        target = getattr(target, part)
    if not callable(target):
        raise BadConfig(f"{key}={name}: it cannot be called")
    return target


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
    """How the callable of a check is made.

    Args:
        target: a function, or a class of callables.
        args: for a class, what it is made with; for a function, keyword arguments of every call. An
            argument named epsilon or delta that has no default and is not among them is filled from
            the statement; a seed or generator that has none is a fresh one in every call.
        stated: the statement.

    Returns:
        (a function that makes the callable, whether it is made anew each time: classes are).

    Raises:
        BadConfig: what the class makes cannot be called.
    """
    if not inspect.isclass(target):
        f: Callable[..., Any]
        if args:
            f = functools.partial(target, **args)
        else:
            f = target
        filled = with_fresh_randomness(f)
        return lambda: filled, False
    arguments = arguments_of_target(target, args, stated)
    if not callable(make_instance(target, arguments)):
        raise BadConfig(f"{target.__name__}: its result cannot be called")

    def make() -> Callable[..., Any]:
        instance: Any = target(**arguments)
        return with_fresh_randomness(instance)

    return make, True


def make_instance(target: Any, args: Mapping[str, Any], name: str = "") -> Any:
    """``target(**args)``.

    Args:
        target: a class.
        args: its arguments.
        name: of it, for messages.

    Raises:
        BadConfig: one line, for whatever a stranger's constructor raises.
    """
    try:
        return target(**args)
    except Exception as error:
        arguments = ", ".join(f"{key}={value!r}" for key, value in args.items())
        message = " ".join(str(error).split())[:LONGEST]
        call = f"{name or target.__name__}({arguments})"
        raise BadConfig(f"{call}: {type(error).__name__}: {message}") from error


def arguments_of_target(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> dict[str, Any]:
    """``args``, and for a class what is filled from the statement."""
    arguments: dict[str, Any] = {}
    if inspect.isclass(target):
        for parameter in needed_parameters(target):
            if parameter.name in FROM_THE_STATEMENT:
                arguments[parameter.name] = stated[FROM_THE_STATEMENT[parameter.name]]
    return arguments | {**args}


def guess_kind(f: Any) -> str:
    """The kind of a mechanism, by the names of the arguments that must be given.

    Args:
        f: the callable; arguments that are drawn for it do not count.

    Returns:
        update, aggregate or records.

    Raises:
        BadConfig: asks for ``kind=``, as the names say nothing.
    """
    positional = [
        p for p in needed_parameters(f) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = [p.name.lower() for p in positional if not is_randomness(p.name)]
    if len(names) == 1 and names[0] in ROWS:
        return "records"
    if len(names) == 1 and names[0] in UPDATES:
        return "update"
    if len(names) == 2 and names[0] in UPDATES and names[1] in WEIGHTS:
        return "aggregate"
    listed = ", ".join(p.name for p in positional)
    raise BadConfig(
        f"kind= is needed, as the arguments ({listed}) do not state the kind: update is f(list "
        "of arrays), "
        "aggregate f(list of updates, list of weights), records f(array (n, d))"
    )


def target_place(target: Any) -> str:
    """file.py:Name of a function or class that a file defines at its top; "" for others."""
    name = str(getattr(target, "__qualname__", "<"))
    file = ""
    for f in (target, getattr(target, "__init__", None)):
        code = getattr(f, "__code__", None)
        if code is not None:
            file = str(code.co_filename)
            break
    is_at_top = "<" not in name and Path(file).is_file()
    return f"{file}:{name}" if is_at_top else ""


def target_name(target: Any) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def make_plugin(what: str, target: Any, args: Mapping[str, Any]) -> Any:
    """An instance of a plugin class of privdd.

    Args:
        what: method or attack.
        target: the class.
        args: its arguments.

    Raises:
        BadConfig: one line, if it cannot be made or is none of its role.
    """
    if not isinstance(target, type):
        raise BadConfig(f"{what}={target!r}: a class is needed")
    from attacks.types import Attack  # loads torch, which checks do without

    plugin = make_instance(target, args)
    if what == "attack" and not isinstance(plugin, Attack):
        raise BadConfig(
            f"{target.__name__} is not an Attack: it must inherit from privdd.api.Attack"
        )
    return plugin
