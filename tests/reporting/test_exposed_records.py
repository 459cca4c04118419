"""The most exposed records on the page: their rates, their pictures where the run keeps them, and
what was done to some."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from privdd.reporting.card import decision_card
from privdd.reporting.exposed_records import most_exposed_records
from privdd.reporting.hard_records import hard_records_note, rates_by_kind
from privdd.reporting.page import template_environment
from privdd.reporting.run_record import read_run_record
from privdd.runtime.files import DamagedRun
from tests.reporting.checker import problems
from tests.reporting.fixture import text_of, write_run

SAYS = "real records of the audited client"
ONE = {"tpr": 0.5, "ci": [0.31, 0.69]}
WORST = {
    "share": 0.01,
    "tpr": 0.71,
    "ci": [0.58, 0.82],
    "records": [
        {"record": 7, "hits": 10, "trials": 20, **ONE},
        {"record": 41, "hits": 31, "trials": 33, "tpr": 31 / 33, "ci": [0.8, 0.99]},
    ],
}
KINDS = {
    "mislabelled": {"n": 20, "auc": 0.97, "tpr": 0.56, "fpr": 0.0, "ci": [0.49, 0.63]},
    "ordinary": {"n": 90, "auc": 0.62, "tpr": 0.004, "fpr": 0.001, "ci": [0.001, 0.01]},
}


def run_with(folder: Path, pictures: torch.Tensor | None, **row: Any) -> Path:
    """A finished run whose first finding names two exposed records."""
    write_run(folder, **({"tail": {"mislabelled": 20}} if "by_kind" in row else {}))
    data = json.loads((folder / "findings.json").read_text())
    data["findings"][0] |= row
    (folder / "findings.json").write_text(json.dumps(data))
    path = folder / "evidence" / "features.lira.safetensors"
    if pictures is not None:
        save_file(
            load_file(path)
            | {"exposed": pictures, "exposed_label": torch.tensor([3, 8])[: len(pictures)]},
            path,
        )
    return folder


def text(folder: Path) -> str:
    """This part of the page, with plain spaces."""
    record = read_run_record(folder)
    part = (
        template_environment()
        .get_template("exposed.html.jinja")
        .render(
            exposed=most_exposed_records(record),
            kinds=rates_by_kind(record),
            scope=record.findings.scope,
        )
    )
    return part.replace("\xa0", " ")


def drawn(page: str) -> list[np.ndarray]:
    """The pictures of exposed records, as pixels."""
    parts = [
        part.split('"')[0]
        for part in page.split('<div class="pair one"><img src="data:image/png;base64,')[1:]
    ]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(part)))) for part in parts]


def test_each_record_stands_beside_its_own_rate_and_picture_most_exposed_first(
    tmp_path: Path,
) -> None:
    pictures = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    page = text(run_with(tmp_path / "run", pictures, worst_records=WORST))
    assert SAYS in page and "audit.show_images=false" in page
    first = page.index("record 41, class 8: 31 of 33 (80 % to 99 %)")
    second = page.index("record 7, class 3: 10 of 20")
    assert first < second
    found = drawn(page)
    assert len(found) == 2
    for pixels, picture in zip(found, pictures.flip(0)):
        assert np.abs(pixels / 255 - picture[0].numpy()).max() <= 0.5 / 255 + 1e-6


def test_a_run_that_kept_no_pictures_shows_the_rates_alone(tmp_path: Path) -> None:
    page = text(run_with(tmp_path / "run", None, worst_records=WORST))
    assert SAYS not in page and "record 41: 31 of 33" in page and not drawn(page)


def test_changed_records_are_disclosed_and_their_rates_stand_apart(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", torch.zeros(2, 3, 5, 4), by_kind=KINDS, worst_records=WORST)
    page = text_of(folder).replace("\xa0", " ")
    assert text(folder) in page and SAYS in page
    assert "this audit changed some to be hard to fit: 20 mislabelled" in page.split("<h1>")[0]
    assert [name for _, rates in rates_by_kind(read_run_record(folder)) for name, _ in rates] == [
        "mislabelled",
        "left as they were",
    ]
    table = page[page.index("h-kinds") :]
    assert table.index("56 %") < table.index("0.4 %") and not problems(page)
    assert (
        decision_card(read_run_record(folder))["run"]["audited records changed"] == "20 mislabelled"
    )
    plain = read_run_record(write_run(tmp_path / "plain"))
    assert (
        not hard_records_note(plain.findings.run)
        and not rates_by_kind(plain)
        and "audited records changed" not in decision_card(plain)["run"]
    )


@pytest.mark.parametrize("shape", [(2, 2, 8, 8), (2, 1, 0, 8), (2, 8, 8)])
def test_pictures_that_cannot_be_drawn_are_refused_by_name(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    folder = run_with(tmp_path / "run", torch.zeros(shape), worst_records=WORST)
    with pytest.raises(DamagedRun, match=r"features\.lira\.safetensors"):
        most_exposed_records(read_run_record(folder))
