"""``privdd gate DIR... policy=FILE``: does a finished run keep the limits of a policy? For a build
that must fail."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privdd.core.command import (
    Command,
    Key,
    Places,
    read_path,
    read_text,
    read_truth,
)

if TYPE_CHECKING:
    from privdd.reporting.policy import LimitResult, Policy

URL_SOURCE = re.compile(r"(\w+\+)?\w+://")
STARTING_POLICY = """\
# Limits that privdd audit ... policy=policy.yaml and privdd gate RUN policy=policy.yaml hold a run
# against. A threshold that is left out is not tested. Exit status 3 if one is violated, or could
# not be decided.
epsilon_proven: 8        # by accounting, at the run's delta; infinite if anything is unprotected
epsilon_shown: 3         # largest lower bound of attacks and tests, at 95 % over all of them
tpr_at_fpr: {0.01: 0.05} # members found by the strongest attack (lower bound) at FPR 1 %
auc: 0.6                 # of the strongest membership attack (lower bound)
identified_records: 0    # single records that are identified more often than by chance
psnr_gain: 1             # dB above the best guess without the artifact: of the typical
                         # reconstruction, or of the best that stands out
verdicts: [consistent]   # of every surface: unprotected, untested, consistent, contradiction
attacked: []             # surfaces that must have been attacked, as [update, global_model]
not_decided: fail        # or pass: if the sample is too small, or nothing was measured
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
      - run: >-
          python -m privdd.audit algo=fedavg preset=smoke policy=policy.yaml hydra.run.dir=audit
      - if: always()
        run: >-
          python -m privdd.gate audit policy=policy.yaml junit=privacy.xml
          markdown="$GITHUB_STEP_SUMMARY"
"""


POLICY_KEYS = (  # what says the limits, and which files a build gets
    Key("policy", read_path, "FILE", "the limits, as privdd gate init=true writes them"),
    Key("fail_on.*", read_text, "VALUE", "a threshold added to the file's, or in its place"),
    Key("junit", read_path, "FILE", "write JUnit XML, a test case a limit"),
    Key("markdown", read_path, "FILE", "append a table in Markdown"),
    Key("badge", read_path, "FILE", "write an SVG badge"),
)
GATE = Command(
    "privdd gate DIR... [policy=FILE] [fail_on.LIMIT=VALUE ...] [junit=FILE] [markdown=FILE] "
    "[badge=FILE]\n       privdd gate init=true [install=SOURCE]",
    "Holds finished runs against the limits of a policy. Exit status: 0 all hold, 3 one is broken "
    "or not decided, 1 error.",
    (
        *POLICY_KEYS,
        Key(
            "init",
            read_truth,
            "true",
            "write policy.yaml and .github/workflows/privacy.yml here, and stop",
        ),
        Key(
            "install",
            read_text,
            "SOURCE",
            "with init=true: a checkout, a wheel or git+URL@COMMIT, from which the workflow "
            "installs privdd",
        ),
    ),
    places=Places(
        "runs", "DIR", "run folders, a sweep's folder, or folders of checks (out=DIR)", least=0
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """One line a limit on stdout; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_command

    return run_command(
        GATE, argv, lambda arguments: _run_command(GATE.parse(arguments)), needs_arguments=False
    )


def _run_command(values: Mapping[str, Any]) -> int:
    if values.get("init"):
        return write_starting_files(Path(), values.get("install"))
    return _judge_runs(values)


def check_install_source(source: str) -> str:
    """The source as it is. Raises BadConfig for the name of a package: of no index is it known who
    registered that name."""
    from privdd.core.validation import BadConfig

    is_place = "/" in source or source.endswith((".whl", ".tar.gz")) or source == "."
    if not is_place and not URL_SOURCE.match(source):
        raise BadConfig(
            f"install={source}: a checkout (./privdd), a wheel (FILE.whl) or "
            "git+URL@COMMIT is needed, no package's name"
        )
    return source


def write_starting_files(folder: Path, source: str | None = None) -> int:
    """A commented policy and a workflow; what exists already is left as it is. source: what the
    workflow installs privdd from; without one the workflow says that it has to be set. Raises
    BadConfig."""
    place = "" if source is None else check_install_source(source)
    workflow = STARTING_WORKFLOW % json.dumps(place)
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
            "git+URL@COMMIT (or repeat with install=SOURCE)"
        )
    return 0


def _judge_runs(values: Mapping[str, Any]) -> int:
    from privdd.reporting import policy as limits
    from privdd.runtime.files import DamagedRun

    policy = limits.policy_of_arguments(values)
    if policy is None:
        policy = limits.load_policy(None)  # raises: no limit is set
    folders = list(chain.from_iterable(_run_folders(run) for run in values["runs"]))
    if not folders:
        raise DamagedRun("a run folder (with findings.json) is needed")
    judged = {str(folder): judge_folder(policy, folder) for folder in folders}
    results = list(chain.from_iterable(judged.values()))
    print(limits.summarise_results(policy, results))
    for run, of_run in judged.items():
        print(f"{run}\n{limits.format_results(of_run)}")
    write_results(values, policy, judged)
    if limits.fails_build(policy, results):
        return limits.EXIT_BROKEN
    return 0


def judge_folder(policy: Policy, folder: Path) -> list[LimitResult]:
    """The outcome of every limit on what a finished audit, or a check of a mechanism (``out=DIR``),
    found. Raises DamagedRun."""
    from privdd.blackbox.check_limits import judge_check, read_check
    from privdd.reporting.policy import judge_findings
    from privdd.reporting.schema import load_findings

    checked = read_check(folder)
    if checked is None:
        return judge_findings(policy, load_findings(folder))
    return judge_check(policy, checked)


def write_results(
    values: Mapping[str, Any], policy: Policy, judged: Mapping[str, Sequence[LimitResult]]
) -> None:
    """The files for a build that were asked for."""
    from privdd.reporting import policy as limits

    if "junit" in values:
        limits.write_junit(values["junit"], judged, policy)
    if "markdown" in values:
        with values["markdown"].open("a", encoding="utf-8") as summary:
            summary.write(limits.format_markdown(judged))
    if "badge" in values:
        badge = limits.draw_badge(chain.from_iterable(judged.values()))
        values["badge"].write_text(badge, encoding="utf-8")


def _run_folders(path: Path) -> list[Path]:
    """A run's folder itself, or those right below a sweep's; one that did not end is among them,
    and is refused when it is read."""
    if (path / "findings.json").exists() or not path.is_dir():
        return [path]
    names = ("findings.json", "config.yaml", "point.json")
    begun = chain.from_iterable(path.glob(f"*/{name}") for name in names)
    return sorted({file.parent for file in begun})


if __name__ == "__main__":
    sys.exit(main())
