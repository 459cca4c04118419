"""Tests of ``privdd.reporting.wording``."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from privdd.reporting import wording
from privdd.reporting.comparison import write_comparison
from privdd.reporting.schema import NoiseRow
from tests.reporting.checker import problems
from tests.reporting.fixture import text_of, write_run

# A page says at its top that its noise is not for release, and of several runs that they share it.


def run(path: Path, source: str | None, paired: bool = False, **more: object) -> Path:
    folder = write_run(path, kind="consistent", **more)  # type: ignore[arg-type]
    data = json.loads((folder / "findings.json").read_text())
    if source is not None:
        data["privacy"]["noise"] = {
            "source": source,
            "paired": paired,
            "for_release": source != "seed" and not paired,
        }
    data["privacy"]["public"] = [
        {"what": "participation", "value": "all <5> clients in every round"}
    ]
    (folder / "findings.json").write_text(json.dumps(data))
    return folder


def shown(folder: Path) -> str:
    text = text_of(folder)
    assert problems(text) == []
    return text


@pytest.mark.parametrize(
    ("source", "paired", "said"),
    [
        ("seed", False, [wording.SEED]),
        ("seed", True, [wording.SEED, wording.PAIRED]),
        ("secret", True, [wording.PAIRED]),
        ("secret", False, []),
        ("os", False, []),
        (None, False, []),
    ],
)
def test_a_page_says_whether_its_noise_may_be_released(
    source: str | None, paired: bool, said: list[str], tmp_path: Path
) -> None:
    text = shown(run(tmp_path, source, paired))
    assert [mark for mark in (wording.SEED, wording.PAIRED) if mark in text] == said
    top = text.index('<div class="cards">')
    assert all(text.index(mark) < top for mark in said)  # before any number
    assert [key for key, words in wording.SOURCE.items() if words in text] == (
        [source] if source else []
    )
    assert "all &lt;5&gt; clients in every round" in text


@pytest.mark.nightly
def test_a_comparison_of_runs_with_paired_noise_says_so(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / str(n), "seed", paired, noise=z)
        for n, (z, paired) in enumerate([(1, True), (2, True), (3, False)])
    ]
    page = write_comparison(folders, tmp_path / "out").read_text(encoding="utf-8")
    assert wording.SEVERAL in page
    rows = list(csv.DictReader((tmp_path / "out" / "frontier.csv").open(encoding="utf-8")))
    assert sorted((row["noise_source"], row["paired_noise"]) for row in rows) == [
        ("seed", "false"),
        ("seed", "true"),
        ("seed", "true"),
    ]
    alone = write_comparison(folders[1:], tmp_path / "alone").read_text(encoding="utf-8")
    assert wording.SEVERAL not in alone


def test_for_release_is_what_the_settings_say() -> None:
    assert wording.noise_source_text(
        NoiseRow(source="seed", paired=True, for_release=False)
    ).endswith("with this seed")


# Numbers as they are printed: rounded as one would by hand, and never smaller by a unit.


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (math.inf, "∞"),
        (0.0, "0"),
        (4.849, "4.85"),
        (0.001, "0.001"),
        (1e-5, "1e-5"),
        (1.6e-6, "1.6e-6"),
        (9.6e-4, "9.6e-4"),
        (999.4, "999"),
        (12345.0, "12 345"),
        (123456.0, "1.2e5"),
    ],
)
def test_a_number_in_three_digits(value: float | None, said: str) -> None:
    assert wording.format_number(value).replace("\u00a0", " ") == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (0.0012, "0.12 %"),
        (0.0164, "1.6 %"),
        (0.1234, "12.3 %"),
        (1.0, "100 %"),
    ],
)
def test_a_rate_as_percent(value: float | None, said: str) -> None:
    assert wording.format_share(value).replace("\u00a0", " ") == said


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (2.72, "2.7-fold"),
        (3000, "about 3 000-fold"),
        (5.4e6, "about 5 million-fold"),
        (2.1e9, "about 2 billion-fold"),
        (2e12, "more than a trillion-fold"),
    ],
)
def test_how_far_odds_may_change(factor: float, said: str) -> None:
    assert wording.odds_factor(math.log(factor)).replace("\u00a0", " ") == said


def test_what_is_computed_from_noised_values_is_not_called_noised_itself() -> None:
    assert (
        wording.mechanism_title("FeatureNoise, Own, FeatureNoise")
        == "noise on each row of features, Own"
    )
    assert (
        wording.mechanism_title("post-processing of ClientLevel")
        == "post-processing of clipped, noised whole updates"
    )


@pytest.mark.parametrize(
    "table",
    [
        wording._RELATION,
        wording.VERDICT,
        wording._VERDICT_MEANS,
        wording.SURFACE,
        wording.ADVERSARY,
        wording.FAMILY,
    ],
)
def test_no_two_are_said_alike(table: dict[str, object]) -> None:
    assert len({*table.values()}) == len(table)
