"""Arguments of ``python -m privdd.audit target.model=...``. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privdd.core.command import Command, Key, read_count, read_literal, read_quoted, values_below
from privdd.core.validation import BadConfig

TARGET_PREFIX = "target."
FILE_KEYS = ("weights", "train", "heldout", "synthetic", "updates", "message")
SGD_SETTINGS = ("lr", "steps", "batch", "momentum")  # how plain SGD trained
KEYS_BY_KIND = {  # what a target of each kind reads beside train, heldout and records
    "model": (
        "model",
        "args",
        "weights",
        "training",
        "shadows",
        "transform",
        "queries",
        *SGD_SETTINGS,
    ),
    "synthetic": ("synthetic", "args", "generator", "shadows"),
    "updates": (
        "model",
        "args",
        "weights",
        "training",
        "shadows",
        "updates",
        "kind",
        "client",
        *SGD_SETTINGS,
    ),
    "message": ("message", "surface", "map", "shadows"),
    "recording": ("model", "args"),  # the client is chosen before
}


TARGET = Command(
    "privdd target model=MODULE:CLASS weights=FILE train=FILE heldout=FILE [KEY=VALUE ...]\n"
    "       privdd target synthetic=FILE train=FILE heldout=FILE [KEY=VALUE ...]\n"
    "       privdd target updates=DIR model=MODULE:CLASS weights=FILE train=... heldout=...\n"
    "       privdd target message=FILE surface=NAME map=MODULE:FUNCTION train=... heldout=...\n"
    "       privdd target recording=DIR model=MODULE:CLASS train=FILE heldout=FILE",
    "Audits external targets; privdd audit target.model=... is the same, and the keys of "
    "a target may have\ntarget. before them here too. Exit status: 0 done, whatever leaks; 2 a "
    "stated epsilon is contradicted; 3 a threshold is violated or not decided; 1 error.",
    (
        Key(
            "target.model",
            read_quoted,
            "NAME",
            "a torch module, made with target.args.NAME=VALUE, or a function that predicts",
        ),
        Key("target.args.*", read_literal),
        Key(
            "target.weights",
            read_quoted,
            "FILE",
            "its weights: .safetensors, or a state_dict in .pt",
        ),
        Key(
            "target.train",
            read_quoted,
            "FILE",
            ".npz with x (n, ...) and y (n,): the training records; target.heldout: others "
            "of the same kind",
        ),
        Key("target.heldout", read_quoted),
        Key(
            "target.training",
            read_quoted,
            "NAME",
            "function (x, y, seed) -> model: shadow models are trained (target.shadows=64); "
            "or sgd: the same network from new first values, by target.lr= target.steps= "
            "target.batch= target.momentum=",
        ),
        Key(
            "target.transform",
            read_quoted,
            "NAME",
            "function (x, seed) -> x, as training transforms a batch (crop, flip): shadow "
            "models are asked about target.queries=18 copies of each record, the record "
            "among them",
        ),
        Key("target.queries", read_count(1)),
        *(Key(f"target.{name}", read_literal) for name in SGD_SETTINGS),
        Key("target.shadows", read_count()),
        Key("target.synthetic", read_quoted, "FILE", ".npz of a synthetic set instead of a model"),
        Key(
            "target.generator",
            read_quoted,
            "NAME",
            "function (x, y, seed) -> (x, y), or distribution_matching, privdd's own "
            "(target.args.per_class=10 iterations=200 batch= lr= start=)",
        ),
        Key(
            "target.updates",
            read_quoted,
            "DIR",
            "captured updates, DIR/round_000/client_0.safetensors; how their client trained, "
            "where known: target.lr= target.steps= target.batch= target.momentum=. Shadow "
            "updates are trained with target.training=sgd by these, or by a function (model, "
            "x, y, seed) -> model",
        ),
        Key(
            "target.message",
            read_quoted,
            "FILE",
            "safetensors of a client's message on target.surface=logits (or prototypes, "
            "statistics, update, ...); target.map: a function (x, y, seed) -> the tensors that it "
            "would have sent of these records",
        ),
        Key("target.surface", read_quoted),
        Key("target.map", read_quoted),
        Key(
            "target.kind",
            read_quoted,
            "update",
            "the kind of the updates: update, model or gradient",
        ),
        Key("target.client", read_count(), "0", "the client whose records target.train are"),
        Key("target.records", read_count(8), "10000", "audited at most"),
        *(Key(f"stated.{name}", read_literal) for name in ("epsilon", "delta", "relation", "unit")),
        *(Key(name, read_quoted) for name in ("name", "out", "engine")),
        Key(
            "policy",
            read_quoted,
            "FILE",
            "limits that the result has to keep, else exit status 3; fail_on.LIMIT=VALUE: "
            "one of them (docs/tutorials/gate.md)",
        ),
        Key("fail_on.*", read_quoted),
        *(Key(name, read_count()) for name in ("seed", "engine.workers")),
        Key("confidence", read_literal),
    ),
    "  stated.epsilon= stated.delta=1e-5 stated.relation=replace|add_remove|zero_out "
    "stated.unit=record|client\n"
    "  seed=0 name=LABEL confidence=0.95 engine=serial|processes|ray engine.workers=0 out=DIR",
    "unknown for a target from outside",
)


@dataclass(frozen=True)
class TargetArguments:
    """The parsed arguments. files, names, counts: by their key without "target."; args: of the
    model's class, or of a generator of ``RECIPE_NAMES``."""

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
    """kind: of ``KEYS_BY_KIND``; "": by what was typed. Raises BadConfig, one line, for what is not
    understood or not read."""
    parsed = TARGET.parse(
        [
            item.replace("hydra.run.dir=", "out=") if item.startswith("hydra.") else item
            for item in argv
        ]
    )
    whats = [name for name in ("synthetic", "updates", "message") if TARGET_PREFIX + name in parsed]
    if len(whats) > 1 or (not whats and TARGET_PREFIX + "model" not in parsed):
        raise BadConfig(
            "one of target.model=, target.synthetic=, target.updates= and target.message= is needed"
        )
    _check_keys_read(parsed, kind or (whats[0] if whats else "model"))
    return TargetArguments(
        parsed, values_below(parsed, "target.args"), values_below(parsed, "stated")
    )


def _check_keys_read(typed: Mapping[str, Any], kind: str) -> None:
    read = ("train", "heldout", "records", *KEYS_BY_KIND[kind])
    for key in typed:
        if key.startswith(TARGET_PREFIX) and key.split(".")[1] not in read:
            raise BadConfig(
                f"{key}: not read of {'a recording' if kind == 'recording' else f'target.{kind}'}"
            )
