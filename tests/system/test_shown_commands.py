"""Every command that README and the documentation show is executed, in this process and at the
smallest size.

Nothing but sizes is added; of a sweep the first point runs (sweeps as such:
tests/cli/test_sweeps.py). What is not run is listed with its reason.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from PIL import Image

from privdd import account, attack, check, report, verify
from privdd.cli import main as command
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from tests.conftest import SmallAudit
from tests.federations import SHORT
from tests.system.test_readme import BLOCKS, ROOT, commands, mine

pytestmark = pytest.mark.nightly

__all__ = ["mine"]  # a fixture
# The start of a line -> why no test here runs it, and where its like is run.
NOT_RUN = {
    "privdd.selftest": "takes minutes; its faults are run one by one in "
    "tests/auditing/dp_tests/test_noise_and_sampling_audits.py",
    "privdd.audit algo=fedavg privacy=client policy=": (
        "wants a policy: tests/system/test_gated_repository.py"
    ),
    "privdd.verify audit strict=true policy=": "the same: tests/verification/test_run_folder.py",
    "privdd.audit --help": "prints and stops: tests/cli/test_main.py",
    "privdd.audit algo=fedavg engine=processes": (
        "starts workers: tests/auditing/dp_tests/test_noise_and_sampling_audits.py does, with "
        "this engine"
    ),
    "privdd.audit algo=fedavg engine=ray": (
        "wants a cluster: tests/system/test_ray_cluster.py starts one"
    ),
    "privdd.audit -m algo=fedavg,feddm,fedfed,fedlgd hydra/launcher=joblib": (
        "starts workers: tests/cli/test_sweeps.py"
    ),
    "privdd.audit -m algo=fedfed_dp": (
        "its slow part, the method, is audited in tests/auditing/test_findings.py; sweeps: "
        "tests/cli/test_sweeps.py"
    ),
    "privdd.audit target.model=": "trains models of its own: tests/external/test_runner.py",
    "privdd.audit target.synthetic=": "the same: tests/external/test_synthetic_data.py",
    "privdd.audit target.updates=": "the same: tests/external/test_client_updates.py",
    "privdd.audit recording=DIR target.model=": (
        "wants a recording: tests/external/test_recorded_federation.py makes one"
    ),
    "privdd.audit recording=../run target.model=": (
        "wants a recording of real servers: tests/system/test_flower_loopback.py makes one"
    ),
    "privdd.audit algo=fedavg model=own": "wants the user's own network: tests/models/test_own.py",
    "privdd.audit algo=own_training algo.training=": (
        "wants the user's own function: tests/methods/test_own_training.py"
    ),
    "privdd.check mechanism=fedx.py:send_prototypes": (
        "wants the page's example: tests/blackbox/test_tutorial.py"
    ),
    "privdd.check mechanism=noise.py:release": (
        "wants the page's example: tests/blackbox/test_tutorial.py"
    ),
    "privdd.check mechanism=release.py:release": (
        "wants the reader's own mechanism: tests/blackbox/test_grey_box.py"
    ),
    "privdd.resume DIR": "wants a run that was stopped: tests/cli/test_resume.py",
    "ray start": "wants a cluster: tests/system/test_ray_cluster.py starts one",
    "python fedmd_loop.py": "its block is run by tests/external/test_client_message.py",
    "privdd target message=": "the same",
    "privdd.report DIR pdf=true": "needs a browser: tests/reporting/test_page_pdf.py",
    "privdd.canary": (
        "three parties and their files: tests/canary/test_opened.py goes through issue, open "
        "and verify"
    ),
    "privdd.reproduce": "trains for minutes: tests/reproduce/test_train.py does, at a smaller size",
    "privdd.gate": "wants several runs and a policy: tests/system/test_gated_repository.py",
    "make audit": (
        "installs into an environment of its own, then runs privdd.audit algo=fedfed, which is "
        "run here"
    ),
    "python3 -m venv": (
        "installs into an environment of its own; tests/system/test_wheel.py installs what is built"
    ),
    "make test": "is how tests are run",
    "python make_data.py": "its block is run by tests/system/test_flower_loopback.py",
    "flwr run": "starts Flower's simulation: tests/system/test_flower_loopback.py (nightly)",
}
# How a block of Python begins -> the test that runs it.
PYTHON = {
    "from privdd.api import audit": "tests/system/test_readme.py:test_python_examples_run",
    "# mine/": "tests/system/test_readme.py:test_the_examples_run_together",
    "# test_signs.py": "tests/system/test_readme.py:test_the_contract_check_runs",
    "# tapped_app.py": "tests/system/test_flower_loopback.py",
    "# make_data.py": "tests/system/test_flower_loopback.py",
    "from nvflare import FilterType": "tests/integrations/test_nvflare_recorder.py",
    "from sklearn.datasets import load_digits": "tests/external/test_tutorial.py",
    "import numpy as np\nimport torch\nfrom sklearn": (
        "tests/attacks/test_library.py:test_the_tutorial_runs_and_finds_the_members"
    ),
    "from attacks import": (
        "tests/attacks/test_library.py:test_the_tutorial_runs_and_finds_the_members"
    ),
    "import matplotlib.pyplot": (
        "tests/attacks/test_library.py:test_the_tutorial_runs_and_finds_the_members"
    ),
    "# fedx.py": "tests/blackbox/test_tutorial.py",
    "# fedmd_loop.py": "tests/external/test_client_message.py",
    "# fedproto_loop.py": "tests/external/test_client_message.py",
    "# net.py": "tests/methods/test_own_training.py",
    "# noise.py": "tests/blackbox/test_tutorial.py",
    "# test_noise.py": "tests/blackbox/test_runner.py",
}
SMALL = (
    "data.test_limit=40",
    "partition.clients=2",
    "audit.records=12",
    "audit.worlds=3",
    "audit.victims=1",
)
GUARANTEE = ("audit.guarantee.runs=20", "audit.guarantee.slow_runs=20", "audit.guarantee.images=1")
NOISY = """
import numpy as np

SOURCE = np.random.default_rng(0)


def Name(x):
    kept = np.nan_to_num(x, nan=0, posinf=0, neginf=0)
    return kept / max(1, np.linalg.norm(kept)) + SOURCE.normal(0, 50, kept.shape)


NAME = Name
"""
ALONE = re.compile(r"privdd\.(?:account|attack|audit|train|report|verify|check|selftest)")


def shown() -> list[str]:
    """What ``test_readme`` reads, and the lines of shell blocks that are no command of privdd."""
    other = [
        line.split("   #")[0].split("    #")[0].strip()
        for kind, text in BLOCKS
        if kind == "sh"
        for line in text.splitlines()
    ]
    return [
        *commands(),
        *dict.fromkeys(line for line in other if line and "python -m privdd" not in line),
    ]


def run_here(line: str) -> bool:
    return ALONE.match(line) is not None and not any(line.startswith(start) for start in NOT_RUN)


@pytest.fixture
def place(
    mine: Path,
    audited: Callable[[str], SmallAudit],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A working folder with everything that the commands speak of."""
    # for the process in which a mechanism is checked
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("runs/first", "outputs/run-a", "DIR"):
        shutil.copytree(audited("fedavg").path, tmp_path / name)
    shutil.copytree(audited("fedavg_seed1").path, tmp_path / "outputs/run-b")
    rng = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(30):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(
                tmp_path / "images" / label / f"{index}.png"
            )
    member = np.arange(60) % 2 == 0
    np.savez(tmp_path / "scores.npz", scores=member + rng.normal(size=60), member=member)
    np.savez(tmp_path / "mine.npz", x=rng.random((90, 8, 8)), y=np.arange(90) % 3)
    (tmp_path / "package").mkdir()
    for name in ("package/module.py", "MODULE.py"):
        (tmp_path / name).write_text(NOISY)
    return tmp_path


def words(line: str) -> list[str]:
    """The arguments of the first point, with the smallest sizes."""
    _, *argv = shlex.split(line)
    if "-m" in argv:
        argv = [one if "[" in one else one.split(",")[0] for one in argv if one != "-m"]
    if not line.startswith("privdd.audit ") or any(
        one.startswith(("run=", "resume=")) for one in argv
    ):
        return argv
    if any(one.startswith("scores=") for one in argv):
        return [one.replace("mine.npz", "scores.npz") for one in argv]
    return [*argv, *sizes(argv)]


def sizes(argv: list[str]) -> list[str]:
    typed = {one.split("=")[0] for one in argv}
    groups = [
        one.replace("signs", "fedavg")
        for one in argv
        if one.startswith(("algo=", "privacy=")) and "layerwise" not in one
    ]
    config = compose_config("audit", [*groups, "preset=smoke"])
    short = [
        f"{key}={value}"
        for key, value in SHORT.items()
        if OmegaConf.select(config, key) is not None
    ]
    limit = [] if {"data"} & typed else ["data.limit=150"]
    few = (
        ["attack.gradient_inversion.method.iterations=5"]
        if "gradient_inversion" in " ".join(argv)
        else []
    )
    wanted = [
        "preset=smoke",
        *SMALL,
        *limit,
        *(GUARANTEE if "privacy" in " ".join(argv) else ()),
        *short,
        *few,
        "attack=[lira]",
    ]
    return [one for one in wanted if one.split("=")[0] not in typed]


@pytest.mark.parametrize("line", [line for line in shown() if run_here(line)])
def test_a_shown_command_runs(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # drawn elsewhere, and slow
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path, *_: path / "report.html")
    for module in (
        "hydra.core.utils",
        "hydra._internal.hydra",
    ):  # it would keep this test's captured stderr
        monkeypatch.setattr(f"{module}.configure_log", lambda *_, **__: None)
    module = line.split()[0]
    given = words(line)
    if module == "privdd.audit":
        monkeypatch.setattr(sys, "argv", ["privdd-audit", *given])
        GlobalHydra.instance().clear()
        status = command.main("audit", run_audit)
    elif module == "privdd.attack":
        GlobalHydra.instance().clear()
        status = attack.main(given)
    elif module == "privdd.report":
        status = report.main([one.removesuffix("...") for one in given])
    elif module == "privdd.verify":
        status = verify.main(given)
    elif module == "privdd.account":
        status = account.main(given)
    else:
        assert module == "privdd.check"
        status = check.main([*given, "seconds=1"])
    said = capsys.readouterr()
    assert status in (0, 2), said.err  # 2: a stated limit does not hold
    assert "Traceback" not in said.err


def test_the_tab_key_completes_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "privdd-audit algo=fedf"
    monkeypatch.setattr(sys, "argv", ["privdd-audit", "-sc", "query=bash"])
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    GlobalHydra.instance().clear()
    command.main("audit", run_audit)
    assert {"algo=fedfed", "algo=fedfed_dp"} <= set(capsys.readouterr().out.split())


def test_what_is_not_run_is_listed_and_shown() -> None:
    left = [line for line in shown() if not run_here(line)]
    assert [line for line in left if not any(line.startswith(start) for start in NOT_RUN)] == []
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in left)] == []
    assert len(shown()) - len(left) >= 15


def test_every_block_of_python_is_run_by_a_test() -> None:
    blocks = [text for kind, text in BLOCKS if kind == "python"]
    assert [text for text in blocks if not text.startswith(tuple(PYTHON))] == []
    assert [start for start in PYTHON if not any(text.startswith(start) for text in blocks)] == []
    for place in PYTHON.values():
        path, _, name = place.partition(":")
        assert (
            f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
            if name
            else (ROOT / path).is_file()
        )
