"""Bounds of opened canaries hold where the truth is known, and nobody can change what was
sealed."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from attacks.one_run import fdp_one_run, one_run
from privdd.canary.__main__ import main
from privdd.canary.sealed import (
    CanarySet,
    SealedCanaries,
    check_commitment,
    check_opened_file,
    coins_to_text,
    compute_commitment,
    digest_arrays,
    opened_result,
    read_sealed,
    read_secret,
    site_coins,
    write_sealed,
)
from privdd.reporting.wording import format_number
from privdd.runtime.files import DamagedRun, read_json, write_json
from tests.canary.small import issued

M = 200


def sealed(folder: Path, salt: bytes, stated: float | None = None) -> SealedCanaries:
    x = np.arange(M, dtype=np.float32).reshape(M, 1)
    told = {"signal": "scores", "confidence": 0.95, "delta": 0.0, "stated": stated}
    return write_sealed(
        folder, salt, CanarySet(x, np.zeros(M, np.int64), np.repeat(["a"], M)), told, secrets=folder
    )


def coins(folder: Path) -> dict[str, str]:
    return read_secret(folder / "secret.json")[1]


@pytest.mark.nightly(but=["0.0"])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_the_bound_covers_randomised_response(epsilon: float, tmp_path: Path) -> None:
    """Each coin is told rightly with probability e^eps / (1 + e^eps): exactly epsilon-DP, and its
    best guess is a sign.

    At 95 % confidence at most 5 % of runs may exceed epsilon; 300 runs reject a rate above that at
    1e-4."""
    chance = np.random.default_rng(int(epsilon))
    above = 0
    largest = 0.0
    for run in range(300):
        salt = chance.bytes(32)
        inside = site_coins(salt, "a", M)
        told = np.where(chance.random(M) < 1 / (1 + math.exp(-epsilon)), inside, ~inside)
        scores = np.where(told, 1.0, -1.0)
        if run == 0:
            made = sealed(tmp_path, salt)
            statement = made.statement
        mark = compute_commitment(salt, {"a": coins_to_text(inside)}, statement)
        found = opened_result(
            SealedCanaries(statement, mark, made.canaries),
            salt,
            {"a": coins_to_text(inside)},
            scores,
            {},
        )
        above = above + (found["bound"] > epsilon)
        largest = max(largest, found["bound"])
    assert binom.sf(above - 1, 300, 0.05) > 1e-4
    assert epsilon == 0 or largest > epsilon / 3  # and it says something


def test_coins_are_fair_independent_and_each_site_s_own() -> None:
    drawn = np.stack([site_coins(bytes([at] * 32), "a", 1003) for at in range(200)])
    assert abs(drawn.mean() - 0.5) < 5 / math.sqrt(4 * drawn.size)
    products = np.corrcoef(drawn.T[:60])
    assert np.abs(products[~np.eye(60, dtype=bool)]).max() < 5.5 / math.sqrt(200)
    assert not np.array_equal(site_coins(b"s" * 32, "a", 500), site_coins(b"s" * 32, "b", 500))
    assert np.array_equal(site_coins(b"s" * 32, "a", 500)[:100], site_coins(b"s" * 32, "a", 100))
    for at in range(32):  # or a part of the salt could be guessed
        other = bytes(ord("t") if here == at else ord("s") for here in range(32))
        assert not np.array_equal(site_coins(b"s" * 32, "a", 100), site_coins(other, "a", 100))


def test_the_site_gets_exactly_the_heads(tmp_path: Path) -> None:
    found = issued(tmp_path / "s")
    inside = check_commitment(found, *read_secret(tmp_path / "s" / "secret.json"))
    for site in ("a", "b"):
        held = np.load(tmp_path / "s" / f"site-{site}.npz")
        ids = [i for i in found.canaries.site_ids(site) if inside[i]]
        assert held["id"].tolist() == ids and 5 < len(ids) < 25
        assert np.array_equal(held["x"], found.canaries.x[ids]) and np.array_equal(
            held["y"], found.canaries.y[ids]
        )
    assert (tmp_path / "s" / "secret.json").stat().st_mode & 0o077 == 0
    public = (tmp_path / "s" / "public.json").read_text()
    assert not any(c in public for c in coins(tmp_path / "s").values())


def flipped(text: str) -> str:
    return ("1" if text[0] == "0" else "0") + text[1:]


def test_coins_salt_or_statement_that_were_changed_do_not_fit(tmp_path: Path) -> None:
    found = sealed(tmp_path, b"k" * 32, stated=2.0)
    salt, own = read_secret(tmp_path / "secret.json")
    assert check_commitment(found, salt, own).sum() == own["a"].count("1")
    changed: list[tuple[SealedCanaries, bytes, dict[str, str]]] = [
        (found, salt, {"a": flipped(own["a"])}),
        (found, b"l" * 32, own),
        (
            SealedCanaries({**found.statement, "stated": 9.0}, found.commitment, found.canaries),
            salt,
            own,
        ),
        (
            SealedCanaries({**found.statement, "signal": "loss"}, found.commitment, found.canaries),
            salt,
            own,
        ),
    ]
    for one in changed:
        with pytest.raises(DamagedRun, match="the commitment does not fit"):
            check_commitment(*one)
    chosen = {"a": "1" * M}  # an issuer who chooses coins and commits to them
    with pytest.raises(DamagedRun, match="they were chosen, not drawn"):
        check_commitment(
            SealedCanaries(
                found.statement, compute_commitment(salt, chosen, found.statement), found.canaries
            ),
            salt,
            chosen,
        )


def opened(folder: Path, stated: float | None = 1.0, right: float = 1.0) -> int:
    """Scores that read this share of the coins, through the command."""
    made = sealed(folder, b"n" * 32, stated)
    inside = check_commitment(made, *read_secret(folder / "secret.json"))
    scores = np.where(np.arange(M) < right * M, inside, ~inside).astype(float)
    np.savez(folder / "scores.npz", id=np.arange(M)[::-1], score=scores[::-1])
    return main(["open", f"sealed={folder}", f"scores={folder / 'scores.npz'}"])


def published(folder: Path, to: Path) -> Path:
    """The public files alone."""
    to.mkdir()
    for name in ("public.json", "canaries.npz", "opened.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


def test_a_third_party_recomputes_everything_from_the_published_files(
    tmp_path: Path, capsys: Any
) -> None:
    assert opened(tmp_path / "s") == 2
    assert (
        "200 canaries, coins read: 20 of 20, 100 of 100, " in (out := capsys.readouterr().out)
        and "contradiction" in out
    )
    there = published(tmp_path / "s", tmp_path / "there")
    assert main(["verify", f"sealed={there}"]) == 0
    assert "agrees (scores taken as stored" in capsys.readouterr().out
    assert main(["verify", f"sealed={there}", f"scores={tmp_path / 's' / 'scores.npz'}"]) == 0
    assert (
        main(["open", f"sealed={tmp_path / 's'}", f"scores={tmp_path / 's' / 'nowhere.npz'}"]) == 1
    )


@pytest.mark.parametrize(
    ("stated", "right", "title"),
    [
        (1.0, 1.0, "The stated ε = 1 is false."),
        (9.0, 0.9, "The canaries do not contradict ε = 9."),
        (None, 0.9, "The canaries show ε of at least"),
    ],
)
def test_the_page_shows_verdict_bound_and_the_command_of_a_third_party(
    stated: float | None, right: float, title: str, tmp_path: Path
) -> None:
    opened(tmp_path / "s", stated, right)
    result = read_json(tmp_path / "s" / "opened.json")
    page = (tmp_path / "s" / "opened.html").read_text(encoding="utf-8")
    assert f"<h1>{title}" in page and f"ε of at least {format_number(result['bound'])}" in page
    assert all(f'<td class="n">{format_number(b)}</td>' in page for b in result["bounds"].values())
    assert "privdd.canary verify sealed=s" in page and 'class="plot"' in page
    assert result["salt"] not in page


def test_the_bound_is_the_larger_of_two_at_an_error_that_all_guesses_share(
    tmp_path: Path, capsys: Any
) -> None:
    """By hand from the guesses told: 5 % over the numbers of guesses and the two methods."""
    assert opened(tmp_path / "s", stated=9.0, right=0.9) == 0
    told = read_json(tmp_path / "s" / "opened.json")
    guesses = [(made, right) for made, right in told["guesses_right"]]
    level = 1 - 0.05 / (2 * len(guesses))
    by_hand = [
        max(bound(M, *one, delta=0.0, confidence=level) for one in guesses)
        for bound in (one_run, fdp_one_run)
    ]
    assert [told["bounds"]["one_run"], told["bounds"]["fdp_one_run"]] == pytest.approx(by_hand)
    assert (
        f"epsilon >= {max(by_hand):.3g} at delta 0 (95%); stated 9: consistent"
        in capsys.readouterr().out
    )


def test_scores_of_another_file_or_of_none_are_seen(tmp_path: Path, capsys: Any) -> None:
    """Who publishes opened.json with other scores than the artifact's, their order kept, so that
    the bound stays."""
    folder = tmp_path / "s"
    opened(folder)
    given = [f"sealed={folder}", f"scores={folder / 'scores.npz'}"]
    assert main(["verify", *given]) == 0 and f"{folder}: agrees\n" in capsys.readouterr().out
    told = read_json(folder / "opened.json")
    told["scores"][told["scores"].index(1.0)] = 1.5
    write_json(folder / "opened.json", told)
    assert main(["verify", given[0]]) == 0  # the scores are taken as stored
    assert main(["verify", *given]) == 2 and "not those of the artifact" in capsys.readouterr().out
    opened(folder)
    lines = [
        f"{at},{score}" for at, score in enumerate(read_json(folder / "opened.json")["scores"])
    ]
    (folder / "same.csv").write_text("\n".join(["id,score", *lines]) + "\n")
    assert main(["verify", given[0], f"scores={folder / 'same.csv'}"]) == 2
    assert "opened.json belongs to another artifact" in capsys.readouterr().out


def test_half_of_the_coins_say_nothing(tmp_path: Path) -> None:
    assert opened(tmp_path / "s", right=0.5) == 0
    found = check_opened_file(read_sealed(tmp_path / "s"), tmp_path / "s" / "opened.json")
    assert found["verdict"] == "consistent" and found["bound"] < 0.5


LIES: list[Any] = [
    lambda told: told.update(bound=0.1),
    lambda told: told["bounds"].update(one_run=0.1),
    lambda told: told.update(verdict="consistent"),
    lambda told: told.update(stated=50.0),
    lambda told: told["scores"].__setitem__(0, -told["scores"][0]),
    lambda told: told["guesses_right"][0].__setitem__(1, 3),
    lambda told: told.update(salt="0" * 64),
    lambda told: told["coins"].update(a=flipped(told["coins"]["a"])),
    lambda told: told["coins"].update(b="1"),
    lambda told: told["scores"].__setitem__(0, 10**400),
    lambda told: told.update(more=1),
    lambda told: told.update(scores=[1.0]),
    lambda told: told.update(bounds={}),
]


@pytest.fixture(scope="module")
def mostly_right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Opened with 97 of 100 coins read; whoever changes a file takes a copy."""
    folder = tmp_path_factory.mktemp("opened") / "s"
    opened(folder, right=0.97)
    return folder


@pytest.mark.parametrize("at", range(len(LIES)))
def test_whatever_is_changed_in_the_opened_file_is_seen(
    at: int, mostly_right: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(mostly_right, tmp_path / "s")
    path = tmp_path / "s" / "opened.json"
    told = json.loads(path.read_text())
    LIES[at](told)
    path.write_text(json.dumps(told))
    capsys.readouterr()
    assert main(["verify", f"sealed={tmp_path / 's'}"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 and "DOES NOT AGREE" in out[0]


def test_canaries_that_were_exchanged_are_seen(tmp_path: Path) -> None:
    opened(tmp_path / "s")
    held = dict(np.load(tmp_path / "s" / "canaries.npz"))
    held["x"][3] += 1
    np.savez(tmp_path / "s" / "canaries.npz", **held)
    assert main(["verify", f"sealed={tmp_path / 's'}"]) == 2
    assert (
        digest_arrays(held["x"])
        != digest_arrays(held["x"].astype(np.float64))
        != digest_arrays(held["x"][:5])
    )
