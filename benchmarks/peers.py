"""This project beside its peers: same inputs, who is ahead, and by how much; the rows that it loses
too.

    python -m benchmarks.peers --install FOLDER                       # each peer from the package
    registry, into its own folder python -m benchmarks.peers --peers FOLDER --write docs/peers.md
    # every row, each in a process of its own python -m benchmarks.peers --peers FOLDER --only
    one_run_jax clipped_sums

A peer is installed without what it depends on (PEERS lists what it needs beyond this environment),
so that it changes nothing here. What cannot be installed or imported is a row that says so. Times
are CPU seconds of one thread (wall clock where said). Who is ahead follows from two numbers: by how
much the result is better, and the least difference that counts."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import dp_accounting as dpa
import numpy as np
import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.stats import binom

from attacks.command_line import CommandParser
from attacks.membership.lira import lira
from attacks.membership.measures import guess_counts
from attacks.membership.signals import logit_scaled
from attacks.one_run import fdp_one_run_mu, one_run, one_run_from_scores
from attacks.roc import roc, tpr_at_fpr
from benchmarks import accounting, dp_sgd, public_tool, shadows, simulation
from benchmarks.inversion import load, matched
from benchmarks.machine import hardware
from privdd.core.rng import Keys
from privdd.models import build
from privdd.privacy.accounting import epsilon
from privdd.runtime.engine import Engine
from privdd.runtime.files import write_bytes

ROOT = Path(__file__).parents[1]
DELTA = 1e-5
PEERS = {  # folder -> requirements
    "sacroml": (
        "sacroml==2.0.1",
        "acro==1.0.2",
        "fpdf",
        "pypdf",
        "multiprocess",
        "dill",
        "dictdiffer",
        "prompt_toolkit",
        "wcwidth",
    ),
    "jax-privacy": (
        "jax-privacy==2.0.0",
        "jax",
        "jaxlib",
        "optax",
        "chex",
        "toolz",
        "ml_dtypes",
        "opt_einsum",
    ),
    "opake": (
        "opake-auditing==0.16.1",
        "opake-accounting==0.16.1",
        "opake-engine==0.16.1",
        "opake-base==0.16.1",
        "optree",
    ),
    "prv-accountant": ("prv-accountant==0.2.0",),
    "breaching": ("breaching==0.1.2",),
    "privacy-meter": ("privacy-meter",),
    "leakpro": ("leakpro",),
    "dp-auditorium": ("dp-auditorium",),
}
HEADINGS = {  # what is compared, and what decides
    "lira": (
        "Membership from shadow models, the same signals",
        "MLPs on digits, 8 targets. Ahead: two standard errors of the paired "
        "difference. sacroml's time holds a test of normality of each record, which "
        "is part of its scoring.",
    ),
    "one_run": (
        "A lower bound on epsilon from one run, the same scores",
        "A Gaussian mechanism of known epsilon (delta 1e-5, one record more "
        "or less), 1,000 canaries, confidence 0.95. Larger is better, unless a "
        "tool is above the truth more often than 5 % allows (p < 0.01): "
        "opake-auditing chooses its threshold on the scores that it judges. "
        "jax-privacy tries every threshold and guesses members only, "
        "privdd makes three numbers of guesses, fixed beforehand, on both sides. "
        "A Gaussian's bound is an estimate for other mechanisms.",
    ),
    "check": ("Is a mechanism's epsilon true?", ""),
    "accounting": (
        "Epsilon of DP-SGD",
        "Proven at delta 1e-5, one record added or removed; smaller is tighter, from 0.5 % on. "
        "privdd's figure is by "
        "privacy loss distributions, which dp-accounting composes: a peer by "
        "RDP is faster and looser.",
    ),
    "clipping": (
        "The clipped sum of a DP-SGD step",
        "The same records, network and clip norm. privdd's sum lies on a lattice. A plain step is "
        "the mean gradient of the same batch, without clipping.",
    ),
    "rounds": (
        "Simulated rounds of FedAvg",
        "The same network, records and steps; wall clock, on a machine that others used too.",
    ),
    "inversion": (
        "Eight records inverted from one update",
        "The same gradient of the same untrained network. A start of either tool moves PSNR "
        "by "
        "1 to 2.5 dB: less than 2.5 is not distinguished.",
    ),
}


@dataclass(frozen=True)
class Comparison:
    """One line: what both said of the same inputs. gain: by how much ours is better, None where no
    result is compared; margin: the least gain that counts; seconds: ours, theirs."""

    inputs: str
    peer: str
    ours: str
    theirs: str
    gain: float | None
    margin: float
    seconds: tuple[float, float]


def timed(work: Callable[..., Any], *of: Any, **more: Any) -> tuple[Any, float]:
    """(what it returns, CPU seconds)."""
    start = time.process_time()
    return work(*of, **more), time.process_time() - start


# --- membership: LiRA on the same signals ---------------------------------------------------------


def shadow_signals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 400) log-odds of the true label and masks of MLPs on digits, each trained on its own
    random half."""
    task = shadows.prepared(shadows.CASES["mlp"], count)
    shards = [task.shard(world) for world in task.worlds]
    done = task.case.method.local_batched(
        {"model": task.start}, [{} for _ in shards], shards, [task.context(w) for w in task.worlds]
    )
    model = build(task.case.spec, task.case.shape, 10)
    signals = []
    masks = []
    for (upload, _), shard in zip(done or (), shards):
        model.load_state_dict(upload["update"].value)
        signals.append(logit_scaled(model(task.pool.x).detach().double(), task.pool.y))
        masks.append(torch.isin(torch.arange(len(task.pool)), shard.train.ids))
    return torch.stack(signals), torch.stack(masks)


def lira_sacroml() -> Iterator[Comparison]:
    """Its own scores of stored signals: ``_compute_scores`` is what its attack calls once shadow
    models are trained."""
    from sacroml.attacks.likelihood_attack import LIRAAttack

    peer = f"sacroml {version('sacroml')}"
    targets = 8
    for count, mode, fixed in (
        (64, "online-carlini", False),
        (64, "offline", False),
        (16, "online-carlini", False),
        (16, "online-carlini", True),
    ):
        signals, masks = shadow_signals(count + 1)
        with tempfile.TemporaryDirectory() as folder:
            tool = LIRAAttack(
                output_dir=folder,
                write_report=False,
                n_shadow_models=count,
                mode=mode,
                fix_variance=fixed,
            )

        def theirs(
            x: torch.Tensor, m: torch.Tensor, t: torch.Tensor, tool: Any = tool
        ) -> torch.Tensor:
            sides = [
                {i: x[m[:, i] == side, i].tolist() for i in range(x.shape[1])}
                for side in (False, True)
            ]
            p = t.sigmoid()
            pairs, _ = tool._compute_scores(
                np.ones(len(p), int), torch.stack([1 - p, p], 1).numpy(), *sides
            )
            return torch.tensor(pairs)[:, 1]  # the column that its own AUC is of

        # (ours, theirs) x (AUC, TPR) x target
        rates = np.empty((2, 2, targets))
        seconds = np.zeros(2)
        for k in range(targets):
            rest = torch.arange(count + 1) != k
            for index, (score, more) in enumerate(
                ((lira, {"online": mode != "offline"}), (theirs, {}))
            ):
                scores, taken = timed(score, signals[rest], masks[rest], signals[k], **more)
                rates[index, :, k] = (
                    roc(scores, masks[k]).auc,
                    tpr_at_fpr(scores, masks[k], 0.01)[0],
                )
                seconds[index] += taken / targets
        for what, (a, b) in zip(("AUC", "TPR at FPR 0.01"), rates.swapaxes(0, 1)):
            inputs = f"{what}, {mode}{', fix_variance' * fixed}, {count} shadow models"
            yield Comparison(
                inputs,
                peer,
                f"{a.mean():.3f}",
                f"{b.mean():.3f}",
                *paired(a, b),
                (seconds[0], seconds[1]),
            )


def paired(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """(mean gain, two standard errors of it, 0.001 at least)."""
    gaps = ours - theirs
    return float(gaps.mean()), max(0.001, 2 * float(gaps.std(ddof=1)) / len(gaps) ** 0.5)


def import_only(module: str) -> NoReturn:
    """For a peer whose import fails today."""
    importlib.import_module(module)
    raise SystemExit(f"{module} can be imported now: its row is to be written")


# --- bounds on epsilon from one run ---------------------------------------------------------------

Bound = Callable[[np.ndarray, np.ndarray], float]


def one_run_rows(
    peer: str, bounds: dict[str, tuple[str, Bound]], canaries: int = 1000
) -> Iterator[Comparison]:
    """Scores of a Gaussian mechanism whose epsilon is known: each canary in or out by a coin, value
    1 or 0, plus noise.

    bounds: name of theirs -> (method of ours, theirs). Confidence 0.95. A tool loses a row where it
        is above the truth more often than 5 % allows (p < 0.01), whatever its mean.
    """
    for title, (method, theirs) in bounds.items():
        for truth, repeats in ((0.0, 300), (1.0, 20), (4.0, 20), (8.0, 20)):
            sigma = dpa.get_sigma_gaussian(truth, DELTA) if truth else None
            values = []
            seconds = np.zeros(2)
            generator = np.random.default_rng(11)
            for _ in range(repeats):
                member = generator.random(canaries) < 0.5
                scores = generator.normal(size=canaries) * (sigma or 1) + member * (
                    sigma is not None
                )
                options: dict[str, Any] = {
                    "delta": DELTA,
                    "generator": generator,
                    "guesses": guess_counts(canaries),
                    "method": method,
                }
                for bound in (one_run, fdp_one_run_mu):
                    bound.cache_clear()
                a, first = timed(one_run_from_scores, scores, member, **options)
                b, second = timed(theirs, scores, member)
                values.append((a.value, float(b)))
                seconds += np.array((first, second)) / repeats
            yield judge_bounds(
                f"true epsilon {truth:g}, {repeats} runs",
                f"{peer}, {title}",
                method,
                truth,
                np.array(values),
                seconds,
            )


def judge_bounds(
    inputs: str, peer: str, method: str, truth: float, values: np.ndarray, seconds: Sequence[float]
) -> Comparison:
    """values (runs, 2): ours, theirs."""
    above = (values > truth + 1e-9).sum(0)
    faulty = binom.sf(above - 1, len(values), 0.05) < 0.01
    gain, margin = paired(*values.T)
    if faulty.any():
        gain = float(faulty[1]) - float(faulty[0])
        margin = 0.5
    said = [
        f"{mean:.2f}, above the truth {count} of {len(values)}"
        for mean, count in zip(values.mean(0), above)
    ]
    return Comparison(
        inputs, peer, f"{method}: {said[0]}", said[1], gain, margin, (seconds[0], seconds[1])
    )


def one_run_jax() -> Iterator[Comparison]:
    from jax_privacy.auditing import CanaryScoreAuditor

    def made(name: str) -> Bound:
        return lambda s, m: getattr(CanaryScoreAuditor(s[m], s[~m]), name)(0.05, DELTA)

    yield from one_run_rows(
        f"jax-privacy {version('jax-privacy')}",
        {
            "epsilon_one_run": ("one_run", made("epsilon_one_run")),
            # both for a Gaussian's trade-off curve
            "epsilon_one_run_fdp": ("fdp_one_run_gaussian", made("epsilon_one_run_fdp")),
        },
    )


def one_run_opake() -> Iterator[Comparison]:
    from opake.auditing import canary_scores
    from opake.auditing import one_run as estimated
    from opake.auditing.types import CoinFlip

    def estimate(s: np.ndarray, m: np.ndarray) -> Any:
        every = np.arange(len(s))
        flips = CoinFlip(len(s), every, m, np.flatnonzero(m), np.flatnonzero(~m))
        return estimated(canary_scores(s, canary_indices=every), coin_flip=flips)

    yield from one_run_rows(
        f"opake-auditing {version('opake-auditing')}",
        {
            "eps_delta": (
                "one_run",
                lambda s, m: estimate(s, m).eps_delta().epsilon_at(delta=DELTA, significance=0.05),
            ),
        },
    )


# --- accounting -----------------------------------------------------------------------------------


def accounting_rows(peers: dict[str, Callable[[float, float, int], float]]) -> Iterator[Comparison]:
    """The smaller proven epsilon is ahead, from 0.5 % on."""
    ours = [
        timed(epsilon, accounting.event(*point), DELTA)
        for point in [(0.5, 2.0, 2), *accounting.POINTS[1:5]]
    ][1:]
    for peer, theirs in peers.items():
        theirs(0.5, 2.0, 2)  # the first call is slower, as it was of ours
        for (q, z, steps), (a, first) in zip(accounting.POINTS[1:5], ours):
            b, second = timed(theirs, q, z, steps)
            inputs = f"rate {q:g}, noise multiplier {z:g}, {steps} steps"
            yield Comparison(
                inputs, peer, f"{a:.3f}", f"{b:.3f}", b / a - 1, 0.005, (first, second)
            )


def accounting_opacus() -> Iterator[Comparison]:
    kinds = (RDPAccountant, PRVAccountant)
    yield from accounting_rows(
        {
            f"Opacus {version('opacus')}, {kind.__name__}": lambda *p, kind=kind: accounting.opacus(
                kind(), *p, DELTA
            )
            for kind in kinds
        }
    )


def accounting_prv() -> Iterator[Comparison]:
    from prv_accountant import PRVAccountant as Accountant
    from prv_accountant.privacy_random_variables import (
        PoissonSubsampledGaussianMechanism as Mechanism,
    )

    def upper(q: float, z: float, steps: int) -> float:
        made = Accountant(
            [Mechanism(q, z)],
            eps_error=0.01,
            delta_error=DELTA / 1000,
            max_self_compositions=[steps],
        )
        return float(made.compute_epsilon(DELTA, [steps])[2])

    yield from accounting_rows(
        {f"prv-accountant {version('prv-accountant')}, upper end at error 0.01": upper}
    )


# --- clipped sums, rounds, inversion --------------------------------------------------------------


def clipped_sums() -> Iterator[Comparison]:
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    for spec in dp_sgd.SPECS:
        for batch in (32, 256):
            g = Keys(0).fold("data").torch()
            x = torch.rand(batch, *dp_sgd.SHAPE, generator=g)
            y = torch.randint(dp_sgd.CLASSES, (batch,), generator=g)
            took = dp_sgd.measure(dp_sgd.variants(spec, x, y), 5)
            best = min(("Opacus ghost", "Opacus hooks"), key=lambda name: took[name])
            inputs = f"{spec.name} width {spec.width}, batch {batch}"
            peer = f"Opacus {version('opacus')}, {best.split()[1]} (the faster)"
            ours = f"on a lattice, {took['privdd'] / took['plain']:.2g} plain steps"
            theirs = f"float32, {took[best] / took['plain']:.2g} plain steps"
            yield Comparison(inputs, peer, ours, theirs, None, 0.0, (took["privdd"], took[best]))


def rounds_flower() -> Iterator[Comparison]:
    spec = simulation.SPECS["mlp"]
    clients = 100
    records = 50
    made = [simulation.shard_of(k, records) for k in range(clients)]
    simulation.ours(spec, made[:5], 1, Engine())
    mine = statistics.median(simulation.ours(spec, made, 3, Engine()))
    _, later = simulation.flower(spec, clients, records, 3)
    inputs = f"{clients} clients of {records} records, MLP, seconds a round (wall clock)"
    yield Comparison(
        inputs,
        f"flwr {version('flwr')}, simulation on Ray",
        "serial",
        "all cores",
        None,
        0.0,
        (mine, statistics.median(later)),
    )


def inversion_breaching() -> Iterator[Comparison]:
    """Images on which no setting of ours was chosen."""
    public_tool.import_torchvision()
    import breaching

    x, y = load(Path("/usr/share/datasets/fashion-mnist"))
    model = public_tool.network(64, 0)
    iterations = 300
    part = slice(8, 16)
    observed = [g.detach() for g in public_tool.Victim(model).simulated_gradients(x[part], y[part])]
    mine, a = timed(public_tool.ours, model, observed, (x[-500:], y[-500:]), 8, iterations)
    for name, (preset, more) in list(public_tool.SETTINGS.items())[:2]:
        found, b = timed(
            public_tool.breached,
            breaching,
            model,
            observed,
            y[part],
            preset,
            [*more, f"optim.max_iterations={iterations}"],
            0,
        )
        good = matched(mine, x[part])
        other = matched(found, x[part])
        inputs = f"test images 8 to 15, {iterations} iterations, seconds a record"
        peer = f"breaching {version('breaching')}, {name}"
        yield Comparison(
            inputs,
            peer,
            f"{good:.2f} dB, labels recovered",
            f"{other:.2f} dB, labels given",
            good - other,
            2.5,
            (a / 8, b / 8),
        )


# --- the page -------------------------------------------------------------------------------------

ROWS: dict[
    str, tuple[str, str | None, Callable[[], Iterator[Comparison]]]
] = {  # name -> (heading, peer's folder if it has one, function)
    "lira_sacroml": ("lira", "sacroml", lira_sacroml),
    "rmia_meter": ("lira", "privacy-meter", lambda: import_only("privacy_meter.audit")),
    "rmia_leakpro": ("lira", "leakpro", lambda: import_only("leakpro.attacks.mia_attacks.rmia")),
    "one_run_jax": ("one_run", "jax-privacy", one_run_jax),
    "one_run_opake": ("one_run", "opake", one_run_opake),
    "check_auditorium": ("check", "dp-auditorium", lambda: import_only("dp_auditorium")),
    "accounting_opacus": ("accounting", None, accounting_opacus),
    "accounting_prv": ("accounting", "prv-accountant", accounting_prv),
    "clipped_sums": ("clipping", None, clipped_sums),
    "rounds_flower": ("rounds", None, rounds_flower),
    "inversion_breaching": ("inversion", "breaching", inversion_breaching),
}


def verdict(one: Comparison) -> str:
    """Who is ahead in the result; a row that is lost says so."""
    if one.gain is None:
        return "not compared"
    if abs(one.gain) <= one.margin:
        return "not distinguished"
    if one.gain > 0:
        return "ahead"
    return "**lost**"


def cost(one: Comparison) -> str:
    """Who is cheaper; a tenth is alike, as a time of the same work moves by as much."""
    ratio = one.seconds[0] / max(one.seconds[1], 1e-9)
    return (
        f"{'**lost**' if ratio > 1.1 else 'ahead' if ratio < 0.9 else 'alike'}, {ratio:.2g} "
        "times its time"
    )


def installed(folder: Path, requirements: Sequence[str]) -> str:
    """Install one peer; returns the reason where it fails, and leaves it in the folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--upgrade",
        "--target",
        str(folder),
        *requirements,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    if done.returncode:
        reason = lines[0].removeprefix("ERROR: ") if lines else "pip failed"
    else:
        reason = ""
    (folder / "failure.txt").write_text(reason)
    return reason


def run_row(name: str, peers: Path) -> list[Comparison] | str:
    """The lines of one row, from a process that finds the peer first, or the reason why there are
    none."""
    folder = ROWS[name][1]
    where = peers / folder if folder else None
    if where is not None and not where.is_dir():
        return "not installed: see --install"
    if (
        where is not None
        and (where / "failure.txt").is_file()
        and (reason := (where / "failure.txt").read_text())
    ):
        return reason
    path = os.pathsep.join(str(p) for p in (ROOT, where) if p)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--row", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return [Comparison(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def table(found: dict[str, list[Comparison] | str]) -> str:
    """A section for each heading, a line for each comparison and for each row that could not be
    run."""
    lines: list[str] = []
    for heading in dict.fromkeys(ROWS[name][0] for name in found):
        title, note = HEADINGS[heading]
        lines += [
            "",
            f"## {title}",
            "",
            *([note, ""] if note else []),
            "| inputs | privdd | CPU s | peer | its result | CPU s | result | cost |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, rows in found.items():
            if ROWS[name][0] != heading:
                continue
            if isinstance(rows, str):
                reason = " ".join(rows.replace("|", "/").split())
                lines.append(
                    f"| | | | {ROWS[name][1] or name} | could not be run here: {reason} | "
                    "| not run | |"
                )
                continue
            for row in rows:
                a, b = (f"{s:.2g}" if s < 10 else f"{s:.0f}" for s in row.seconds)
                lines.append(
                    f"| {row.inputs} | {row.ours} | {a} | {row.peer} | {row.theirs} | {b} "
                    f"| {verdict(row)} | {cost(row)} |"
                )
    return "\n".join(lines).strip()


def page(found: dict[str, list[Comparison] | str]) -> str:
    every = [one for rows in found.values() if not isinstance(rows, str) for one in rows]
    results = [verdict(one) for one in every]
    absent = len([rows for rows in found.values() if isinstance(rows, str)])
    ahead, level, lost, other = (
        results.count(kind) for kind in ("ahead", "not distinguished", "**lost**", "not compared")
    )
    return f"""# Comparison with other tools

The same inputs to privdd and to its peers. Of {len(every)} lines privdd's result is ahead in
{ahead}, not distinguished in {level}, lost in {lost} and not compared in {other}; it takes more
time in {sum("lost" in cost(one) for one in every)}. {absent} {"peer" if absent == 1 else "peers"}
could not be run. The criterion stands above each table. Times are CPU seconds of one call if
nothing else is stated; one within a tenth of the other is *alike*. A peer runs with its own
defaults if nothing else is stated; no setting of privdd was chosen for this page. {hardware()}.

    python -m benchmarks.peers --install FOLDER
    python -m benchmarks.peers --peers FOLDER --write docs/peers.md

{table(found)}
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers", type=Path, default=Path("peers"), metavar="FOLDER", help="what --install made"
    )
    parser.add_argument("--install", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    if given.row:
        print(json.dumps([asdict(one) for one in ROWS[given.row][2]()]))
    elif given.install:
        for name, requirements in PEERS.items():
            print(
                f"{name}: {installed(given.install.resolve() / name, requirements) or 'installed'}",
                flush=True,
            )
    else:
        found = {}
        for name in given.only:
            found[name] = run_row(name, given.peers.resolve())
            print(table({name: found[name]}), flush=True)
        if given.write:
            write_bytes(given.write, page(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
