"""Commands that do a part of an audit: attack or resume a stored run, audit scores or a target.

Each turns its arguments into those of ``privdd audit`` or ``privdd train``, which do the work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privdd.cli.errors import run_command, run_guarded
from privdd.cli.main import audit_external_target, main
from privdd.core.command import HELP_OPTIONS
from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_files import CONFIG
from privdd.runtime.yaml_files import read_yaml

ATTACK_USAGE = """\
usage: privdd attack DIR [attack=[NAME,...]] [engine=...] [audit.KEY=VALUE] [trust_code=PACKAGE]

Attacks the finished run in DIR again; attacks that it was not attacked with are added to it.
Nothing is trained again. trust_code= names packages of yours whose classes the run may load.

Exit status: as of an audit."""
RESUME_USAGE = """\
usage: privdd resume DIR [engine=...] [trust_code=PACKAGE]

Goes on with the audit or the training in DIR that was stopped. The result is that of an undisturbed
run. trust_code= names packages of yours whose classes the run may load.

Exit status: as of the command that began the run."""
SCORES_USAGE = """\
usage: privdd scores FILE [scores_surface=NAME] [privacy.epsilon=E] [privacy.delta=D] [KEY=VALUE]

Audits membership scores that were computed elsewhere: FILE is an .npz with scores and members
(docs/tutorials/scores.md). privacy.epsilon= is the stated epsilon.

Exit status: as of an audit."""


def run_attack(argv: Sequence[str] | None = None) -> int:
    """``privdd attack DIR`` -> exit status as of an audit."""
    return _run_with_place(argv, "run", "DIR", ATTACK_USAGE, lambda place: "audit")


def run_resume(argv: Sequence[str] | None = None) -> int:
    """``privdd resume DIR`` -> exit status as of the command that began the run."""
    return _run_with_place(argv, "resume", "DIR", RESUME_USAGE, command_of_run)


def run_scores(argv: Sequence[str] | None = None) -> int:
    """``privdd scores FILE`` -> exit status as of an audit."""
    return _run_with_place(argv, "scores", "FILE", SCORES_USAGE, lambda place: "audit")


def run_target(argv: Sequence[str] | None = None) -> int:
    """``privdd target model=MODULE:CLASS ...`` -> exit status as of an audit.

    Keys of a target may be typed without "target.".
    """
    from privdd.external.arguments import TARGET

    def audit_target(arguments: Sequence[str]) -> int:
        return audit_external_target(with_target_prefix(arguments), is_target=True) or 0

    return run_command(TARGET, argv, audit_target)


def with_target_prefix(argv: Sequence[str]) -> list[str]:
    """The arguments with "target." before each key that has it in ``privdd audit``."""
    from privdd.external.arguments import TARGET, TARGET_PREFIX

    names = {
        key.name.removesuffix(".*") for key in TARGET.keys if key.name.startswith(TARGET_PREFIX)
    }
    prefixed = []
    for item in argv:
        head = TARGET_PREFIX + item.partition("=")[0].partition(".")[0]
        prefixed.append(TARGET_PREFIX + item if head in names else item)
    return prefixed


def command_of_run(folder: Path) -> str:
    """The command that began a run: ``audit`` if its config says what to audit, else ``train``.

    Raises:
        BadConfig: There is no such folder.
        DamagedRun: It is no run folder.
    """
    if not folder.exists():
        raise BadConfig(f"{folder}: no such folder")
    try:
        config: Any = read_yaml(folder / CONFIG)
    except FileNotFoundError:
        raise DamagedRun(f"{folder}: not a run folder (no {CONFIG})") from None
    if isinstance(config, dict) and "audit" in config:
        return "audit"
    return "train"


def _run_with_place(
    argv: Sequence[str] | None,
    key: str,
    shown: str,
    usage: str,
    command_at: Callable[[Path], str],
) -> int:
    """Run the command of a place with ``key=PLACE`` and the other arguments."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    asks_help = bool(HELP_OPTIONS & {*arguments})
    if asks_help or not arguments:
        print(usage)
        return int(not asks_help)
    place, *rest = arguments

    def run_at_place() -> int:
        is_setting = "=" in place and not Path(place).exists()  # a folder may be lr=0.1
        if is_setting or place.startswith("-"):
            raise BadConfig(f"{place}: {shown} is needed, as the first argument")
        command = command_at(Path(place))
        sys.argv = [f"privdd-{command}", f"{key}={place}", *rest]
        return main(command, _run_of(command))

    return run_guarded(run_at_place)


def _run_of(command: str) -> Callable[..., int]:
    """What does the work of a command; imported once the command line was checked."""

    def run(*arguments: Any) -> int:
        from privdd.cli.run import run_audit, run_training

        if command == "audit":
            return run_audit(*arguments)
        return run_training(*arguments)

    return run
