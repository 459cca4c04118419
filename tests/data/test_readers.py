"""The torchvision import: what the project uses works, whatever the build."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from privdd.core.user_modules import import_torchvision
from privdd.core.validation import DataNotFound
from privdd.data.readers import data_folder

# A build whose compiled operators do not load, as a CUDA build beside CPU torch: the library is
# refused.
WITHOUT_OPERATORS = """
import torch

def refuse(path):
    raise OSError("libcudart.so: cannot open shared object file")

torch.ops.load_library = refuse
try:
    import torchvision
except RuntimeError as error:
    print("plain import fails:", "torchvision::" in str(error))
from privdd.core.user_modules import import_torchvision as load
sets, transforms = load("torchvision.datasets"), load("torchvision.transforms")
print("through the shim:", sets.CIFAR10.__name__, transforms.Resize.__name__)
"""


def test_data_sets_and_transforms_import():
    assert hasattr(import_torchvision("torchvision.datasets"), "CIFAR10")
    assert import_torchvision("torchvision") is import_torchvision("torchvision")


@pytest.mark.nightly
def test_a_build_without_operators_still_gives_data_sets():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPERATORS], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.splitlines() == [
        "plain import fails: True",
        "through the shim: CIFAR10 Resize",
    ], done.stderr


USER_MODULE = """
import torch

def refuse(path):
    raise OSError("libcudart.so: cannot open shared object file")

torch.ops.load_library = refuse
import sys
sys.path.insert(0, FOLDER)
from privdd.blackbox.target import load_target
from privdd.models.own import import_object
print(
    load_target("uses_torchvision:Net").__name__,
    import_object("k", "uses_torchvision:Net", "").__name__,
)
print(load_target(FOLDER + "/also_uses.py:Net").__name__)
"""


def test_a_user_s_network_that_imports_torchvision_is_found(tmp_path):
    for name in ("uses_torchvision", "also_uses"):
        (tmp_path / f"{name}.py").write_text("import torchvision.transforms\nclass Net: pass\n")
    code = USER_MODULE.replace("FOLDER", repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == ["Net Net", "Net"], done.stderr


def test_other_failures_are_not_hidden(monkeypatch):
    def fails(name: str) -> None:
        raise RuntimeError("another reason")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(RuntimeError, match="another reason"):
        import_torchvision()


def test_downloads_lie_where_the_user_says_or_in_the_usual_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVDD_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("PRIVDD_DATA")
    with pytest.raises(
        DataNotFound, match=r"PRIVDD_BARE=1 hides this machine's data: set data.root or PRIVDD_DATA"
    ):
        data_folder()
    monkeypatch.delenv("PRIVDD_BARE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert data_folder() == Path("/somewhere/privdd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "privdd"

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(DataNotFound, match="PRIVDD_DATA"):
        data_folder()
