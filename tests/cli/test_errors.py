"""Plain input that once ended in a traceback, or in a line that named nothing: each ends in one
line that names its key."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.errors import explain_error, run_reporting_errors
from privdd.cli.main import check_command, config_of

SMALL = ["preset=smoke", "data.limit=90", "partition=iid", "partition.clients=2"]
SAID = {  # what was typed -> the whole line, from its start
    (
        "algo=fedrd_dp",
        "privacy=aggregate_clip",
        "privacy.epsilon=3",
    ): "privacy.epsilon: AggregateClip has no finite epsilon",
    (
        "algo=feddm",
        "algo.start=noise",
        "privacy=aggregate_clip",
        "privacy.epsilon=3",
    ): "privacy.epsilon: AggregateClip has no finite epsilon",
    (
        "algo=fedfed",
        "privacy.epsilon=3",
    ): "privacy.epsilon=3: would do nothing: the noise of privacy=fedfed is not set by a",
    (
        "algo=fedfed_dp",
        "privacy.epsilon=1e9",
    ): "privacy.epsilon=1e+09: it is above what these releases cost",
    ("algo=fedfed_dp", "privacy.epsilon=1e-9"): "privacy.epsilon=1e-09: ",
    ("privacy=client", "privacy.epsilon=1e9"): "privacy.epsilon=1e+09: it is above",
    ("privacy=client", "privacy.epsilon=1e-9"): "privacy.epsilon=1e-09: ",
    ("algo=feddm_dp", "privacy.count_noise=1e-300"): "noise of scale 1e-300",
    ("algo=fedadam", "algo.tau=1000000000000000000000"): "algo.tau=1000000000000000000000: ",
    ("algo=fedadam", "algo.tau=1e-30"): "algo.tau=1e-30: a number from 1e-18 to 1e18",
    ("attack.lira.confidence=[1,2]",): "attack.lira.confidence=[1, 2]: a number is needed",
    (
        "attack.lira.online=../../etc/passwd",
    ): "attack.lira.online='../../etc/passwd': true or false",
    ("attack.model_inversion.prior.steps=''",): "attack.model_inversion.prior.steps='': a number",
    (
        "attack.feature_inversion.limit=-1",
    ): "attack.feature_inversion.limit=-1: a whole number of at least 1",
    (
        "attack.gradient_inversion.captures=0",
    ): "attack.gradient_inversion.captures=0: a whole number of at least 1",
    (
        "attack.gradient_density.folds=1",
    ): "attack.gradient_density.folds=1: a whole number of at least 2",
    ("attack.shadow_classifier.k=0",): "attack.shadow_classifier.k=0: a whole number of at least 1",
    ("attack.rmia.a=2",): "attack.rmia.a=2: a number in [0, 1]",
    ("attack.rmia.gamma=0",): "attack.rmia.gamma=0: a finite number above 0",
    ("attack.base.temperature=-1",): "attack.base.temperature=-1: a finite number above 0",
    ("attack.lira.confidence=7",): "attack.lira.confidence=7: a number in (0, 1)",
    ("privacy=dpsgd", "privacy.name=text"): "privacy.name=text: ",
    (
        "participation=0.1",
        "algo.rounds=1",
        "audit.client=0",
    ): "participation=0.1: the audited client 0 is drawn in none of the 1 round",
    ("algo=fedavgx",): "algo=fedavgx: unknown algo; ",
    ("attack=[liar]",): "attack=liar: unknown attack; ",
    ("preset=huge",): "preset=huge: unknown preset. Allowed are ",
    ("partition.heldout=1000000000000",): "partition.heldout=1000000000000: ",
    (
        "name=négé",
    ): "LexerNoViableAltException: name=négé ^: cannot be read; put the value into quotes",
}


@pytest.mark.nightly(
    but=[
        "algo=fedadam algo.tau=1e-30",
        "attack.lira.online=../../etc/passwd",
        "attack.lira.confidence=7",
        "algo=fedavgx",
        "attack=[liar]",
        "preset=huge",
        "partition.heldout=1000000000000",
        "name=n\\xe9g\\xe9",
    ]
)
@pytest.mark.parametrize(("typed", "said"), SAID.items(), ids=[" ".join(typed) for typed in SAID])
def test_one_line_names_the_key(typed: Sequence[str], said: str) -> None:
    """By the way of the commands: composed, checked, built."""
    chosen = sorted({item.split(".")[1] for item in typed if item.startswith("attack.")}) or [
        "lira"
    ]
    with pytest.raises(Exception, match=f"^{re.escape(said)}") as caught:
        config = config_of("audit", *SMALL, f"attack=[{','.join(chosen)}]", *typed)
        build_attacks(config)
        build_experiment(config)
    line = explain_error(caught.value)
    assert line and "\n" not in line and len(line) < 500


@pytest.mark.nightly(but=["privacy=client", "algo=feddm algo.start=noise privacy=clipped_gradient"])
@pytest.mark.parametrize(
    "typed",
    [
        ("privacy=client",),
        ("privacy=dpsgd",),
        ("algo=fedfed_dp",),
        ("algo=feddm_dp",),
        ("algo=fedfed", "privacy=gaussian_features"),
        ("algo=fedrd_dp",),
        ("algo=fedlgd_dp",),
        ("algo=feddm", "algo.start=noise", "privacy=clipped_gradient"),
    ],
    ids=" ".join,
)
def test_every_accounted_mechanism_is_calibrated(typed: Sequence[str]) -> None:
    """To what the accountant then says of the plan: within 1.5 % of what was asked for, from
    below."""
    from privdd.cli.build import planned_event
    from privdd.privacy.accounting import epsilon

    # delta times records stays below 1
    small = [item for item in SMALL if not item.startswith("data")]
    plan = build_experiment(config_of("train", *small, *typed, "privacy.epsilon=30")).plan
    assert (
        29.5
        < epsilon(
            planned_event(plan),
            1e-5,
            relation=check_command("train", [*small, *typed]).privacy.relation,
        )
        <= 30
    )


ARRAYS = {
    "label gap": (
        (30, 4, 4),
        np.where(np.arange(30) % 3 == 2, 53, np.arange(30) % 3),
        "got 53 but no 2",
    ),
    "label of a billion": (
        (30, 4, 4),
        np.where(np.arange(30) == 3, 10**9, np.arange(30) % 3),
        "got 1000000000 but no 3",
    ),
    "one class": ((30, 4, 4), np.zeros(30, np.int64), "at least two classes"),
    "no pixels": ((30, 0, 4), np.arange(30) % 3, "at least one pixel"),
}


@pytest.mark.nightly(but=["uint8-label of a billion", "uint8-one class"])
@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_that_are_no_data_set(kind: str, dtype: type, tmp_path: Path) -> None:
    shape, labels, said = ARRAYS[kind]
    np.savez(tmp_path / "x.npz", x=np.zeros(shape, dtype), y=labels)
    with pytest.raises(ValueError, match=said) as caught:
        build_experiment(
            config_of("train", "preset=smoke", "data=npz", f"data.root={tmp_path / 'x.npz'}")
        )
    assert "data.root=" in str(caught.value)


OF_TORCH = {
    "one value to take the mean of": lambda: torch.nn.BatchNorm2d(3)(torch.zeros(1, 3, 1, 1)),
    "out of memory; choose a smaller model": lambda: torch.empty(2**60),
    "out of memory; choose a smaller model or": lambda: torch.empty(2**40, 2**40),
}


@pytest.mark.parametrize("said", OF_TORCH)
def test_what_torch_says_is_said_in_words_of_the_settings(said: str) -> None:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        OF_TORCH[said]()
    line = explain_error(caught.value)
    assert line is not None and said in line and "\n" not in line
    assert explain_error(RuntimeError("anything else")) is None


def test_a_reader_that_goes_away_early_is_no_error() -> None:
    """As in ``... list | head -1``; without reading anything the pipe is closed before all is
    written."""
    code = (
        "import sys; from privdd.cli.errors import run_reporting_errors; "
        "sys.exit(run_reporting_errors(lambda: print('y' * 10**6) or 0))"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert (done.stderr.read(), done.wait(60)) == (b"", 141)
    done.stderr.close()


def test_an_error_cannot_change_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise OSError(2, "No such file", "\x1b]0;owned\x07\nx")

    assert run_reporting_errors(fails) == 1
    assert capsys.readouterr().err == "privdd: error: ?]0;owned??x: No such file\n"
