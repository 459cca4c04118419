"""Composing configs: where the files are, the resolvers they use, how values are quoted, and a
one-line message for every mistake."""

from __future__ import annotations

import itertools
import shlex
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privdd.cli.sweeps import point_name
from privdd.core.validation import BadConfig

PRESETS = ("smoke", "default", "paper")
CONFIG_GROUPS = (
    "algo",
    "algo/base",
    "algo/inner",
    "algo/virtual",
    "attack",
    "base",
    "data",
    "engine",
    "experiment",
    "model",
    "partition",
    "preset",
    "privacy",
    "trust",
)
PUBLIC_SIZES = {  # name -> training records, classes
    "digits": (1438, 10),
    "breast_cancer": (456, 2),
    "mnist": (60_000, 10),
    "fashion_mnist": (60_000, 10),
    "emnist": (112_800, 47),
    "usps": (7291, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "svhn": (73_257, 10),
}
OFF_BY_DEFAULT = "# Off by default"  # how the yaml of an attack begins that "all" does not mean
PATH_SETTINGS = ("data.root", "run", "resume", "scores", "hydra.run.dir", "hydra.sweep.dir")


def config_dir() -> str:
    """The folder of yaml files: packed in the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "configs", here.parent / "configs"):
        if (folder / "audit.yaml").is_file():
            return str(folder)
    places = f"{here / 'configs'} or {here.parent / 'configs'}"
    raise BadConfig(f"no configs found in {places}; is the installation complete?")


def _value_by_preset(*values: Any, _root_: Any) -> Any:
    if len(values) != len(PRESETS):
        raise BadConfig(
            f"by_preset needs {len(PRESETS)} values ({', '.join(PRESETS)}), got {len(values)}"
        )
    name = OmegaConf.select(_root_, "preset.name")
    if name not in PRESETS:
        raise BadConfig(f"preset={name}: allowed are {', '.join(PRESETS)}")
    return values[PRESETS.index(name)]


def _experiment_term(name: str, otherwise: Any, *, _root_: Any) -> Any:
    """What the chosen experiment gives all of its rows (``paper.terms``), else the algo's own
    value."""
    value = OmegaConf.select(_root_, f"paper.terms.{name}")
    return otherwise if value is None else value


def _expected_batch(usual: int, probability: float, of: str = "client", *, _root_: Any) -> int:
    """The records of a client (of a class of it) that a step draws, by public sizes alone;
    ``usual`` where they are within a factor of two of that, or where the data set's size is not
    public."""
    data: Any = _root_.get("data") or {}
    partition: Any = _root_.get("partition") or {}
    if data.get("name") not in PUBLIC_SIZES or "clients" not in partition:
        return usual
    records, classes = PUBLIC_SIZES[data.name]
    try:
        each = min(records, data.limit or records) / partition.clients
        if partition.heldout < 1:
            each = each * (1 - partition.heldout)
        else:
            each = each - partition.heldout
        expected = (
            probability * each * (1 - partition.test_fraction) / (classes if of == "class" else 1)
        )
    except (
        TypeError,
        ZeroDivisionError,
    ):  # a value of the wrong kind, which is refused by its own key
        return usual
    if usual / 2 <= expected <= usual * 2:
        return usual
    return max(round(expected), 1)


def register_resolvers() -> None:
    """Idempotent; called before anything is composed."""
    resolvers: dict[str, Callable[..., Any]] = {
        "by_preset": _value_by_preset,
        "by_data": lambda name, names, there, elsewhere: there if name in names else elsewhere,
        # whose unit is that of the images: of starts that read no record, and of those in the
        # records' pixels
        "by_start": lambda start, public, records: (
            records if start in ("real", "statistics") else public
        ),
        "expected_batch": _expected_batch,
        "per_square": lambda a, b: a / b**2,
        "term": _experiment_term,
        "point": point_name,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
    OmegaConf.register_new_resolver(
        "run_id", lambda: uuid.uuid4().hex[:6], replace=True, use_cache=True
    )


# on import: a sweep's workers resolve configs before they call any function of privdd
register_resolvers()


def group_choices(group: str, folders: Sequence[str]) -> list[str]:
    """The names that can be chosen in a config group. Files that start with _ hold what others
    share."""
    names: set[str] = set()
    for folder in folders:
        names |= {path.stem for path in (Path(folder) / group).glob("*.yaml")}
    return sorted(name for name in names if not name.startswith("_"))


def default_attacks(folders: Sequence[str]) -> list[str]:
    """What ``attack=all`` stands for: every attack that a yaml exists for, but those that are off
    by default."""
    off_by_default = set()
    for folder in folders:
        for path in (Path(folder) / "attack").glob("*.yaml"):
            if path.read_text(encoding="utf-8").startswith(OFF_BY_DEFAULT):
                off_by_default.add(path.stem)
    return [name for name in group_choices("attack", folders) if name not in off_by_default]


def expand_arguments(argv: Sequence[str], command: str) -> list[str]:
    """The arguments with ``attack=all`` (the default) spelled out, so that the config shows each
    one.

    Who asks for certain attacks means these, whatever else is released: ``audit.require=some``.
    ``attack=[all,NAME]`` adds an attack that is off by default.
    """
    folders = [config_dir(), *user_config_folders(argv)]
    args = [
        _expand_glob(_expand_all_attacks(a, folders), folders) for a in argv if a != "attack=all"
    ]
    if command == "audit" and not any(a.startswith("attack=") for a in args):
        args.append(f"attack=[{','.join(default_attacks(folders))}]")
    elif command == "audit":
        asks_for_certain = not any(
            a.startswith(("audit.require=", "scores=")) or "all" in _listed_attacks(a) for a in argv
        )
        if asks_for_certain:
            args.append("audit.require=some")
    return put_overrides_first(args)


def _listed_attacks(argument: str) -> list[str]:
    """The names in ``attack=[A,B]``; none in any other argument."""
    names = argument.removeprefix("attack=[")
    if names == argument:
        return []
    return [name.strip() for name in names.rstrip("] ").split(",")]


def _expand_all_attacks(argument: str, folders: Sequence[str]) -> str:
    """``attack=[all,NAME]`` with all attacks that are on by default in the place of "all"."""
    names = _listed_attacks(argument)
    if "all" not in names:
        return argument
    added = [name for name in names if name != "all"]
    unique = dict.fromkeys([*default_attacks(folders), *added])
    return f"attack=[{','.join(unique)}]"


def _expand_glob(argument: str, folders: Sequence[str]) -> str:
    """``algo=glob(fed*)`` as the choices that it stands for (Hydra's own would take files with _
    for choices too)."""
    group, _, value = argument.partition("=")
    if not value.strip().startswith("glob(") or argument.startswith("-"):
        return argument
    if group.partition("@")[0] not in CONFIG_GROUPS:
        raise BadConfig(f"{argument}: glob() stands for files, and {group} is not a group")
    try:
        parsed = OverridesParser.create().parse_override(argument).value()
    except HydraException as error:
        raise BadConfig(format_hydra_error(error)) from None
    if not isinstance(parsed, Glob):
        return argument
    names = parsed.filter(group_choices(group.partition("@")[0], folders))
    if not names:
        raise BadConfig(f"{argument}: no file in the group {group} matches")
    return f"{group}={','.join(names)}"


def overrides_as_typed(composed: Sequence[str], given: Sequence[str]) -> list[str]:
    """The overrides of one run as its user wrote them, for the command that its pages show.

    composed: the overrides that Hydra ran, one value of each sweep; given: the arguments before
        ``expand_arguments``.

    What ``expand_arguments`` spelled out (every attack that "all" means, and ``audit.require``)
    goes again; what it stands for comes back. A swept attack is the one of this run.
    """
    spelled = {item for item in expand_arguments(given, "audit") if item not in given}
    overrides = [
        item
        for item in composed
        if not (item in spelled and item.startswith(("attack=", "audit.require=")))
    ]
    replaced = len(overrides) < len(composed) and not any(
        item.startswith("attack=") for item in overrides
    )
    return [*overrides, *(item for item in given if replaced and item.startswith("attack="))]


def put_overrides_first(argv: Sequence[str]) -> list[str]:
    """The same arguments, options last: argparse takes overrides in one piece only."""
    typed = [
        a for a in argv if "=" in a and not a.startswith("-") and a not in user_config_folders(argv)
    ]
    return typed + [a for a in argv if a not in typed]


def user_config_folders(argv: Sequence[str]) -> list[str]:
    """The user's own config folders: ``--config-dir DIR``."""
    folders = [a.split("=", 1)[1] for a in argv if a.startswith("--config-dir=")]
    return folders + [b for a, b in itertools.pairwise(argv) if a in ("--config-dir", "-cd")]


def compose_config(
    command: str, overrides: Sequence[str], folders: Sequence[str] = (), *, hydra: bool = False
) -> DictConfig:
    """The resolved-on-access config for plain overrides; ``hydra``: with Hydra's own node.

    Raises BadConfig with one line.
    """
    register_resolvers()
    GlobalHydra.instance().clear()
    extra = []
    if folders:
        places = ",".join(f"file://{Path(folder).resolve()}" for folder in folders)
        extra = [f"hydra.searchpath=[{places}]"]
    try:
        with initialize_config_dir(config_dir=config_dir(), version_base="1.3"):
            return compose(
                config_name=command, overrides=[*overrides, *extra], return_hydra_config=hydra
            )
    except (HydraException, OmegaConfBaseException) as error:
        raise BadConfig(format_hydra_error(error)) from None


def name_run(config: DictConfig, choices: Mapping[str, Any]) -> None:
    """Set ``name`` to the chosen algo's file name if none was given; it is stored with the run."""
    if config.name is None and config.get("scores") is None:
        config.name = str(choices["algo"])


def format_hydra_error(error: BaseException) -> str:
    """The first informative sentence of a library's message."""
    if isinstance(error, HydraException) and error.__cause__:
        cause = error.__cause__
    else:
        cause = error
    silent = ("Set the environment", "See https", "full_key", "object_type", "_")
    lines = (line.strip() for line in str(cause).splitlines())
    return (
        " ".join(line for line in lines if line and not line.startswith(silent))[:400]
        or type(error).__name__
    )


def quote_paths(argv: Sequence[str]) -> list[str]:
    """The arguments, each path that Hydra cannot read (``data.root=/home/rené/x.npz``) in Hydra's
    quotes."""
    return [_quote_path(item, *item.partition("=")[::2]) for item in argv]


def _quote_path(item: str, key: str, value: str) -> str:
    if key in PATH_SETTINGS:
        try:
            OverridesParser.create().parse_override(item)
        except HydraException:
            return format_assignment(key, value)
    return item


def override_value(override: str) -> str:
    """What Hydra reads from ``key=value``, its quotes taken off. Raises HydraException where it
    cannot."""
    return str(OverridesParser.create().parse_override(override).value())


def format_assignment(key: str, value: str) -> str:
    """``key=value`` as Hydra reads it back: quoted where it has to be."""
    plain = f"{key}={value}"
    try:
        if override_value(plain) == value:
            return plain
    except (HydraException, ValueError):
        pass
    within = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"{key}='{within}'"


def format_shell_assignment(key: str, value: str) -> str:
    """``key=value`` as it can be pasted into a shell."""
    return shlex.quote(format_assignment(key, value))


def settings_to_overrides(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Python values as overrides: {"privacy": {"epsilon": 3}} -> "privacy.epsilon=3"; texts are
    quoted as needed."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from settings_to_overrides(value, f"{name}.")
        elif isinstance(value, list | tuple):
            assignments = [format_assignment(name, _format_value(item)) for item in value]
            items = [assignment.partition("=")[2] for assignment in assignments]
            yield f"{name}=[{','.join(items)}]"
        else:
            text = _format_value(value)
            yield format_assignment(name, text) if isinstance(value, str) else f"{name}={text}"


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
