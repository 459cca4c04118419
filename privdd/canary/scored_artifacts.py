"""The scores of sealed canaries from the artifact that the command line names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privdd.canary.canary_scores import by_loss, by_updates, from_file
from privdd.canary.commitment import digest_of
from privdd.canary.sealed_files import Sealed, records
from privdd.checking.child import add_folder
from privdd.checking.named import load_target
from privdd.core.errors import BadConfig
from privdd.runtime.run_folder import read_tensors
from privdd.runtime.seal import sha256
from privdd.tapping.recorded_network import built
from privdd.tapping.recording import Recording, read_all


def scored(sealed: Sealed, given: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """((m,) scores by id, what they were computed from). Raises BadConfig where the artifact is not of the declared signal."""
    signal = sealed.statement["signal"]
    if signal == "scores":
        return _of_file(sealed, given)
    if "scores" in given:
        raise BadConfig(
            f"scores=: these canaries were issued with signal={signal}; scores of another kind do not count"
        )
    if "model" not in given:
        raise BadConfig("model=package.module:Net is needed")
    add_folder(Path.cwd())
    model = built(load_target(given["model"]), given["args"])
    if "updates" in given:
        recordings = read_all(Path(given["updates"]))
        return (
            _of_loss(sealed, model, recordings) if signal == "loss" else _of_updates(sealed, given, model, recordings)
        )
    if signal != "loss" or "after" not in given:
        raise BadConfig("updates=RUN is needed" if signal == "update" else "updates=RUN, or after=FILE, is needed")
    after, x, y = Path(given["after"]), sealed.canaries.x, sealed.canaries.y
    before = Path(given["before"]) if "before" in given else None
    scores = by_loss(model, read_tensors(before) if before else None, read_tensors(after), x, y)
    told = {"signal": "loss", "after": sha256(after), **({"before": sha256(before)} if before else {})}
    return scores, told


def _of_file(sealed: Sealed, given: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    if "scores" not in given:
        raise BadConfig("scores=FILE is needed: these canaries were issued with signal=scores")
    path = Path(given["scores"])
    return from_file(path, len(sealed.canaries.y)), {"signal": "scores", "file": sha256(path)}


def _of_loss(sealed: Sealed, model: Any, recordings: list[Recording]) -> tuple[np.ndarray, dict[str, Any]]:
    recording = recordings[0]
    final = recording.final()
    if final is None:
        raise BadConfig("updates=: signal=loss needs the final model, which is in a server's recording (tapped)")
    first = recording.broadcast(min(recording.replies(recording.nodes[0]), key=lambda m: m.heading.round))
    scores = by_loss(model, first.arrays(), final.arrays(), sealed.canaries.x, sealed.canaries.y)
    return scores, {"signal": "loss", "before": first.digest, "after": final.digest}


def _of_updates(
    sealed: Sealed, given: Mapping[str, Any], model: Any, recordings: list[Recording]
) -> tuple[np.ndarray, dict[str, Any]]:
    scores, told = np.empty(len(sealed.canaries.y)), {}
    known = {site: _known(site, Path(path), sealed) for site, path in given.get("known", {}).items()}
    if unknown := sorted(set(known) - set(sealed.sites)):
        raise BadConfig(f"known.{unknown[0]}=: no such site")
    for site in sealed.sites:
        recording, node = _client(recordings, site, given["client"], len(sealed.sites))
        replies, ids = recording.replies(node), sealed.canaries.of(site)
        rounds = ((recording.broadcast(reply).arrays(), recording.replied(reply)) for reply in replies)
        x, y = sealed.canaries.x[ids], sealed.canaries.y[ids]
        scores[ids] = by_updates(model, rounds, x, y, given.get("clip"), known.get(site))
        told[site] = [reply.digest for reply in replies]
    more = {} if given.get("clip") is None else {"clip": given["clip"]}
    more |= {"known": {site: digest_of(*pair) for site, pair in known.items()}} if known else {}
    return scores, {"signal": "update", "replies": told, **more}


def _known(site: str, path: Path, sealed: Sealed) -> tuple[np.ndarray, np.ndarray]:
    """Other records of a site. Raises BadConfig where canaries are among them: the file would tell the scores their coins."""
    x, y = records(path)
    theirs = _pairs(sealed.canaries.x, sealed.canaries.y)
    if there := len(theirs & _pairs(x, y)):
        raise BadConfig(
            f"known.{site}={path}: holds {there} of the canaries, and so their coins; the site's other records alone are needed"
        )
    return x, y


def _pairs(x: np.ndarray, y: np.ndarray) -> set[tuple[bytes, int]]:
    flat = x.reshape(len(x), -1).astype(np.float64)
    return {(row.tobytes(), int(label)) for row, label in zip(flat, y)}


def _client(recordings: list[Recording], site: str, named: Mapping[str, int], sites: int) -> tuple[Recording, int]:
    """The recording and the node of a site: client.SITE=NODE, where NODE may be a client's partition too."""
    nodes = list(dict.fromkeys(node for recording in recordings for node in recording.nodes))
    partitions = {
        m.heading.partition: m.heading.node for r in recordings for m in r.messages if m.heading.partition is not None
    }
    if site in named:
        node = named[site] if named[site] in nodes else partitions.get(named[site])
    else:
        node = nodes[0] if len(nodes) == sites == 1 else None
    for recording in recordings:
        if node is not None and node in recording.nodes:
            return recording, node
    raise BadConfig(f"client.{site}=NODE is needed, one of {', '.join(map(str, nodes))}")
