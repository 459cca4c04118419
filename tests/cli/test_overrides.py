"""A mistyped command line is refused by name, with the nearest right one, before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from privdd.cli.compose import expand_arguments
from privdd.cli.overrides import check_overrides
from privdd.core.validation import BadConfig

MISTYPED = {
    "algo=fedfd": "algo=fedfd: unknown algo; did you mean fedfed?",
    "attack=[lira,rmai]": "attack=rmai: unknown attack; did you mean rmia?",
    "algo=fedavg,fedag": "algo=fedag: unknown algo; did you mean fedavg?",
    "privacy=zzzz": "privacy=zzzz: unknown privacy. Allowed are aggregate_clip, ",
    "worlds=3": "worlds: unknown key; did you mean audit.worlds?",
    "privacy.worlds=3": "privacy.worlds: unknown key; did you mean audit.worlds?",
    "noise_mult=2": "noise_mult: unknown key; did you mean privacy.noise_multiplier?",
    "local_epochs=2": "local_epochs: unknown key; did you mean algo.local_epochs?",
    "audit.wrlds=3": "audit.wrlds: unknown key; did you mean audit.worlds?",
    "--preset": "--preset: unknown option; settings have no dashes: write preset=smoke",
    "--preset=smoke": "--preset=smoke: unknown option; settings have no dashes: write preset=smoke",
    "--mulitrun": "--mulitrun: unknown option; did you mean --multirun?",
    "smoke": "smoke: an override has the form key=value",
}


@pytest.mark.parametrize("typed", MISTYPED)
def test_the_right_way_is_named(typed: str) -> None:
    following = ["smoke"] if typed == "--preset" else []
    with pytest.raises(BadConfig) as caught:
        check_overrides("audit", expand_arguments([typed, *following], "audit"))
    assert str(caught.value).startswith(MISTYPED[typed])


@pytest.mark.parametrize("typed", ["algo=fedavg,feddm", "algo=glob(fed*)", "attack=[lira],[rmia]", "data=digits", "privacy=dpsgd"])
def test_right_choices_pass(typed: str) -> None:
    check_overrides("audit", expand_arguments([typed], "audit"))


QUICK = {
    "help": ["--help"],
    "version": ["--version"],
    "unknown algo": ["algo=fedfd"],
    "unknown key": ["worlds=3"],
    "unknown option": ["--preset", "smoke"],
    "value of audit": ["audit.worlds=0"],
    "value of privacy": ["privacy.delta=2"],
    "value of a mechanism": ["privacy=dpsgd", "privacy.noise_multiplier=-1"],
    "value of the method": ["algo.rounds=0"],
    "setting that nothing reads": ["engine=serial", "engine.workers=2"],
    "packages without a run": ["trust=mine"],
}


@pytest.mark.parametrize("kind", QUICK)
def test_nothing_heavy_is_imported_first(kind: str) -> None:
    program = (
        "import sys\n"
        "from privdd.audit import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*({'torch', 'scipy', 'matplotlib', 'sklearn', 'opacus'} & {*sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *QUICK[kind]], capture_output=True, text=True, timeout=300)
    assert done.returncode == (0 if kind in ("help", "version") else 1)
    assert done.stderr.splitlines()[-1] == ""  # none of them
    assert "Traceback" not in done.stderr


def test_the_api_is_imported_without_torch() -> None:
    program = "import sys, privdd.api\nassert 'torch' not in sys.modules and 'scipy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0
