"""Signatures: one's own holds, another key's does not, and no file of the run can change under
it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from privdd import report, verify
from privdd.runtime.files import read_json, write_json
from privdd.runtime.seal import seal_folder
from privdd.verification.file_checks import check_signature, sign_run
from tests.conftest import SmallAudit


@pytest.fixture
def run(audited: Callable[[str], SmallAudit], tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited("fedavg").path, tmp_path / "run"))


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    none = serialization.NoEncryption()
    private = folder / f"{name}.pem"
    public = folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def test_a_signed_run_is_that_of_its_key_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine, public), (_, other) = keys(tmp_path, "mine"), keys(tmp_path, "other")
    assert (
        verify.main([str(run), f"key={public}"]) == 1
        and "signature.json: no such file" in capsys.readouterr().err
    )
    assert verify.main([str(run), "sign=true", f"key={mine}"]) == 0
    assert (
        verify.main([str(run), f"key={public}"]) == 0
        and "signed by ed25519" in capsys.readouterr().out
    )
    assert verify.main([str(run)]) == 0 and "compare this key" in capsys.readouterr().out
    assert verify.main([str(run), f"key={other}"]) == 2 and "public_key" in capsys.readouterr().out


def test_an_edit_that_is_sealed_again_breaks_the_signature(run: Path, tmp_path: Path) -> None:
    mine, public = keys(tmp_path, "mine")
    sign_run(run, mine)
    findings = read_json(run / "findings.json")
    findings["findings"][0]["note"] = "another word"
    write_json(run / "findings.json", findings)
    seal_folder(run)
    _, wrong = check_signature(run, read_json(run / "manifest.json"), public)
    assert [one.key for one in wrong] == ["signature"]


def test_signing_again_replaces_a_signature_that_no_longer_fits(run: Path, tmp_path: Path) -> None:
    """And one that cannot be replaced, as the run does not agree, is not left behind either."""
    (_, others), (mine, public) = keys(tmp_path, "other"), keys(tmp_path, "mine")
    sign_run(run, tmp_path / "other.pem")
    write_json(run / "manifest.json", read_json(run / "manifest.json") | {"machine": "another"})
    seal_folder(run)
    assert verify.main([str(run), f"key={others}"]) == 2
    assert (
        verify.main([str(run), "sign=true", f"key={mine}"]) == 0
        and verify.main([str(run), f"key={public}"]) == 0
    )
    (run / "ledger.json").write_bytes((run / "ledger.json").read_bytes() + b" ")
    assert (
        verify.main([str(run), "sign=true", f"key={mine}"]) == 2
        and not (run / "signature.json").exists()
    )


@pytest.mark.nightly
def test_a_page_that_is_drawn_anew_leaves_it_whole(run: Path, tmp_path: Path) -> None:
    mine, public = keys(tmp_path, "mine")
    sign_run(run, mine)
    assert report.main([str(run)]) == 0
    assert verify.main([str(run), f"key={public}"]) == 0


def test_a_run_that_does_not_agree_is_not_signed(run: Path, tmp_path: Path) -> None:
    mine, _ = keys(tmp_path, "mine")
    (run / "ledger.json").write_bytes((run / "ledger.json").read_bytes() + b" ")
    assert verify.main([str(run), "sign=true", f"key={mine}"]) == 2
    assert not (run / "signature.json").exists()


@pytest.mark.parametrize(
    "bad",
    ["", "{", '{"algorithm": "none", "public_key": "", "signature": ""}', '{"algorithm": 3}', "[]"],
)
def test_damaged_signatures_are_one_line(
    bad: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "signature.json").write_text(bad)
    assert verify.main([str(run)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_the_package_one_line_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, _ = keys(tmp_path, "mine")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert verify.main([str(run), "sign=true", f"key={mine}"]) == 1
    assert "pip install cryptography" in capsys.readouterr().err
    assert verify.main([str(run), "sign=true"]) == 1 and "key=FILE" in capsys.readouterr().err
