"""What may have been meant by an unknown key: the field's other words, then the same last name,
then the nearest one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

SYNONYMS: Mapping[
    str, str
] = {  # word -> a whole key, the last name of one, or (with =) what to write
    "sigma": "noise_multiplier",
    "noise": "noise_multiplier",
    "noise_scale": "noise_multiplier",
    "noise_level": "noise_multiplier",
    "eps": "epsilon",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "clip": "clip_norm",
    "clipping": "clip_norm",
    "clipping_norm": "clip_norm",
    "max_grad_norm": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "sampling_rate": "sampling_probability",
    "sample_rate": "sampling_probability",
    "communication_rounds": "rounds",
    "num_rounds": "rounds",
    "comm_rounds": "rounds",
    "epochs": "local_epochs",
    "num_epochs": "local_epochs",
    "learning_rate": "lr",
    "batch": "batch_size",
    "batchsize": "batch_size",
    "num_clients": "partition.clients",
    "n_clients": "partition.clients",
    "clients": "partition.clients",
    "dirichlet_alpha": "partition.alpha",
    "method": "algo",
    "algorithm": "algo",
    "algorithms": "algo",
    "dataset": "data",
    "datasets": "data",
    "network": "model",
    "architecture": "model",
    "attacks": "attack",
    "seeds": "seed",
    "random_seed": "seed",
    "workers": "engine.workers",
    "num_workers": "engine.workers",
    "n_jobs": "engine.workers",
    "jobs": "engine.workers",
    "backend": "engine",
    "gpu": "device=cuda",
    "gpus": "device=cuda",
    "cuda": "device=cuda",
    "dp": "privacy=dpsgd",
    "dpsgd": "privacy=dpsgd",
    "output": "hydra.run.dir",
    "out": "hydra.run.dir",
    "output_dir": "hydra.run.dir",
    "outdir": "hydra.run.dir",
    "save_dir": "hydra.run.dir",
}
OUTSIDE_CONFIG = ("hydra.run.dir",)  # Hydra's own keys are in none of our files
RANKS = {"algo": 0, "attack": 2}
OWN_RANK = 1  # of every other group
MOST_SHOWN = 3
ALIKE = 0.7  # of a name elsewhere, where names of the same place are worth difflib's own 0.6


def suggest_name(name: str, known: Sequence[str], where: str) -> str:
    """What may have been meant by an unknown name among the ``known`` of a mapping."""
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean {'.'.join(filter(None, [where, close[0]]))}?"
    return f"known there: {', '.join(known) or 'nothing'}"


def suggest_key(config: DictConfig, key: str, depth: int) -> str:
    """A hint for a key whose part number ``depth`` (from 0) names nothing in the config."""
    parts = key.split(".")
    where = ".".join(parts[:depth])
    part = parts[depth]
    keys = sorted(_iterate_keys(OmegaConf.to_container(config, resolve=False)), key=_nearness)
    names = [k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == where]
    for meant in (
        _keys_by_synonym(keys, parts[-1], where),
        _keys_named(keys, part, where),
        _mended_keys(keys, key, depth, names),
    ):
        if meant:
            return _ask(meant)
    close = difflib.get_close_matches(part, [k.rpartition(".")[2] for k in keys], 1, cutoff=ALIKE)
    sibling = suggest_name(part, names, where)
    if sibling.startswith("did you mean") or not close:
        return sibling
    return _ask(_keys_named(keys, close[0], where))


def suggest_word(word: str, choices: Mapping[str, Sequence[str]]) -> str:
    """What to write for a word without "=", by the groups whose files have this name; "" for a word
    of none."""
    if word.strip("-") in ("help", "h", "?"):
        return "did you mean --help?"
    groups = [group for group, names in choices.items() if word in names]
    written = [f"attack=[{word}]" if group == "attack" else f"{group}={word}" for group in groups]
    if not written:
        return ""
    return _ask(written)


def _ask(meant: Sequence[str]) -> str:
    return f"did you mean {' or '.join(meant[:MOST_SHOWN])}?"


def _rank(key: str) -> int:
    """The method's keys first, those of attacks last: there are ten of them for each of a run's
    own."""
    return RANKS.get(key.partition(".")[0], OWN_RANK)


def _nearness(key: str) -> tuple[int, int, str]:
    """By rank, then the least deep."""
    return _rank(key), key.count("."), key


def _keys_named(keys: Sequence[str], name: str, where: str) -> list[str]:
    """The keys with this last name, of ``keys`` by nearness: those below the place that was typed,
    else those of the first rank."""
    matching = [key for key in keys if key.rpartition(".")[2] == name]
    below = [key for key in matching if where and key.startswith(f"{where}.")]
    nearest = [key for key in matching if _rank(key) == _rank(matching[0])]
    return below or nearest


def _keys_by_synonym(keys: Sequence[str], word: str, where: str) -> list[str]:
    meant = SYNONYMS.get(word.lower(), "")
    if "=" in meant or meant in OUTSIDE_CONFIG or meant in keys:
        return [meant]
    if not meant:
        return []
    named = _keys_named(keys, meant, where)
    privacy = [key for key in named if key.startswith("privacy.") and key.count(".") == 1]
    return privacy or named


def _mended_keys(keys: Sequence[str], key: str, depth: int, names: Sequence[str]) -> list[str]:
    """The key with its unknown part replaced by the nearest name of that place, if the rest is a
    key then."""
    parts = key.split(".")
    close = difflib.get_close_matches(parts[depth], names, 1)
    mended = ".".join([*parts[:depth], *close, *parts[depth + 1 :]])
    if close and mended in keys:
        return [mended]
    return []


def _iterate_keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield f"{prefix}{name}"
            yield from _iterate_keys(value, f"{prefix}{name}.")
