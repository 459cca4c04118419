"""The files of sealed canaries, written atomically and read as from a stranger: JSON and npz, never a pickle.

``public.json`` and ``canaries.npz`` are for everybody. ``site-NAME.npz`` is for that site alone (which ids it holds are the
site's coins), and ``secret.json`` stays with the issuer until it is opened: both lie in a folder of their own. After that
``opened.json`` is public too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attacks.archive import check_archive
from attacks.membership.attack import guess_counts
from privdd.canary.commitment import SALT, coins_of, commitment, digest_of, text_of
from privdd.core.checks import check_number
from privdd.runtime.files import DamagedRun, read_json, write_bytes, write_json
from privdd.runtime.private_folder import make_private, state_folder

PUBLIC, CANARIES, SECRET, OPENED = "public.json", "canaries.npz", "secret.json", "opened.json"
SCHEMA = 1
SIGNALS = ("update", "loss", "scores")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
HEX = re.compile(r"[0-9a-f]{64}")
MOST = 100_000  # canaries of a site
LARGEST = 2 * 2**30  # bytes of an npz


@dataclass(frozen=True)
class Canary:
    """All canaries: x (m, ...), y (m,), id (m,) = 0 to m - 1, site (m,) names."""

    x: np.ndarray
    y: np.ndarray
    site: np.ndarray

    def of(self, site: str) -> np.ndarray:
        """Ids of one site's canaries."""
        return np.flatnonzero(self.site == site)


@dataclass(frozen=True)
class Sealed:
    """What is public. statement: schema, sites, counts, digests, signal, guesses, confidence, delta, stated."""

    statement: Mapping[str, Any]
    commitment: str
    canaries: Canary

    @property
    def sites(self) -> dict[str, int]:
        """Name -> number of canaries, in the order of their ids."""
        return {name: entry["count"] for name, entry in self.statement["sites"].items()}


def npz(**arrays: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)  # type: ignore[arg-type]
    return held.getvalue()


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The named arrays. Raises DamagedRun, one line, for anything but an npz of plain arrays that holds them all."""
    try:
        check_archive(path, LARGEST)
        with np.load(path, allow_pickle=False) as stored:
            found = {name: stored[name] for name in names if name in stored.files}
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except Exception as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        raise DamagedRun(f"{path}: not an npz of plain arrays ({' '.join(str(error).split())[:120]})") from None
    if missing := sorted(set(names) - set(found)):
        raise DamagedRun(f"{path}: arrays {', '.join(names)} are needed, {', '.join(missing)} is missing")
    return found


def records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """x (n, ...) of finite numbers and y (n,) of whole numbers from 0, of any npz. Raises DamagedRun."""
    found = read_npz(path, ("x", "y"))
    x, y = found["x"], found["y"]
    if x.ndim < 2 or y.shape != (len(x),) or not len(y) or x.dtype.kind not in "fiub" or y.dtype.kind not in "iu":
        raise DamagedRun(
            f"{path}: x (n, ...) numbers and y (n,) whole numbers are needed, got {x.dtype} {x.shape}, {y.dtype} {y.shape}"
        )
    if not np.isfinite(x).all() or y.min() < 0:
        raise DamagedRun(f"{path}: x must be finite and y at least 0")
    return x, y.astype(np.int64)


def secrets_folder(sealed: Path, commitment: str) -> Path:
    """Where an issue's secret and its sites' files lie, unless told otherwise: outside anybody's work."""
    return state_folder() / "canaries" / f"{sealed.resolve().name}-{commitment[:16]}"


def write_sealed(
    folder: Path, salt: bytes, canaries: Canary, told: Mapping[str, Any], secrets: Path | None = None
) -> Sealed:
    """An issue: what is public into ``folder``, the rest into ``secrets`` (default ``secrets_folder``). told: signal,
    confidence, delta and stated."""
    names = list(dict.fromkeys(canaries.site.tolist()))
    entries: dict[str, dict[str, Any]] = {
        n: {"count": len(ids), "records": digest_of(canaries.x[ids], canaries.y[ids])}
        for n in names
        for ids in [canaries.of(n)]
    }
    guesses = [list(pair) for pair in guess_counts(len(canaries.y))]
    statement = {"schema": SCHEMA, "relation": "add_remove", "sites": entries, "guesses": guesses, **told}
    coins = {name: text_of(coins_of(salt, name, entry["count"])) for name, entry in entries.items()}
    mark = commitment(salt, coins, statement)
    secrets = secrets_folder(folder, mark) if secrets is None else secrets
    make_private(secrets)
    write_bytes(folder / CANARIES, npz(x=canaries.x, y=canaries.y, id=np.arange(len(canaries.y)), site=canaries.site))
    for name in names:
        ids = canaries.of(name)[coins_of(salt, name, entries[name]["count"])]
        held = npz(x=canaries.x[ids], y=canaries.y[ids], id=ids)
        write_bytes(secrets / f"site-{name}.npz", held, private=True)
    write_json(secrets / SECRET, {"schema": SCHEMA, "salt": salt.hex(), "coins": coins}, private=True)
    write_json(folder / PUBLIC, {**statement, "commitment": mark})
    return Sealed(statement, mark, canaries)


def read_sealed(folder: Path) -> Sealed:
    """The public files, which have to agree with each other. Raises DamagedRun, one line."""
    path = folder / PUBLIC
    told = read_json(path)
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        raise DamagedRun(f"{path}: no sealed canaries of schema {SCHEMA}")
    wanted = {"schema", "relation", "sites", "guesses", "signal", "confidence", "delta", "stated", "commitment"}
    if set(told) != wanted:
        raise DamagedRun(f"{path}: missing {sorted(wanted - set(told))}, unknown {sorted(set(told) - wanted)}")
    mark = told.pop("commitment")
    _check_statement(path, told, mark)
    found = read_npz(folder / CANARIES, ("x", "y", "id", "site"))
    canaries = _canaries(folder / CANARIES, found, told)
    return Sealed(told, mark, canaries)


def _check_statement(path: Path, told: Mapping[str, Any], mark: Any) -> None:
    try:
        sites = told["sites"]
        good = isinstance(sites, dict) and bool(sites) and isinstance(mark, str) and HEX.fullmatch(mark) is not None
        good = good and all(
            NAME.fullmatch(name) and set(entry) == {"count", "records"} and type(entry["count"]) is int
            and 1 <= entry["count"] <= MOST and HEX.fullmatch(entry["records"])
            for name, entry in sites.items()
        )  # fmt: skip
        m = sum(entry["count"] for entry in sites.values()) if good else 0
        good = good and told["guesses"] == [list(pair) for pair in guess_counts(m)]
        good = good and told["signal"] in SIGNALS and told["relation"] == "add_remove"
        check_number("confidence", told["confidence"])
        check_number("delta", told["delta"])
        good = good and 0 < told["confidence"] < 1 and 0 <= told["delta"] < 1
        check_number("stated", told["stated"], optional=True)
        good = good and (told["stated"] is None or told["stated"] >= 0)
    except (ValueError, TypeError, AttributeError, KeyError):
        good = False
    if not good:
        raise DamagedRun(f"{path}: its statement is not one that privdd.canary writes")


def _canaries(path: Path, found: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> Canary:
    x, y, site = found["x"], found["y"], found["site"]
    m = sum(entry["count"] for entry in told["sites"].values())
    names = np.repeat([*told["sites"]], [entry["count"] for entry in told["sites"].values()])
    plain = x.ndim >= 2 and x.dtype.kind in "fiub" and y.dtype.kind in "iu" and site.dtype.kind == "U"
    if (
        not plain
        or not len(x) == len(y) == m
        or not np.array_equal(found["id"], np.arange(m))
        or not np.array_equal(site, names)
    ):
        raise DamagedRun(f"{path}: not the canaries that {PUBLIC} speaks of")
    canaries = Canary(x, y, site)
    for name, entry in told["sites"].items():
        ids = canaries.of(name)
        if digest_of(x[ids], y[ids]) != entry["records"]:
            raise DamagedRun(f"{path}: the canaries of site {name} are not those that {PUBLIC} names")
    return canaries


def read_secret(path: Path) -> tuple[bytes, dict[str, str]]:
    """(salt, coins by site) as they are told. Raises DamagedRun."""
    told = read_json(path)
    if not isinstance(told, dict):
        raise DamagedRun(f"{path}: an object with salt and coins is needed")
    return secret_of(told, path)


def secret_of(told: Mapping[str, Any], path: Path) -> tuple[bytes, dict[str, str]]:
    salt, coins = told.get("salt"), told.get("coins")
    good = isinstance(salt, str) and len(salt) == 2 * SALT and HEX.fullmatch(salt) and isinstance(coins, dict)
    if not good or not all(isinstance(c, str) and set(c) <= {"0", "1"} for c in coins.values()):  # type: ignore[union-attr]
        raise DamagedRun(f"{path}: salt (64 hexadecimal digits) and coins (0 and 1 for each site) are needed")
    return bytes.fromhex(salt), coins  # type: ignore[arg-type, return-value]


def check_commitment(sealed: Sealed, salt: bytes, coins: Mapping[str, str]) -> np.ndarray:
    """(m,) bool, which canaries are in. Raises DamagedRun where salt, coins or statement are not what was committed to."""
    if commitment(salt, coins, sealed.statement) != sealed.commitment:
        raise DamagedRun("the commitment does not fit: salt, coins or the public statement are not those of the issue")
    for name, count in sealed.sites.items():
        if coins.get(name) != text_of(coins_of(salt, name, count)):
            raise DamagedRun(f"the coins of site {name} do not follow from the salt: they were chosen, not drawn")
    if set(coins) != set(sealed.sites):
        raise DamagedRun("coins of sites that the public statement does not name")
    return np.concatenate([coins_of(salt, name, count) for name, count in sealed.sites.items()])
