"""A score for each canary from what a federation let out: larger = in. Nothing here sees a coin.

update: each round's update is regressed on what each canary alone would have done to it, all rounds
    together (``attacks.canaries``). The size of a step and the noise are not known, so they are
    estimated from the update. loss: how far a
canary's loss fell from the first model to the last.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from attacks.canaries import likelihood_ratios, noise_outside_span
from privdd.blackbox.target import add_search_folder, load_target
from privdd.canary.sealed import SealedCanaries, digest_arrays, read_npz, read_records
from privdd.core.validation import BadConfig
from privdd.recording import network
from privdd.recording.recording import Recording, all_client_nodes, find_client, read_recordings
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import read_tensors
from privdd.runtime.seal import file_sha256

# what a client was sent, what it replied
RecordedRound = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
RecordPair = tuple[np.ndarray, np.ndarray]
MAX_TEXT_BYTES = 50_000_000


def score_by_updates(
    model: nn.Module,
    rounds: Iterable[RecordedRound],
    x: np.ndarray,
    y: np.ndarray,
    clip: float | None = None,
    known: RecordPair | None = None,
) -> np.ndarray:
    """(m,) from one client's rounds. clip: norm to which each record's gradient was clipped, None =
    it was not. known: other records of the client, or records like them: what each class of them
    does to an update is taken off first, whatever its size. Of a large network every k-th
    parameter is read, so that m gradients fit into memory. Raises
    BadConfig for messages that do not fit the model, and where there is none."""
    m = len(y)
    is_recorded = False
    gram = np.zeros((m, m))
    precision = np.zeros((m, m))
    product = np.zeros(m)
    moment = np.zeros(m)
    every = network.thinning_step(model, m)
    for sent, replied in rounds:
        network.load_parameters(model, sent)
        rows = network.record_descents(model, x, y, every, clip).astype(np.float64)
        update = network.parameter_difference(model, sent, replied)[::every]
        if known is not None:
            rows, update = project_out(
                network.class_descent_sums(model, *known, every, clip), rows, update
            )
        noise = noise_outside_span(rows, update, max(float(update.std()), 1e-12))
        products = rows @ rows.T
        along = rows @ update
        gram = gram + products
        product = product + along
        precision = precision + products / noise**2
        moment = moment + along / noise**2
        is_recorded = True
    if not is_recorded:
        raise BadConfig("updates=: no round of this client was recorded")
    step = _estimate_step_size(gram, product)
    return likelihood_ratios(step**2 * precision, step * moment, 0.5)


def project_out(
    directions: np.ndarray, rows: np.ndarray, update: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """rows (m, p) and update (p,) without their parts in the span of directions (k, p) (Frisch and
    Waugh 1933)."""
    basis = np.linalg.qr(directions.T)[0]
    return rows - (rows @ basis) @ basis.T, update - basis @ (basis.T @ update)


def _estimate_step_size(gram: np.ndarray, product: np.ndarray) -> float:
    """The positive factor of one canary's step in an update, of all rounds.

    2 mean(c) with c = (G + r I)^-1 b, the ridge regression of the updates on the canaries' rows
    (G = sum A A^T, b = sum A u): twice the mean coefficient, as half of the canaries are in."""
    ridge = 1e-3 * float(np.trace(gram)) / len(gram)
    coefficients = np.linalg.solve(gram + max(ridge, 1e-12) * np.eye(len(gram)), product)
    size = 2 * float(np.mean(coefficients))
    if size > 0:
        return size
    return max(float(np.abs(coefficients).mean()), 1e-12)


def score_by_loss(
    model: nn.Module,
    before: Mapping[str, Tensor] | None,
    after: Mapping[str, Tensor],
    x: np.ndarray,
    y: np.ndarray,
) -> np.ndarray:
    """(m,): loss before - loss after; minus the loss after where the first model is not known."""
    network.load_parameters(model, after)
    last = network.record_losses(model, x, y)
    if before is None:
        return -last
    network.load_parameters(model, before)
    return network.record_losses(model, x, y) - last


def read_scores(path: Path, count: int) -> np.ndarray:
    """(m,) from an npz with id and score, or a csv with columns id and score. Raises DamagedRun."""
    if path.suffix == ".npz":
        stored = read_npz(path, ("id", "score"))
        if (
            stored["id"].dtype.kind not in "iu"
            or stored["score"].dtype.kind not in "fiu"
            or stored["id"].ndim != 1
        ):
            raise DamagedRun(f"{path}: id (m,) whole numbers and score (m,) numbers are needed")
        ids = stored["id"].astype(np.int64)
        values = stored["score"].astype(np.float64)
    else:
        ids, values = _read_csv_scores(path)
    if ids.shape != values.shape or sorted(ids.tolist()) != [*range(count)]:
        raise DamagedRun(f"{path}: one score for each id from 0 to {count - 1} is needed")
    scores = np.empty(count)
    scores[ids] = values
    if not np.isfinite(scores).all():
        raise DamagedRun(f"{path}: scores must be finite")
    return scores


def _read_csv_scores(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.is_file() and path.stat().st_size > MAX_TEXT_BYTES:
        raise DamagedRun(f"{path}: more than {MAX_TEXT_BYTES} bytes")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(int(row["id"]), float(row["score"])) for row in csv.DictReader(file)]
        return np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows])
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError, OverflowError, csv.Error) as error:
        raise DamagedRun(
            f"{path}: columns id and score of numbers are needed ({str(error)[:80]})"
        ) from None


def score_artifact(
    sealed: SealedCanaries, arguments: Mapping[str, Any]
) -> tuple[np.ndarray, dict[str, Any]]:
    """((m,) scores by id, what they were computed from). Raises BadConfig where the artifact is not
    of the declared signal."""
    signal = sealed.statement["signal"]
    if signal == "scores":
        if "scores" not in arguments:
            raise BadConfig("scores=FILE is needed: these canaries were issued with signal=scores")
        path = Path(arguments["scores"])
        return read_scores(path, len(sealed.canaries.y)), {
            "signal": "scores",
            "file": file_sha256(path),
        }
    if "scores" in arguments:
        issued = f"these canaries were issued with signal={signal}"
        raise BadConfig(f"scores=: {issued}; scores of another kind do not count")
    if "model" not in arguments:
        raise BadConfig("model=package.module:Net is needed")
    add_search_folder(Path.cwd())
    model = network.build_network(load_target(arguments["model"]), arguments["args"])
    if "updates" in arguments:
        recordings = read_recordings(Path(arguments["updates"]))
        if signal == "loss":
            return _score_recorded_loss(sealed, model, recordings)
        return _score_recorded_updates(sealed, arguments, model, recordings)
    if signal != "loss" or "after" not in arguments:
        raise BadConfig(
            "updates=RUN is needed"
            if signal == "update"
            else "updates=RUN, or after=FILE, is needed"
        )
    after = Path(arguments["after"])
    x = sealed.canaries.x
    y = sealed.canaries.y
    before = Path(arguments["before"]) if "before" in arguments else None
    scores = score_by_loss(
        model, read_tensors(before) if before else None, read_tensors(after), x, y
    )
    description = {
        "signal": "loss",
        "after": file_sha256(after),
        **({"before": file_sha256(before)} if before else {}),
    }
    return scores, description


def _score_recorded_loss(
    sealed: SealedCanaries, model: Any, recordings: list[Recording]
) -> tuple[np.ndarray, dict[str, Any]]:
    recording = recordings[0]
    final = recording.final_message()
    if final is None:
        raise BadConfig(
            "updates=: signal=loss needs the final model, which is in a server's recording (tapped)"
        )
    replies = recording.replies_of(recording.client_nodes[0])
    first = recording.broadcast_before(min(replies, key=lambda reply: reply.heading.round))
    scores = score_by_loss(
        model, first.read_arrays(), final.read_arrays(), sealed.canaries.x, sealed.canaries.y
    )
    return scores, {"signal": "loss", "before": first.digest, "after": final.digest}


def _score_recorded_updates(
    sealed: SealedCanaries, arguments: Mapping[str, Any], model: Any, recordings: list[Recording]
) -> tuple[np.ndarray, dict[str, Any]]:
    scores = np.empty(len(sealed.canaries.y))
    digests = {}
    known_records = {
        site: _read_known_records(site, Path(path), sealed)
        for site, path in arguments.get("known", {}).items()
    }
    if unknown := sorted(set(known_records) - set(sealed.site_counts)):
        raise BadConfig(f"known.{unknown[0]}=: no such site")
    for site in sealed.site_counts:
        recording, node = _find_client(
            recordings, site, arguments["client"], len(sealed.site_counts)
        )
        replies = recording.replies_of(node)
        ids = sealed.canaries.site_ids(site)
        sent = (recording.broadcast_before(reply).read_arrays() for reply in replies)
        rounds = zip(sent, map(recording.replied_parameters, replies))
        x = sealed.canaries.x[ids]
        y = sealed.canaries.y[ids]
        scores[ids] = score_by_updates(
            model, rounds, x, y, arguments.get("clip"), known_records.get(site)
        )
        digests[site] = [reply.digest for reply in replies]
    if arguments.get("clip") is None:
        extra = {}
    else:
        extra = {"clip": arguments["clip"]}
    if known_records:
        extra |= {"known": {site: digest_arrays(*pair) for site, pair in known_records.items()}}
    return scores, {"signal": "update", "replies": digests, **extra}


def _read_known_records(
    site: str, path: Path, sealed: SealedCanaries
) -> tuple[np.ndarray, np.ndarray]:
    """Other records of a site. Raises BadConfig where canaries are among them: the file would tell
    the scores their coins."""
    x, y = read_records(path)
    theirs = _record_set(sealed.canaries.x, sealed.canaries.y)
    if shared := len(theirs & _record_set(x, y)):
        complaint = f"holds {shared} of the canaries, and so their coins"
        raise BadConfig(
            f"known.{site}={path}: {complaint}; the site's other records alone are needed"
        )
    return x, y


def _record_set(x: np.ndarray, y: np.ndarray) -> set[tuple[bytes, int]]:
    flat = x.reshape(len(x), -1).astype(np.float64)
    return {(row.tobytes(), int(label)) for row, label in zip(flat, y)}


def _find_client(
    recordings: list[Recording], site: str, named: Mapping[str, int], sites: int
) -> tuple[Recording, int]:
    """The recording and the node of a site: client.SITE=NODE, where NODE may be a client's
    partition too."""
    if site in named or sites == 1:
        client = find_client(recordings, named.get(site))
    else:
        client = None
    if client is None:
        raise BadConfig(
            f"client.{site}=NODE is needed, one of "
            f"{', '.join(map(str, all_client_nodes(recordings)))}"
        )
    return client
