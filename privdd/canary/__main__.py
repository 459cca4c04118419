"""``python -m privdd.canary issue|open|verify``: sealed canaries for a federation that is not a simulation."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privdd.cli.errors import run_reporting_errors

if TYPE_CHECKING:
    import numpy as np

    from privdd.canary.sealed import SealedCanaries

EXIT_DISAGREES = EXIT_CONTRADICTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The result on stdout; errors are one line on stderr and status 1."""
    from privdd.canary.arguments import help_text

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        print(help_text(), end="")
        return 0 if given else 1
    return run_reporting_errors("privdd-canary", lambda: _run_command(given[0], given[1:]))


def _run_command(command: str, argv: Sequence[str]) -> int:
    from privdd.canary.arguments import parse_canary_arguments
    from privdd.core.validation import BadConfig

    commands: dict[str, Callable[[Mapping[str, Any]], int]] = {
        "issue": issue_canaries,
        "open": open_canaries,
        "verify": verify_canaries,
    }
    if command not in commands:
        raise BadConfig(f"{command}: allowed are {', '.join(commands)}")
    return commands[command](parse_canary_arguments(command, argv))


def issue_canaries(given: Mapping[str, Any]) -> int:
    """Draw a salt, make the canaries and write all files."""
    from privdd.canary.arguments import check_issue_arguments
    from privdd.canary.sealed import SALT_BYTES, derive_seed, draw_canary_set, secrets_folder, write_sealed

    names = check_issue_arguments(given)
    salt = secrets.token_bytes(SALT_BYTES)
    canaries = draw_canary_set(given, names, derive_seed(salt, "records"))
    usual = {"signal": "update", "confidence": 0.95, "delta": 1e-5, "stated": None}
    told = {name: given.get(name, value) for name, value in usual.items()}
    folder = Path(given["sealed"])
    chosen = Path(given["secrets"]) if "secrets" in given else None
    sealed = write_sealed(folder, salt, canaries, told, chosen)
    secret = chosen or secrets_folder(folder, sealed.commitment)
    for name in names:
        print(f"for site {name} alone: {secret / f'site-{name}.npz'}")
    print(f"publish: {folder / 'public.json'} and {folder / 'canaries.npz'}\nkeep:    {secret / 'secret.json'}")
    print(f"commitment: {sealed.commitment}", flush=True)
    return 0


def open_canaries(given: Mapping[str, Any]) -> int:
    """Score the canaries, compute the bound and write opened.json."""
    from privdd.canary.scoring import score_artifact
    from privdd.canary.sealed import (
        OPENED_FILE,
        SECRET_FILE,
        check_commitment,
        describe_opened,
        opened_result,
        read_sealed,
        read_secret,
        secrets_folder,
    )
    from privdd.runtime.files import write_json

    folder = Path(given["sealed"])
    sealed = read_sealed(folder)
    beside = folder / SECRET_FILE  # where earlier versions put it
    kept = beside if beside.exists() else secrets_folder(folder, sealed.commitment) / SECRET_FILE
    salt, coins = read_secret(Path(given.get("secret", kept)))
    check_commitment(sealed, salt, coins)
    scores, artifact = score_artifact(sealed, given)
    found = opened_result(sealed, salt, coins, scores, artifact)
    write_json(folder / OPENED_FILE, found)
    print(describe_opened(found, sealed), f"publish: {folder / OPENED_FILE}", sep="\n", flush=True)
    return EXIT_CONTRADICTED if found["verdict"] == "contradiction" else 0


def verify_canaries(given: Mapping[str, Any]) -> int:
    """Compute everything again that the published files allow."""
    from privdd.canary.sealed import OPENED_FILE, check_opened_file, describe_opened, read_sealed
    from privdd.runtime.files import DamagedRun

    folder = Path(given["sealed"])
    for name in ("public.json", "canaries.npz", OPENED_FILE):
        if not (folder / name).is_file():
            raise DamagedRun(f"{folder / name}: no such file")
    try:
        sealed = read_sealed(folder)
        found = check_opened_file(sealed, folder / OPENED_FILE)
        again = _recompute_scores(sealed, given, found)
    except DamagedRun as differs:
        print(f"{folder}: DOES NOT AGREE\n{differs}", flush=True)
        return EXIT_DISAGREES
    note = "" if again else " (scores taken as stored: give updates= and model= to compute them again)"
    print(f"{folder}: agrees{note}\n{describe_opened(found, sealed)}", flush=True)
    return 0


def _recompute_scores(sealed: SealedCanaries, given: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the scores were computed again. Raises DamagedRun where they differ."""
    import numpy as np

    from privdd.canary.arguments import RECOMPUTE_TOLERANCE
    from privdd.canary.scoring import score_artifact
    from privdd.runtime.files import DamagedRun

    if not {"updates", "after", "scores"} & {*given}:
        return False
    scores, artifact = score_artifact(sealed, given)
    if artifact != found["artifact"]:
        raise DamagedRun("opened.json speaks of another artifact than the one given")
    theirs: np.ndarray = np.asarray(found["scores"])
    # NaN agrees with nothing
    if not float(np.abs(scores - theirs).max()) <= RECOMPUTE_TOLERANCE * float(np.abs(theirs).max()):
        raise DamagedRun("the scores are not those of the artifact")
    return True


if __name__ == "__main__":
    sys.exit(main())
