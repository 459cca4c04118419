"""Tests of ``privdd.cli.overrides``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import open_dict

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config, expand_arguments
from privdd.cli.overrides import check_overrides, check_spaces, check_value_kinds
from privdd.cli.suggestions import SYNONYMS, suggest_key
from privdd.core.validation import BadConfig

# A mistyped command line is refused by name, with the nearest right one, before anything heavy is
# imported.


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
    "smoke": "smoke: an override has the form key=value; did you mean preset=smoke?",
    "fedfed": "fedfed: an override has the form key=value; did you mean algo=fedfed",
    "lira": "lira: an override has the form key=value; did you mean attack=[lira]?",
    "help": "help: an override has the form key=value; did you mean --help?",
    # words of the field
    "sigma=2": "sigma: unknown key; did you mean privacy.noise_multiplier?",
    "privacy.sigma=2": "privacy.sigma: unknown key; did you mean privacy.noise_multiplier?",
    "noise=2": "noise: unknown key; did you mean privacy.noise_multiplier?",
    "eps=3": "eps: unknown key; did you mean privacy.epsilon?",
    "delta=1e-6": "delta: unknown key; did you mean privacy.delta?",
    "clip=1": "clip: unknown key; did you mean privacy.clip_norm?",
    "max_grad_norm=1": "max_grad_norm: unknown key; did you mean privacy.clip_norm?",
    "rounds=3": "rounds: unknown key; did you mean algo.rounds?",
    "epochs=2": "epochs: unknown key; did you mean algo.local_epochs?",
    "algo.epochs=2": "algo.epochs: unknown key; did you mean algo.local_epochs?",
    "lr=0.1": "lr: unknown key; did you mean algo.lr?",
    "learning_rate=0.1": "learning_rate: unknown key; did you mean algo.lr?",
    "batch_size=32": "batch_size: unknown key; did you mean algo.batch_size?",
    "method=fedfed": "method: unknown key; did you mean algo?",
    "algorithm=fedfed": "algorithm: unknown key; did you mean algo?",
    "dataset=digits": "dataset: unknown key; did you mean data?",
    "clients=5": "clients: unknown key; did you mean partition.clients?",
    "alpha=0.5": "alpha: unknown key; did you mean partition.alpha?",
    "workers=4": "workers: unknown key; did you mean engine.workers?",
    "n_jobs=4": "n_jobs: unknown key; did you mean engine.workers?",
    "gpu=0": "gpu: unknown key; did you mean device=cuda?",
    "dp=true": "dp: unknown key; did you mean privacy=dpsgd?",
    "output=x": "output: unknown key; did you mean hydra.run.dir?",
    "attacks=[lira]": "attacks: unknown key; did you mean attack?",
    "seeds=0,1": "seeds: unknown key; did you mean seed?",
    "privcy.noise_multiplier=2": (
        "privcy.noise_multiplier: unknown key; did you mean privacy.noise_multiplier?"
    ),
    # several values without a sweep
    "privacy.noise_multiplier=0,5": "privacy.noise_multiplier=0,5: a decimal number has a point, "
    "privacy.noise_multiplier=0.5; several values are a sweep",
    "seed=0,1": "seed=0,1: several values are a sweep: add -m",
    "algo=fedavg,feddm": "algo=fedavg,feddm: several values are a sweep: add -m",
}


@pytest.mark.parametrize("typed", MISTYPED)
def test_the_right_way_is_named(typed: str) -> None:
    following = ["smoke"] if typed == "--preset" else []
    with pytest.raises(BadConfig) as caught:
        check_overrides("audit", expand_arguments([typed, *following], "audit"))
    assert str(caught.value).startswith(MISTYPED[typed])


@pytest.mark.parametrize(
    "typed",
    [
        "algo=fedavg,feddm -m",
        "algo=glob(fed*) -m",
        "attack=[lira],[rmia] -m",
        "data=digits",
        "privacy=dpsgd",
        "privacy.noise_multiplier=1,5 algo=fedfed_dp -m",
    ],
)
def test_right_choices_pass(typed: str) -> None:
    check_overrides("audit", expand_arguments(typed.split(), "audit"))


CUT = {  # typed -> said
    "algo = fedfed": "algo =: a space ends an argument; write algo=fedfed without spaces",
    "algo =fedfed": "algo =fedfed: a space ends an argument; write algo=fedfed without spaces",
    "algo= fedfed": "algo= fedfed: a space ends an argument; write algo=fedfed without spaces",
    "attack=[lira, rmia] seed=1": (
        "attack=[lira, rmia]: a space ends an argument; write attack=[lira,rmia] without spaces"
    ),
    "attack=[lira, rmia, base]": (
        "attack=[lira, rmia,: a space ends an argument; write attack=[lira,rmia,base] without "
        "spaces"
    ),
    "attack=lira rmia": (
        "attack=lira rmia: several attacks are a list; write attack=[lira,rmia] without spaces"
    ),
}


@pytest.mark.parametrize("typed", CUT)
def test_values_that_spaces_cut_are_shown_in_one_piece(typed: str) -> None:
    with pytest.raises(BadConfig) as caught:
        check_spaces(typed.split())
    assert str(caught.value) == CUT[typed]


def test_what_has_no_space_in_it_passes() -> None:
    check_spaces(
        [
            "algo=fedfed",
            "--config-dir",
            "conf",
            "-m",
            "attack=[lira,rmia]",
            "data.root=a b",
            "seed=1",
        ]
    )


def test_every_synonym_leads_to_a_key_of_some_config() -> None:
    composed = [
        compose_config("audit", ["attack=[lira]", *more])
        for more in (["algo=fedavg", "privacy=dpsgd"], ["algo=fedfed_dp"])
    ]
    for word, meant in SYNONYMS.items():
        said = [suggest_key(config, word, 0) for config in composed]
        assert any(meant.rpartition(".")[2] in line and "did you mean" in line for line in said), (
            word,
            said,
        )


QUICK = {
    "help": ["--help"],
    "version": ["--version"],
    "unknown algo": ["algo=fedfd"],
    "unknown key": ["worlds=3"],
    "unknown option": ["--preset", "smoke"],
    "value of audit": ["audit.worlds=0"],
    "value of privacy": ["privacy.delta=2"],
    "text in place of a number": ["privacy=dpsgd", "privacy.noise_multiplier=much"],
    "number that is none": ["algo.lr=nan"],
    "setting that nothing reads": ["engine=serial", "engine.workers=2"],
    "packages without a run": ["trust_code=mine"],
    "a run that is not there": ["resume=nowhere"],
    "a file that is not there": ["data=npz", "data.root=nowhere.npz"],
    "a tracker that is none": ["tracking=wandb"],
    "a sweep without -m": ["seed=0,1"],
}


@pytest.mark.nightly(
    but=["version", "unknown algo", "a file that is not there", "a sweep without -m"]
)
@pytest.mark.parametrize("kind", QUICK)
def test_nothing_heavy_is_imported_first(kind: str) -> None:
    program = (
        "import sys\n"
        "from privdd.audit import main\n"
        "try:\n    sys.exit(main())\n"
        "finally:\n    print(*({'torch', 'scipy', 'matplotlib', 'sklearn', 'opacus'} & "
        "{*sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *QUICK[kind]], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == (0 if kind in ("help", "version") else 1)
    assert done.stderr.splitlines()[-1] == ""  # none of them
    assert "Traceback" not in done.stderr


def test_the_api_is_imported_without_torch() -> None:
    program = (
        "import sys, privdd.api\nassert 'torch' not in sys.modules and 'scipy' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0


# Values of another kind are refused before torch is imported, and ranges by the full check.


WRONG_KIND = {
    "privacy=dpsgd privacy.sampling_probability=abc": (
        "privacy.sampling_probability='abc': a number"
    ),
    "partition.clients=abc": "partition.clients='abc': a number",
    "algo.lr=nan": "algo.lr=nan: a finite number",
    "algo.lr=true": "algo.lr=True: a number is needed",
    "algo.rounds=[1]": "algo.rounds=[1]: a number is needed",
    "engine.mixed=3": "engine.mixed=3: true or false is needed",
    "audit.records=many": "audit.records='many': a number is needed",
}
OUT_OF_RANGE = {
    "privacy=dpsgd privacy.noise_multiplier=-1": (
        "privacy.noise_multiplier=-1: a finite number above 0"
    ),
    "privacy=client privacy.clip_norm=0": "privacy.clip_norm=0: a finite number above 0",
    "partition.clients=0": "partition.clients=0: from 1 to",
    "partition.alpha=-1": "partition.alpha=-1: a finite number > 0",
    "partition.min_size=0": "partition.min_size=0: an integer >= 1",
    "partition=subset partition.main=2": "partition.main=2: a fraction in",
    "partition.name=nosuch": "partition.name='nosuch': one of dirichlet",
    "model.width=0": "model.width=0: an integer from 1",
    "model.norm=nosuch": "model.norm='nosuch': one of instance",
    "algo.rounds=0": "algo.rounds=0: a whole number of at least 1",
    "algo=fedprox algo.momentum=2": "algo.momentum=2: a number in [0, 1)",
    "data.name=nosuch": "data.name='nosuch': one of digits",
    "data.limit=-5": "data.limit=-5: an integer >= 1",
    "engine.workers=-1": "engine.workers=-1: an integer of at least 0",
    "capture.rounds=abc": "capture.rounds=abc: allowed are all",
    "trust=secagg trust.dropout=2": "trust.dropout=2: a number in [0, 1)",
}


@pytest.mark.nightly
def test_values_of_another_kind_are_refused_without_torch() -> None:
    program = (
        "import json, sys, privdd.cli.main; from privdd.cli.overrides import check_overrides\n"
        "for typed in json.load(sys.stdin):\n"
        "    try: check_overrides('audit', typed.split()); print('passed')\n"
        "    except ValueError as error: print(error, *({'torch', 'scipy', "
        "'dp_accounting'} & {*sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([*WRONG_KIND]),
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == len(WRONG_KIND), done.stderr
    for typed, line in zip(WRONG_KIND, said, strict=True):
        assert line.startswith(WRONG_KIND[typed]) and not line.endswith(
            (" torch", " scipy", " dp_accounting")
        ), (typed, line)


@pytest.mark.parametrize("typed", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_before_anything_is_trained(typed: str) -> None:
    with pytest.raises(ValueError) as refusal:
        build_experiment(compose_config("audit", ["preset=smoke", *typed.split()]))
    assert str(refusal.value).startswith(OUT_OF_RANGE[typed])
    assert "\n" not in str(refusal.value)


def test_only_what_differs_from_the_chosen_files_is_looked_at() -> None:
    """A file that is wrong itself is left to the full check."""
    base = compose_config("train", ["algo.rounds=x"])
    check_value_kinds(compose_config("train", ["algo.rounds=x", "seed=3"]), base)
    with pytest.raises(BadConfig, match=r"^algo\.rounds='x': a number is needed"):
        check_value_kinds(base, compose_config("train", []))


def test_a_class_of_another_package_is_not_called(tmp_path: Path) -> None:
    """What may be called is the full check's to decide; not even the standard library is."""
    base = compose_config("audit", ["attack=[lira]"])
    config = compose_config("audit", ["attack=[lira]"])
    with open_dict(config):
        config.attack.lira = {"_target_": "logging.FileHandler", "filename": str(tmp_path / "made")}
    check_value_kinds(config, base)
    assert list(tmp_path.iterdir()) == []
