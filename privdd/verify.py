"""``privdd verify DIR``: does a run folder agree with itself? Nothing of the folder is
executed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privdd.core.command import Command, Key, Places, read_path, read_truth
from privdd.gate import POLICY_KEYS, judge_folder, write_results

if TYPE_CHECKING:
    from privdd.reporting.policy import Policy
    from privdd.verification.run_folder import Verification

EXIT_DISAGREES = 2
EXIT_ON_TRUST = 3
MOST_NAMED = 4  # numbers on trust that a decision can rest on


VERIFY = Command(
    "privdd verify DIR [key=FILE] [sign=true] [strict=true] [policy=FILE] "
    "[fail_on.LIMIT=VALUE ...]",
    "Computes a finished run's numbers again from its own files and compares. Exit status: 0 "
    "agrees, 2 does not, 1 error,\n3 agrees but a limit is broken or not decided, or with "
    "strict=true alone a decision rests on numbers taken on trust.",
    (
        Key("key", read_path, "FILE", "public key of who must have signed; with sign=true: yours"),
        Key("sign", read_truth, "true", "sign a run that agrees, with the private key of key="),
        Key(
            "strict",
            read_truth,
            "true",
            "status 3 if a decision, or a threshold, rests on numbers that cannot be recomputed",
        ),
        *POLICY_KEYS,
    ),
    places=Places("runs", "DIR", "a run folder (with findings.json)", most=1),
)


def main(argv: Sequence[str] | None = None) -> int:
    """The answer first, then one line on stdout for each disagreement and limit, and one on stderr
    for each note; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_command

    return run_command(VERIFY, argv, lambda arguments: _run_command(VERIFY.parse(arguments)))


def _run_command(values: Mapping[str, Any]) -> int:
    from privdd.reporting.policy import policy_of_arguments
    from privdd.runtime.files import DamagedRun

    folder: Path = values["runs"][0]
    key: Path | None = values.get("key")
    signs = values.get("sign", False)
    if signs and key is None:
        raise DamagedRun("sign=true: key=FILE, your private key, is needed")
    policy = policy_of_arguments(values)
    if signs:
        _remove_signature(folder)
    expected_signer = None if signs else key
    verified = _with_data(_verify(folder, expected_signer), folder)
    _print_verification(folder, verified)
    if verified.disagreements:
        return EXIT_DISAGREES
    if key is not None and signs:
        from privdd.verification.file_checks import sign_run

        print(f"signed: {sign_run(folder, key)}")
    if verified.signer:
        if key:
            hint = ""
        else:
            hint = " (compare this key, or give it as key=FILE)"
        print(f"signed by ed25519 {verified.signer}{hint}")
    if policy is not None:
        return _judge_limits(values, policy, verified)
    if values.get("strict", False) and verified.deciding:
        return EXIT_ON_TRUST
    return 0


def _verify(folder: Path, key: Path | None) -> Verification:
    from privdd.verification.run_folder import verify_run

    return verify_run(folder, key)


def _remove_signature(folder: Path) -> None:
    """Remove an earlier signature of a run; in any other folder the file is somebody else's."""
    from privdd.runtime.run_files import SIGNATURE, is_run_folder

    if is_run_folder(folder):
        (folder / SIGNATURE).unlink(missing_ok=True)


def _print_verification(folder: Path, verified: Verification) -> None:
    from privdd.runtime.files import printable

    lines = [f"{folder}: {_conclusion(verified)}", *map(str, verified.disagreements)]
    print("\n".join(lines), flush=True)
    for line in verified.not_recomputable:
        print(printable(f"not recomputable, taken as stored: {line}"), file=sys.stderr)
    for name in verified.unlisted:
        print(f"not listed in manifest.json, and read by nothing: {name!r}", file=sys.stderr)


def _with_data(verified: Verification, folder: Path) -> Verification:
    """The data of the run are held against their digest too, where they are here."""
    from privdd.cli.stored_data import compare_stored_data
    from privdd.runtime.files import read_json_object
    from privdd.runtime.run_files import CONFIG, MANIFEST

    if not (folder / CONFIG).is_file():
        return verified  # of what others trained: its files have digests of their own
    wrong, note = compare_stored_data(folder, read_json_object(folder / MANIFEST))
    notes = [*verified.not_recomputable]
    if note:
        notes.append(note)
    disagreements = (*verified.disagreements, *wrong)
    return replace(verified, disagreements=disagreements, not_recomputable=tuple(notes))


def _judge_limits(values: Mapping[str, Any], policy: Policy, verified: Verification) -> int:
    """Print the outcome of every limit -> exit status."""
    from privdd.reporting import policy as limits

    folder: Path = values["runs"][0]
    results = judge_folder(policy, folder)
    if values.get("strict"):
        results = limits.doubt_trusted_numbers(results, verified.deciding)
    write_results(values, policy, {str(folder): results})
    is_broken = limits.report_limits(policy, results, sys.stdout)
    return limits.EXIT_BROKEN if is_broken else 0


def _conclusion(verified: Verification) -> str:
    """Does the folder agree, and how much of that rests on trust: the numbers that a decision can
    rest on, at most ``MOST_NAMED`` of them."""
    if verified.disagreements:
        count = len(verified.disagreements)
        return f"DOES NOT AGREE: {count} difference{'s' if count > 1 else ''}"
    among = ""
    if verified.deciding:
        among = f", among them {', '.join(verified.deciding[:MOST_NAMED])}"
    unnamed = len(verified.deciding) - MOST_NAMED
    if unnamed > 0:
        among += f" and {unnamed} more"
    computed = f"{verified.computed} numbers computed again"
    return f"agrees: {computed}, {verified.trusted} taken on trust{among}"


if __name__ == "__main__":
    sys.exit(main())
