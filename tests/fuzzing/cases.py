"""Random command lines: any method, mechanism, partition and attack at a tiny size, some with a
value nobody would type."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from omegaconf import OmegaConf

from privdd.cli.compose import compose_config, config_dir, group_choices

BASE = ["preset=smoke", "data.limit=90", "data.test_limit=40"]
AUDIT = [
    "audit.records=12",
    "audit.worlds=3",
    "audit.victims=1",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
]
# the last part of a key -> a value that takes next to no time; a width that is a square, as FedRD
# needs it
SMALL = {
    "rounds": 1,
    "local_epochs": 1,
    "distill_rounds": 1,
    "distill_epochs": 1,
    "iterations": 2,
    "steps": 2,
    "epochs": 1,
    "projection_epochs": 1,
    "global_iterations": 2,
    "width": 4,
    "starts": 1,
    "restarts": 1,
    "captures": 1,
    "ipc": 1,
    "dpc": 1,
    "global_ipc": 1,
    "shared_per_round": 16,
    "per_class": 2,
    "public": 20,
    "latent": 8,
    "warmup_reads": 1,
    "refine_reads": 1,
    "reads": 1,
    "patience": 2,
    "batch": 16,
}
WHOLE = ("0", "1", "2", "3", "-1", "7", "1000000000000")
REAL = (
    "0",
    "1",
    "0.5",
    "0.999999",
    "1e-9",
    "1e-45",
    "1e-300",
    "2.5",
    "100",
    "1e9",
    "1e18",
    "1e300",
    "-1",
    "1000000000000",
)
ANY = (
    "nan",
    "-inf",
    "abc",
    "''",
    "[1,2]",
    "[]",
    "{a: 1}",
    "null",
    "true",
    "négé",
    "../../etc/passwd",
    "0.5",
    "-1",
)
COMPATIBLE = {
    "fedfed": (
        "fedfed",
        "fedfed_dp",
        "fedfed_released",
        "fedfed_flbench",
        "gaussian_features",
        "none",
    ),
    "feddm": ("noisy_embedding", "clipped_gradient", "aggregate_clip", "none"),
    "fedrd": ("noisy_embedding", "clipped_gradient", "aggregate_clip", "none"),
    "fedlgd": ("noisy_embedding", "dpsgd", "none"),
}
LENGTHS = (
    "worlds",
    "federations",
    "records",
    "victims",
    "runs",
    "slow_runs",
    "images",
    "tau",
    "tau_step",
    "folds",
    "dpc",
)
MODELS = ("mlp", "smallcnn", "convnet", "lenet", "resnet18")
DATA = {
    "corrupted": [
        "data=corrupted",
        "data.source=digits",
        "data.corruptions=[gaussian_noise,contrast]",
        "data.limit=45",
        "data.test_limit=20",
    ]
}


@dataclass(frozen=True)
class Case:
    """number: its place in the list; odd: the key and the value that were set at random, if any."""

    number: int
    command: str
    overrides: tuple[str, ...]
    odd: tuple[str, str] | None


@lru_cache(maxsize=512)
def leaves(command: str, groups: tuple[str, ...]) -> dict[str, Any]:
    """Dotted key -> value of the config that these groups give."""
    found: dict[str, Any] = {}

    def walk(key: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                walk(f"{key}.{name}" if key else str(name), value)
        else:
            found[key] = node

    walk("", OmegaConf.to_container(compose_config(command, groups), resolve=False))
    return {key: value for key, value in found.items() if not key.endswith("_target_")}


def chosen(number: int, rng: random.Random) -> tuple[str, list[str]]:
    """(command, the files of each group that it chooses)."""
    named = {
        group: group_choices(group, [config_dir()])
        for group in ("algo", "privacy", "partition", "attack")
    }
    turn = lambda group: named[group][number % len(named[group])]  # noqa: E731
    command = "train" if number % 2 else "audit"
    algo = turn("algo") if number % 4 < 2 else rng.choice(named["algo"])
    partition = turn("partition") if number % 4 > 1 else rng.choice(named["partition"])
    groups = [f"algo={algo}", f"partition={partition}", *_data(partition)]
    if number % 8 == 3:  # each mechanism in turn, whatever the method
        groups.append(f"privacy={named['privacy'][number // 8 % len(named['privacy'])]}")
    elif rng.random() < 0.5:
        fits = next(
            (names for start, names in COMPATIBLE.items() if algo.startswith(start)),
            ("none", "client", "dpsgd"),
        )
        groups.append(f"privacy={rng.choice(fits) if rng.random() < 0.8 else turn('privacy')}")
    if command == "audit":
        others = rng.sample(named["attack"], rng.choice((0, 1, 2)))
        groups.append(f"attack=[{','.join(sorted({turn('attack'), *others}))}]")
    return command, groups


def case(number: int, seed: int = 0) -> Case:
    """The same one each time. Every method, mechanism, partition and attack comes up in turn,
    beside chosen ones."""
    rng = random.Random(f"{seed}/{number}")
    command, groups = chosen(number, rng)
    taken = any(
        leaves(command, tuple(groups)).get(f"algo.{key}model") == "${model}"
        for key in ("", "base.")
    )
    groups += [f"model={rng.choice(MODELS)}"] if taken else []
    known = {
        key: value
        for key, value in leaves(command, tuple(groups)).items()
        if taken or not key.startswith("model.")
    }
    sizes = [f"{key}={SMALL[key.rsplit('.', 1)[-1]]}" for key in known if _shrinks(key, known)]
    size = [
        *sizes,
        *(AUDIT if command == "audit" else []),
        *(["partition.clients=3"] if "partition.clients" in known else []),
    ]
    size += ["partition.min_size=1"] if "partition.min_size" in known else []
    waived = [
        f"audit.waive.{key.rsplit('.', 1)[-1]}=fuzzed"
        for key in known
        if key.startswith("audit.waive.")
    ]
    odd = _odd(rng, known) if rng.random() < 0.5 else None
    lines = [*BASE, *groups, *size, *waived]
    kept = [line for line in lines if odd is None or line.split("=")[0] != odd[0]]
    return Case(number, command, (*kept, *([] if odd is None else [f"{odd[0]}={odd[1]}"])), odd)


def _data(partition: str) -> list[str]:
    return DATA["corrupted"] if partition in ("corrupted", "domains") else []


def _shrinks(key: str, known: dict[str, Any]) -> bool:
    name = key.rsplit(".", 1)[-1]
    value = str(known[key]).replace("${by_preset", "")
    sized = isinstance(known[key], str | int) and "${" not in value
    return key.startswith(("algo.", "attack.", "model.")) and name in SMALL and sized


def _odd(rng: random.Random, known: dict[str, Any]) -> tuple[str, str]:
    """A key that has a value of its own, and a value for it."""
    own = [
        key
        for key, value in known.items()
        if not key.startswith(
            ("preset", "device", "engine", "capture", "run", "resume", "scores", "audit.waive")
        )
        and ("by_preset" in str(value) or "$" not in str(value))
    ]
    key = rng.choice(sorted(own))
    value = str(known[key])
    if rng.random() < 0.1 or isinstance(known[key], bool | list | type(None)):
        return key, rng.choice(ANY)
    if key.rsplit(".", 1)[-1] in (*SMALL, *LENGTHS):
        # a number of rounds that nobody could wait for is no fault
        return key, rng.choice(WHOLE[:-1])
    if re.fullmatch(r"[-+.e\d]+", re.sub(r"\$\{by_preset:([^,]*),.*", r"\1", value)):
        return key, rng.choice(
            WHOLE if isinstance(known[key], int) or "." not in value.partition(",")[0] else REAL
        )
    return key, rng.choice(ANY)
