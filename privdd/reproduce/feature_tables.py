"""FedFed's figure 17 and table 12: what x, x_s and x_r = q(x) are good for, and how alike they are.

Phase A is run as in the method; then one classifier is trained on each kind of input and tested on all three. How long
the paper trains them is not stated: here, ``EPOCHS`` epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attacks.images import psnr
from privdd.cli.paper_rows import build_row_experiment
from privdd.core.types import Records, State
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import run_round, start_training
from privdd.models import build, initial
from privdd.reporting.plots import Plot
from privdd.reproduce.train import PaperCell
from privdd.runtime.files import read_json, write_json
from privdd.training.server import ServerTraining, train_on_records
from privdd.training.sgd import evaluate_model

FEATURE_KINDS = ("x", "x_s", "x_r")
PRINTED_PSNR = {"x_r": 31.47, "x_s": 18.87}  # table 12
EPOCHS = 15
CHUNK = 512


@dataclass(frozen=True)
class ExtraTable:
    """A table beside an entry's accuracies."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


AnalysisOutput = tuple[list[ExtraTable], list[Plot]]  # what an analysis adds to the page of an entry


def feature_tables(cells: Sequence[PaperCell], seeds: Sequence[int], folder: Path) -> list[ExtraTable]:
    """The tables of the first cell over seeds; earlier measurements are read from ``folder``."""
    found = []
    for seed in seeds:
        file = folder / f"feature-kinds-{cells[0].folder_name(seed)}.json"
        if not file.is_file():
            write_json(file, measure_feature_kinds(build_row_experiment(cells[0].overrides, seed)))
        found.append(read_json(file))
    return [_accuracy_table(found), _psnr_table(found)]


def measure_feature_kinds(experiment: Experiment) -> dict[str, dict[str, float]]:
    """ "psnr": kind -> dB to x; "trained on KIND": kind tested on -> accuracy in [0, 1]."""
    split = train_feature_map(experiment)
    train = join_records([shard.train for shard in experiment.shards])
    kinds, tests = split_records(train, split), split_records(experiment.test_records, split)
    likeness = {kind: float(psnr(tests[kind].x, tests["x"].x).mean()) for kind in FEATURE_KINDS[1:]}
    return {"psnr": likeness} | {
        f"trained on {kind}": _train_and_test(experiment, kinds[kind], tests) for kind in FEATURE_KINDS
    }


def train_feature_map(experiment: Experiment) -> Callable[[Tensor], Tensor]:
    """x -> x_s of the generator that phase A ends with."""
    plan, progress = experiment.plan, start_training(experiment.plan, experiment.new_ledger())
    for _ in range(plan.method.distill_rounds):  # type: ignore[attr-defined]
        progress, _, _ = run_round(plan, progress, experiment.shards, experiment.engine)
    return plan.method.audit_hooks.maps(plan.method.broadcast(progress.server), {}, plan.problem)["feature"]


def join_records(parts: Sequence[Records]) -> Records:
    return Records(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), torch.cat([p.ids for p in parts]))


def split_records(records: Records, split: Callable[[Tensor], Tensor]) -> Mapping[str, Records]:
    """The same records as x, x_s and x - x_s."""
    with torch.no_grad():
        sensitive = torch.cat([split(part) for part in records.x.split(CHUNK)])
    inputs = {"x": records.x, "x_s": sensitive, "x_r": records.x - sensitive}
    return {kind: Records(x, records.y, records.ids) for kind, x in inputs.items()}


def _train_and_test(experiment: Experiment, records: Records, tests: Mapping[str, Records]) -> dict[str, float]:
    data, keys = experiment.dataset, experiment.plan.keys.fold("feature kinds")
    spec = experiment.plan.method.base.model  # type: ignore[attr-defined]
    model = build(spec, data.shape, data.classes)
    state: State = initial(spec, data.shape, data.classes, keys.fold("init").torch())
    training = ServerTraining(epochs=EPOCHS, batch_size=64, lr=0.02, momentum=0.9)
    state = train_on_records(model, state, records, training, keys.fold("order").torch())
    return {kind: evaluate_model(model, state, tests[kind])[0] for kind in FEATURE_KINDS}


def format_spread(values: Sequence[float], factor: float = 1.0, digits: int = 1) -> str:
    """ "12.3 ± 0.4", the mean and the standard deviation (n - 1) of values times factor; of one value no deviation, and
    "–" where none is known (NaN)."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "–"
    more = f" ± {factor * float(np.std(values, ddof=1)):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * float(np.mean(values)):.{digits}f}{more}"


def _accuracy_table(found: Sequence[Mapping[str, Mapping[str, float]]]) -> ExtraTable:
    rows = tuple(
        (kind, *(format_spread([one[f"trained on {kind}"][test] for one in found], 100) for test in FEATURE_KINDS))
        for kind in FEATURE_KINDS
    )
    return ExtraTable(
        "Figure 17: trained on the row, tested on the column (accuracy in percent)",
        ("trained on", *FEATURE_KINDS),
        rows,
        "The paper shows bars and no numbers: a classifier of x is comparable on x_s, and x_r lacks what is needed.",
    )


def _psnr_table(found: Sequence[Mapping[str, Mapping[str, float]]]) -> ExtraTable:
    rows = tuple(
        (kind, f"{PRINTED_PSNR[kind]:g}", format_spread([one["psnr"][kind] for one in found]))
        for kind in ("x_r", "x_s")
    )
    note = "PSNR to x in dB, higher is more alike; pixels are clipped to [0, 1], as those of x_s below 0 are."
    return ExtraTable("Table 12: how alike x and its parts are", ("part", "paper", "here"), rows, note)
