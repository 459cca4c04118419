"""Hooks are asked of the client that is audited: the tutorial's FedMD, whose clients have different
networks."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from privdd.auditing.adversary_view import with_features
from privdd.auditing.client_hooks import DiffersByClient, method_of_client
from privdd.auditing.method_contract import UnmappedUpload, check_method
from privdd.auditing.views import FinishedRun
from privdd.cli.compose import compose_config, config_dir, default_attacks
from privdd.cli.run import run_audit
from privdd.core.rng import Keys
from privdd.core.types import Problem
from privdd.federated.method import Method
from privdd.federated.simulation import Plan
from privdd.reporting.schema import load_findings
from privdd.reporting.summary import verdict_headline
from tests.methods.strangers import StrangersFedProto

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-method.md"
PROBLEM = Problem((1, 8, 8), 3, 2)


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's module."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (code,) = (block for block in blocks if block.startswith("# mine/logits.py"))
    module = ModuleType("logits")
    monkeypatch.setitem(sys.modules, "logits", module)
    exec(compile(code, "logits.py", "exec"), vars(module))
    return module


def test_the_hooks_answer_for_the_audited_client(logits: Any) -> None:
    method = logits.FedMD()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnmappedUpload)
        check_method(method, shape=PROBLEM.shape)
    plan = Plan(Keys(0), PROBLEM, method, {}, victim=1)
    unused: Any = None
    experiment: Any = SimpleNamespace(plan=plan)
    asked = FinishedRun(experiment, unused, unused, unused).method.audit_hooks
    wide = asked.classifier(PROBLEM)
    assert wide is not None and wide[-1].in_features == 64  # client 0's has 32
    assert method.audit_hooks.classifier(PROBLEM)[-1].in_features == 32


def test_check_method_asks_for_each_client(logits: Any) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Fewer(logits.FedMD):
        def public_images(self, problem: Problem, seed: int) -> torch.Tensor:
            return super().public_images(problem, seed)[self.client :]

    with pytest.raises(ValueError, match="logits of 100 images, public_images are 99"):
        check_method(Fewer(), shape=PROBLEM.shape)


def test_other_methods_are_asked_themselves_and_a_wrong_answer_is_named() -> None:
    plain = StrangersFedProto()
    assert method_of_client(plain, 1) is plain

    class Wrong(DiffersByClient, StrangersFedProto):
        def for_client(self, client: int) -> Method:
            return None  # type: ignore[return-value]

    with pytest.raises(TypeError, match=r"Wrong\.for_client\(1\): gives NoneType; must give"):
        method_of_client(Wrong(), 1)


def test_features_are_the_rows_before_the_last_linear_layer() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU())
    whole = with_features(nn.Sequential(body, nn.Linear(3, 2)))
    x = torch.randn(5, 1, 2, 2)
    assert torch.equal(whole.features(x), body(x))  # type: ignore[operator]
    assert torch.equal(whole[1](whole.features(x)), whole(x))  # type: ignore[index, operator]
    with pytest.raises(ValueError, match="must end with a linear layer, or define features"):
        with_features(nn.Sequential(nn.Flatten()))


class ConvolutionalFeatures(nn.Module):
    """Its ``features`` are images of channels, as those of torchvision's AlexNet and VGG."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3)
        self.classifier = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


def test_features_that_are_images_of_channels_are_read_as_rows(logits: Any) -> None:
    network = ConvolutionalFeatures()

    class Convolutional(logits.FedMD):
        def classifier(self, problem: Problem) -> nn.Module:
            return network

    check_method(Convolutional(), shape=(1, 8, 8))


@pytest.mark.nightly
def test_the_page_quotes_the_first_screen(logits: Any, tmp_path: Path) -> None:
    """In full, with the command that it shows."""
    text = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^PYTHONPATH=mine (.* algo=logits .*)$", text, re.M)
    (quoted,) = re.findall(r"The first screen says: \*(.*?)\*", text)
    (tmp_path / "mine" / "algo").mkdir(parents=True)
    (tmp_path / "mine" / "algo" / "logits.yaml").write_text("_target_: logits.FedMD\n")
    asked = [word for word in shlex.split(command) if "=" in word]
    attacks = f"attack=[{','.join(default_attacks([config_dir()]))}]"  # as the command has them
    typed = [*asked, attacks, "engine=serial"]
    config = compose_config("audit", typed, [str(tmp_path / "mine")])
    run_audit(config, tmp_path / "run", ["test"])
    said = verdict_headline(load_findings(tmp_path / "run")).sentences
    assert quoted in [sentence.replace("\u00a0", " ") for sentence in said]
