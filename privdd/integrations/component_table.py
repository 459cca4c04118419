"""The table of docs/components.md: components of other libraries, each with the command that repeats its row."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from privdd.blackbox.verdict import BREAKS, KEEPS, Checked

MOD, SERVER = "flwr.clientapp.mod:LocalDpMod", "flwr.serverapp.strategy:DifferentialPrivacyServerSideFixedClipping"
ADAPTIVE = "flwr.serverapp.strategy:DifferentialPrivacyServerSideAdaptiveClipping"
CLIENT = "flwr.serverapp.strategy:DifferentialPrivacyClientSideFixedClipping"
OPACUS, PFL = "opacus.optimizers:", "pfl.privacy."
SECONDS = 45  # of processor time for each row
CROWD = ("input.clients=10", "input.shapes=[[20]]")  # a strategy takes a millisecond a call


@dataclass(frozen=True)
class ComponentRow:
    """One component under check: arguments of ``privdd.check``, and the configuration in words."""

    library: str
    what: str
    configuration: str
    given: tuple[str, ...]

    @property
    def check_arguments(self) -> tuple[str, ...]:
        return (*self.given, f"seconds={SECONDS}")

    @property
    def check_command(self) -> str:
        return shlex.join(["python", "-m", "privdd.check", *self.check_arguments])


ROWS = (
    ComponentRow("flwr", "LocalDpMod", "clip 1, sensitivity 1",
        (f"mechanism={MOD}", "args.clipping_norm=1", "args.sensitivity=1", "stated.epsilon=10", "stated.delta=1e-5",
         "input.shapes=[[20]]")),
    ComponentRow("flwr", "LocalDpMod", "clip 1, sensitivity 1e-4",
        (f"mechanism={MOD}", "args.clipping_norm=1", "args.sensitivity=1e-4", "stated.epsilon=10", "stated.delta=1e-5")),
    ComponentRow("flwr", "DifferentialPrivacyServerSideFixedClipping over FedAvg", "equal and unequal weights",
        (f"mechanism={SERVER}", "args.noise_multiplier=1", "args.clipping_norm=1", *CROWD)),
    ComponentRow("flwr", "DifferentialPrivacyClientSideFixedClipping with fixedclipping_mod", "equal and unequal weights",
        (f"mechanism={CLIENT}", "args.noise_multiplier=1", "args.clipping_norm=1", *CROWD)),
    ComponentRow("flwr", "DifferentialPrivacyServerSideAdaptiveClipping over FedAvg", "equal and unequal weights",
        (f"mechanism={ADAPTIVE}", "args.noise_multiplier=0.5", "args.clipped_count_stddev=1", *CROWD)),
    ComponentRow("opacus", "DPOptimizer", "one step on all records",
        (f"mechanism={OPACUS}DPOptimizer", "args.noise_multiplier=1")),
    ComponentRow("opacus", "DPPerLayerOptimizer", "three layers, clip 1 each",
        (f"mechanism={OPACUS}DPPerLayerOptimizer", "args.noise_multiplier=1")),
    ComponentRow("opacus", "AdaClipDPOptimizer", "one step on all records",
        (f"mechanism={OPACUS}AdaClipDPOptimizer", "args.noise_multiplier=1")),
    ComponentRow("opacus", "UniformWithReplacementSampler, DPOptimizer", "rate 0.1, one batch",
        ("mechanism=opacus.utils.uniform_sampler:UniformWithReplacementSampler", "args.noise_multiplier=1")),
    ComponentRow("opacus", "PrivacyEngine's loader, DPOptimizer", "poisson_sampling=False, one epoch of 20 batches",
        ("mechanism=opacus:PrivacyEngine", "args.noise_multiplier=0.6", "args.poisson_sampling=false",
         "input.rows=[40,4]")),
    ComponentRow("opacus", "PrivacyEngine's loader, DPOptimizer", "poisson_sampling=True, one epoch of 20 batches",
        ("mechanism=opacus:PrivacyEngine", "args.noise_multiplier=0.6", "input.rows=[40,4]")),
    ComponentRow("jax-privacy", "clipped_fun with matrix_factorization_privatizer", "clip 1, independent noise, one sum",
        ("mechanism=jax_privacy.clipping:clipped_fun", "args.noise_multiplier=1")),
    ComponentRow("pfl", "GaussianMechanism", "one iteration, clip 1, the update alone",
        (f"mechanism={PFL}gaussian_mechanism:GaussianMechanism", "args.epsilon=2")),
    ComponentRow("pfl", "GaussianMechanism", "the same, and the metrics that come with it",
        (f"mechanism={PFL}gaussian_mechanism:GaussianMechanism", "args.epsilon=2", "args.with_metrics=true")),
    ComponentRow("pfl", "LaplaceMechanism", "clip 1 in L1",
        (f"mechanism={PFL}laplace_mechanism:LaplaceMechanism", "args.epsilon=2")),
    ComponentRow("nvflare", "SVTPrivacy", "gamma 1, tau 0.1, a tenth of the numbers, epsilon 1 and 1",
        ("mechanism=nvflare.app_common.filters.svt_privacy:SVTPrivacy", "args.gamma=1", "args.tau=0.1",
         "args.epsilon_release=1", "args.epsilon=1")),
)  # fmt: skip
VERDICTS = {BREAKS: "does not keep", KEEPS: "keeps (nothing refutes it)"}


def is_installed(row: ComponentRow) -> bool:
    """Whether the component's library is there to be checked."""
    return importlib.util.find_spec(row.library.replace("-", "_")) is not None


def format_component_page(results: Iterable[tuple[ComponentRow, Checked | None]], command: str) -> str:
    """Markdown: a configuration is judged, not a project. None: the library is not installed."""
    lines = [
        "# Components of other libraries",
        "",
        "What `python -m privdd.check` says of components as they are installed here, each in one configuration. A",
        "configuration is judged, not a project: another one may keep what this one does not. *Keeps* means that nothing",
        "was found that refutes the statement. kappa: the largest shift seen over the noise, in units of what is stated (1 = as",
        "stated). Certified: a lower bound on epsilon at confidence 0.99, for any mechanism, and given the noise's law.",
        "*Undecided*: nothing refutes it, and not every look was made; more `seconds=`, or inputs of one size, allow more.",
        "",
        f"Made by `{command}`; each row has its own command, and the inputs on which kappa was largest.",
        "",
        "| Component | Version | Configuration | States | kappa | Certified (any / by law) | Verdict | Command | kappa on |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for at, (row, result) in enumerate(results, 1):
        if result is None:
            lines.append(
                f"| {at}. {row.what} | {row.library} | {row.configuration} | | | | not installed here | `{row.check_command}` | |"
            )
            continue
        version = importlib.metadata.version(row.library)
        kappa = "–" if result.kappa is None else f"{result.kappa:.3g}"
        verdict = _verdict_cell(result)
        stated = f"({result.stated.epsilon:.3g}, {result.stated.delta:g}), {result.stated.relation}"
        lines.append(
            f"| {at}. {row.what} | {row.library} {version} | {row.configuration} | {stated} | {kappa} "
            f"| {_bound_cell(result.certified_any)} / {_bound_cell(result.certified)} | {verdict} "
            f"| `{row.check_command}` | {result.worst or ''} |"
        )
    return "\n".join([*lines, ""])


def _verdict_cell(result: Checked) -> str:
    if result.is_unfinished:
        return "undecided: the time was spent before every look was made"
    return VERDICTS.get(
        result.verdict, "under conditions: " + "; ".join(_short_condition(c) for c in result.conditions)
    )


def _bound_cell(value: float) -> str:
    return "unbounded" if math.isinf(value) else f"{value:.3g}"


def _short_condition(condition: str) -> str:
    """The part after the colon says what must hold."""
    return condition.rpartition(": ")[2]
