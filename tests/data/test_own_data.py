"""Where data of the user's own are read from: what is missing is named before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.core.validation import DataNotFound
from privdd.data.own_data import OWN_DATA, own_data_place, reads_files


def test_sets_of_scikit_learn_read_no_file() -> None:
    assert not reads_files("digits") and not reads_files("corrupted", "digits")
    assert not reads_files("breast_cancer")
    assert reads_files("mnist") and reads_files("corrupted", "cifar10")


@pytest.mark.parametrize("name", OWN_DATA)
def test_a_place_that_is_not_named_or_not_there_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=rf"^data={name}: data\.root=\w+ is needed"):
        own_data_place(name, None)
    with pytest.raises(DataNotFound, match=rf"data\.root={tmp_path}/nowhere: no such"):
        own_data_place(name, tmp_path / "nowhere")


def test_a_place_is_a_file_or_a_folder_as_the_data_need(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    file.touch()
    assert own_data_place("npz", file) == file and own_data_place("folder", tmp_path) == tmp_path
    with pytest.raises(DataNotFound, match="no such file"):
        own_data_place("npz", tmp_path)
    with pytest.raises(DataNotFound, match="no such folder"):
        own_data_place("folder", file)
