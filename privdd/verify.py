"""``python -m privdd.verify DIR``: does a run folder agree with itself? Nothing of the folder is executed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privdd.verification.run_folder import Verification

EXIT_DISAGREES, ON_TRUST = 2, 3


def verify_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="privdd-verify",
        description="Compute a finished run's numbers again from its own files and compare. Exit status: 0 agrees, "
        "2 does not, 1 error, 3 agrees but --strict was given and a decision rests on numbers taken on trust.",
    )
    made.add_argument("run", type=Path, metavar="DIR", help="a run folder (with findings.json)")
    made.add_argument("--key", type=Path, metavar="FILE", help="public key of who must have signed; with --sign: yours")
    made.add_argument("--sign", action="store_true", help="sign a run that agrees, with the private key of --key")
    made.add_argument("--strict", action="store_true", help="status 3 where a decision rests on numbers taken on trust")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """One line on stdout for each disagreement; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_reporting_errors

    given = verify_parser().parse_args(argv)
    return run_reporting_errors("privdd-verify", lambda: _run_command(given.run, given.key, given.sign, given.strict))


def _run_command(folder: Path, key: Path | None, signing: bool, strict: bool) -> int:
    from privdd.runtime.files import DamagedRun, printable
    from privdd.verification.file_checks import sign_run
    from privdd.verification.run_folder import verify_run

    if signing and key is None:
        raise DamagedRun("--sign: --key FILE, your private key, is needed")
    if signing:
        (folder / "signature.json").unlink(missing_ok=True)
    found = verify_run(folder, None if signing else key)
    for one in found.disagreements:
        print(one)
    for line in found.not_recomputable:
        print(printable(f"not recomputable, taken as stored: {line}"))
    for name in found.unlisted:
        print(f"not listed in manifest.json, and read by nothing: {name!r}")
    if found.disagreements:
        print(f"{folder}: DOES NOT AGREE: {len(found.disagreements)} differences", flush=True)
        return EXIT_DISAGREES
    if signing and key is not None:
        print(f"signed: {sign_run(folder, key)}")
    if found.signer:
        print(f"signed by ed25519 {found.signer}{'' if key else ' (compare this key, or give it as --key)'}")
    print(
        f"{folder}: agrees: {found.computed} numbers computed again, {found.trusted} taken on trust{_among(found)}",
        flush=True,
    )
    return ON_TRUST if strict and found.deciding else 0


def _among(found: Verification) -> str:
    """The numbers on trust that a decision can rest on, at most four of them."""
    shown, more = found.deciding[:4], len(found.deciding) - 4
    return f" (among them {', '.join(shown)}{f' and {more} more' if more > 0 else ''})" if shown else ""


if __name__ == "__main__":
    sys.exit(main())
