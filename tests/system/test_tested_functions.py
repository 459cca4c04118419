"""Functions that a figure of the report or a comment in a yaml depends on: each is used by name in
some test."""

from __future__ import annotations

import ast
import re
from functools import lru_cache, reduce
from importlib import import_module
from pathlib import Path

import pytest

TESTS = next(folder for folder in Path(__file__).resolve().parents if folder.name == "tests")

# What the report or a yaml says, and the function behind it. A test of the whole audit is not
# enough: it may pass whatever such a function returns.
DEPENDED_ON = [
    "privdd.auditing.verdicts:decide_verdict",  # consistent, unprotected, contradiction
    "privdd.reporting.schema:worst_verdict",
    "privdd.auditing.findings:stated_epsilons",  # "stated"
    "privdd.auditing.findings:bytes_per_client",  # bytes of a client
    "privdd.auditing.attack_tasks:familywise_bound",  # epsilon_familywise
    # gradient inversion, "a client that holds one record"
    "privdd.auditing.views:single_record_view",
    "privdd.auditing.views:blind_scores",  # blind AUC
    "privdd.auditing.views:signals_to_worlds",
    "privdd.auditing.views:feature_noise_constants",
    "privdd.auditing.replay:draw_membership_game",  # audit.records, audit.worlds: fair coins
    "attacks.membership.signals:matched_filter",
    "attacks.membership.signals:average_noisy_copies",
    "attacks.membership.measures:one_run_bound",  # epsilon_shown
    "attacks.roc:auc_interval",
    "attacks.roc:tpr_at_fpr",
    "privdd.federated.channel:ClientContext.sample",  # privacy.sampling_probability
    "privdd.federated.simulation:Plan.participants",  # participation
    "privdd.federated.trainer:measure_accuracy",
    "privdd.federated.simulation:count_bytes",
    "privdd.training.dp_sgd:count_private_steps",  # "steps = local epochs / this"
    "privdd.distillation.private_matching:estimation_weights",
    "privdd.distillation.private_matching:release_class_counts",
    "privdd.privacy.claims:effective_std",  # the printed claims of FedFed with two copies
    "privdd.privacy.claims:feddm_3_2",
    "privdd.privacy.claims:fedrd_1",
    "privdd.privacy.claims:fedfed_3_3",
    "privdd.privacy.claims:fedfed_3_4",
    "privdd.privacy.claims:fedfed_3_4_source",
    "privdd.privacy.claims:fedfed_d_2",
    "privdd.privacy.claims:fedrd_table_2",
    "privdd.privacy.reconstruction:reconstruction",
    "privdd.privacy.accounting:epsilon",
    "privdd.privacy.calibration:calibrate",  # privacy.epsilon
    "privdd.cli.build:planned_event",
]
# a file that holds none of them is not parsed
LAST_NAMES = {re.split(r"[:.]", name)[-1] for name in DEPENDED_ON}


@lru_cache
def used() -> frozenset[str]:
    """ "module:function" of what tests import from its module and use, and ".method" of attributes
    that they read.

    Strings and comments do not count, and this file neither.
    """
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        if path == Path(__file__).resolve():
            continue
        text = path.read_text(encoding="utf-8")
        if LAST_NAMES.isdisjoint(re.findall(r"\w+", text)):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        read = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        modules = {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                modules |= {
                    name.asname or name.name: f"{node.module}.{name.name}" for name in node.names
                }
                found |= {
                    f"{node.module}:{name.name}"
                    for name in node.names
                    if (name.asname or name.name) in read
                }
        for node in nodes:
            if isinstance(node, ast.Attribute):
                found.add(f".{node.attr}")
                if isinstance(node.value, ast.Name) and node.value.id in modules:
                    found.add(f"{modules[node.value.id]}:{node.attr}")
    return frozenset(found)


@pytest.mark.parametrize("name", DEPENDED_ON)
def test_every_function_that_a_figure_depends_on_exists_and_is_named_in_a_test(name: str) -> None:
    module, path = name.split(":")
    assert callable(reduce(getattr, path.split("."), import_module(module))), (
        f"{name}: moved? correct this list"
    )
    wanted = name if "." not in path else f".{path.split('.')[-1]}"
    assert wanted in used(), f"{name}: no test uses it by name"


def test_a_function_that_no_test_names_is_noticed() -> None:
    assert "privdd.auditing.findings:manifest_of_nothing" not in used()
    assert "privdd.auditing.verdicts:decide_verdict" in used() and ".sample" in used()
