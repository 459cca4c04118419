"""Where downloads and measured speeds lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.core.user_folders import CACHE_VARIABLE, DATA_VARIABLE, cache_folder
from privdd.data.dataset import DataNotFound
from privdd.data.readers import data_folder


@pytest.mark.parametrize(("variable", "other"), [(CACHE_VARIABLE, DATA_VARIABLE), (DATA_VARIABLE, CACHE_VARIABLE)])
def test_a_variable_for_each_and_one_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, other: str
) -> None:
    monkeypatch.setenv(other, "/elsewhere")
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_folder(variable) == tmp_path
    monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder(variable) == Path("/somewhere/privdd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(variable) == Path.home() / ".cache" / "privdd"


def test_a_user_without_a_home_names_a_folder_for_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (CACHE_VARIABLE, DATA_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert cache_folder(CACHE_VARIABLE) is None
    with pytest.raises(DataNotFound, match="PRIVDD_DATA"):
        data_folder()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert data_folder() == tmp_path
