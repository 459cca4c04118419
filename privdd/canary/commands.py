"""The command lines of sealed canaries. Imports no torch, so that their help is quick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privdd.core.command import (
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
from privdd.core.validation import BadConfig

CANARY_SIGNALS = ("update", "loss", "scores")  # how canaries can be scored
GROUPS = ("args", "client", "known")  # keys with names behind a dot
SCORED = (
    Key("updates", read_text, "RUN", "signal=update or loss: a recording of privdd_tap or tapped"),
    Key(
        "client.*",
        read_count(),
        "NODE",
        "which of its clients is site NAME (needed unless site and client are one)",
    ),
    Key("clip", read_number, "C", "the norm that each record's gradient was clipped to, if it was"),
    Key(
        "known.*",
        read_text,
        "FILE.npz",
        "other records of site NAME, or like them, no canaries: their part of an update is "
        "taken off first",
    ),
    Key(
        "before",
        read_text,
        "FILE",
        "with after=FILE, signal=loss: first and last model as safetensors, without a recording",
    ),
    Key("after", read_text),
    Key(
        "model",
        read_text,
        "NAME",
        "your network, package.module:Net or file.py:Net, made with args.NAME=VALUE",
    ),
    Key("args.*", read_literal),
    Key("scores", read_text, "FILE", "signal=scores: your own, npz or csv with id and score"),
)
SEALED = Key("sealed", read_text)
COMMANDS = {
    "issue": Command(
        "python -m privdd.canary issue sealed=DIR sites=NAME,NAME count=M [KEY=VALUE ...]",
        "M canaries for each site; DIR must be new. Give each site its site-NAME.npz (x, "
        "y, id: add these records to its\n"
        "training data), publish public.json and canaries.npz, and keep secret.json "
        "until training is over.",
        (
            SEALED,
            Key("sites", read_text),
            Key("count", read_count()),
            Key(
                "shape",
                read_shape,
                "1,28,28",
                "with classes=10: crafted records of this shape, nearly orthogonal, values "
                "in [0, 1] (images: blocks)",
            ),
            Key("classes", read_count()),
            Key(
                "from",
                read_text,
                "FILE.npz",
                "or records of x and y that nobody trains on: the tail of each class, with "
                "wrong labels",
            ),
            Key(
                "signal",
                read_word(*CANARY_SIGNALS),
                "",
                "update (default), loss or scores: how they will be scored, fixed now",
            ),
            Key(
                "stated",
                read_number,
                "EPSILON",
                "with delta=1e-5 confidence=0.95: the statement that they test",
            ),
            Key("delta", read_number),
            Key("confidence", read_number),
            Key(
                "secrets",
                read_text,
                "FOLDER",
                "for secret.json and site-NAME.npz (default: one of its own below your state "
                "folder)",
            ),
            Key(
                "beside_app",
                read_word("true", "false"),
                "true",
                "allows secrets=FOLDER that lies with a Flower app",
            ),
        ),
    ),
    "open": Command(
        "python -m privdd.canary open sealed=DIR [KEY=VALUE ...]",
        "After training: scores the canaries, computes the bound and writes DIR/opened.json and its page,\n"
        "opened.html.",
        (
            SEALED,
            *SCORED,
            Key("secret", read_text, "FILE", "default: secret.json as issued"),
        ),
    ),
    "verify": Command(
        "python -m privdd.canary verify sealed=DIR [KEY=VALUE ...]",
        "By anybody, from public.json, canaries.npz and opened.json alone: commitment, "
        "coins, guesses, bound. With updates=,\n"
        "model= and the other keys of open it computes the scores again too.",
        (SEALED, *SCORED),
    ),
}
ABOUT = """\
Sealed canaries: records that fair, committed coins put into a real federation's data, and a lower bound on its epsilon.
Exit status: 0 done, 2 the bound is above the stated epsilon (open), or a file does not agree (verify), 1 error.
"""


def parse_canary_arguments(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Key -> value; ``args``, ``client`` and ``known`` hold what follows their dots. Raises
    BadConfig."""
    parsed = COMMANDS[command].parse(argv)
    if "sealed" not in parsed:
        raise BadConfig("sealed=DIR is needed")
    plain = {key: value for key, value in parsed.items() if key.partition(".")[0] not in GROUPS}
    return plain | {group: values_below(parsed, group) for group in GROUPS}
