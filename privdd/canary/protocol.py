"""Sealed canaries are issued, opened and verified, each step from what was typed and from files."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privdd.canary import sealed as sealed_files
from privdd.canary.opened_page import write_opened_page
from privdd.canary.scoring import score_artifact
from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun, check_private, state_folder, write_json

RECOMPUTE_TOLERANCE = 1e-3  # how far a score computed again may be off, relative to the largest
EXIT_DISAGREES = EXIT_CONTRADICTED = 2


def issue_canaries(arguments: Mapping[str, Any]) -> int:
    """Draw a salt, make the canaries and write all files."""
    names = check_issue_arguments(arguments)
    salt = secrets.token_bytes(sealed_files.SALT_BYTES)
    canaries = sealed_files.draw_canary_set(
        arguments, names, sealed_files.derive_seed(salt, "records")
    )
    usual = {"signal": "update", "confidence": 0.95, "delta": 1e-5, "stated": None}
    statement = {name: arguments.get(name, value) for name, value in usual.items()}
    folder = Path(arguments["sealed"])
    if "secrets" in arguments:
        chosen = Path(arguments["secrets"])
    else:
        chosen = None
    sealed = sealed_files.write_sealed(folder, salt, canaries, statement, chosen)
    secret = chosen or sealed_files.secrets_folder(folder, sealed.commitment)
    for name in names:
        print(f"for site {name} alone: {secret / f'site-{name}.npz'}")
    print(
        f"publish: {folder / 'public.json'} and {folder / 'canaries.npz'}\nkeep:    "
        f"{secret / 'secret.json'}"
    )
    print(f"commitment: {sealed.commitment}", flush=True)
    return 0


def open_canaries(arguments: Mapping[str, Any]) -> int:
    """Score the canaries, compute the bound and write opened.json and its page."""
    folder = Path(arguments["sealed"])
    sealed = sealed_files.read_sealed(folder)
    secret_file = sealed_files.secrets_folder(folder, sealed.commitment) / sealed_files.SECRET_FILE
    sealed_secret = folder / sealed_files.SECRET_FILE
    if sealed_secret.exists():  # the canaries were issued with secrets=SEALED
        secret_file = sealed_secret
    salt, coins = sealed_files.read_secret(Path(arguments.get("secret", secret_file)))
    sealed_files.check_commitment(sealed, salt, coins)
    scores, artifact = score_artifact(sealed, arguments)
    result = sealed_files.opened_result(sealed, salt, coins, scores, artifact)
    write_json(folder / sealed_files.OPENED_FILE, result)
    page = write_opened_page(folder, result, sealed)
    print(
        sealed_files.describe_opened(result, sealed),
        f"publish: {folder / sealed_files.OPENED_FILE}",
        f"page:    {page}",
        sep="\n",
        flush=True,
    )
    if result["verdict"] == "contradiction":
        return EXIT_CONTRADICTED
    return 0


def verify_canaries(arguments: Mapping[str, Any]) -> int:
    """Compute everything again that the published files allow."""
    folder = Path(arguments["sealed"])
    for name in (sealed_files.PUBLIC_FILE, sealed_files.CANARIES_FILE, sealed_files.OPENED_FILE):
        if not (folder / name).is_file():
            raise DamagedRun(f"{folder / name}: no such file")
    try:
        sealed = sealed_files.read_sealed(folder)
        opened = sealed_files.check_opened_file(sealed, folder / sealed_files.OPENED_FILE)
        again = _recompute_scores(sealed, arguments, opened)
    except DamagedRun as differs:
        print(f"{folder}: DOES NOT AGREE\n{differs}", flush=True)
        return EXIT_DISAGREES
    if again:
        note = ""
    else:
        note = " (scores taken as stored: give updates= and model= to compute them again)"
    print(f"{folder}: agrees{note}\n{sealed_files.describe_opened(opened, sealed)}", flush=True)
    return 0


def _recompute_scores(
    sealed: sealed_files.SealedCanaries, arguments: Mapping[str, Any], opened: Mapping[str, Any]
) -> bool:
    """Whether the scores were computed again. Raises DamagedRun where they differ."""
    if not {"updates", "after", "scores"} & {*arguments}:
        return False
    scores, artifact = score_artifact(sealed, arguments)
    if artifact != opened["artifact"]:
        raise DamagedRun("opened.json belongs to another artifact")
    theirs: np.ndarray = np.asarray(opened["scores"])
    # NaN agrees with nothing
    if not float(np.abs(scores - theirs).max()) <= RECOMPUTE_TOLERANCE * float(
        np.abs(theirs).max()
    ):
        raise DamagedRun("the scores are not those of the artifact")
    return True


def check_issue_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """The names of the sites. Raises BadConfig, one line, for what cannot be issued."""
    names = [name for name in str(arguments.get("sites", "")).split(",") if name]
    if (
        not names
        or len(set(names)) != len(names)
        or not all(sealed_files.SITE_NAME.fullmatch(name) for name in names)
    ):
        needed = "different names of letters, digits, '.', '_' and '-' are needed"
        raise BadConfig(f"sites={arguments.get('sites', '')}: {needed}")
    if not 1 <= arguments.get("count", 0) <= sealed_files.MAX_CANARIES:
        most = sealed_files.MAX_CANARIES
        raise BadConfig(
            f"count={arguments.get('count')}: must be from 1 to {most} for each site (try 200)"
        )
    if ("from" in arguments) == ("shape" in arguments):
        raise BadConfig("one of shape= (crafted records) and from= (mislabelled ones) is needed")
    if arguments.get("classes", 2 if "from" in arguments else 0) < 2:
        raise BadConfig("classes=: at least 2 are needed")
    for key, low in (("stated", True), ("delta", True), ("confidence", False)):
        value = arguments.get(key, 0.5)
        if not (value >= 0 if low else value > 0) or (key != "stated" and not value < 1):
            raise BadConfig(f"{key}={value:g}: out of range")
    if arguments.get("beside_app") != "true":
        check_private(
            Path(arguments["secrets"]) if "secrets" in arguments else state_folder(),
            "the canaries' secret",
        )
    folder = Path(arguments["sealed"])
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise BadConfig(
            f"sealed={folder}: it exists already; canaries are issued once, into a new folder"
        )
    return names
