"""Components of other libraries as callables on arrays, for ``privdd.check``, and the table of
docs/components.md.

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
# of processor time, for components of 0.1 ms to 3 ms a call
SECONDS = 10
MIDDLE = 20
LONG = 30
LONGEST = 40
MOST = 60
STRATEGY = "flwr.serverapp.strategy:DifferentialPrivacy"
LOCAL = "flwr.clientapp.mod:LocalDpMod"
ENGINE = "opacus:PrivacyEngine"
ACCOUNTING = "dp_accounting."
PFL = "pfl.privacy."
JAX = "jax_privacy."
NVFLARE = "nvflare.app_common."
TOOLS = "diffprivlib.tools:"
PYDP = "pydp.algorithms.laplacian:"
CROWD = (
    "args.noise_multiplier=1",
    "args.clipping_norm=1",
    "input.clients=3",
    "input.shapes=[[20]]",
)
ADAPTIVE = (
    "args.noise_multiplier=0.5",
    "args.clipped_count_stddev=1",
    "input.clients=3",
    "input.shapes=[[20]]",
)
SMALL = ("args.noise_multiplier=1", "input.rows=[40,50]")  # 40 records in batches of 2
# one batch
WHOLE = (
    "args.noise_multiplier=1",
    "args.loss_reduction=sum",
    "args.batch_size=64",
    "input.rows=[8,6]",
)
EPOCH = (
    "args.noise_multiplier=1",
    "args.loss_reduction=sum",
    "args.poisson_sampling=false",
    "args.steps=0",
    "args.batch_size=1",
    "args.records=10",
    "relation=zero_out",
    "input.rows=[10,4]",
)
COLUMN = ("args.epsilon=1", "args.bounds=[0,1]", "input.rows=[20,1]")
NONE_STATED = ("stated.epsilon=5", "stated.delta=1e-5")  # put to a component that states none
CLASSIC = (
    "its noise is sqrt(2 ln(1.25 / delta)) / epsilon, which is proven for epsilon below 1 "
    "only; at delta 1e-5 it falls short from 8.4 on"
)
WEIGHTS = (
    "the server weighs clients by the counts they state (num-examples), and the noise is "
    "sized for equal "
    "weights: one client may be nearly the whole mean; with its accountant Flower "
    "refuses such weights"
)
DIVISOR = (
    "the noise is divided by int(records x rate), which is 2 with 40 records and 1 with 39; "
    "a public number of records "
    "makes this harmless"
)
SHUFFLED = (
    "the engine accounts for Poisson batches of this rate, and here each record is in one "
    "batch of every epoch for certain"
)
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


def _local(epsilon: str, sensitivity: str = "1") -> tuple[str, ...]:
    return (
        "args.clipping_norm=1",
        f"args.sensitivity={sensitivity}",
        f"stated.epsilon={epsilon}",
        "stated.delta=1e-5",
        "input.shapes=[[20]]",
    )


ROWS = (
    ComponentRow(
        LOCAL, "LocalDpMod in a ClientApp", "clip 1, sensitivity 1, epsilon 8", _local("8"), MIDDLE
    ),
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1, epsilon 10",
        _local("10"),
        reason=CLASSIC,
    ),
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1, epsilon 20",
        _local("20"),
        reason=CLASSIC,
    ),
    ComponentRow(
        LOCAL,
        "LocalDpMod in a ClientApp",
        "clip 1, sensitivity 1e-4, epsilon 10",
        _local("10", "1e-4"),
        reason="the noise is for the sensitivity that is given, which nothing holds against the "
        "clip of 1",
    ),
    ComponentRow(
        f"{STRATEGY}ServerSideFixedClipping",
        "Server-side fixed clipping over FedAvg, start()",
        "3 clients, any weights",
        CROWD,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        f"{STRATEGY}ServerSideFixedClipping",
        "the same with Flower's RdpAccountant",
        "3 clients, which must have equal weights",
        (
            "args.noise_multiplier=1",
            "args.clipping_norm=1",
            "args.accountant=true",
            "args.clients=3",
            "input.clients=3",
            "input.shapes=[[20]]",
        ),
        MOST,
    ),
    ComponentRow(
        f"{STRATEGY}ClientSideFixedClipping",
        "Client-side fixed clipping with its mod, start()",
        "3 clients, any weights",
        CROWD,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        f"{STRATEGY}ServerSideAdaptiveClipping",
        "Server-side adaptive clipping over FedAvg, start()",
        "3 clients, any weights",
        ADAPTIVE,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        f"{STRATEGY}ClientSideAdaptiveClipping",
        "Client-side adaptive clipping with its mod, start()",
        "3 clients, any weights",
        ADAPTIVE,
        LONGEST,
        reason=WEIGHTS,
    ),
    ComponentRow(
        ENGINE,
        "make_private, as it comes (PRV accountant)",
        "40 records, batches of 2, one step",
        SMALL,
        LONG,
        reason=DIVISOR,
    ),
    ComponentRow(
        ENGINE,
        "make_private",
        "loss_reduction=sum, 40 records, batches of 2, one step",
        (*SMALL, "args.loss_reduction=sum"),
        MOST,
    ),
    ComponentRow(
        ENGINE, "make_private", "loss_reduction=sum, all records in the batch", WHOLE, MOST
    ),
    ComponentRow(
        ENGINE,
        "make_private, per-layer clipping",
        "three layers, clip 1 each, sum, all records",
        (*WHOLE, "args.clipping=per_layer", "args.layers=3", "args.max_grad_norm=[1,1,1]"),
        MOST,
    ),
    ComponentRow(
        ENGINE,
        "make_private, ghost clipping",
        "sum, all records",
        (*WHOLE, "args.grad_sample_mode=ghost"),
        MOST,
    ),
    ComponentRow(
        ENGINE,
        "make_private, poisson_sampling=False",
        "shuffled loader, an epoch of 10 batches, sum",
        (*EPOCH, "args.shuffle=true"),
        LONG,
        reason=SHUFFLED,
    ),
    ComponentRow(
        f"{ACCOUNTING}pld:PLDAccountant",
        "PLDAccountant, REPLACE_ONE",
        "with make_private, sum, all records",
        ("args.noise_multiplier=2", "args.relation=REPLACE_ONE", "input.rows=[8,6]"),
        MOST,
    ),
    ComponentRow(
        f"{ACCOUNTING}rdp:RdpAccountant",
        "RdpAccountant, REPLACE_ONE",
        "with make_private, sum, all records",
        ("args.noise_multiplier=2", "args.relation=REPLACE_ONE", "input.rows=[8,6]"),
        LONG,
        reason="it reads the multiplier as noise over the norm of a record, as GaussianDpEvent "
        "does, though replacing a record shifts the sum by up to twice that norm; the "
        "PLD accountant doubles it",
    ),
    ComponentRow(
        f"{JAX}experimental.execution_plan:BandMFExecutionPlanConfig",
        "execution plan: sampler, clipped gradient, noise",
        "one step, rate 0.5, its zero-out relation",
        ("args.noise_multiplier=1", "args.sampling_prob=0.5", "input.rows=[20,6]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{JAX}clipping:clipped_fun",
        "clipped_fun with matrix_factorization_privatizer",
        "clip 1, independent noise, one sum",
        ("args.noise_multiplier=1", "input.rows=[20,6]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{PFL}gaussian_mechanism:GaussianMechanism",
        "GaussianMechanism.privatize",
        "clip 1, the update alone",
        ("args.epsilon=2",),
    ),
    ComponentRow(
        f"{PFL}gaussian_mechanism:GaussianMechanism",
        "GaussianMechanism.privatize",
        "the same, and the metrics that come with it",
        ("args.epsilon=2", "args.with_metrics=true"),
        reason="the norm before the clip is among them, without noise; they must stay with the "
        "user",
    ),
    ComponentRow(
        f"{PFL}gaussian_mechanism:GaussianMechanism",
        "GaussianMechanism from PLDPrivacyAccountant, central",
        "3 users of weight 1",
        ("args.epsilon=2", "args.accountant=true", "input.clients=3", "input.shapes=[[20]]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{PFL}adaptive_clipping:AdaptiveClippingGaussianMechanism",
        "AdaptiveClippingGaussianMechanism",
        "3 users, one round",
        ("args.epsilon=2", "input.clients=3", "input.shapes=[[20]]"),
        MIDDLE,
    ),
    ComponentRow(
        f"{PFL}laplace_mechanism:LaplaceMechanism",
        "LaplaceMechanism.privatize",
        "clip 1 in L1",
        ("args.epsilon=2",),
    ),
    ComponentRow(
        f"{NVFLARE}filters.svt_privacy:SVTPrivacy",
        "SVTPrivacy",
        "as it comes, 20 numbers",
        ("input.shapes=[[20]]",),
    ),
    ComponentRow(
        f"{NVFLARE}filters.svt_privacy:SVTPrivacy",
        "SVTPrivacy",
        "gamma 1, tau 0.1, epsilon 1 and 1, 20 numbers",
        (
            "args.gamma=1",
            "args.tau=0.1",
            "args.epsilon_release=1",
            "args.epsilon=1",
            "input.shapes=[[20]]",
        ),
    ),
    ComponentRow(
        f"{NVFLARE}filters.percentile_privacy:PercentilePrivacy",
        "PercentilePrivacy",
        "as it comes; it states no epsilon",
        NONE_STATED,
        reason="it clips and drops small numbers, and adds no noise",
    ),
    ComponentRow(
        f"{NVFLARE}statistics.min_max_cleanser:AddNoiseToMinMax",
        "AddNoiseToMinMax",
        "0.1 to 0.3; it states no epsilon",
        ("args.min_noise_level=0.1", "args.max_noise_level=0.3", *NONE_STATED),
        reason="its noise is a share of the value between two bounds: values that differ enough "
        "are never mistaken",
    ),
    ComponentRow(f"{TOOLS}mean", "tools.mean", "bounds 0 and 1, 20 records", COLUMN),
    ComponentRow(f"{TOOLS}var", "tools.var", "bounds 0 and 1, 20 records", COLUMN),
    ComponentRow(f"{TOOLS}median", "tools.median", "bounds 0 and 1, 20 records", COLUMN),
    ComponentRow(
        f"{TOOLS}histogram",
        "tools.histogram",
        "4 bins, range 0 to 1",
        ("args.epsilon=1", "args.bins=4", "args.range=[0,1]", "input.rows=[20,1]"),
    ),
    ComponentRow(
        f"{TOOLS}histogram",
        "tools.histogram",
        "as it comes: no range (it warns)",
        ("args.epsilon=1", "input.rows=[20,1]"),
        reason="the edges of its bins are the smallest and the largest value of the data, as its "
        "warning says",
    ),
    ComponentRow(
        "opendp.measurements:make_laplace",
        "make_laplace on a clamped sum",
        "bounds 0 and 1",
        ("args.epsilon=1", "input.rows=[20,1]"),
    ),
    ComponentRow(
        f"{PYDP}BoundedSum",
        "BoundedSum",
        "bounds 0 and 1",
        ("args.epsilon=1", "args.lower_bound=0", "args.upper_bound=1", "input.rows=[20,1]"),
    ),
    ComponentRow(
        f"{PYDP}BoundedMean",
        "BoundedMean",
        "bounds 0 and 1",
        ("args.epsilon=1", "args.lower_bound=0", "args.upper_bound=1", "input.rows=[20,1]"),
    ),
    ComponentRow(f"{PYDP}Count", "Count", "as it comes", ("args.epsilon=1", "input.rows=[20,1]")),
)
Cells = Mapping[str, str]


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
