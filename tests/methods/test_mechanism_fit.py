"""Settings that no mechanism of the run goes with are refused when the run is put together, before
anything is computed."""

from __future__ import annotations

import pytest

from privdd.cli.build import build_experiment
from tests.federations import tiny_config


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ("feddm", "privacy=noisy_embedding", "algo.start=real"),
            "start='real': a guarantee needs start=noise or smooth",
        ),
        (
            ("feddm_public_dp", "privacy=clipped_gradient"),
            "follows noised reads, so privacy must set a mechanism for 'embedding'",
        ),
        (("fedrd_dp", "algo.start=real"), "a guarantee needs start=noise"),
        (("fedrd_dp", "algo.frozen_projection=false"), "frozen_projection=False"),
        (("fedrd_dp", "privacy=private_projection"), "it protects a personal projection"),
        (("fedrd_personal_dp", "privacy=noisy_embedding"), "frozen_projection=False"),
        (("fedrd_dp", "model.norm=batch"), "model.norm=batch"),
        (
            ("fedlgd", "privacy=noisy_embedding", "algo.server_start=statistics"),
            "a guarantee needs noise",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        build_experiment(tiny_config(*overrides))
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "algo",
    [
        "feddm_dp",
        "feddm_public_dp",
        "fedrd_dp",
        "fedrd_personal_dp",
        "fedlgd_dp",
        "fedrd_printed",
        "feddm",
        "fedrd",
        "fedlgd",
    ],
)
def test_what_is_shipped_fits(algo: str) -> None:
    assert build_experiment(tiny_config(algo)).plan.method.rounds >= 1
