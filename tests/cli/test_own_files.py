"""Broken yaml of the user's own: FILE:LINE and one sentence, from every command that reads it, and
never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.cli.own_files import check_own_files
from privdd.core.validation import BadConfig
from privdd.gate import main as gate
from privdd.reporting.policy import PolicyError, load_policy
from privdd.runtime.own_yaml import MAX_BYTES, compose_own_yaml

BROKEN = {  # text -> line, and what is said of it
    "a tab": (
        "auc: 0.6\n\tpsnr_gain: 1\n",
        2,
        "a tab begins this line; YAML is indented by spaces",
    ),
    "a tab after a key": ("auc:\n\t0.6\n", 2, "a tab begins this line; YAML is indented by spaces"),
    "an open list": (
        "auc: 0.6\nverdicts: [consistent\npsnr_gain: 1\n",
        2,
        "the [ of this line is not closed",
    ),
    "an open mapping": (
        "auc: 0.6\ntpr_at_fpr: {0.01: 0.05\n",
        2,
        "the { of this line is not closed",
    ),
    "an open quote": ('auc: 0.6\nnot_decided: "fail\n', 2, "the quote of this line is not closed"),
    "an open list at its end": ("auc: [", 1, "the [ of this line is not closed"),
    "no colon": ("auc 0.6\n", 1, "lines of the form KEY: VALUE are needed"),
    "a list": ("- auc\n", 1, "lines of the form KEY: VALUE are needed"),
    "two colons": ("auc: 0.6\npsnr_gain: 1: 2\n", 2, "mapping values are not allowed here"),
    "a control character": (
        "auc: 0.6\npsnr_gain: \x01\n",
        2,
        "a character that YAML does not allow",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_with_its_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, line, says = BROKEN[kind]
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(BadConfig) as caught:
        compose_own_yaml(file)
    assert str(caught.value) == f"{file}:{line}: {says}"
    assert gate([str(tmp_path), f"policy={file}"]) == 1
    assert capsys.readouterr().err == f"privdd: error: {file}:{line}: {says}\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("auc: 0.6\n".encode("utf-16"), ":1: text in UTF-16; save it as UTF-8"),
        (b"auc: 0.6\n# caf\xe9\n", ":2: the file must be saved as UTF-8"),
        (b"#" * (MAX_BYTES + 1), ": more than 1048576 bytes"),
        (b"[" * 5000, ""),
    ],
)
def test_what_is_no_text_of_settings_is_one_line(data: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(data)
    with pytest.raises(BadConfig) as caught:
        compose_own_yaml(file)
    assert str(caught.value).startswith(f"{file}{says}") and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"nowhere\.yaml: no such file or directory$"):
        compose_own_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(BadConfig, match="a file is needed, this is a folder"):
        compose_own_yaml(tmp_path)


def test_a_byte_order_mark_and_other_ends_of_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_bytes(b"\xef\xbb\xbfauc: 0.6\r\npsnr_gain: 1\r\n")
    policy = load_policy(tmp_path / "policy.yaml")
    assert (policy.auc, policy.psnr_gain) == (0.6, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auc: 0.6\naucc: 0.7\n", ":2: aucc: unknown limit; did you mean auc?"),
        ("auc: 3\n", ":1: auc: Input should be less than or equal to 1"),
        ("epsilon_shown: 1\n\nattackd: []\n", ":3: attackd: unknown limit; did you mean attacked?"),
    ],
)
def test_a_limit_that_is_not_one_is_named_with_its_line(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_policy(tmp_path / "policy.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'policy.yaml'}{says}") and "\n" not in str(
        caught.value
    )


OWN = {  # algo/mine.yaml -> line, and what is said of it
    "a tab": ("defaults: [fedavg, _self_]\n\trounds: 2\n", ":2: a tab begins this line"),
    "an open list": (
        "defaults: [fedavg, _self_]\nrounds: [2\n",
        ":2: the [ of this line is not closed",
    ),
    "an open list of defaults": (
        "defaults: [fedavg, _self_\nrounds: 2\n",
        ":1: the [ of this line is not closed",
    ),
    "a wrong default": (
        "defaults: [fedav, _self_]\nrounds: 2\n",
        ":1: defaults: no file fedav in algo; did you mean fedavg?",
    ),
    "a wrong default below": (
        "defaults:\n  - fedfed_dp\n  - override /data: digitz\n",
        ":3: defaults: no file digitz in data; did you mean digits?",
    ),
    "defaults that are no list": ("defaults: fedavg\n", ":1: defaults: a list is needed"),
    "no defaults": (
        "rounds: 2\n",
        ":1: has neither _target_ nor a default that has it; begin it with "
        "defaults: [NAME, _self_]",
    ),
    "an empty file": ("", ":1: has neither _target_"),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_broken_file_of_a_config_folder_is_named_with_its_line(kind: str, tmp_path: Path) -> None:
    text, says = OWN[kind]
    (tmp_path / "algo").mkdir()
    file = tmp_path / "algo" / "mine.yaml"
    file.write_text(text)
    for argv in (
        ["--config-dir", str(tmp_path), "algo=mine"],
        [f"--config-dir={tmp_path}", "algo=fedavg,mine", "-m"],
    ):
        with pytest.raises(BadConfig) as caught:
            check_own_files(argv)
        assert str(caught.value).startswith(f"{file}{says}") and "\n" not in str(caught.value)
    # a file that is not chosen hinders nobody
    check_own_files([f"--config-dir={tmp_path}", "algo=fedavg"])


def test_files_that_are_right_pass_and_a_broken_one_below_them_is_found(tmp_path: Path) -> None:
    for group in ("algo", "attack", "experiment"):
        (tmp_path / group).mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text(
        "defaults: [_base, /algo/base@inner: fedavg, _self_]\nrounds: 2\n"
    )
    (tmp_path / "algo" / "_base.yaml").write_text("defaults: [fedavg]\n")
    (tmp_path / "experiment" / "paper.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /algo: mine\n  - override /attack: "
        "[lira, rmia]\n"
    )
    (tmp_path / "attack" / "own.yaml").write_text(
        "defaults: [_membership@own, _self_]\nown:\n  _target_: x.Y\n"
    )
    argv = ["--config-dir", str(tmp_path), "algo=mine", "experiment=paper"]
    check_own_files(argv)
    (tmp_path / "algo" / "_base.yaml").write_text("defaults: [fedavg\n")
    with pytest.raises(BadConfig, match=r"_base\.yaml:1: the \[ of this line"):
        check_own_files(argv)
    (tmp_path / "algo" / "_base.yaml").write_text("defaults: [fedavg]\n")
    (tmp_path / "attack" / "own.yaml").write_text("own: [\n")
    with pytest.raises(BadConfig, match=r"own\.yaml:1: the \[ of this line"):
        check_own_files(argv)  # no attack is named, so all are meant


def test_a_config_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"^--config-dir cnf: no such folder$"):
        check_own_files(["--config-dir", "cnf", "algo=mine"])
    (tmp_path / "file.yaml").write_text("")
    with pytest.raises(BadConfig, match=r"file\.yaml: a folder is needed"):
        check_own_files([f"--config-dir={tmp_path / 'file.yaml'}", "algo=mine"])


def test_a_name_of_privdd_is_refused_as_hydra_would_take_its_file(tmp_path: Path) -> None:
    """Else a stranger's algo/fedmd.yaml audits privdd's FedMD without a word."""
    (tmp_path / "algo").mkdir()
    file = tmp_path / "algo" / "fedmd.yaml"
    file.write_text("_target_: mine.FedMD\n")
    with pytest.raises(BadConfig) as caught:
        check_own_files(["--config-dir", str(tmp_path), "algo=fedmd"])
    assert str(caught.value) == (
        f"{file}:1: privdd's own algo=fedmd would run in its place; give the file a name of its "
        "own, as in algo=my_fedmd"
    )
