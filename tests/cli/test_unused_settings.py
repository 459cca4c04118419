"""A setting that nothing reads is refused by the commands, in one line; one that is read is
taken."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config, config_dir, group_choices
from privdd.cli.main import check_command
from privdd.cli.overrides import check_settings_used
from privdd.core.validation import BadConfig

ROOT = Path(__file__).parents[2]
REFUSED = [
    (
        ["algo=fedfed", "privacy.noise_multiplier=50"],
        r"^privacy.noise_multiplier=50: would do nothing: .*privacy.variance",
    ),
    (
        ["algo=fedfed_released", "privacy.noise_multiplier=2"],
        r"^privacy.noise_multiplier=2: .*features.noise_std",
    ),
    (
        ["privacy.noise_multiplier=2"],
        r"^privacy.noise_multiplier=2: .*privacy=none has no mechanism",
    ),
    (["privacy.clip_norm=1"], r"^privacy.clip_norm=1: .*privacy=none has no mechanism"),
    (["privacy.epsilon=3"], r"^privacy.epsilon=3: .*privacy=none has no mechanism"),
    (["privacy.noise_source=os"], r"^privacy.noise_source=os: .*privacy=none"),
    (["privacy.paired_noise=true"], r"^privacy.paired_noise=True: .*privacy=none"),
    (
        ["algo=fedfed", "privacy.epsilon=3"],
        r"^privacy.epsilon=3: .*not set by a noise multiplier.*privacy.variance",
    ),
    (
        ["privacy=dpsgd", "privacy.epsilon=3", "privacy.noise_multiplier=7"],
        r"^privacy.epsilon=3 privacy.noise_multiplier=7: one of the two",
    ),
    (["privacy=dpsgd", "privacy.name=text"], r"^privacy.name=text: .*choose with privacy=NAME"),
    (
        ["engine=serial", "engine.workers=4"],
        r"^engine.workers=4: .*engine=auto and engine=processes and engine=ray do",
    ),
    (["engine.address=../../etc/passwd"], r"^engine.address=\.\./.*engine=ray do"),
    (
        ["engine=processes", "engine.address=auto"],
        r"^engine.address=auto: .*engine=processes does not read it",
    ),
    (["engine=serial", "engine.retries=5"], r"^engine.retries=5: "),
    (["data.root=../../etc/passwd"], r"^data.root=.*data=digits reads no file"),
    (["data=corrupted", "data.source=digits", "data.root=x"], r"^data.root=x: .*data=corrupted"),
    (["scores_surface=update"], r"^scores_surface=update: .*scores=FILE"),
    (["scores=x.npz", "algo=fedfed"], r"^algo=fedfed: .*scores= trains nothing"),
    (
        ["audit.replays=64", "audit.worlds=8", "audit.rounds=4"],
        r"^audit.replays=64: .*audit.worlds and audit.rounds are both set",
    ),
    (["scores=x.npz", "audit.worlds=3"], r"^audit.worlds=3: .*scores= trains nothing"),
]
TAKEN = [
    ["privacy=dpsgd", "privacy.noise_multiplier=2", "privacy.clip_norm=2"],
    ["privacy=noisy_embedding", "algo=feddm", "privacy.count_noise=3", "privacy.expected_batch=10"],
    ["algo=fedfed", "privacy.variance=0.5"],
    ["algo=fedfed_dp", "privacy.epsilon=3", "privacy.feature_norm=1"],
    ["algo=fedfed", "model=mlp", "model.width=4"],
    ["algo=fedrd", "model=mlp", "model.width=4"],
    ["engine=ray", "engine.address=auto", "engine.workers=2"],
    ["engine=processes", "engine.workers=2", "engine.threads=1", "engine.retries=0"],
    ["engine.workers=2", "engine.retries=0"],
    ["engine.threads=1", "engine.address=null", "data.root=null"],
    ["data=npz", "data.root=mine.npz"],
    ["data=corrupted", "data.root=here"],
    ["privacy.delta=1e-6", "privacy.noise_source=seed", "privacy.paired_noise=false"],
    [
        "scores=x.npz",
        "scores_surface=update",
        "privacy.epsilon=3",
        "privacy.delta=1e-6",
        "audit.confidence=0.9",
        "seed=1",
    ],
]


@pytest.fixture(autouse=True)
def named_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the settings name."""
    for name in ("x.npz", "mine.npz"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.nightly(
    cases=[
        "algo=fedfed privacy.noise_multiplier=50",
        "algo=fedfed_released privacy.noise_multiplier=2",
        "privacy=dpsgd privacy.epsilon=3 privacy.noise_multiplier=7",
        "engine=processes engine.address=auto",
        "data=corrupted data.source=digits data.root=x",
    ]
)
@pytest.mark.parametrize(("typed", "said"), REFUSED, ids=[" ".join(typed) for typed, _ in REFUSED])
def test_what_nothing_reads_is_refused(typed: Sequence[str], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        check_command("audit", ["preset=smoke", *typed])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("typed", "value"), [("model=mlp", "mlp"), ("model.width=4", "4")])
def test_a_model_is_refused_where_the_algo_has_its_own(typed: str, value: str) -> None:
    """As a yaml file of one's own may have it."""
    config = compose_config("audit", ["algo=fedavg", typed])
    own = {"_target_": "privdd.models.ModelSpec", "name": "lenet"}
    OmegaConf.update(config, "algo.model", own)
    with pytest.raises(
        BadConfig, match=rf"^model.*={value}: .*algo=fedavg has its own, set by algo.model"
    ):
        check_settings_used(config, ["algo=fedavg", typed])


@pytest.mark.nightly(
    cases=[
        "privacy=noisy_embedding algo=feddm privacy.count_noise=3 privacy.expected_batch=10",
        "algo=fedfed_dp privacy.epsilon=3 privacy.feature_norm=1",
        "algo=fedfed model=mlp model.width=4",
        "algo=fedrd model=mlp model.width=4",
        "engine=ray engine.address=auto engine.workers=2",
        "data=npz data.root=mine.npz",
    ]
)
@pytest.mark.parametrize("typed", TAKEN, ids=" ".join)
def test_what_is_read_is_taken(typed: Sequence[str]) -> None:
    check_command("audit", ["preset=smoke", *typed])


@pytest.mark.nightly(
    but=[
        "aggregate_clip",
        "fedfed_released",
        "gaussian_features",
        "guided_scattering",
        "none",
        "private_projection",
        "scattering_head",
    ]
)
@pytest.mark.parametrize("privacy", group_choices("privacy", [config_dir()]))
def test_a_key_is_refused_exactly_where_it_changes_no_mechanism(privacy: str) -> None:
    """The oracle: the mechanisms with another value there, once all is resolved."""
    keys = [str(key) for key in compose_config("train", [f"privacy={privacy}"]).privacy]
    for key in set(keys) - {
        "name",
        "mechanisms",
        "delta",
        "unit",
        "relation",
        "epsilon",
        "noise_source",
        "secret",
        "paired_noise",
        "budget",
    }:
        before, after = (
            compose_config("train", [f"privacy={privacy}", f"privacy.{key}={value}"])
            for value in (0.123, 0.456)
        )
        try:
            check_settings_used(after, [f"privacy.{key}=0.456"])
        except BadConfig:
            assert before.privacy.mechanisms == after.privacy.mechanisms, key
        else:
            assert before.privacy.mechanisms != after.privacy.mechanisms, key


@pytest.mark.nightly
def test_every_point_of_a_sweep_is_checked(tmp_path: Path) -> None:
    """The first point reads the key, the second does not: it fails by name, and the first is
    kept."""
    small = [
        "preset=smoke",
        "data.limit=90",
        "partition.clients=2",
        "model=mlp",
        "model.width=4",
        "algo.rounds=1",
        "algo.local_epochs=1",
    ]
    typed = [
        "-m",
        *small,
        "privacy=dpsgd,none",
        "privacy.noise_multiplier=2",
        f"hydra.sweep.dir={tmp_path}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "privdd.train", *typed],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(
        r"privacy-none-\w+: privacy.noise_multiplier=2: would do nothing", done.stderr
    ), done.stderr
    assert len(list(tmp_path.glob("*/training.json"))) == 1
