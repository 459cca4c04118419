"""``python -m privdd.canary issue|open|verify``: sealed canaries for a federation that is not a simulation."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privdd.cli.failures import reported

if TYPE_CHECKING:
    import numpy as np

    from privdd.canary.sealed_files import Sealed

DISAGREES = CONTRADICTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The result on stdout; errors are one line on stderr and status 1."""
    from privdd.canary.canary_arguments import USAGE

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        print(USAGE, end="")
        return 0 if given else 1
    return reported("privdd-canary", lambda: _main(given[0], given[1:]))


def _main(command: str, argv: Sequence[str]) -> int:
    from privdd.canary.canary_arguments import read
    from privdd.core.errors import BadConfig

    commands: dict[str, Callable[[Mapping[str, Any]], int]] = {"issue": issue, "open": open_, "verify": verify}
    if command not in commands:
        raise BadConfig(f"{command}: allowed are {', '.join(commands)}")
    return commands[command](read(command, argv))


def issue(given: Mapping[str, Any]) -> int:
    """Draw a salt, make the canaries and write all files."""
    from privdd.canary.canary_arguments import check_issue
    from privdd.canary.canary_records import made
    from privdd.canary.commitment import SALT, stream
    from privdd.canary.sealed_files import secrets_folder, write_sealed

    names = check_issue(given)
    salt = secrets.token_bytes(SALT)
    canaries = made(given, names, stream(salt, "records"))
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


def open_(given: Mapping[str, Any]) -> int:
    """Score the canaries, compute the bound and write opened.json."""
    from privdd.canary.opened import result, said
    from privdd.canary.scored_artifacts import scored
    from privdd.canary.sealed_files import OPENED, SECRET, check_commitment, read_sealed, read_secret, secrets_folder
    from privdd.runtime.files import write_json

    folder = Path(given["sealed"])
    sealed = read_sealed(folder)
    beside = folder / SECRET  # where earlier versions put it
    kept = beside if beside.exists() else secrets_folder(folder, sealed.commitment) / SECRET
    salt, coins = read_secret(Path(given.get("secret", kept)))
    check_commitment(sealed, salt, coins)
    scores, artifact = scored(sealed, given)
    found = result(sealed, salt, coins, scores, artifact)
    write_json(folder / OPENED, found)
    print(said(found, sealed), f"publish: {folder / OPENED}", sep="\n", flush=True)
    return CONTRADICTED if found["verdict"] == "contradiction" else 0


def verify(given: Mapping[str, Any]) -> int:
    """Compute everything again that the published files allow."""
    from privdd.canary.opened import check_opened, said
    from privdd.canary.sealed_files import OPENED, read_sealed
    from privdd.runtime.files import DamagedRun

    folder = Path(given["sealed"])
    for name in ("public.json", "canaries.npz", OPENED):
        if not (folder / name).is_file():
            raise DamagedRun(f"{folder / name}: no such file")
    try:
        sealed = read_sealed(folder)
        found = check_opened(sealed, folder / OPENED)
        again = _again(sealed, given, found)
    except DamagedRun as differs:
        print(f"{differs}\n{folder}: DOES NOT AGREE", flush=True)
        return DISAGREES
    print(said(found, sealed))
    print(
        f"{folder}: agrees{'' if again else ' (scores taken as stored: give updates= and model= to compute them again)'}",
        flush=True,
    )
    return 0


def _again(sealed: Sealed, given: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the scores were computed again. Raises DamagedRun where they differ."""
    import numpy as np

    from privdd.canary.canary_arguments import RECOMPUTE
    from privdd.canary.scored_artifacts import scored
    from privdd.runtime.files import DamagedRun

    if not {"updates", "after", "scores"} & {*given}:
        return False
    scores, artifact = scored(sealed, given)
    if artifact != found["artifact"]:
        raise DamagedRun("opened.json speaks of another artifact than the one given")
    theirs: np.ndarray = np.asarray(found["scores"])
    if not float(np.abs(scores - theirs).max()) <= RECOMPUTE * float(np.abs(theirs).max()):  # NaN agrees with nothing
        raise DamagedRun("the scores are not those of the artifact")
    return True


if __name__ == "__main__":
    sys.exit(main())
