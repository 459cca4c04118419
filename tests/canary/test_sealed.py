"""Files and arguments of strangers: each is refused in one line, with status 1, and nothing is
executed."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privdd.canary.__main__ import main
from privdd.canary.commands import COMMANDS, parse_canary_arguments
from privdd.canary.protocol import check_issue_arguments
from privdd.canary.sealed import _candidate_sampler, read_sealed
from privdd.runtime.files import DamagedRun
from tests.canary.small import NET, issued

ISSUE = ["sealed=there", "sites=a", "count=10", "shape=1,6,6", "classes=3"]


def refused(argv: list[str], capsys: Any) -> str:
    """The one line of an error."""
    capsys.readouterr()
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.startswith("privdd: error: ")
        and err.count("\n") == 1
        and "Traceback" not in err
    )
    return err


def changed(given: list[str], *new: str) -> list[str]:
    keys = {n.split("=")[0] for n in new}
    return [*(g for g in given if g.split("=")[0] not in keys), *new]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["ISSUE"], "allowed are issue, open, verify"),
        (["issue", "count"], "KEY=VALUE is needed"),
        (["issue", *changed(ISSUE, "cuont=3")], "did you mean count"),
        (["issue", *ISSUE, "count=10"], "given twice"),
        (["issue", *changed(ISSUE, "count=0")], "count=0"),
        (["issue", *changed(ISSUE, "count=1e9")], "from 1 to 100000"),
        (["issue", *changed(ISSUE, "count=99999999999")], "count=99999999999"),
        (["issue", *changed(ISSUE, "sites=a,../b")], "sites=a,../b"),
        (["issue", *changed(ISSUE, "sites=a,a")], "sites=a,a"),
        (["issue", *changed(ISSUE, "shape=0,3")], "shape=0,3"),
        (["issue", *changed(ISSUE, "shape=4096,4096,4096")], "shape="),
        (["issue", *changed(ISSUE, "classes=1")], "classes"),
        (["issue", *ISSUE, "from=x.npz"], "one of shape="),
        (["issue", *ISSUE, "signal=all"], "signal=all"),
        (["issue", *ISSUE, "delta=1"], "delta=1"),
        (["issue", *ISSUE, "delta=nan"], "delta=nan"),
        (["issue", *ISSUE, "stated=-1"], "stated=-1"),
        (["issue", *ISSUE, "confidence=0"], "confidence=0"),
        (["issue", *ISSUE[1:]], "sealed=DIR is needed"),
        (["open", "sealed=nowhere"], "public.json: no such file"),
        (["verify", "sealed=nowhere"], "public.json: no such file"),
        (["open", "sealed=x", "client.a=-1"], "client.a=-1"),
    ],
)
def test_arguments_that_are_wrong_are_refused(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(argv, capsys)
    assert not list(tmp_path.iterdir())


def test_arguments_are_read() -> None:
    found = parse_canary_arguments(
        "open",
        ["sealed=s", "clip=0.5", "args.width=8", "args.name=x", "client.a=7", "known.a=k.npz"],
    )
    assert found == {
        "sealed": "s",
        "clip": 0.5,
        "args": {"width": 8, "name": "x"},
        "client": {"a": 7},
        "known": {"a": "k.npz"},
    }
    assert parse_canary_arguments("issue", ["sealed=s", "shape=(1, 28, 28)"])["shape"] == (
        1,
        28,
        28,
    )


def test_canaries_are_issued_once(tmp_path: Path, capsys: Any) -> None:
    issued(tmp_path / "s", sites="a")
    assert "issued once" in refused(["issue", *changed(ISSUE, f"sealed={tmp_path / 's'}")], capsys)


def test_sites_are_issued_in_the_order_in_which_they_are_named() -> None:
    typed = parse_canary_arguments("issue", changed(ISSUE, "sites=b,a"))
    assert check_issue_arguments(typed) == ["b", "a"]


def test_help_names_every_argument(capsys: Any) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [
        key.name
        for command in COMMANDS.values()
        for key in command.keys
        if key.name.rstrip("*") not in shown
    ] == []
    assert main([]) == 1


def test_a_statement_about_another_relation_is_none_of_these(tmp_path: Path) -> None:
    """Whoever issues it could commit to it; a bound is shown for add_remove alone."""
    issued(tmp_path / "s", sites="a", count=10)
    altered(lambda told: told.update(relation="replace"))(tmp_path / "s" / "public.json")
    with pytest.raises(DamagedRun, match="its statement is not one"):
        read_sealed(tmp_path / "s")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def altered(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def work(path: Path) -> None:
        told = json.loads(path.read_text())
        path.write_text(json.dumps(change(told) or told))

    return work


def pickled(path: Path) -> None:
    held = dict(np.load(path))
    np.savez(
        path, **{**held, "y": np.array([Evil()] * len(held["y"]), dtype=object)}, allow_pickle=True
    )


def less(name: str) -> Callable[[Path], None]:
    def work(path: Path) -> None:
        held = dict(np.load(path))
        np.savez(path, **{k: v for k, v in held.items() if k != name})

    return work


DAMAGE: list[tuple[str, Callable[[Path], Any]]] = [
    ("public.json", lambda p: p.write_text("{")),
    ("public.json", lambda p: p.write_text("[" * 100_000)),
    ("public.json", altered(lambda t: t.update(guesses=[[1000, 1000]]))),
    ("public.json", altered(lambda t: t.update(confidence=2))),
    ("public.json", altered(lambda t: t["sites"].update(b={"count": 10**9, "records": "0" * 64}))),
    ("public.json", altered(lambda t: [1])),
    ("public.json", altered(lambda t: t.update(sites={"../a": t["sites"]["a"]}))),
    ("public.json", altered(lambda t: t.update(commitment=3))),
    ("public.json", altered(lambda t: t.pop("delta") and None)),
    ("public.json", altered(lambda t: t.update(delta="0.1"))),
    ("canaries.npz", lambda p: p.write_bytes(b"PK\3\4")),
    ("canaries.npz", pickled),
    ("canaries.npz", less("site")),
    ("canaries.npz", lambda p: p.write_bytes(pickle.dumps(Evil()))),
    ("canaries.npz", lambda p: np.savez(p, **{**dict(np.load(p)), "id": np.arange(3)})),
    ("secret.json", altered(lambda t: t.update(coins={"a": "01x"}))),
    ("secret.json", altered(lambda t: t.update(salt="zz"))),
    ("secret.json", altered(lambda t: t.update(coins={"a": "0"}))),
    ("secret.json", lambda p: p.unlink()),
    ("scores.npz", pickled),
    ("scores.npz", lambda p: np.savez(p, id=np.arange(10), score=np.full(10, np.nan))),
    ("scores.npz", lambda p: np.savez(p, id=np.zeros(10, int), score=np.zeros(10))),
    ("scores.npz", lambda p: p.unlink()),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten canaries and their scores, which can be opened; whoever damages a file takes a copy."""
    folder = tmp_path_factory.mktemp("opened") / "s"
    issued(folder, "signal=scores", sites="a", count=10)
    np.savez(folder / "scores.npz", id=np.arange(10), y=np.zeros(10), score=np.zeros(10))
    assert main(["open", f"sealed={folder}", f"scores={folder / 'scores.npz'}"]) == 0
    return folder


@pytest.mark.parametrize("at", range(len(DAMAGE)))
def test_damaged_and_hostile_files_are_refused(
    at: int, opened: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    name, damage = DAMAGE[at]
    shutil.copytree(opened, tmp_path / "s")
    given = ["open", "sealed=s", "scores=s/scores.npz"]
    with np.errstate(all="ignore"):
        damage(
            tmp_path / "s" / name
        ) if name != "scores.npz" or damage is not pickled else scores_of_objects(
            tmp_path / "s" / name
        )
    refused(given, capsys)
    assert not (tmp_path / "executed").exists()


def scores_of_objects(path: Path) -> None:
    np.savez(path, id=np.arange(10), score=np.array([Evil()] * 10, dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("model=nowhere.py:Net", "no such file"),
        ("model=json:loads", "model="),
        ("model=torch.nn:Linear", "model="),
        (NET, "updates=RUN is needed"),
    ],
)
def test_a_model_that_is_none_is_refused(
    model: str, said: str, tmp_path: Path, capsys: Any
) -> None:
    issued(tmp_path / "s", sites="a", count=10)
    assert said in refused(["open", f"sealed={tmp_path / 's'}", model], capsys)


@pytest.mark.parametrize(
    ("shape", "coins"),
    [((7,), True), ((3, 5), True), ((1, 5, 3), True), ((4, 5), False), ((1, 4, 4), False)],
)
def test_candidates_are_pictures_from_four_rows_and_columns_on_and_coins_below(
    shape: tuple[int, ...], coins: bool
) -> None:
    made = _candidate_sampler(shape, 0)(20)
    drawn = np.random.default_rng(0).integers(0, 2, (20, *shape))
    assert made.shape == (20, *shape) and np.array_equal(made, drawn) is coins
