"""A repository of somebody else, made from nothing: a torch model, a policy, and a build that goes
red where the model leaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
MODEL = """
import numpy as np
import torch
from sklearn.datasets import load_digits


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        hidden = torch.nn.Linear(64, 128)
        self.body = torch.nn.Sequential(hidden, torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def forward(self, x):
        return self.body(x)


def main(leaks):
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    at = np.random.default_rng(0).permutation(len(x))
    x, y = (x[at] / 16).astype("float32"), y[at]
    noisy = y.copy()
    # wrong labels are memorised
    noisy[:600] = np.where(np.arange(600) % 3 == 0, (y[:600] + 1) % 10, y[:600])
    noisy[600:1200] = np.where(np.arange(600) % 3 == 0, (y[600:1200] + 1) % 10, y[600:1200])
    np.savez("train.npz", x=x[:600], y=noisy[:600])
    np.savez("heldout.npz", x=x[600:1200], y=noisy[600:1200])
    fit_x, fit_y = (x[:600], noisy[:600]) if leaks else (x[1200:], y[1200:])
    net, fit_x, fit_y = Net(), torch.tensor(fit_x), torch.tensor(fit_y)
    made = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(300 if leaks else 60):
        made.zero_grad()
        torch.nn.functional.cross_entropy(net(fit_x), fit_y).backward()
        made.step()
    torch.save(net.state_dict(), "model.pt")


if __name__ == "__main__":
    import sys

    main(sys.argv[1] == "leaks")
"""
AUDIT = (
    "-m privdd.audit target.model=net:Net target.weights=model.pt target.train=train.npz "
    "target.heldout=heldout.npz out=audit"
)


@pytest.mark.parametrize(("kind", "status"), [("leaks", 3), ("keeps", 0)])
def test_a_build_goes_red_on_a_leak_and_is_green_without(
    tmp_path: Path, kind: str, status: int
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}

    def run(line: str) -> int:
        return subprocess.run(
            [sys.executable, *line.split()], cwd=tmp_path, env=environment, capture_output=True
        ).returncode

    assert (
        run("-m privdd.gate init=true") == 0
        and (tmp_path / ".github/workflows/privacy.yml").exists()
    )
    (tmp_path / "policy.yaml").write_text("auc: 0.65\ntpr_at_fpr: {0.01: 0.1}\n")
    assert run(f"net.py {kind}") == 0 and run(AUDIT) == 0
    assert run("-m privdd.gate audit policy=policy.yaml") == status
