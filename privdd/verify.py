"""``python -m privdd.verify DIR``: does a run folder agree with itself? Nothing of the folder is
executed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attacks.command_line import CommandParser
from privdd.gate import add_policy_options, judge_folder, write_results

if TYPE_CHECKING:
    from privdd.reporting.policy import Policy
    from privdd.verification.run_folder import Verification

EXIT_DISAGREES = 2
EXIT_ON_TRUST = 3


def verify_parser() -> CommandParser:
    made = CommandParser(
        prog="privdd-verify",
        description="Compute a finished run's numbers again from its own files and compare. Exit "
        "status: 0 agrees, 2 does not, "
        "1 error, 3 agrees but a limit is broken or not decided, or with --strict alone "
        "a decision rests on numbers taken on trust.",
    )
    made.add_argument("run", type=Path, metavar="DIR", help="a run folder (with findings.json)")
    made.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="public key of who must have signed; with --sign: yours",
    )
    made.add_argument(
        "--sign", action="store_true", help="sign a run that agrees, with the private key of --key"
    )
    made.add_argument(
        "--strict",
        action="store_true",
        help="status 3 where a decision, or a limit, rests on numbers taken on trust",
    )
    add_policy_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The answer first, then one line on stdout for each disagreement and limit, and one on stderr
    for each note; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_reporting_errors

    given = verify_parser().parse_args(argv)
    return run_reporting_errors(lambda: _run_command(given))


def _run_command(given: argparse.Namespace) -> int:
    from privdd.reporting.policy import parse_limits, policy_of_settings
    from privdd.runtime.files import DamagedRun, printable
    from privdd.runtime.run_files import SIGNATURE, is_run_folder
    from privdd.verification.file_checks import sign_run
    from privdd.verification.run_folder import verify_run

    folder = given.run
    key = given.key
    if given.sign and key is None:
        raise DamagedRun("--sign: --key FILE, your private key, is needed")
    policy = policy_of_settings({"policy": given.policy, "fail_on": parse_limits(given.fail_on)})
    if given.sign and is_run_folder(
        folder
    ):  # an earlier signature; in any other folder the file is somebody else's
        (folder / SIGNATURE).unlink(missing_ok=True)
    found = _with_data(verify_run(folder, None if given.sign else key), folder)
    print(
        "\n".join([f"{folder}: {_conclusion(found)}", *map(str, found.disagreements)]), flush=True
    )
    for line in found.not_recomputable:
        print(printable(f"not recomputable, taken as stored: {line}"), file=sys.stderr)
    for name in found.unlisted:
        print(f"not listed in manifest.json, and read by nothing: {name!r}", file=sys.stderr)
    if found.disagreements:
        return EXIT_DISAGREES
    if given.sign:
        print(f"signed: {sign_run(folder, key)}")
    if found.signer:
        print(
            "signed by ed25519 "
            f"{found.signer}{'' if key else ' (compare this key, or give it as --key)'}"
        )
    if policy is None:
        return EXIT_ON_TRUST if given.strict and found.deciding else 0
    return _judge_limits(given, policy, found)


def _with_data(found: Verification, folder: Path) -> Verification:
    """The data of the run are held against their digest too, where they are here."""
    from privdd.cli.stored_data import compare_stored_data
    from privdd.runtime.files import read_json_object
    from privdd.runtime.run_files import CONFIG, MANIFEST

    if not (
        folder / CONFIG
    ).is_file():  # of what others trained: its files have digests of their own
        return found
    wrong, note = compare_stored_data(folder, read_json_object(folder / MANIFEST))
    notes = (*found.not_recomputable, *([note] if note else []))
    return replace(found, disagreements=(*found.disagreements, *wrong), not_recomputable=notes)


def _judge_limits(given: argparse.Namespace, policy: Policy, found: Verification) -> int:
    """Print the outcome of every limit -> exit status."""
    from privdd.reporting import policy as limits

    results = judge_folder(policy, given.run)
    if given.strict:
        results = limits.doubt_trusted_numbers(results, found.deciding)
    write_results(given, policy, {str(given.run): results})
    return limits.EXIT_BROKEN if limits.report_limits(policy, results, sys.stdout) else 0


def _conclusion(found: Verification) -> str:
    """Does the folder agree, and how much of that rests on trust: the numbers that a decision can
    rest on, at most four of them."""
    if found.disagreements:
        return f"DOES NOT AGREE: {len(found.disagreements)} differences"
    shown = found.deciding[:4]
    more = len(found.deciding) - 4
    among = (
        f", among them {', '.join(shown)}{f' and {more} more' if more > 0 else ''}" if shown else ""
    )
    return f"agrees: {found.computed} numbers computed again, {found.trusted} taken on trust{among}"


if __name__ == "__main__":
    sys.exit(main())
