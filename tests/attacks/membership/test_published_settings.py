"""The table of settings "as published, and here" says what the configs say, and leaves out no
attack."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "explanation" / "attacks.md"
ROW = re.compile(r"^\| `([a-z_.]+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", re.M)


def rows():
    section = PAGE.read_text().split("## As published, and here")[1].split("\n## ")[0]
    return ROW.findall(section)


def attack_names():
    return {path.stem for path in (ROOT / "configs" / "attack").glob("[a-z]*.yaml")}


def value_in_configs(setting):
    name = setting.split(".")[0]
    found = yaml.safe_load((ROOT / "configs" / "attack" / f"{name}.yaml").read_text())
    for part in setting.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize(("setting", "here"), [(row[0], row[2]) for row in rows() if "." in row[0]])
def test_the_table_says_what_the_config_says(setting, here):
    assert here.startswith("`") and here.endswith("`")
    assert yaml.safe_load(here.strip("`")) == value_in_configs(setting)


def test_the_table_names_every_attack_and_no_other():
    assert {row[0].split(".")[0] for row in rows()} == attack_names()
    section = PAGE.read_text().split("## As published, and here")[1].split("\n## ")[0]
    assert len(rows()) == section.count("\n| `")
