"""``--help`` and ``--version`` of ``privdd.audit`` and ``privdd.train``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TextIO

from privdd import __version__
from privdd.cli.config import choices, config_dir, own_folders

PURPOSE = {
    "audit": "Train federated clients, attack everything that leaves one of them, and test the stated privacy limit.",
    "train": "Train federated clients and account for what they release, without attacks.",
}
EXAMPLES = {
    "audit": (
        ("algo=fedfed preset=smoke", "a first report in under a minute"),
        ("algo=feddm privacy=none attack=[lira,copy_detection]", "two attacks only"),
        ("algo=fedavg privacy=dpsgd privacy.epsilon=3", "noise chosen for a target epsilon"),
        ("-m algo=fedfed_dp privacy.noise_multiplier=0.5,1,2 seed=0,1", "a sweep: epsilon against accuracy"),
        ("run=outputs/... attack=[rmia]", "attack a finished run again"),
    ),
    "train": (
        ("algo=fedavg preset=smoke", "a first run in seconds"),
        ("algo=feddm data=fashion_mnist partition=dirichlet", "other data, unequal clients"),
        ("algo=fedavg privacy=dpsgd privacy.epsilon=3", "noise chosen for a target epsilon"),
        ("-m algo=fedavg,fedprox seed=0,1,2", "a sweep"),
        ("resume=outputs/...", "go on after an interruption"),
    ),
}
SHOWN = ("algo", "data", "partition", "model", "privacy", "attack", "preset", "engine", "experiment")


def answered(command: str, argv: Sequence[str], out: TextIO) -> bool:
    """Whether the arguments asked for help or for the version, which was then printed."""
    if any(word in ("--help", "-h") for word in argv):
        print(help_text(command, own_folders(argv)), file=out)
    elif "--version" in argv:
        print(f"privdd {__version__}", file=out)
    else:
        return False
    return True


def help_text(command: str, own: Sequence[str] = ()) -> str:
    """Usage, choices, five examples and where to read on. own: the user's own config folders."""
    folders = [config_dir(), *own]
    lines = [f"usage: python -m privdd.{command} [KEY=VALUE ...] [-m] [--config-dir DIR]", "", PURPOSE[command], ""]
    lines += ["Choices, as NAME=VALUE:"]
    for group in SHOWN:
        if group == "attack" and command != "audit":
            continue
        lines += textwrap.wrap(
            ", ".join(choices(group, folders)), 110, initial_indent=f"  {group:<11}", subsequent_indent=" " * 13
        )
    lines += ["", "Every other setting is KEY=VALUE as well: privacy.noise_multiplier=2, seed=1, algo.rounds=5.", ""]
    lines += ["Examples:"]
    for arguments, meaning in EXAMPLES[command]:
        lines += [f"  python -m privdd.{command} {arguments}", f"      {meaning}"]
    return "\n".join([*lines, "", *OPTIONS_TEXT, "", *ENDING[command]])


OPTIONS_TEXT = (
    "Options:",
    "  -m                 several values, KEY=A,B,C, run one after the other and are compared",
    "  --config-dir DIR   a folder of your own yaml files (algo/, attack/, data/, ... below it)",
    "  --cfg job          print the whole configuration and stop",
    "  --dry-run          audit: print CPU time, memory and disk that it would take, by stage, and stop",
    "  --version, --help",
)
READ_ON = "README.md says what the numbers mean; docs/ has the tables; privdd.report, .verify and .selftest --help."
ENDING = {
    "audit": (
        "target.model=, target.synthetic= and target.updates= audit what was made elsewhere: target.model= --help.",
        "Exit status: 0 done, whatever leaks; 2 a stated limit is contradicted; 1 error.",
        READ_ON,
    ),
    "train": ("Exit status: 0 done; 1 error.", READ_ON),
}
