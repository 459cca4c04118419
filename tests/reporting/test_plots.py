"""What a figure shows of a run: rounds that had a model, and claims that are claims."""

from __future__ import annotations

from pathlib import Path

from privdd.reporting.plots import epsilon_rows, plot_accuracy
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import Findings, validate_findings
from tests.reporting.test_decision import NOTHING, row, run


def with_accuracy(values: list[float], diverged: int | None) -> RunRecord:
    data = run([], "unprotected", "inf").model_dump(mode="json", by_alias=True, exclude_none=True)
    data["utility"] = {
        "accuracy": values[-1],
        "accuracy_kind": "global",
        "accuracy_by_round": values,
    } | ({} if diverged is None else {"diverged": diverged})
    return RunRecord(Path("run"), validate_findings(data))


def test_the_rounds_after_divergence_are_not_drawn() -> None:
    drawn = plot_accuracy(
        [
            ("a", with_accuracy([0.25, 0.5, 0.125, 0.125], 2)),
            ("b", with_accuracy([0.5, 0.75], None)),
        ]
    )
    assert drawn is not None
    lines = {line.get_label(): [*line.get_ydata()] for line in drawn.figure.axes[0].lines}
    assert lines == {"a (diverged)": [0.25, 0.5], "b": [0.5, 0.75]}


def test_a_statement_that_repeats_the_accountants_is_no_claim_of_its_own() -> None:
    def claimed(stated: float) -> float | None:
        found: Findings = run([row(NOTHING, epsilon_stated=stated)], "consistent", 2.0)
        return epsilon_rows(RunRecord(Path("run"), found))[1].claim

    assert claimed(2.0) is None and claimed(0.5) == 0.5
