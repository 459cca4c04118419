"""YAML of a folder that may come from a stranger is read within bounds, and gives what other
readers of YAML give."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from privdd.runtime.files import DamagedRun
from privdd.runtime.yaml_files import MAX_YAML_BYTES, parse_yaml, read_yaml

BOMB = "a0: &a0 [x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "aliases"),
        ("loop: &l [*l]", "aliases"),
        ("a: !!python/object/apply:os.system [ls]", "tags"),
        ("[" * 10_000 + "]" * 10_000, "deep"),
        ("".join(f"{' ' * i}a:\n" for i in range(60)), "deep"),
        ("a: 1\na: 2", "twice"),
        ("a: [1", "expected"),
        ("a: \x00", "special characters"),
    ],
)
def test_hostile_and_damaged_text_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DamagedRun, match=why) as caught:
        read_yaml(tmp_path / "config.yaml")
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_large_file_a_link_and_other_bytes_are_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: " + b"x" * MAX_YAML_BYTES)
    (tmp_path / "link.yaml").symlink_to(large)
    (tmp_path / "utf16.yaml").write_bytes("a: 1".encode("utf-16"))
    for name, why in (
        ("large", "at most"),
        ("link", "not a plain file"),
        ("utf16", "not readable"),
    ):
        with pytest.raises(DamagedRun, match=why):
            read_yaml(tmp_path / f"{name}.yaml")
    with pytest.raises(FileNotFoundError):
        read_yaml(tmp_path / "none.yaml")


def test_numbers_and_dates_are_those_of_the_command_line() -> None:
    assert parse_yaml("[1e-5, 1E+3, -2e2, 1.5, .inf, 12, x1e5]") == [
        1e-5,
        1e3,
        -200.0,
        1.5,
        float("inf"),
        12,
        "x1e5",
    ]
    assert parse_yaml("a: 2020-01-01\nb: null\n0.01: true") == {
        "a": "2020-01-01",
        "b": None,
        0.01: True,
    }


def test_shipped_configs_are_what_a_safe_loader_reads() -> None:
    shipped = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))
    assert len(shipped) > 50
    for file in shipped[::4]:
        text = file.read_text()
        if "&" not in text and "*" not in text:
            assert parse_yaml(text) == yaml.safe_load(text), file
