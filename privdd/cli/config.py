"""Configs: where the files are, the resolvers they use, and a one-line message for every mistake in them."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
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
from privdd.core.errors import BadConfig

PRESETS = ("smoke", "default", "paper")
GROUPS = (
    "algo", "algo/base", "algo/inner", "algo/virtual", "attack", "base", "data", "engine", "experiment", "model", "partition", "preset",
    "privacy", "trust",
)  # fmt: skip


def config_dir() -> str:
    """The folder of yaml files: packed in the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "configs", here.parent / "configs"):
        if (folder / "audit.yaml").is_file():
            return str(folder)
    raise BadConfig(
        f"no configs found in {here / 'configs'} or {here.parent / 'configs'}; is the installation complete?"
    )


def _by_preset(*values: Any, _root_: Any) -> Any:
    if len(values) != len(PRESETS):
        raise BadConfig(f"by_preset needs {len(PRESETS)} values ({', '.join(PRESETS)}), got {len(values)}")
    name = OmegaConf.select(_root_, "preset.name")
    if name not in PRESETS:
        raise BadConfig(f"preset={name}: allowed are {', '.join(PRESETS)}")
    return values[PRESETS.index(name)]


def _term(name: str, otherwise: Any, *, _root_: Any) -> Any:
    """What the chosen experiment gives all of its rows (``paper.terms``), else the algo's own value."""
    value = OmegaConf.select(_root_, f"paper.terms.{name}")
    return otherwise if value is None else value


def _by_start(start: str, public: Any, records: Any) -> Any:
    """A setting whose unit is that of the images: of starts that read no record, and of those in the records' pixels."""
    return records if start in ("real", "statistics") else public


def register_resolvers() -> None:
    """Idempotent; called before anything is composed."""
    OmegaConf.register_new_resolver("by_preset", _by_preset, replace=True)
    OmegaConf.register_new_resolver("by_start", _by_start, replace=True)
    OmegaConf.register_new_resolver("per_square", lambda a, b: a / b**2, replace=True)
    OmegaConf.register_new_resolver("term", _term, replace=True)
    OmegaConf.register_new_resolver("run_id", lambda: uuid.uuid4().hex[:6], replace=True, use_cache=True)
    OmegaConf.register_new_resolver("point", point_name, replace=True)


register_resolvers()  # on import: a sweep's workers resolve configs before they call any function of privdd


def choices(group: str, folders: Sequence[str]) -> list[str]:
    """The names that can be chosen in a config group. Files that start with _ hold what others share."""
    found = {path.stem for folder in folders for path in (Path(folder) / group).glob("*.yaml")}
    return sorted(name for name in found if not name.startswith("_"))


ON_REQUEST = "# Off by default"  # how the yaml of an attack begins that "all" does not mean


def all_attacks(folders: Sequence[str]) -> list[str]:
    """What ``attack=all`` stands for: every attack that a yaml exists for, but those that are off by default."""
    asked_for = {
        path.stem
        for folder in folders
        for path in (Path(folder) / "attack").glob("*.yaml")
        if path.read_text(encoding="utf-8").startswith(ON_REQUEST)
    }
    return [name for name in choices("attack", folders) if name not in asked_for]


def expand(argv: Sequence[str], command: str) -> list[str]:
    """The arguments with ``attack=all`` (the default) spelled out, so that the config shows each one.

    Who asks for certain attacks means these, whatever else is released: ``audit.require=some``. ``attack=[all,NAME]``
    adds an attack that is off by default.
    """
    folders = [config_dir(), *own_folders(argv)]
    args = [_without_glob(_with_all(a, folders), folders) for a in argv if a != "attack=all"]
    if command == "audit" and not any(a.startswith("attack=") for a in args):
        args.append(f"attack=[{','.join(all_attacks(folders))}]")
    elif command == "audit" and not any(
        a.startswith(("audit.require=", "scores=")) or "all" in _listed(a) for a in argv
    ):
        args.append("audit.require=some")
    return overrides_first(args)


def _listed(argument: str) -> list[str]:
    """The names in ``attack=[A,B]``; none in any other argument."""
    inside = argument.removeprefix("attack=[")
    return [] if inside == argument else [name.strip() for name in inside.rstrip("] ").split(",")]


def _with_all(argument: str, folders: Sequence[str]) -> str:
    """``attack=[all,NAME]`` with all attacks that are on by default in the place of "all"."""
    names = _listed(argument)
    if "all" not in names:
        return argument
    return f"attack=[{','.join(dict.fromkeys([*all_attacks(folders), *(n for n in names if n != 'all')]))}]"


def _without_glob(argument: str, folders: Sequence[str]) -> str:
    """``algo=glob(fed*)`` as the choices that it stands for (Hydra's own would take files with _ for choices too)."""
    group, _, value = argument.partition("=")
    if not value.strip().startswith("glob(") or argument.startswith("-"):
        return argument
    if group.partition("@")[0] not in GROUPS:
        raise BadConfig(f"{argument}: glob() stands for files, and {group} is no group of them")
    try:
        parsed = OverridesParser.create().parse_override(argument).value()
    except HydraException as error:
        raise BadConfig(one_line(error)) from None
    if not isinstance(parsed, Glob):
        return argument
    found = parsed.filter(choices(group.partition("@")[0], folders))
    if not found:
        raise BadConfig(f"{argument}: no file in the group {group} matches")
    return f"{group}={','.join(found)}"


def as_written(composed: Sequence[str], given: Sequence[str]) -> list[str]:
    """The overrides of one run as its user wrote them, for the command that its pages show.

    composed: the overrides that Hydra ran, one value of each sweep; given: the arguments before ``expand``.

    What ``expand`` spelled out (every attack that "all" means, and ``audit.require``) goes again; what it stands for
    comes back. A swept attack is the one of this run.
    """
    spelled = {item for item in expand(given, "audit") if item not in given}
    kept = [item for item in composed if not (item in spelled and item.startswith(("attack=", "audit.require=")))]
    replaced = len(kept) < len(composed) and not any(item.startswith("attack=") for item in kept)
    return [*kept, *(item for item in given if replaced and item.startswith("attack="))]


def overrides_first(argv: Sequence[str]) -> list[str]:
    """The same arguments, options last: argparse takes overrides in one piece only."""
    typed = [a for a in argv if "=" in a and not a.startswith("-") and a not in own_folders(argv)]
    return typed + [a for a in argv if a not in typed]


def own_folders(argv: Sequence[str]) -> list[str]:
    """The user's own config folders: ``--config-dir DIR``."""
    given = [a.split("=", 1)[1] for a in argv if a.startswith("--config-dir=")]
    return given + [b for a, b in itertools.pairwise(argv) if a in ("--config-dir", "-cd")]


def composed(command: str, overrides: Sequence[str], folders: Sequence[str] = (), *, hydra: bool = False) -> DictConfig:
    """The resolved-on-access config for plain overrides; ``hydra``: with Hydra's own node.

    Raises BadConfig with one line.
    """
    register_resolvers()
    GlobalHydra.instance().clear()
    extra = [f"hydra.searchpath=[{','.join('file://' + str(Path(f).resolve()) for f in folders)}]"] if folders else []
    try:
        with initialize_config_dir(config_dir=config_dir(), version_base="1.3"):
            return compose(config_name=command, overrides=[*overrides, *extra], return_hydra_config=hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise BadConfig(one_line(error)) from None


def name_run(config: DictConfig, choices: Mapping[str, Any]) -> None:
    """Set ``name`` to the chosen algo's file name if none was given; it is stored with the run."""
    if config.name is None and config.get("scores") is None:
        config.name = str(choices["algo"])


def one_line(error: BaseException) -> str:
    """The first informative sentence of a library's message."""
    cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    shown = [
        line
        for line in lines
        if not line.startswith(("Set the environment", "See https", "full_key", "object_type", "_"))
    ]
    return " ".join(shown)[:400] or type(error).__name__


def guarded(main: Callable[[], int]) -> int:
    """Run a command; anything the user can cause ends in one line on stderr and status 1."""
    from privdd.cli.failures import reported

    try:
        return reported("privdd: error", main)
    except KeyboardInterrupt as stop:
        print(f"\nprivdd: stopped{': ' + str(stop) if str(stop) else ''}", file=sys.stderr)
        return 130
