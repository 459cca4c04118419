"""Arguments of ``python -m privdd.audit target.model=...``: KEY=VALUE, each understood or refused in one line. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privdd.core.validation import BadConfig, check_integer, parse_literal

TARGET_PREFIX = "target."
FILE_KEYS = ("weights", "train", "heldout", "synthetic", "updates")
NAME_KEYS = ("model", "training", "generator")
COUNT_KEYS = ("shadows", "records", "client", "steps", "batch")
NUMBER_KEYS = ("lr", "momentum")
WORD_KEYS = ("kind",)
TOP_KEYS = ("seed", "name", "out", "confidence", "engine", "engine.workers")
STATED_KEYS = ("epsilon", "delta", "relation", "unit")
TEXT_KEYS = (*(TARGET_PREFIX + name for name in (*FILE_KEYS, *NAME_KEYS, *WORD_KEYS)), "name", "out", "engine")
ALL_KEYS = (
    *(TARGET_PREFIX + name for name in (*NAME_KEYS, *FILE_KEYS, *COUNT_KEYS, *NUMBER_KEYS, *WORD_KEYS)), *(f"stated.{name}" for name in STATED_KEYS), *TOP_KEYS,
)  # fmt: skip
KEYS_BY_KIND = {  # what a target of each kind reads beside train, heldout and records
    "model": ("model", "weights", "training", "shadows", "lr", "steps", "batch", "momentum"),
    "synthetic": ("synthetic", "generator", "shadows"),
    "updates": (
        "model",
        "weights",
        "training",
        "shadows",
        "updates",
        "kind",
        "client",
        "lr",
        "steps",
        "batch",
        "momentum",
    ),
    "recording": ("model",),  # the client is chosen before
}
TARGET_USAGE = """usage: python -m privdd.audit target.model=MODULE:CLASS target.weights=FILE target.train=FILE target.heldout=FILE [KEY=VALUE ...]
       python -m privdd.audit target.synthetic=FILE target.train=FILE target.heldout=FILE [KEY=VALUE ...]
       python -m privdd.audit target.updates=DIR target.model=MODULE:CLASS target.weights=FILE target.train=... target.heldout=...

  target.model=NAME       a torch module, made with target.args.NAME=VALUE, or a function that predicts
  target.weights=FILE     its weights: .safetensors, or a state_dict in .pt
  target.train=FILE       .npz with x (n, ...) and y (n,): the training records; target.heldout: others of the same kind
  target.training=NAME    function (x, y, seed) -> model: shadow models are trained (target.shadows=64); or sgd: the same
                          network from new first values, by target.lr= target.steps= target.batch= target.momentum=
  target.synthetic=FILE   .npz of a synthetic set instead of a model; target.generator=NAME: function (x, y, seed) -> (x, y),
                          or distribution_matching, privdd's own (target.args.per_class=10 iterations=200 batch= lr= start=)
  target.updates=DIR      captured updates, DIR/round_000/client_0.safetensors; target.kind=update, model
                          or gradient; target.client=0, whose records target.train are; how it trained, where known:
                          target.lr= target.steps= target.batch= target.momentum=. Shadow updates are trained with
                          target.training=sgd by these, or by a function (model, x, y, seed) -> model
  target.records=10000    audited at most
  stated.epsilon= stated.delta=1e-5 stated.relation=replace|add_remove|zero_out stated.unit=record|client
  seed=0 name=LABEL confidence=0.95 engine=serial|processes|ray engine.workers=0 out=DIR
"""


@dataclass(frozen=True)
class TargetArguments:
    """The parsed arguments. files, names, counts: by their key without "target."; args: of the model's class, or of a generator of ``RECIPES``."""

    given: dict[str, Any]
    args: dict[str, Any] = field(default_factory=dict)
    stated: dict[str, Any] = field(default_factory=dict)

    def file_path(self, name: str, why: str = "") -> Path:
        """A file that is needed. Raises BadConfig where it was not typed."""
        if TARGET_PREFIX + name not in self.given:
            raise BadConfig(f"target.{name}=... is needed{why and f' {why}'}")
        return Path(self.given[TARGET_PREFIX + name])

    def get(self, key: str) -> Any:
        return self.given.get(key)


def parse_target_arguments(argv: Sequence[str], kind: str = "") -> TargetArguments:
    """Raises BadConfig, one line, for anything that is not understood, or that a target of its kind does not read.

    kind: of ``KEYS_BY_KIND``; "": by what was typed.
    """
    found: dict[str, Any] = {}
    for item in argv:
        key, equals, text = item.partition("=")
        key = "out" if key == "hydra.run.dir" else key
        if not equals or not text:
            raise BadConfig(f"{item}: KEY=VALUE is needed")
        if key in found:
            raise BadConfig(f"{key}: given twice")
        found[_check_key(key)] = text.strip("'") if key in TEXT_KEYS else parse_literal(text)
    whats = [name for name in ("synthetic", "updates") if TARGET_PREFIX + name in found]
    if len(whats) > 1 or (not whats and TARGET_PREFIX + "model" not in found):
        raise BadConfig("one of target.model=, target.synthetic= and target.updates= is needed")
    _check_keys_read(found, kind or (whats[0] if whats else "model"))
    for key, least in (
        (TARGET_PREFIX + "shadows", 0),
        (TARGET_PREFIX + "records", 8),
        (TARGET_PREFIX + "client", 0),
        ("seed", 0),
        ("engine.workers", 0),
    ):
        if key in found:
            found[key] = check_integer(key, found[key], least)
    args = {key.removeprefix("target.args."): value for key, value in found.items() if key.startswith("target.args.")}
    stated = {key.removeprefix("stated."): value for key, value in found.items() if key.startswith("stated.")}
    return TargetArguments(found, args, stated)


def _check_keys_read(found: Mapping[str, Any], kind: str) -> None:
    read = (
        "train",
        "heldout",
        "records",
        *KEYS_BY_KIND[kind],
        *["args"] * (kind == "synthetic" or "model" in KEYS_BY_KIND[kind]),
    )
    for key in found:
        if key.startswith(TARGET_PREFIX) and key.split(".")[1] not in read:
            raise BadConfig(f"{key}: not read of {'a recording' if kind == 'recording' else f'target.{kind}'}")


def _check_key(key: str) -> str:
    if key in ALL_KEYS or (key.startswith("target.args.") and key.removeprefix("target.args.").isidentifier()):
        return key
    close = difflib.get_close_matches(key, ALL_KEYS, 1)
    hint = (
        f"did you mean {close[0]}?" if close else f"beside target.* only {', '.join((*TOP_KEYS, 'stated.*'))} are read"
    )
    raise BadConfig(f"{key}: unknown for a target from outside; {hint}")
