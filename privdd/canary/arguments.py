"""Arguments of ``python -m privdd.canary``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privdd.canary.sealed import CANARY_SIGNALS, MAX_CANARIES, SITE_NAME
from privdd.core.validation import (
    BadConfig,
    Command,
    Key,
    read_count,
    read_literal,
    read_number,
    read_shape,
    read_text,
    read_word,
    values_below,
)
from privdd.runtime.files import check_private, state_folder

RECOMPUTE_TOLERANCE = 1e-3  # how far a score computed again may be off, relative to the largest
GROUPS = ("args", "client", "known")  # keys with names behind a dot
SCORED = (
    Key("updates", read_text, "RUN", "signal=update or loss: a recording of privdd_tap or tapped"),
    Key("client.*", read_count(), "NODE", "which of its clients is site NAME (needed unless site and client are one)"),
    Key("clip", read_number, "C", "the norm that each record's gradient was clipped to, if it was"),
    Key("known.*", read_text, "FILE.npz", "other records of site NAME, or like them, no canaries: their part of an update is taken off first"),
    Key("before", read_text, "FILE", "with after=FILE, signal=loss: first and last model as safetensors, where there is no recording"),
    Key("after", read_text),
    Key("model", read_text, "NAME", "your network, package.module:Net or file.py:Net, made with args.NAME=VALUE"),
    Key("args.*", read_literal),
    Key("scores", read_text, "FILE", "signal=scores: your own, npz or csv with id and score"),
)  # fmt: skip
SEALED = Key("sealed", read_text)
COMMANDS = {
    "issue": Command(
        "python -m privdd.canary issue sealed=DIR sites=NAME,NAME count=M [KEY=VALUE ...]",
        "M canaries for each site; DIR must be new. Give each site its site-NAME.npz (x, y, id: add these records to its\n"
        "training data), publish public.json and canaries.npz, and keep secret.json until training is over.",
        (
            SEALED,
            Key("sites", read_text),
            Key("count", read_count()),
            Key("shape", read_shape, "1,28,28", "with classes=10: crafted records of this shape, nearly orthogonal, values in [0, 1] (images: blocks)"),
            Key("classes", read_count()),
            Key("from", read_text, "FILE.npz", "or records of x and y that nobody trains on: the tail of each class, with wrong labels"),
            Key("signal", read_word(*CANARY_SIGNALS), "", "update (default), loss or scores: how they will be scored, fixed now"),
            Key("stated", read_number, "EPSILON", "with delta=1e-5 confidence=0.95: the statement that they test"),
            Key("delta", read_number),
            Key("confidence", read_number),
            Key("secrets", read_text, "FOLDER", "for secret.json and site-NAME.npz (default: one of its own below your state folder)"),
            Key("beside_app", read_word("true", "false"), "true", "allows secrets=FOLDER that lies with a Flower app"),
        ),
    ),
    "open": Command(
        "python -m privdd.canary open sealed=DIR [KEY=VALUE ...]",
        "After training: scores the canaries, computes the bound and writes DIR/opened.json.",
        (SEALED, *SCORED, Key("secret", read_text, "FILE", "default: secret.json where issue put it")),
    ),
    "verify": Command(
        "python -m privdd.canary verify sealed=DIR [KEY=VALUE ...]",
        "By anybody, from public.json, canaries.npz and opened.json alone: commitment, coins, guesses, bound. With updates=,\n"
        "model= and the other keys of open it computes the scores again too.",
        (SEALED, *SCORED),
    ),
}  # fmt: skip
ABOUT = """\
Sealed canaries: records that fair, committed coins put into a real federation's data, and a lower bound on its epsilon.
Exit status: 0 done, 2 the bound is above the stated epsilon (open), or a file does not agree (verify), 1 error.
"""


def help_text() -> str:
    return "\n".join(
        [ABOUT, *(COMMANDS[name].help_text() for name in ("issue", "open")), COMMANDS["verify"].describe(), ""]
    )


def parse_canary_arguments(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Key -> value; ``args``, ``client`` and ``known`` hold what follows their dots. Raises BadConfig."""
    found = COMMANDS[command].parse(argv)
    if "sealed" not in found:
        raise BadConfig("sealed=DIR is needed")
    plain = {key: value for key, value in found.items() if key.partition(".")[0] not in GROUPS}
    return plain | {group: values_below(found, group) for group in GROUPS}


def check_issue_arguments(given: Mapping[str, Any]) -> list[str]:
    """The names of the sites. Raises BadConfig, one line, for what cannot be issued."""
    names = [name for name in str(given.get("sites", "")).split(",") if name]
    if not names or len(set(names)) != len(names) or not all(SITE_NAME.fullmatch(name) for name in names):
        raise BadConfig(
            f"sites={given.get('sites', '')}: different names of letters, digits, '.', '_' and '-' are needed"
        )
    if not 1 <= given.get("count", 0) <= MAX_CANARIES:
        raise BadConfig(f"count={given.get('count')}: canaries of each site, from 1 to {MAX_CANARIES} (try 200)")
    if ("from" in given) == ("shape" in given):
        raise BadConfig("one of shape= (crafted records) and from= (mislabelled ones) is needed")
    if given.get("classes", 2 if "from" in given else 0) < 2:
        raise BadConfig("classes=: at least 2 are needed")
    for key, low in (("stated", True), ("delta", True), ("confidence", False)):
        value = given.get(key, 0.5)
        if not (value >= 0 if low else value > 0) or (key != "stated" and not value < 1):
            raise BadConfig(f"{key}={value:g}: out of range")
    if given.get("beside_app") != "true":
        check_private(Path(given["secrets"]) if "secrets" in given else state_folder(), "the canaries' secret")
    folder = Path(given["sealed"])
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise BadConfig(f"sealed={folder}: it exists already; canaries are issued once, into a new folder")
    return names
