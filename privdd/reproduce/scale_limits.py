"""What a scale is too small for: rows whose numbers say nothing of the paper's statement, and why.

A comparison of two rows *cannot be told at this scale* where the images of one cannot move as far as their start is from
anything, where one is at chance, or where both hold the same images. Its verdict would be one on the scale, not on the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from attacks.types import Surface
from privdd.cli.paper_rows import build_row_experiment, flat_settings_of
from privdd.distillation.private_matching import GRADIENT_QUERY
from privdd.federated.experiment import Experiment
from privdd.models import projected_shape
from privdd.reproduce.results import RowResult
from privdd.reproduce.train import STEPS


@lru_cache(maxsize=8)
def _cell_experiment(overrides: tuple[str, ...]) -> Experiment:
    return build_row_experiment(overrides, 0)


def clipped_reach(experiment: Experiment) -> tuple[float, float] | None:
    """(clip norm x rate x steps / (1 - momentum), the furthest that the images of a class can move without their noise;
    the norm of their N(0, 1) start). None where no class's mean gradient is clipped."""
    plan, mechanism = experiment.plan, experiment.plan.mechanisms.get(GRADIENT_QUERY)
    if mechanism is None or mechanism.per_record:
        return None
    method, shape = plan.method, plan.problem.shape
    if Surface.SYNTHETIC_REPRESENTATIONS in method.uploads.values():  # FedRD's images are of its projection's space
        shape = projected_shape(method.projection, shape)  # type: ignore[attr-defined]
    steps = method.matching  # type: ignore[attr-defined]
    reach = mechanism.clip_norm * steps.lr * steps.iterations / (1 - steps.momentum)  # type: ignore[attr-defined]
    return reach, math.sqrt(method.audit_hooks.images_per_class() * math.prod(shape))


def image_movement(experiment: Experiment) -> float:
    """How far matching moves the images of the client with most records in the first round, as a share of their norm."""
    plan, shard = experiment.plan, max(experiment.shards, key=lambda one: len(one.train))
    method, sent = plan.method, []
    still = replace(method, matching=replace(method.matching, iterations=0))  # type: ignore[attr-defined,type-var]
    for one in (still, method):
        broadcast, ctx = one.broadcast(one.init(plan.problem, plan.keys)), plan.client_context(0, shard.client)
        upload = one.local(broadcast, {}, shard, ctx)[0]
        sent.append(next(upload[name] for name in ("images", "representations") if name in upload).value["x"])
    return float((sent[1] - sent[0]).norm() / sent[0].norm())


def is_at_chance(accuracies: Sequence[float], classes: int, tests: int) -> bool:
    """Whether the 95 % interval of the mean accuracy includes one in ``classes``, or lies below it. Its standard error is
    the larger of that over seeds and that of ``tests`` records."""
    mean = float(np.mean(accuracies))
    spread = float(np.std(accuracies, ddof=1)) / math.sqrt(len(accuracies)) if len(accuracies) > 1 else 0.0
    return mean - 1.96 * max(spread, math.sqrt(mean * (1 - mean) / tests)) <= 1 / classes


def row_limit(row: RowResult) -> str:
    """Why the numbers of this row say nothing; "" where they do."""
    if not row.curves:
        return ""
    experiment = _cell_experiment(row.cell.overrides)
    reach = clipped_reach(experiment)
    if reach is not None and reach[0] < reach[1]:
        return f"images can move by {reach[0]:.3g} and start at a norm of {reach[1]:.3g}"
    classes, tests = experiment.dataset.classes, len(experiment.test_records)
    if is_at_chance(row.accuracies, classes, tests):
        return f"at chance: {100 * float(np.mean(row.accuracies)):.1f} % of {classes} classes"
    return ""


def limit_rows(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows with what limits them. Movement is measured beside a row of the same column in which nothing is matched."""
    steps = [flat_settings_of(row.cell.overrides).get(STEPS) for row in rows]
    still = {row.cell.column for row, count in zip(rows, steps, strict=True) if count == 0}
    return [
        replace(row, limit=row_limit(row), moved=_row_movement(row, count) if row.cell.column in still else None)
        for row, count in zip(rows, steps, strict=True)
    ]


def _row_movement(row: RowResult, steps: int | None) -> float | None:
    if steps is None or not row.curves:
        return None
    return image_movement(_cell_experiment(row.cell.overrides)) if steps else 0.0
