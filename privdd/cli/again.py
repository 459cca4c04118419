"""``resume=DIR`` and ``run=DIR``: the stored config of a run, with the few settings that may be others."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from privdd.cli.config import composed, own_folders
from privdd.cli.quoting import value_of
from privdd.cli.stored_config import OUTSIDE, check_outside
from privdd.cli.unused_settings import check_engine_used
from privdd.core.errors import BadConfig

# Settings that do not affect what clients send, so they may change: a resumed run must give the result of one that
# was never interrupted, and a stored run that is attacked again keeps its own audited records.
OF_THE_AUDIT = (
    "worlds", "federations", "federation_rounds", "victims", "confidence", "require", "waive", "worst_pictures", "transcripts",
    "processed_worlds", "processed_federations",
)  # fmt: skip
CHANGEABLE = {"resume": ("engine",), "run": ("attack", "engine", *(f"audit.{key}" for key in OF_THE_AUDIT))}


def again(config: DictConfig, command: str, argv: Sequence[str], given: Sequence[str], word: str) -> DictConfig:
    """resume=DIR goes on as configured there; run=DIR attacks that run again, by default with all of its attacks.

    config: the stored one; given: what was typed; argv: the same with attack=all spelled out.
    """
    typed = [a for a in given if "=" in a and not a.startswith((f"{word}=", "-"))]
    for item in typed:
        key = item.split("=")[0]
        same = key in OUTSIDE and str(OmegaConf.select(config, key)) == value_of(item)
        if not same and not any(key == part or item.startswith(f"{part}.") for part in CHANGEABLE[word]):
            raise BadConfig(f"{item}: together with {word}= only {', '.join(CHANGEABLE[word])} can be changed")
    spelled = [a for a in argv if a in typed or (a.startswith("attack=") and word == "run")]
    fresh = composed(command, [f"preset={config.preset.name}", *spelled], own_folders(argv))
    threads = OmegaConf.select(config, "engine.threads")
    for key in (item.split("=")[0].split("@")[0] for item in typed):
        OmegaConf.update(config, key, OmegaConf.select(fresh, key), merge=False, force_add=True)
    check_outside(config, [*typed, *(["engine.address"] if any(a.startswith("engine=") for a in typed) else [])])
    if word == "resume" and threads is not None:
        _keep_threads(config, threads, any(item.startswith("engine.threads=") for item in typed))
    check_engine_used(config, [item.split("=")[0] for item in typed])
    if word == "run" and "audit.require=some" in argv:  # so ``expand`` says where certain attacks were asked for
        OmegaConf.update(config, "audit.require", "some", force_add=True)
    return config


def _keep_threads(config: DictConfig, threads: int, asked_for: bool) -> None:
    """Another engine, but the same threads: with others a sum is rounded otherwise, so the bits would be others."""
    if asked_for and config.engine.threads != threads:
        raise BadConfig(
            f"engine.threads={config.engine.threads}: this run was begun with {threads}, and other threads round "
            f"otherwise; leave it at {threads}"
        )
    config.engine.threads = threads
