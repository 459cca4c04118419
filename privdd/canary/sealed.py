"""Sealed canaries: crafted records, committed coins, and the files that are published and kept.

``public.json`` and ``canaries.npz`` are for everybody, ``site-NAME.npz`` is for that site alone,
and ``secret.json`` stays with the issuer until it is opened. After that ``opened.json`` is public
too. Files are written atomically and read as from a
stranger: JSON and npz, never a pickle.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field

from attacks.canaries import draw_block_images, select_independent
from attacks.membership.measures import guess_counts
from attacks.one_run import one_run_bounds, right_guesses
from attacks.validation import check_archive
from privdd.core.validation import BadConfig
from privdd.runtime.files import (
    DamagedRun,
    make_private,
    read_json,
    state_folder,
    write_bytes,
    write_json,
)

# Inclusion bits are those of SHAKE-256 over a secret salt and the site's name, so whoever is shown
# the salt can see that they were not chosen one by one. The commitment is SHA-256 over the salt,
# the coins and the whole public statement (how canaries are to be scored included): none of the
# three can be changed afterwards (Halevi and Micali 1996 for hiding and binding of hash
# commitments; here SHA-256 is taken as a random oracle).

SALT_BYTES = 32  # bytes
HASH_PURPOSE = b"privdd sealed canaries 1\0"
PUBLIC_FILE = "public.json"
CANARIES_FILE = "canaries.npz"
SECRET_FILE = "secret.json"
OPENED_FILE = "opened.json"
CANARY_SCHEMA = 1
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_CANARIES = 100_000  # canaries of a site
MAX_NPZ_BYTES = 2 * 2**30  # bytes of an npz
CANDIDATES_PER_CANARY = 3  # candidates for each canary
MAX_CANDIDATES = 6000  # candidates of a draw: the choice among them is a QR decomposition
LAST_DRAW_SHARE = 100  # a draw that brings fewer than one new one in so many is the last
BOUND_TOLERANCE = 1e-9  # relative, between a bound and the one computed again
OPENED_KEYS = {
    "schema",
    "salt",
    "coins",
    "scores",
    "artifact",
    "guesses_right",
    "bounds",
    "bound",
    "stated",
    "verdict",
}


def site_coins(salt: bytes, site: str, count: int) -> np.ndarray:
    """(count,) bool, the site's fair coins: heads = the canary is in."""
    data = hashlib.shake_256(HASH_PURPOSE + b"coins\0" + salt + b"\0" + site.encode()).digest(
        (count + 7) // 8
    )
    return np.unpackbits(np.frombuffer(data, np.uint8))[:count].astype(bool)


def derive_seed(salt: bytes, name: str) -> int:
    """A seed in [0, 2**63) for draws of the issuer's, apart from the coins."""
    text = HASH_PURPOSE + name.encode() + b"\0" + salt
    digest = hashlib.sha256(text).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def coins_to_text(coins: np.ndarray) -> str:
    return "".join("1" if coin else "0" for coin in coins.tolist())


def compute_commitment(salt: bytes, coins: Mapping[str, str], statement: Mapping[str, Any]) -> str:
    """The published commitment: 64 hexadecimal digits."""
    content = {"salt": salt.hex(), "coins": dict(coins), "statement": dict(statement)}
    data = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return hashlib.sha256(HASH_PURPOSE + data).hexdigest()


def digest_arrays(*arrays: np.ndarray) -> str:
    """SHA-256 of arrays: types, shapes and bytes."""
    h = hashlib.sha256(HASH_PURPOSE)
    for array in arrays:
        h.update(f"{array.dtype.str}|{array.shape}|".encode())
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


@dataclass(frozen=True)
class CanarySet:
    """All canaries: x (m, ...), y (m,), id (m,) = 0 to m - 1, site (m,) names."""

    x: np.ndarray
    y: np.ndarray
    site: np.ndarray

    def site_ids(self, site: str) -> np.ndarray:
        """Ids of one site's canaries."""
        return np.flatnonzero(self.site == site)


@dataclass(frozen=True)
class SealedCanaries:
    """The public part of sealed canaries. statement: schema, sites, counts, digests, signal,
    guesses, confidence, delta, stated."""

    statement: Mapping[str, Any]
    commitment: str
    canaries: CanarySet

    @property
    def site_counts(self) -> dict[str, int]:
        """Name -> number of canaries, in the order of their ids."""
        return {name: entry["count"] for name, entry in self.statement["sites"].items()}


def npz_bytes(**arrays: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)  # type: ignore[arg-type]
    return held.getvalue()


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The named arrays. Raises DamagedRun, one line, for anything but an npz of plain arrays that
    holds them all."""
    try:
        check_archive(path, MAX_NPZ_BYTES)
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in names if name in stored.files}
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (
        Exception
    ) as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        raise DamagedRun(
            f"{path}: not an npz of plain arrays ({' '.join(str(error).split())[:120]})"
        ) from None
    if missing := sorted(set(names) - set(arrays)):
        raise DamagedRun(
            f"{path}: arrays {', '.join(names)} are needed, {', '.join(missing)} is missing"
        )
    return arrays


def read_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """x (n, ...) of finite numbers and y (n,) of whole numbers from 0, of any npz. Raises
    DamagedRun."""
    arrays = read_npz(path, ("x", "y"))
    x = arrays["x"]
    y = arrays["y"]
    if (
        x.ndim < 2
        or y.shape != (len(x),)
        or not len(y)
        or x.dtype.kind not in "fiub"
        or y.dtype.kind not in "iu"
    ):
        shapes = f"got {x.dtype} {x.shape}, {y.dtype} {y.shape}"
        raise DamagedRun(
            f"{path}: x (n, ...) numbers and y (n,) whole numbers are needed, {shapes}"
        )
    if not np.isfinite(x).all() or y.min() < 0:
        raise DamagedRun(f"{path}: x must be finite and y at least 0")
    return x, y.astype(np.int64)


def secrets_folder(sealed: Path, commitment: str) -> Path:
    """The default folder of an issue's secret and its sites' files, outside every project
    folder."""
    return state_folder() / "canaries" / f"{sealed.resolve().name}-{commitment[:16]}"


def write_sealed(
    folder: Path,
    salt: bytes,
    canaries: CanarySet,
    statement: Mapping[str, Any],
    secrets: Path | None = None,
) -> SealedCanaries:
    """What is public into ``folder``, the rest into ``secrets`` (default ``secrets_folder``).
    statement: signal, confidence, delta, stated."""
    ids_of = {name: canaries.site_ids(name) for name in dict.fromkeys(canaries.site.tolist())}
    entries: dict[str, dict[str, Any]] = {
        name: {"count": len(ids), "records": digest_arrays(canaries.x[ids], canaries.y[ids])}
        for name, ids in ids_of.items()
    }
    guesses = [list(pair) for pair in guess_counts(len(canaries.y))]
    statement = {
        "schema": CANARY_SCHEMA,
        "relation": "add_remove",
        "sites": entries,
        "guesses": guesses,
        **statement,
    }
    coins = {
        name: coins_to_text(site_coins(salt, name, entry["count"]))
        for name, entry in entries.items()
    }
    mark = compute_commitment(salt, coins, statement)
    if secrets is None:
        secrets = secrets_folder(folder, mark)
    make_private(secrets)
    every = npz_bytes(x=canaries.x, y=canaries.y, id=np.arange(len(canaries.y)), site=canaries.site)
    write_bytes(folder / CANARIES_FILE, every)
    for name, every_id in ids_of.items():
        ids = every_id[site_coins(salt, name, len(every_id))]
        held = npz_bytes(x=canaries.x[ids], y=canaries.y[ids], id=ids)
        write_bytes(secrets / f"site-{name}.npz", held, private=True)
    write_json(
        secrets / SECRET_FILE,
        {"schema": CANARY_SCHEMA, "salt": salt.hex(), "coins": coins},
        private=True,
    )
    write_json(folder / PUBLIC_FILE, {**statement, "commitment": mark})
    return SealedCanaries(statement, mark, canaries)


def read_sealed(folder: Path) -> SealedCanaries:
    """The public files, which have to agree with each other. Raises DamagedRun, one line."""
    path = folder / PUBLIC_FILE
    statement = read_json(path)
    if not isinstance(statement, dict) or statement.get("schema") != CANARY_SCHEMA:
        raise DamagedRun(f"{path}: no sealed canaries of schema {CANARY_SCHEMA}")
    wanted = {
        "schema",
        "relation",
        "sites",
        "guesses",
        "signal",
        "confidence",
        "delta",
        "stated",
        "commitment",
    }
    if set(statement) != wanted:
        raise DamagedRun(
            f"{path}: missing {sorted(wanted - set(statement))}, unknown "
            f"{sorted(set(statement) - wanted)}"
        )
    _check_statement(path, statement)
    mark = statement.pop("commitment")
    arrays = read_npz(folder / CANARIES_FILE, ("x", "y", "id", "site"))
    canaries = _check_canaries(folder / CANARIES_FILE, arrays, statement)
    return SealedCanaries(statement, mark, canaries)


class _Site(BaseModel, extra="forbid", strict=True):
    count: Annotated[int, Field(ge=1, le=MAX_CANARIES)]
    records: Annotated[str, Field(pattern=f"^{HEX_DIGEST.pattern}$")]


class _Statement(BaseModel, strict=True, allow_inf_nan=False):
    relation: Literal["add_remove"]
    sites: Annotated[
        dict[Annotated[str, Field(pattern=f"^{SITE_NAME.pattern}$")], _Site], Field(min_length=1)
    ]
    signal: Literal["update", "loss", "scores"]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    stated: Annotated[float, Field(ge=0)] | None
    commitment: Annotated[str, Field(pattern=f"^{HEX_DIGEST.pattern}$")]


def _check_statement(path: Path, statement: Mapping[str, Any]) -> None:
    try:
        sites = _Statement.model_validate(statement).sites
        count = sum(site.count for site in sites.values())
        good = statement["guesses"] == [list(pair) for pair in guess_counts(count)]
    except ValueError:
        good = False
    if not good:
        raise DamagedRun(f"{path}: its statement is not one that privdd.canary writes")


def _check_canaries(
    path: Path, arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any]
) -> CanarySet:
    x = arrays["x"]
    y = arrays["y"]
    site = arrays["site"]
    counts = [entry["count"] for entry in statement["sites"].values()]
    m = sum(counts)
    names = np.repeat([*statement["sites"]], counts)
    plain = (
        x.ndim >= 2 and x.dtype.kind in "fiub" and y.dtype.kind in "iu" and site.dtype.kind == "U"
    )
    fits = (
        len(x) == len(y) == m
        and np.array_equal(arrays["id"], np.arange(m))
        and np.array_equal(site, names)
    )
    if not plain or not fits:
        raise DamagedRun(f"{path}: differs from the canaries of {PUBLIC_FILE}")
    canaries = CanarySet(x, y, site)
    for name, entry in statement["sites"].items():
        ids = canaries.site_ids(name)
        if digest_arrays(x[ids], y[ids]) != entry["records"]:
            raise DamagedRun(
                f"{path}: the canaries of site {name} are not those that {PUBLIC_FILE} names"
            )
    return canaries


def read_secret(path: Path) -> tuple[bytes, dict[str, str]]:
    """(salt, coins by site) as they are told. Raises DamagedRun."""
    secret = read_json(path)
    if not isinstance(secret, dict):
        raise DamagedRun(f"{path}: an object with salt and coins is needed")
    return parse_secret(secret, path)


def parse_secret(secret: Mapping[str, Any], path: Path) -> tuple[bytes, dict[str, str]]:
    salt = secret.get("salt")
    coins = secret.get("coins")
    good = isinstance(salt, str) and HEX_DIGEST.fullmatch(salt) and isinstance(coins, dict)
    if not good or not all(isinstance(c, str) and set(c) <= {"0", "1"} for c in coins.values()):  # type: ignore[union-attr]
        raise DamagedRun(
            f"{path}: salt (64 hexadecimal digits) and coins (0 and 1 for each site) are needed"
        )
    return bytes.fromhex(salt), coins  # type: ignore[arg-type, return-value]


def check_commitment(sealed: SealedCanaries, salt: bytes, coins: Mapping[str, str]) -> np.ndarray:
    """(m,) bool, which canaries are in. Raises DamagedRun where salt, coins or statement are not
    what was committed to."""
    if compute_commitment(salt, coins, sealed.statement) != sealed.commitment:
        raise DamagedRun(
            "the commitment does not fit: salt, coins or the public statement are not "
            "those of the issue"
        )
    for name, count in sealed.site_counts.items():
        if coins.get(name) != coins_to_text(site_coins(salt, name, count)):
            raise DamagedRun(
                f"the coins of site {name} do not follow from the salt: they were chosen, not drawn"
            )
    if set(coins) != set(sealed.site_counts):
        raise DamagedRun("coins of sites that the public statement does not name")
    return np.concatenate(
        [site_coins(salt, name, count) for name, count in sealed.site_counts.items()]
    )


RecordPair = tuple[np.ndarray, np.ndarray]


def draw_canary_set(arguments: Mapping[str, Any], sites: Sequence[str], seed: int) -> CanarySet:
    """``count`` different canaries for each site. arguments: shape and classes, or from. Raises
    BadConfig, DamagedRun."""
    total = arguments["count"] * len(sites)
    if "from" in arguments:
        x, y = read_records(Path(arguments["from"]))
        x, y = mislabel_tail_records(
            x, y, int(arguments.get("classes", int(y.max()) + 1)), total, seed
        )
    else:
        x, y = craft_records(arguments["shape"], arguments["classes"], total, seed)
    order = np.random.default_rng(seed).permutation(total)  # no site gets the tail of the choice
    return CanarySet(x[order], y[order], np.repeat(list(sites), arguments["count"]))


def craft_records(shape: Sequence[int], classes: int, count: int, seed: int) -> RecordPair:
    """(x (count, *shape) float32 in [0, 1], y (count,) int64, all classes in turn), nearly
    orthogonal. Images (c, h, w) or (h, w) are blocks of black and white, others zeros and ones by
    fair coins. Raises BadConfig where too few different ones are found."""
    pool = _draw_candidates(shape, count, seed)
    if len(pool) < count:
        reason = (
            f"{len(pool)} different canaries were drawn, {count} are needed; lower count= or "
            "take a larger shape"
        )
        raise BadConfig(f"shape={','.join(map(str, shape))}: {reason}")
    rows = pool.reshape(len(pool), -1)
    chosen = select_independent(rows - rows.mean(), count)
    return np.ascontiguousarray(pool[chosen], np.float32), np.arange(
        count, dtype=np.int64
    ) % classes


def _draw_candidates(shape: Sequence[int], count: int, seed: int) -> np.ndarray:
    """Different candidates (n, *shape): drawn again while they are too few, until a draw brings
    hardly any new one."""
    draw = _candidate_sampler(shape, seed)
    total = max(count, min(CANDIDATES_PER_CANARY * count, MAX_CANDIDATES))
    pool = np.zeros((0, *shape), np.float32)
    new = 1
    while len(pool) < count and new:
        candidates = np.concatenate([pool, draw(total)])
        candidates = candidates[_distinct_rows(candidates)]
        pool, new = candidates, (len(candidates) - len(pool)) * LAST_DRAW_SHARE // total
    return pool


def _candidate_sampler(shape: Sequence[int], seed: int) -> Callable[[int], np.ndarray]:
    """n -> n candidates (n, *shape) float32, others at each call."""
    if len(shape) in (2, 3) and min(shape[-2:]) > 3:
        image = (*[1] * (3 - len(shape)), *shape)
        generator = torch.Generator().manual_seed(seed)
        return lambda n: draw_block_images(image, n, generator).numpy().reshape(n, *shape)  # type: ignore[arg-type]
    coins = np.random.default_rng(seed)
    return lambda n: coins.integers(0, 2, (n, *shape)).astype(np.float32)


def mislabel_tail_records(
    x: np.ndarray, y: np.ndarray, classes: int, count: int, seed: int
) -> RecordPair:
    """The ``count`` different records of x (n, ...), y (n,) furthest from the mean of their class,
    each with a wrong label drawn evenly; nobody may train on them. Raises BadConfig for too few
    records or classes."""
    if classes < 2:
        raise BadConfig(
            "from=: its records have one class; at least 2 are needed for a wrong label"
        )
    distinct = _distinct_rows(x)
    x = x[distinct]
    y = y[distinct]
    if count > len(y):
        raise BadConfig(f"from=: {len(y)} different records are too few for {count} canaries")
    flat = x.reshape(len(x), -1).astype(np.float64)
    far = np.zeros(len(y))
    for label in np.unique(y):
        mine = y == label
        rows = flat[mine]
        far[mine] = np.linalg.norm(rows - rows.mean(0), axis=1)
    chosen = np.sort(np.argsort(-far, kind="stable")[:count])
    shift = np.random.default_rng(seed).integers(1, classes, count)
    labels = (y[chosen] + shift) % classes
    return np.ascontiguousarray(x[chosen]), labels.astype(np.int64)


def _distinct_rows(x: np.ndarray) -> list[int]:
    """Places of the rows that equal none before them: two equal canaries would blur each other's
    coins."""
    first_places: dict[bytes, int] = {}
    for index, row in enumerate(x):
        first_places.setdefault(row.tobytes(), index)
    return list(first_places.values())


# The bound is the larger of Steinke, Nasr and Jagielski's (2023) and Mahloujifar, Melis and
# Chaudhuri's (2024) at half of the error each, over guesses whose numbers were fixed in the public
# statement. It holds at the stated confidence for every mechanism and every score that was computed
# without the coins, which nothing here can see: see the tutorial.


def opened_result(
    sealed: SealedCanaries,
    salt: bytes,
    coins: Mapping[str, str],
    scores: np.ndarray,
    artifact: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of opened.json. scores: (m,), larger = in, by id. Raises DamagedRun for a
    commitment that does not fit."""
    is_member = check_commitment(sealed, salt, coins)
    statement = sealed.statement
    if scores.shape != is_member.shape or not np.isfinite(scores).all():
        raise DamagedRun(
            f"scores {scores.shape}: {len(is_member)} finite numbers are needed, one for "
            "each canary"
        )
    pairs = [(int(i), int(o)) for i, o in statement["guesses"]]
    # fixed with the coins, so that nobody can draw until it fits
    ties = np.random.default_rng(derive_seed(salt, "ties"))
    counts = right_guesses(scores, is_member, pairs, ties)
    bounds = one_run_bounds(
        len(is_member), counts, delta=statement["delta"], confidence=statement["confidence"]
    )
    value = max(bounds.values())
    stated = statement["stated"]
    if stated is None:
        verdict = "nothing stated"
    elif value > stated:
        verdict = "contradiction"
    else:
        verdict = "consistent"
    return {
        "schema": CANARY_SCHEMA,
        "salt": salt.hex(),
        "coins": dict(coins),
        "scores": [float(score) for score in scores],
        "artifact": dict(artifact),
        "guesses_right": [[guesses, right] for guesses, right in counts],
        "bounds": bounds,
        "bound": value,
        "stated": stated,
        "verdict": verdict,
    }


def check_opened_file(sealed: SealedCanaries, path: Path) -> dict[str, Any]:
    """opened.json, every number of it computed again. Raises DamagedRun, one line, for the first
    that differs."""
    opened = read_json(path)
    is_readable = (
        isinstance(opened, dict)
        and set(opened) == OPENED_KEYS
        and opened["schema"] == CANARY_SCHEMA
    )
    if not is_readable or not isinstance(opened["artifact"], dict):
        raise DamagedRun(f"{path}: no {OPENED_FILE} of schema {CANARY_SCHEMA}")
    salt, coins = parse_secret(opened, path)
    scores = opened["scores"]
    if not isinstance(scores, list) or not all(
        type(s) is float and math.isfinite(s) for s in scores
    ):
        raise DamagedRun(f"{path}: scores: a list of finite numbers is needed")
    again = opened_result(
        sealed, salt, coins, np.asarray(scores, dtype=np.float64), opened["artifact"]
    )
    if not isinstance(opened["bounds"], dict) or set(opened["bounds"]) != set(again["bounds"]):
        raise DamagedRun(f"{path}: bounds are not {', '.join(again['bounds'])}")
    pairs = {name: (opened[name], again[name]) for name in sorted(OPENED_KEYS - {"bounds"})}
    for name, (theirs, mine) in (
        pairs | {n: (opened["bounds"][n], recomputed) for n, recomputed in again["bounds"].items()}
    ).items():
        if not (
            _is_same_bound(theirs, mine) if name in {"bound", *again["bounds"]} else theirs == mine
        ):
            raise DamagedRun(
                f"{path}: {name} is {str(theirs)[:60]}, computed again it is {str(mine)[:60]}"
            )
    return again


def _is_same_bound(theirs: Any, mine: float) -> bool:
    near = {"rel_tol": BOUND_TOLERANCE, "abs_tol": BOUND_TOLERANCE}
    return type(theirs) in (int, float) and math.isclose(theirs, mine, **near)


def describe_opened(opened: Mapping[str, Any], sealed: SealedCanaries) -> str:
    """One line for the terminal."""
    m = len(opened["scores"])
    statement = sealed.statement
    right = ", ".join(f"{right} of {guesses}" for guesses, right in opened["guesses_right"])
    bound = (
        f"epsilon >= {opened['bound']:.3g} at delta {statement['delta']:g} "
        f"({statement['confidence']:.0%})"
    )
    line = f"{m} canaries, coins read: {right}; {bound}"
    if opened["stated"] is None:
        return line
    return f"{line}; stated {opened['stated']:g}: {opened['verdict']}"
