"""``python -m privdd.canary issue|open|verify``: sealed canaries for a federation that is not a
simulation."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privdd.canary import sealed as sealed_files
from privdd.canary.scoring import score_artifact
from privdd.cli.errors import run_reporting_errors
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
from privdd.runtime.files import DamagedRun, check_private, state_folder, write_json

RECOMPUTE_TOLERANCE = 1e-3  # how far a score computed again may be off, relative to the largest
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
        "with after=FILE, signal=loss: first and last model as safetensors, where there is "
        "no recording",
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
                read_word(*sealed_files.CANARY_SIGNALS),
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
        "After training: scores the canaries, computes the bound and writes DIR/opened.json.",
        (
            SEALED,
            *SCORED,
            Key("secret", read_text, "FILE", "default: secret.json where issue put it"),
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


EXIT_DISAGREES = EXIT_CONTRADICTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The result on stdout; errors are one line on stderr and status 1."""
    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        *whole, last = COMMANDS.values()
        print("\n".join([ABOUT, *(one.help_text() for one in whole), last.describe(), ""]), end="")
        return 0 if given else 1
    return run_reporting_errors(lambda: _run_command(given[0], given[1:]))


def _run_command(command: str, argv: Sequence[str]) -> int:
    commands = {"issue": issue_canaries, "open": open_canaries, "verify": verify_canaries}
    if command not in commands:
        raise BadConfig(f"{command}: allowed are {', '.join(commands)}")
    return commands[command](parse_canary_arguments(command, argv))


def issue_canaries(given: Mapping[str, Any]) -> int:
    """Draw a salt, make the canaries and write all files."""
    names = check_issue_arguments(given)
    salt = secrets.token_bytes(sealed_files.SALT_BYTES)
    canaries = sealed_files.draw_canary_set(given, names, sealed_files.derive_seed(salt, "records"))
    usual = {"signal": "update", "confidence": 0.95, "delta": 1e-5, "stated": None}
    told = {name: given.get(name, value) for name, value in usual.items()}
    folder = Path(given["sealed"])
    if "secrets" in given:
        chosen = Path(given["secrets"])
    else:
        chosen = None
    sealed = sealed_files.write_sealed(folder, salt, canaries, told, chosen)
    secret = chosen or sealed_files.secrets_folder(folder, sealed.commitment)
    for name in names:
        print(f"for site {name} alone: {secret / f'site-{name}.npz'}")
    print(
        f"publish: {folder / 'public.json'} and {folder / 'canaries.npz'}\nkeep:    "
        f"{secret / 'secret.json'}"
    )
    print(f"commitment: {sealed.commitment}", flush=True)
    return 0


def open_canaries(given: Mapping[str, Any]) -> int:
    """Score the canaries, compute the bound and write opened.json."""
    folder = Path(given["sealed"])
    sealed = sealed_files.read_sealed(folder)
    secret_file = sealed_files.secrets_folder(folder, sealed.commitment) / sealed_files.SECRET_FILE
    sealed_secret = folder / sealed_files.SECRET_FILE
    if sealed_secret.exists():  # the canaries were issued with secrets=SEALED
        secret_file = sealed_secret
    salt, coins = sealed_files.read_secret(Path(given.get("secret", secret_file)))
    sealed_files.check_commitment(sealed, salt, coins)
    scores, artifact = score_artifact(sealed, given)
    found = sealed_files.opened_result(sealed, salt, coins, scores, artifact)
    write_json(folder / sealed_files.OPENED_FILE, found)
    print(
        sealed_files.describe_opened(found, sealed),
        f"publish: {folder / sealed_files.OPENED_FILE}",
        sep="\n",
        flush=True,
    )
    if found["verdict"] == "contradiction":
        return EXIT_CONTRADICTED
    return 0


def verify_canaries(given: Mapping[str, Any]) -> int:
    """Compute everything again that the published files allow."""
    folder = Path(given["sealed"])
    for name in (sealed_files.PUBLIC_FILE, sealed_files.CANARIES_FILE, sealed_files.OPENED_FILE):
        if not (folder / name).is_file():
            raise DamagedRun(f"{folder / name}: no such file")
    try:
        sealed = sealed_files.read_sealed(folder)
        found = sealed_files.check_opened_file(sealed, folder / sealed_files.OPENED_FILE)
        again = _recompute_scores(sealed, given, found)
    except DamagedRun as differs:
        print(f"{folder}: DOES NOT AGREE\n{differs}", flush=True)
        return EXIT_DISAGREES
    if again:
        note = ""
    else:
        note = " (scores taken as stored: give updates= and model= to compute them again)"
    print(f"{folder}: agrees{note}\n{sealed_files.describe_opened(found, sealed)}", flush=True)
    return 0


def _recompute_scores(
    sealed: sealed_files.SealedCanaries, given: Mapping[str, Any], found: Mapping[str, Any]
) -> bool:
    """Whether the scores were computed again. Raises DamagedRun where they differ."""
    if not {"updates", "after", "scores"} & {*given}:
        return False
    scores, artifact = score_artifact(sealed, given)
    if artifact != found["artifact"]:
        raise DamagedRun("opened.json speaks of another artifact than the one given")
    theirs: np.ndarray = np.asarray(found["scores"])
    # NaN agrees with nothing
    if not float(np.abs(scores - theirs).max()) <= RECOMPUTE_TOLERANCE * float(
        np.abs(theirs).max()
    ):
        raise DamagedRun("the scores are not those of the artifact")
    return True


def parse_canary_arguments(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Key -> value; ``args``, ``client`` and ``known`` hold what follows their dots. Raises
    BadConfig."""
    found = COMMANDS[command].parse(argv)
    if "sealed" not in found:
        raise BadConfig("sealed=DIR is needed")
    plain = {key: value for key, value in found.items() if key.partition(".")[0] not in GROUPS}
    return plain | {group: values_below(found, group) for group in GROUPS}


def check_issue_arguments(given: Mapping[str, Any]) -> list[str]:
    """The names of the sites. Raises BadConfig, one line, for what cannot be issued."""
    names = [name for name in str(given.get("sites", "")).split(",") if name]
    if (
        not names
        or len(set(names)) != len(names)
        or not all(sealed_files.SITE_NAME.fullmatch(name) for name in names)
    ):
        needed = "different names of letters, digits, '.', '_' and '-' are needed"
        raise BadConfig(f"sites={given.get('sites', '')}: {needed}")
    if not 1 <= given.get("count", 0) <= sealed_files.MAX_CANARIES:
        most = sealed_files.MAX_CANARIES
        raise BadConfig(
            f"count={given.get('count')}: canaries of each site, from 1 to {most} (try 200)"
        )
    if ("from" in given) == ("shape" in given):
        raise BadConfig("one of shape= (crafted records) and from= (mislabelled ones) is needed")
    if given.get("classes", 2 if "from" in given else 0) < 2:
        raise BadConfig("classes=: at least 2 are needed")
    for key, low in (("stated", True), ("delta", True), ("confidence", False)):
        value = given.get(key, 0.5)
        if not (value >= 0 if low else value > 0) or (key != "stated" and not value < 1):
            raise BadConfig(f"{key}={value:g}: out of range")
    if given.get("beside_app") != "true":
        check_private(
            Path(given["secrets"]) if "secrets" in given else state_folder(), "the canaries' secret"
        )
    folder = Path(given["sealed"])
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise BadConfig(
            f"sealed={folder}: it exists already; canaries are issued once, into a new folder"
        )
    return names


if __name__ == "__main__":
    sys.exit(main())
