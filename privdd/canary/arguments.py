"""Arguments of ``python -m privdd.canary``: KEY=VALUE, each understood or refused in one line."""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privdd.canary.sealed import CANARY_SIGNALS, MAX_CANARIES, SITE_NAME
from privdd.core.validation import BadConfig, parse_integer
from privdd.runtime.private_folder import check_private, state_folder

USAGE = """usage: python -m privdd.canary issue|open|verify sealed=DIR [KEY=VALUE ...]

Sealed canaries: records that fair, committed coins put into a real federation's data, and a lower bound on its epsilon.
Exit status: 0 done, 2 the bound is above the stated epsilon (open), or a file does not agree (verify), 1 error.

  issue sealed=DIR sites=NAME,NAME count=M   M canaries for each site; DIR must be new
    shape=1,28,28 classes=10   crafted records of this shape, nearly orthogonal, values in [0, 1] (images: blocks)
    from=FILE.npz              or records of x and y that nobody trains on: the tail of each class, with wrong labels
    signal=update|loss|scores  how they will be scored, fixed now (default update)
    stated=EPSILON delta=1e-5 confidence=0.95     the statement that they test
    secrets=FOLDER             for secret.json and site-NAME.npz (default: one of its own below your state folder)
    beside_app=true            allows secrets=FOLDER that lies with a Flower app
    Give each site its site-NAME.npz (x, y, id: add these records to its training data), publish public.json and
    canaries.npz, and keep secret.json until training is over.

  open sealed=DIR            after training; writes DIR/opened.json
    updates=RUN              signal=update or loss: a recording of privdd_tap or tapped
    client.NAME=NODE         which of its clients is site NAME (needed unless site and client are one)
    clip=C                   the norm that each record's gradient was clipped to, if it was
    known.NAME=FILE.npz      other records of site NAME, or like them, no canaries: their part of an update is taken off first
    before=FILE after=FILE   signal=loss: first and last model as safetensors, where there is no recording
    model=package.module:Net args.NAME=VALUE      your network (also file.py:Net)
    scores=FILE              signal=scores: your own, npz or csv with id and score
    secret=FILE              default: secret.json where issue put it

  verify sealed=DIR          by anybody, from public.json, canaries.npz and opened.json alone: commitment, coins, guesses, bound
    updates= model= ...      as for open: computes the scores again too
"""
TEXT_KEYS = {
    "issue": ("sealed", "sites", "from", "signal", "secrets", "beside_app"),
    "open": ("sealed", "updates", "before", "after", "model", "scores", "secret"),
    "verify": ("sealed", "updates", "before", "after", "model", "scores"),
}
NUMBER_KEYS = {"issue": ("count", "classes", "stated", "delta", "confidence"), "open": ("clip",), "verify": ("clip",)}
RECOMPUTE_TOLERANCE = 1e-3  # how far a score computed again may be off, relative to the largest


def parse_canary_arguments(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Key -> value (text, numbers, ``shape``); ``args``, ``client`` and ``known`` hold what follows their dots. Raises BadConfig."""
    found: dict[str, Any] = {"args": {}, "client": {}, "known": {}}
    for item in argv:
        key, equals, text = item.partition("=")
        if not equals or not text:
            raise BadConfig(f"{item}: KEY=VALUE is needed")
        group, dot, name = key.partition(".")
        if dot and group in GROUP_PARSERS and command != "issue":
            _set_once(found[group], name, GROUP_PARSERS[group](key, text), key)
        else:
            _set_once(found, _check_known_key(command, key), _parse_setting(command, key, text), key)
    if "sealed" not in found:
        raise BadConfig("sealed=DIR is needed")
    return found


def _set_once(found: dict[str, Any], name: str, value: Any, key: str) -> None:
    if name in found:
        raise BadConfig(f"{key}: given twice")
    found[name] = value


def _check_known_key(command: str, key: str) -> str:
    keys = [*TEXT_KEYS[command], *NUMBER_KEYS[command], *(["shape"] if command == "issue" else [])]
    if key in keys:
        return key
    close = difflib.get_close_matches(key, keys, 1)
    raise BadConfig(f"{key}: unknown; {f'did you mean {close[0]}?' if close else 'see --help'}")


def _parse_setting(command: str, key: str, text: str) -> Any:
    if key in NUMBER_KEYS[command]:
        return parse_integer(key, text) if key in ("count", "classes") else _parse_number(key, text)
    if key == "shape":
        sizes = [parse_integer(key, part) for part in text.strip("()[]").split(",") if part.strip()]
        if not sizes or not all(1 <= n <= 4096 for n in sizes) or math.prod(sizes) > 2**24:
            raise BadConfig(f"shape={text}: sizes of one record are needed, as in 1,28,28")
        return tuple(sizes)
    return text


def _literal_or_text(key: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _parse_number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadConfig(f"{key}={text}: a number is needed")
    return value


GROUP_PARSERS: dict[str, Any] = {"args": _literal_or_text, "client": parse_integer, "known": lambda key, text: text}


def check_issue_arguments(given: Mapping[str, Any]) -> list[str]:
    """The names of the sites. Raises BadConfig, one line, for what cannot be issued."""
    names = [name for name in str(given.get("sites", "")).split(",") if name]
    if not names or len(set(names)) != len(names) or not all(SITE_NAME.fullmatch(name) for name in names):
        raise BadConfig(
            f"sites={given.get('sites', '')}: different names of letters, digits, '.', '_' and '-' are needed"
        )
    if not 1 <= given.get("count", 0) <= MAX_CANARIES:
        raise BadConfig(f"count={given.get('count')}: canaries of each site, from 1 to {MAX_CANARIES} (try 200)")
    if given.get("signal", "update") not in CANARY_SIGNALS:
        raise BadConfig(f"signal={given['signal']}: allowed are {', '.join(CANARY_SIGNALS)}")
    if ("from" in given) == ("shape" in given):
        raise BadConfig("one of shape= (crafted records) and from= (mislabelled ones) is needed")
    if given.get("classes", 2 if "from" in given else 0) < 2:
        raise BadConfig("classes=: at least 2 are needed")
    for key, low in (("stated", True), ("delta", True), ("confidence", False)):
        value = given.get(key, 0.5)
        if not (value >= 0 if low else value > 0) or (key != "stated" and not value < 1):
            raise BadConfig(f"{key}={value:g}: out of range")
    _check_secrets(given)
    folder = Path(given["sealed"])
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise BadConfig(f"sealed={folder}: it exists already; canaries are issued once, into a new folder")
    return names


def _check_secrets(given: Mapping[str, Any]) -> None:
    if (allowed := given.get("beside_app", "false")) not in ("true", "false"):
        raise BadConfig(f"beside_app={allowed}: true or false is needed")
    if allowed == "false" and "secrets" in given:
        check_private(Path(given["secrets"]), "the canaries' secret")
    elif allowed == "false":
        check_private(state_folder(), "the canaries' secret")
