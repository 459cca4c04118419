"""The leaderboard: accuracy of every DP method at equal accounted epsilon, over data sets, skews,
clients and seeds.

    python -m benchmarks.leaderboard [--keep FILE] [--minutes M] [--only NAME ...] [--data ...]
    [--clients ...] [--alphas ...]

Each cell is trained once and kept in FILE (one JSON object a line), so that the board can be filled
bit by bit: a later start goes on where this one stopped, and only cells that FILE lacks are run.
``docs/leaderboard.md`` is written from FILE at the end, with what was not run. Epsilon is read
off the ledger. Settings of each method are fixed here for all
cells; they were chosen on seed 7 of Fashion-MNIST, 3 clients (dp_head under secagg: 10 clients),
which is not reported (dp_head_scattering: and on 10,000 of the 60,000 training records, which the
others were tried on); the last five are those of their yaml at preset=default.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from attacks.command_line import CommandParser
from benchmarks.accuracy import run
from benchmarks.machine import hardware
from privdd.cli.compose import put_overrides_first
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.models import ModelSpec, initial
from privdd.models.build import build_skeleton
from privdd.reporting.export import write_markdown_page
from privdd.reporting.frontier import PUBLISHED
from privdd.training.server import train_on_soft_labels
from privdd.training.sgd import predict_logits

COMMON = (
    "preset=smoke",
    "data.limit=6000",
    "data.test_limit=2000",
    "partition.heldout=0",
    "model.width=16",
)
# one client has all records
CENTRAL = ("data.limit=60000", "data.test_limit=10000", "partition=iid", "partition.clients=1")
HEAD = ("algo=dp_head", "algo.rows.extractor.side=64")
METHODS: Mapping[str, tuple[str, ...]] = {
    "dp_means": ("algo=dp_means", "algo.rows.extractor.side=64"),
    "dp_moments": ("algo=dp_moments", "algo.rows.extractor.side=64"),
    "dp_head": (*HEAD, "algo.rounds=60"),
    "dp_head, secagg": (
        *HEAD,
        "algo.rounds=60",
        "algo.lr=15",
        "algo.rows.width=400",
        "trust=secagg",
    ),
    "dp_means, secagg": ("algo=dp_means", "algo.rows.extractor.side=64", "trust=secagg"),
    "dp_moments, secagg": ("algo=dp_moments", "algo.rows.extractor.side=64", "trust=secagg"),
    "feddm_public_dp": (
        "algo=feddm_public_dp",
        "algo.least=40",
        "algo.fitting.steps=80",
        "algo.extractor.layers=[1,2,3]",
        "algo.extractor.grid=3",
    ),
    "feddm_guided_dp": (
        "algo=feddm_guided_dp",
        "algo.rounds=60",
        "algo.read_rounds=22",
        "algo.varied_rounds=4",
        "algo.guiding.images=16000",
        "algo.guiding.drawn=400",
        "algo.guiding.fitted=300",
        "algo.guiding.fitting.steps=60",
        "algo.guiding.steps=12",
        "algo.server.epochs=5",
        "algo.server.batch_size=64",
    ),
    "feddm_guided_scattering": (
        "algo=feddm_guided_scattering",
        "algo.rounds=60",
        "algo.read_rounds=10",
        "algo.varied_rounds=10",
        "algo.guiding.images=200000",
        "algo.guiding.drawn=4000",
        "algo.guiding.steps=12",
        "algo.server.epochs=2",
        "algo.server.batch_size=128",
        "algo.server.lr=0.07",
        "model.width=32",
    ),
    "feddm_dp": ("algo=feddm_dp", "algo.rounds=4", "algo.reads=2", "privacy.clip_norm=5"),
    "DP-FedAvg": (
        "algo=fedavg",
        "privacy=dpsgd",
        "algo.rounds=5",
        "algo.local_epochs=1",
        "algo.lr=2",
        "algo.momentum=0",
        "algo.weight_decay=0",
        "privacy.expected_batch=200",
    ),
    "dp_head_random": ("algo=dp_head_random", "algo.rounds=60"),
    "dp_head_scattering": (
        "algo=dp_head_scattering",
        "algo.rounds=200",
        "algo.lr=300",
        "algo.momentum=0.9",
        "algo.noisiest=0.018",
    ),
    "dp_merf": ("algo=dp_merf", "algo.fitting.steps=100", "privacy.count_noise=20"),
    "dp_votes": ("algo=dp_votes",),
    "fedmd_dp": (
        "algo=fedmd_dp",
        "algo.rounds=4",
        "algo.local_epochs=2",
        "algo.images=200",
        "algo.lr=0.5",
    ),
    "dp_psg": (
        "algo=dp_psg",
        "algo.ipc=10",
        "algo.generation.networks=20",
        "algo.generation.steps=5",
        "algo.server.epochs=60",
    ),
}
PUBLIC = set(METHODS) - {
    "feddm_dp",
    "DP-FedAvg",
    "dp_head_random",
    "dp_head_scattering",
    "feddm_guided_scattering",
    "dp_merf",
    "dp_psg",
    "dp_votes",
    "fedmd_dp",
}
# The open twins, without noise; each with its private variants.
OPEN: Mapping[str, tuple[str, ...]] = {
    "fedcgs": ("algo=fedcgs", "algo.rows.extractor.side=64"),
    "fedmd": ("algo=fedmd", "algo.rounds=4", "algo.local_epochs=2", "algo.images=200"),
}
# Each client has its own network, which is tested on its own records: not in one table with models
# that all are tested on the same records.
PERSONAL = {"fedmd_dp"}
# these release a data set
SETS = {
    "feddm_public_dp",
    "feddm_guided_dp",
    "feddm_guided_scattering",
    "feddm_dp",
    "dp_merf",
    "dp_psg",
}
DATA = ("digits", "fashion_mnist", "mnist")
ALPHAS = (0.5, 0.1)
CLIENTS = (1, 3, 10)
EPSILONS = (1.0, 3.0, 10.0)
SEEDS = (0, 1, 2)
OTHER = ModelSpec("mlp", width=256)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "leaderboard.md"
GUIDED = """
`feddm_guided_dp` is a data set: its figure is that of a ConvNet trained on 16,000 released images
with soft labels, and its gap to `dp_head` is the cost of distilling. It lacks images:
on the seed that settings were chosen on (7, at ε 3), under a head that has 80.5 %, the
network has 80.7 % on the records themselves, and 68 to 75 % on drawn images, depending on how
they are drawn. Under a head that sees images at 32 pixels instead of 64, and has 78 %, it has 73
to 76 %. Images from an exact normal distribution of each class give 73 to 75 %, around twenty
exact means of each class 76.7 %; five to fifteen noised means gave 59 to 61 %, one gave 66
% (no textures).

On the reported seeds, 3 clients, α = 0.5, at ε 1, 3 and 10: a multilayer perceptron trained on
the same images has 68.5 ± 1.8, 73.8 ± 2.0 and 75.8 ± 1.7 %, the head that labelled them 74.1 ±
1.3, 80.0 ± 1.0 and 82.7 ± 1.0 % (`python -m benchmarks.dp_utility --only guided --epsilons 1 3 10
--seeds 0 1 2`). At ε 1 it is the head that is weak: it has 70 % of a budget of which `dp_head`
has all, and sees smaller images.

Neither another trainer nor more images closes that gap. At ε 3, seed 7, on 4,000 training records
of no client, the head has 81.7 %, the network 76.9 and 76.5 % (two starts). Other
rates, averaged weights, clipped gradients, weight decay, temperatures, squared error or mirrored
images give 75.2 to 76.8 %, 40,000 images in twice as many steps or a third of them as sharp
silhouettes 77.1 %, smooth masks 76.5 %, textures of photographs 76.7 %.

Nor does it close where head and network see only the 12 x 12 lowest frequencies, so that drawn
images lack nothing that they see. With exact statistics and a head without noise, which has
83.8 %, the network has 80.9 % on images from a normal distribution of each class, 79.5 % where
classes share a covariance. With the releases at ε 3 (seeds 7 and 17), with which the head has 80.4
and 79.7 %, it has 73.9 and 74.9 %, on pushed images 76.3 and 75.4 %; with exact means 75.1 and
75.2 %, with an exact covariance too 76.8 and 73.6 %. So images drawn from normal distributions
cost three to four points even without noise.

`feddm_guided_scattering` needs no public data. With 60,000 records in one place its head has 87.5
to 89 %, and the network 87.2 % on real records under it, so that it is again the images that
cost. What helped, one after the other, in a sketch outside the command (seed 7, ε 10, one GPU):
76.6 % with 16,000 images of 400 drawings, 78.2 % where second moments are of each class, 79.7 %
with 4,000 drawings, 81.1 % where drawings stay smooth until the head has pushed them, 83.4 % with
60,000 images and a network twice as wide, 84.4 % with 200,000, 85.6 % where classes are modelled
in 20 x 20 instead of 12 x 12 frequencies. A network of width 64 has 0.8 points more than one of
32, labels at half the temperature 0.2. What did not help: several noised means of each class (8
or 32, within 0.4 points), images moved to where network and head disagree (4 points less), longer
or shorter pushes, textures on more images, records reduced to 14 x 14 frequencies (84.2 instead
of 83.0 % at ε 1 if test images are reduced as well, 83.3 % if they are not). On three other
seeds the sketch has 83.7 ± 0.4 % at ε 1 (a multilayer perceptron 79.8 %) and on two 85.3 % at ε
10. It drew 20,000 images, the command draws
4,000. Its 51 evaluations were on the 10,000 test images."""
KEPT = Path(__file__).resolve().parent / "leaderboard.jsonl"


@dataclass(frozen=True)
class Cell:
    """One run of the board."""

    method: str
    data: str
    alpha: float
    clients: int
    epsilon: float | None  # None: an open method, without a guarantee
    seed: int

    @property
    def overrides(self) -> tuple[str, ...]:
        if self.clients == 1:
            split = CENTRAL
        else:
            split = (f"partition.alpha={self.alpha}", f"partition.clients={self.clients}")
        where = (f"data={self.data}", *split)
        own = METHODS.get(self.method) or OPEN[self.method]
        common = [
            one
            for one in COMMON
            if one.partition("=")[0] not in {each.partition("=")[0] for each in own}
        ]
        budget = () if self.epsilon is None else (f"privacy.epsilon={self.epsilon}",)
        return (*common, *own, *where, *budget, f"seed={self.seed}")


@dataclass(frozen=True)
class Done:
    """accuracy: last of the run, in [0, 1]; spent: epsilon by the ledger, None of an open method;
    seconds: of CPU.

    other: accuracy of ``OTHER``, trained on the same released images and soft labels, where the
        method releases such."""

    cell: Cell
    accuracy: float
    spent: float | None
    seconds: float
    other: float | None = None


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """What is asked for, the cells of one setting together."""
    for data, clients, alpha in itertools.product(given.data, given.clients, given.alphas):
        if clients == 1 and alpha != ALPHAS[0]:
            continue  # one client has all labels
        private = [method for method in given.only if method in METHODS]
        for method, epsilon, seed in itertools.product(private, given.epsilons, given.seeds):
            yield Cell(method, data, alpha, clients, epsilon, seed)
        opened = [method for method in given.only if method in OPEN]
        for method, seed in itertools.product(opened, given.seeds):
            yield Cell(method, data, alpha, clients, None, seed)


def kept(path: Path) -> dict[Cell, Done]:
    """The cells of a file; lines that are not whole (a start that was stopped while writing) are
    left out."""
    found: dict[Cell, Done] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            one = json.loads(line)
            accuracy, seconds_of_run = (float(one[key]) for key in ("accuracy", "seconds"))
            spent = None if one["spent"] is None else float(one["spent"])
            done = Done(Cell(**one["cell"]), accuracy, spent, seconds_of_run, one.get("other"))
        except (ValueError, TypeError, KeyError):
            continue
        found[done.cell] = done
    return found


def fill(wanted: Sequence[Cell], path: Path, seconds: float) -> dict[Cell, Done]:
    """Run what is missing, line by line, until all is there or the time is up."""
    found = kept(path)
    until = time.monotonic() + seconds
    for cell in wanted:
        if cell in found or time.monotonic() > until:
            continue
        began = time.process_time()
        curve, experiment, progress = run(cell.overrides, math.inf)
        seconds_of_run = time.process_time() - began
        if cell.method.startswith("feddm_guided"):
            held_out_accuracy = measure_on_the_images(experiment, progress, OTHER)
        else:
            held_out_accuracy = None
        spent = None if cell.epsilon is None else progress.ledger.epsilon()
        done = Done(cell, curve.accuracy[-1], spent, seconds_of_run, held_out_accuracy)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        found[cell] = done
        print(
            f"{cell}: {100 * done.accuracy:.2f} %, epsilon {done.spent}, "
            f"{done.seconds:.0f} CPU s, {OTHER.name} {held_out_accuracy}",
            flush=True,
        )
    return found


def measure_on_the_images(experiment: Experiment, progress: Progress, spec: ModelSpec) -> float:
    """Test accuracy of another network, trained on the released images and soft labels as the
    method trains its own."""
    server = progress.server
    data = experiment.dataset
    keys = experiment.plan.keys.fold("other")
    network = build_skeleton(spec, data.shape, data.classes)
    start = initial(spec, data.shape, data.classes, keys.fold("start").torch())
    training = experiment.plan.method.server  # type: ignore[attr-defined]
    state = train_on_soft_labels(
        network, start, server["images/x"], server["labels/soft"], training, keys.fold("batch")
    )
    return float(
        (
            predict_logits(network, state, experiment.test_records.x).argmax(1)
            == experiment.test_records.y
        )
        .float()
        .mean()
    )


def public_data(name: str) -> str:
    """The public data of a method's line in the table."""
    method = name.removesuffix(f", {OTHER.name} on its images")
    if method in PUBLIC:
        return "ImageNet (AlexNet)"
    return "none"


def table(found: Mapping[Cell, Done], data: str, alpha: float, clients: int) -> list[str]:
    """One setting's methods, the best first at the smallest epsilon: mean, standard deviation,
    seeds."""
    rows = []
    shared = [method for method in METHODS if method not in PERSONAL]
    for method, other in itertools.product(shared, (False, True)):
        by_epsilon = []
        for epsilon in EPSILONS:
            runs = [
                d
                for c, d in found.items()
                if c == Cell(method, data, alpha, clients, epsilon, c.seed)
            ]
            by_epsilon.append(
                [value for d in runs if (value := d.other if other else d.accuracy) is not None]
            )
        if any(by_epsilon):
            name = f"{method}, {OTHER.name} on its images" if other else method
            rows.append(
                (
                    name,
                    [shown(values) for values in by_epsilon],
                    [statistics.fmean(v) if v else 0.0 for v in by_epsilon],
                )
            )
    rows.sort(key=lambda row: [-mean for mean in row[2]])
    head = [
        "| method | the server sees | public data | "
        + " | ".join(f"ε {e:g}" for e in EPSILONS)
        + " |",
        "|---|---|---|" + "---|" * len(EPSILONS),
    ]
    body = [
        f"| {name.removesuffix(', secagg')} | "
        f"{'sums only' if 'secagg' in name else 'every upload'} | "
        f"{public_data(name)} | {' | '.join(values)} |"
        for name, values, _ in rows
    ]
    return [*head, *body] if body else []


def shown(values: Sequence[float]) -> str:
    """Per cent: mean, standard deviation over seeds and how many there are."""
    if not values:
        return "not run"
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread} ({len(values)})"


def sentence(
    found: Mapping[Cell, Done], data: str, clients: int, alpha: float, epsilon: float = 3.0
) -> str:
    """The most accurate of each kind in one setting where the server sees every upload; "" without
    runs."""
    values = {
        name: [
            d.accuracy
            for c, d in found.items()
            if c == Cell(name, data, alpha, clients, epsilon, c.seed)
        ]
        for name in METHODS
        if "secagg" not in name and name not in PERSONAL
    }
    run = {name: of for name, of in values.items() if len(of) == len(SEEDS)}
    kinds = {
        "model over a public map": run.keys() & PUBLIC - SETS,
        "model without one": run.keys() - PUBLIC - SETS,
        "data set over a public map": run.keys() & PUBLIC & SETS,
        "data set without one": run.keys() - PUBLIC & SETS,
    }
    told = [
        f"{kind}: {_best({name: run[name] for name in of})}" for kind, of in kinds.items() if of
    ]
    where = f"{setting(data, clients, alpha)}, {len(SEEDS)} seeds, ε {epsilon:g}"
    if told:
        return (
            "Most accurate of the private methods that were run without secure aggregation "
            f"({where}): {'; '.join(told)}."
        )
    return ""


def setting(data: str, clients: int, alpha: float) -> str:
    """What the page calls a setting."""
    if clients == 1:
        return f"{data}, central: one client has all records"
    return f"{data}, {clients} clients, α = {alpha:g}"


def published_figures(data: str) -> list[str]:
    """What others report for one holder of all records, a line a source."""
    found: dict[str, list[str]] = {}
    for one in PUBLISHED:
        if one.data == data:
            found.setdefault(f"{one.kind}: {one.source}", []).append(
                f"{100 * one.accuracy:.1f} % at ε {one.epsilon:g}"
            )
    return [
        f"- Published, not run here, {source}: {', '.join(values)}."
        for source, values in found.items()
    ]


def open_figures(found: Mapping[Cell, Done], data: str, alpha: float, clients: int) -> list[str]:
    """What the open methods have in one setting, a line each; [] without runs."""

    def accuracies(method: str, epsilon: float | None) -> list[float]:
        return [
            done.accuracy
            for cell, done in found.items()
            if cell == Cell(method, data, alpha, clients, epsilon, cell.seed)
        ]

    lines = []
    if values := accuracies("fedcgs", None):
        lines.append(
            f"- Without a guarantee: `fedcgs`, of which `dp_means` and `dp_moments` are private "
            f"variants: {shown(values)}."
        )
    if values := accuracies("fedmd", None):
        private = [
            f"{shown(of)} at ε {epsilon:g}"
            for epsilon in EPSILONS
            if (of := accuracies("fedmd_dp", epsilon))
        ]
        lines.append(
            "- Each client's own network on its own test records, which have the labels that it "
            f"has: `fedmd` without a guarantee {shown(values)}, its private variant `fedmd_dp` "
            f"{', '.join(private) or 'not run'}. `dp_votes`, in the table, is a variant with one "
            "model for all."
        )
    return lines


def _best(run: Mapping[str, Sequence[float]]) -> str:
    """The best by its mean, and which are within two standard errors of the difference to it."""
    name = max(run, key=lambda one: statistics.fmean(run[one]))

    def near(other: str) -> bool:
        error = math.sqrt(sum(statistics.variance(run[n]) / len(run[n]) for n in (name, other)))
        return statistics.fmean(run[name]) - statistics.fmean(run[other]) <= 2 * error

    close = [f"`{other}`" for other in METHODS if other in run and other != name and near(other)]
    said = f" (not distinguished from {', '.join(close)})" if close else ""
    return f"`{name}` {shown(run[name]).rpartition(' ')[0]} %{said}"


def page(found: Mapping[Cell, Done]) -> str:
    """``docs/leaderboard.md``: a table for each setting that has runs, and the settings that have
    none."""
    lines = [
        "# Leaderboard of private methods",
        "",
        "Accuracy in per cent at equal accounted ε (δ = 1e-5, one record added or removed, "
        "the total over all rounds): mean ± standard",
        "deviation over seeds, and how many. 6,000 records (digits: all 1,437), 2,000 "
        "test records (digits: 360), labels skewed by",
        "Dirichlet(α); with one client, 60,000 and 10,000 test records. "
        "Each method's settings are the same in all",
        "tables; they were chosen on an unreported seed of Fashion-MNIST "
        "(`dp_head_scattering`'s also on training records that",
        "were set aside), and dp_head has its own under secure aggregation; those of "
        "`dp_head_random`, `dp_merf`, `dp_psg`, `dp_votes` and `fedmd_dp` are",
        "their defaults (`dp_psg`'s step length was chosen on an unreported seed of digits, "
        "and `dp_votes`'s penalty among six on digits). The others were not "
        "chosen on digits.",
        "Test images are those of the published test set for every seed, so that a "
        "choice by accuracy on the unreported seed has seen",
        "the images that the reported seeds are tested on; what that is worth was not measured.",
        "A public map is pre-trained on ImageNet by others. Under secure aggregation "
        "(`trust=secagg`) the server sees sums only, and",
        "one client may collude. Written by `python -m benchmarks.leaderboard`, which "
        "goes on where it stopped.",
    ]
    told = [sentence(found, *where) for where in itertools.product(DATA, CLIENTS, ALPHAS)]
    lines += ["", *(f"- {one}" for one in told if one)]
    missing = []
    for data, alpha, clients in itertools.product(DATA, ALPHAS, CLIENTS):
        made = table(found, data, alpha, clients)
        if clients == 1 and alpha != ALPHAS[0]:
            continue
        name = setting(data, clients, alpha)
        lines += ["", f"## {name}", "", *made] if made else []
        lines += ["", *published_figures(data)] if made and clients == 1 else []
        opened = open_figures(found, data, alpha, clients)
        lines += ["", *opened] if opened else []
        there = {c.method for c in found if (c.data, c.alpha, c.clients) == (data, alpha, clients)}
        lacking = [m for m in METHODS if m not in there]
        missing += [f"- {name}: {'; '.join(lacking) if made else 'everything'}"] if lacking else []
    lines += (
        ["", "## What distilling costs", *GUIDED.splitlines()]
        if any(c.method == "feddm_guided_dp" for c in found)
        else []
    )
    return "\n".join([*lines, "", "## Not run", "", *(missing or ["Nothing."]), ""])


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, default=KEPT)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no further cell is begun after so long"
    )
    parser.add_argument("--only", nargs="+", choices=[*METHODS, *OPEN], default=list(METHODS))
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--clients", nargs="+", type=int, choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--alphas", nargs="+", type=float, choices=ALPHAS, default=list(ALPHAS))
    parser.add_argument(
        "--epsilons", nargs="+", type=float, choices=EPSILONS, default=list(EPSILONS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    given = parser.parse_args(put_overrides_first(sys.argv[1:]))
    torch.set_num_threads(1)
    print(hardware(), flush=True)
    write_markdown_page(PAGE, page(fill(list(cells(given)), given.keep, 60 * given.minutes)))


if __name__ == "__main__":
    main()
