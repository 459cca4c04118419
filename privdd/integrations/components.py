"""Components of other libraries as callables on arrays, for ``privdd.check``, and the page of
docs/components.md, whose rows are in ``component_rows``.

An adapter calls the component and records; it repeats no part of what it judges: no clipping, no
noise, no scale (tests/integrations/test_components.py reads them). Each row of the table has the
command that repeats it."""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import importlib.util
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privdd.blackbox.check_verdict import BREAKS, KEEPS, Checked

Cells = Mapping[str, str]
# class or function -> the file and the function that make it callable, and what that calls
COMPONENT_ADAPTERS = {
    "LocalDpMod": "flower_components:adapt_local_dp:ClientApp",
    "DifferentialPrivacyServerSideFixedClipping": "flower_components:adapt_strategy:start",
    "DifferentialPrivacyClientSideFixedClipping": "flower_components:adapt_strategy:start",
    "DifferentialPrivacyServerSideAdaptiveClipping": "flower_components:adapt_strategy:start",
    "DifferentialPrivacyClientSideAdaptiveClipping": "flower_components:adapt_strategy:start",
    "PrivacyEngine": "library_components:adapt_privacy_engine:make_private",
    "PLDAccountant": "library_components:adapt_accountant:compose",
    "RdpAccountant": "library_components:adapt_accountant:compose",
    "BandMFExecutionPlanConfig": "library_components:adapt_execution_plan:clipped_grad",
    "clipped_fun": "library_components:adapt_clipped_sum:matrix_factorization_privatizer",
    "GaussianMechanism": "library_components:adapt_gaussian_mechanism:construct_single_iteration",
    "AdaptiveClippingGaussianMechanism": "library_components:adapt_adaptive_clipping:postprocess_server",
    "LaplaceMechanism": "library_components:adapt_laplace_mechanism:privatize",
    "SVTPrivacy": "library_components:adapt_update_filter:process",
    "PercentilePrivacy": "library_components:adapt_update_filter:process",
    "AddNoiseToMinMax": "library_components:adapt_statistics_cleanser:apply",
    "mean": "library_components:adapt_statistics_tool:target",
    "var": "library_components:adapt_statistics_tool:target",
    "median": "library_components:adapt_statistics_tool:target",
    "histogram": "library_components:adapt_statistics_tool:target",
    "make_laplace": "library_components:adapt_measurement:binary_search_chain",
    "BoundedSum": "library_components:adapt_aggregation:quick_result",
    "BoundedMean": "library_components:adapt_aggregation:quick_result",
    "Count": "library_components:adapt_aggregation:quick_result",
}
COMPONENT_LIBRARIES = (
    "flwr",
    "opacus",
    "jax_privacy",
    "pfl",
    "nvflare",
    "dp_accounting",
    "diffprivlib",
    "opendp",
    "pydp",
)
SECONDS = 10  # of processor time, for components of 0.1 ms to 3 ms a call
LIBRARIES = {  # package -> its name at the package index, where that is another one
    "jax_privacy": "jax-privacy",
    "pydp": "python-dp",
    "dp_accounting": "dp-accounting",
}
COLUMNS = (
    "Component",
    "Version",
    "Configuration",
    "States",
    "kappa",
    "Certified (any / by law)",
    "By law and shift",
    "Verdict",
    "Shown by",
    "Reason",
    "Calls",
    "Command",
    "kappa on",
)
VERDICTS = {BREAKS: "does not keep", KEEPS: "keeps (nothing refutes it)"}


def adapt_component(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """A class without arguments whose instances take arrays, and what it states by itself; None for
    what is not known.

    args: of the component, as on the command line; stated: as given there. Raises BadConfig for bad
        arguments."""
    name = getattr(target, "__name__", "")
    module = str(getattr(target, "__module__", ""))
    if name not in COMPONENT_ADAPTERS or module.split(".")[0] not in COMPONENT_LIBRARIES:
        return None
    file, function, _ = COMPONENT_ADAPTERS[name].split(":")
    return getattr(importlib.import_module(f"privdd.integrations.{file}"), function)(
        target, args, stated
    )


@dataclass(frozen=True)
class ComponentRow:
    """One component under check: arguments of ``privdd.check``, and the configuration in words.

    reason: why it does not keep what is stated, as read in the component's own code; empty where it
        does."""

    mechanism: str
    what: str
    configuration: str
    given: tuple[str, ...] = ()
    seconds: int = SECONDS
    reason: str = ""

    @property
    def library(self) -> str:
        return self.mechanism.partition(":")[0].partition(".")[0]

    @property
    def version(self) -> str | None:
        """Of the installed library, with its name; None where it is not installed."""
        if importlib.util.find_spec(self.library) is None:
            return None
        package = LIBRARIES.get(self.library, self.library)
        return f"{package} {importlib.metadata.version(package)}"

    @property
    def check_arguments(self) -> tuple[str, ...]:
        return (f"mechanism={self.mechanism}", *self.given, f"seconds={self.seconds}")

    @property
    def check_command(self) -> str:
        return shlex.join(["python", "-m", "privdd.check", *self.check_arguments])


def local_dp_arguments(epsilon: str, sensitivity: str = "1") -> tuple[str, ...]:
    """Of Flower's LocalDpMod with a clip norm of 1."""
    return (
        "args.clipping_norm=1",
        f"args.sensitivity={sensitivity}",
        f"stated.epsilon={epsilon}",
        "stated.delta=1e-5",
        "input.shapes=[[20]]",
    )


def known_cells(page: Path, row: ComponentRow) -> Cells | None:
    """The row as the table has it, where its command and its library's version (if it is installed)
    are the same, else None."""
    table = page.parent / "data" / f"{page.stem}-1.csv"
    if not table.is_file():
        return None
    with table.open(newline="", encoding="utf-8") as file:
        cells_of_row = [
            cells for cells in csv.DictReader(file) if cells.get("Command") == row.check_command
        ]
    reference = (
        cells
        for cells in cells_of_row
        if row.version in (None, cells.get("Version")) and set(cells) == set(COLUMNS)
    )
    return next((cells | _reason_cell(row, cells["Verdict"]) for cells in reference), None)


def checked_cells(row: ComponentRow, result: Checked) -> Cells:
    """What the table says of a check."""
    stated = f"({result.stated.epsilon:.3g}, {result.stated.delta:g}), {result.stated.relation}"
    kappa = "–" if result.kappa is None else f"{result.kappa:.3g}"
    bounds = f"{_bound_cell(result.certified_any)} / {_bound_cell(result.certified)}"
    if result.exact is None:
        exact = "–"
    else:
        exact = f"{result.exact.epsilon:.4g}"
    refuting = [
        result_of_test for result_of_test in result.looks if result_of_test.outcome == "refuted"
    ]
    if refuting:
        reason = max(refuting, key=lambda result_of_test: result_of_test.epsilon).says
    else:
        reason = ""
    verdict = _verdict_cell(result)
    verdict_text = (
        row.what,
        str(row.version),
        row.configuration,
        stated,
        kappa,
        bounds,
        exact,
        verdict,
        reason,
        "",
        str(result.calls),
        row.check_command,
        result.worst or "",
    )
    return dict(zip(COLUMNS, verdict_text)) | _reason_cell(row, verdict)


def missing_cells(row: ComponentRow, why: str = "not checked here") -> Cells:
    """A row that was not checked: its library is not installed, and was not when the table was
    made, or the check broke off."""
    reason = (
        row.what,
        row.library,
        row.configuration,
        "",
        "",
        "",
        "",
        why,
        "",
        "",
        "",
        row.check_command,
        "",
    )
    return dict(zip(COLUMNS, reason))


def format_component_page(rows: Iterable[Cells], command: str) -> str:
    """Markdown: a configuration is judged, not a project."""
    lines = [
        "# Components of other libraries",
        "",
        "Verdicts of `python -m privdd.check` on components of other libraries, each "
        "called as its documentation calls it: Opacus",
        "through `make_private`, Flower through `ClientApp` and `Strategy.start`, "
        "NVFlare through `Filter.process`. No adapter",
        "repeats a part of the judged component. A configuration is judged, not a project: "
        "another one may keep what this one does not.",
        "*Keeps* means that nothing was found that refutes the statement in so many "
        "calls; of a row that was *not checked here*",
        "nothing is known. States: epsilon and delta by the library's own accountant or "
        "argument, and which data are neighbours;",
        "for a noise multiplier alone, epsilon is that of the Gaussian mechanism; "
        "without any statement, 5 was tested.",
        "kappa: the largest observed shift over the noise, in units of the statement (1 = "
        "as stated). Certified: a lower bound on",
        "epsilon at confidence 0.99, for any mechanism, and given the noise's law or its "
        "declared batches. By law and shift:",
        "epsilon of the largest observed shift by a record under the same "
        "noise, if the noise's law was tested.",
        "Shown by: the test that refuted the statement. Reason: as read in the library's code.",
        "",
        f"Made by `{command}`; each row has its own command, and the inputs on which "
        "kappa was largest. A row is checked",
        "again when its command or the library's version changes, or when it was deleted "
        "from the table. The libraries are not",
        "dependencies of privdd: a row whose library is not installed stays as it was.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
    ]
    for cells in rows:
        values = {**cells, "Command": f"`{cells['Command']}`"}
        lines.append("| " + " | ".join(values[name].replace("|", "\\|") for name in COLUMNS) + " |")
    return "\n".join([*lines, ""])


def _reason_cell(row: ComponentRow, verdict: str) -> dict[str, str]:
    return {"Reason": row.reason if verdict == VERDICTS[BREAKS] else ""}


def _verdict_cell(result: Checked) -> str:
    if result.is_undecided:
        return "undecided: a test that applies was not made"
    # of a condition the part after the colon says what must hold
    conditions = "; ".join(condition.rpartition(": ")[2] for condition in result.conditions)
    return VERDICTS.get(result.verdict, f"under conditions: {conditions}")


def _bound_cell(value: float) -> str:
    return "unbounded" if math.isinf(value) else f"{value:.3g}"
