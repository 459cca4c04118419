"""``python -m privdd.gate DIR... --policy FILE``: does a finished run keep the limits of a policy?
For a build that must fail."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attacks.command_line import CommandParser

if TYPE_CHECKING:
    from privdd.reporting.policy import LimitResult, Policy

URL_SOURCE = re.compile(r"(\w+\+)?\w+://")
STARTING_POLICY = """\
# Limits that python -m privdd.audit ... policy=policy.yaml and python -m privdd.gate RUN --policy policy.yaml hold a run against.
# A limit that is left out is not looked at. Exit status 3 where one is broken, or could not be decided.
epsilon_proven: 8          # by accounting, at the run's delta; infinite where anything leaves a client unprotected
epsilon_shown: 3           # largest lower bound that attacks and tests gave, at 95 % over all tests together
tpr_at_fpr: {0.01: 0.05}   # members found by the strongest attack (lower bound) at 1 % false alarms
auc: 0.6                   # of the strongest membership attack (lower bound)
identified_records: 0      # single records that are found more often than by guessing
psnr_gain: 1               # dB above the best guess without the artifact: of the typical rebuilt picture, or of the best that stands out
verdicts: [consistent]     # of every surface: unprotected, untested, consistent, contradiction
attacked: []               # surfaces that must have been attacked, as [update, global_model]
not_decided: fail          # or pass: where the sample is too small for a limit, or nothing was measured
"""
STARTING_WORKFLOW = """\
name: privacy
on: [push, pull_request]
env:
  PRIVDD: %s  # what pip installs: a checkout (./privdd), a wheel, or git+URL@COMMIT
jobs:
  privacy:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: python -m pip install "${PRIVDD:?set it in this file}"
      - run: python -m privdd.audit algo=fedavg preset=smoke policy=policy.yaml hydra.run.dir=audit   # yours
      - if: always()
        run: python -m privdd.gate audit --policy policy.yaml --junit privacy.xml --markdown "$GITHUB_STEP_SUMMARY"
"""


def gate_parser() -> CommandParser:
    made = CommandParser(
        prog="privdd-gate",
        description="Hold finished runs against the limits of a policy. Exit status: 0 all hold, 3 "
        "one is broken or not decided, 1 error.",
    )
    made.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="run folders, a sweep's folder, or folders of checks (out=DIR)",
    )
    add_policy_options(made)
    made.add_argument(
        "--init",
        action="store_true",
        help="write policy.yaml and .github/workflows/privacy.yml here, and stop",
    )
    made.add_argument(
        "--install",
        metavar="SOURCE",
        help="with --init: a checkout, a wheel or git+URL@COMMIT, which the workflow installs "
        "privdd from",
    )
    return made


def add_policy_options(made: CommandParser) -> None:
    """What says the limits, and which files a build gets."""
    made.add_argument(
        "--policy", type=Path, metavar="FILE", help="the limits, as privdd-gate --init writes them"
    )
    made.add_argument(
        "--fail-on",
        nargs="+",
        default=[],
        metavar="LIMIT=VALUE",
        help="limits beside or in place of the file's",
    )
    made.add_argument(
        "--junit", type=Path, metavar="FILE", help="write JUnit XML, a test case a limit"
    )
    made.add_argument("--markdown", type=Path, metavar="FILE", help="append a table in Markdown")
    made.add_argument("--badge", type=Path, metavar="FILE", help="write an SVG badge")


def main(argv: Sequence[str] | None = None) -> int:
    """One line a limit on stdout; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_reporting_errors

    given = gate_parser().parse_args(argv)
    return run_reporting_errors(
        lambda: write_starting_files(Path(), given.install) if given.init else _judge_runs(given)
    )


def check_install_source(source: str) -> str:
    """The source as it is. Raises BadConfig for the name of a package: of no index is it known who
    registered that name."""
    from privdd.core.validation import BadConfig

    is_place = "/" in source or source.endswith((".whl", ".tar.gz")) or source == "."
    if not is_place and not URL_SOURCE.match(source):
        raise BadConfig(
            f"--install {source}: a checkout (./privdd), a wheel (FILE.whl) or "
            "git+URL@COMMIT is needed, no package's name"
        )
    return source


def write_starting_files(folder: Path, source: str | None = None) -> int:
    """A commented policy and a workflow; what exists already is left as it is. source: what the
    workflow installs privdd from; without one the workflow says that it has to be set. Raises
    BadConfig."""
    workflow = STARTING_WORKFLOW % json.dumps(
        "" if source is None else check_install_source(source)
    )
    for name, text in (
        ("policy.yaml", STARTING_POLICY),
        (".github/workflows/privacy.yml", workflow),
    ):
        file = folder / name
        if file.exists():
            print(f"{file}: exists, left as it is")
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"{file}: written")
    if source is None:
        print(
            "before the workflow runs: set PRIVDD in it to a checkout, a wheel or "
            "git+URL@COMMIT (or repeat with --install)"
        )
    return 0


def _judge_runs(given: argparse.Namespace) -> int:
    from privdd.reporting import policy as limits
    from privdd.runtime.files import DamagedRun

    policy = limits.load_policy(given.policy, limits.parse_limits(given.fail_on))
    folders = [found for run in given.runs for found in _run_folders(run)]
    if not folders:
        raise DamagedRun("a run folder (with findings.json) is needed")
    judged = {str(folder): judge_folder(policy, folder) for folder in folders}
    results = [one for found in judged.values() for one in found]
    print(limits.summarise_results(policy, results))
    for run, found in judged.items():
        print(f"{run}\n{limits.format_results(found)}")
    write_results(given, policy, judged)
    return limits.EXIT_BROKEN if limits.fails_build(policy, results) else 0


def judge_folder(policy: Policy, folder: Path) -> list[LimitResult]:
    """The outcome of every limit on what a finished audit, or a check of a mechanism (``out=DIR``),
    found. Raises DamagedRun."""
    from privdd.blackbox.verdict import judge_check, read_check
    from privdd.reporting.policy import judge_findings
    from privdd.reporting.schema import load_findings

    checked = read_check(folder)
    return (
        judge_findings(policy, load_findings(folder))
        if checked is None
        else judge_check(policy, checked)
    )


def write_results(
    given: argparse.Namespace, policy: Policy, judged: Mapping[str, Sequence[LimitResult]]
) -> None:
    """The files for a build that were asked for."""
    from privdd.reporting import policy as limits

    if given.junit:
        limits.write_junit(given.junit, judged, policy)
    if given.markdown:
        with given.markdown.open("a", encoding="utf-8") as summary:
            summary.write(limits.format_markdown(judged))
    if given.badge:
        given.badge.write_text(
            limits.draw_badge(one for found in judged.values() for one in found), encoding="utf-8"
        )


def _run_folders(path: Path) -> list[Path]:
    """A run's folder itself, or those right below a sweep's; one that did not end is among them,
    and is refused when it is read."""
    if (path / "findings.json").exists() or not path.is_dir():
        return [path]
    begun = (
        file
        for name in ("findings.json", "config.yaml", "point.json")
        for file in path.glob(f"*/{name}")
    )
    return sorted({file.parent for file in begun})


if __name__ == "__main__":
    sys.exit(main())
