"""A synthetic data set from outside: membership, copies, singling out, linkability and
inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from attacks.inversion.copy_detection import compare_copies, count_copies, nearest_records
from attacks.measures import ReconstructionMeasures
from attacks.membership.attack import MembershipAttack
from attacks.membership.lira import Lira
from attacks.membership.rmia import Rmia
from attacks.membership.signals import logit_scaled, ridge_readout
from attacks.membership.threshold import LossThreshold
from attacks.statistics import binomial_interval
from attacks.types import Adversary, Family, Finding, Knowledge, Surface, View
from privdd.auditing.attack_tasks import error_budget
from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.core.validation import BadConfig, check_choice, check_integer, check_number
from privdd.distillation.class_cells import (
    draw_initial_images,
    labelled_images,
    single_client_cells,
)
from privdd.distillation.distribution_matching import (
    MatchingSettings,
    MatchingStreams,
    fresh_networks,
    match_distributions,
)
from privdd.external import membership_game as games
from privdd.external.predictor import MAX_LABEL_SPREAD
from privdd.external.records import (
    LabelledRecords,
    align_columns,
    check_no_gaps,
    coordinate_scales,
    fill_gaps,
    flatten_records,
    records_from_arrays,
)
from privdd.external.run_folder import (
    AuditTimes,
    ExternalAudit,
    HeldArtifact,
    StatedLimit,
    audit_of_arrays,
)
from privdd.external.shadow_models import (
    TrainingFunction,
    call_user_function,
    draw_shadow_seeds,
    run_tasks,
)
from privdd.external.trained_model import ExternalAuditSettings
from privdd.models import ModelSpec, build, initial

# synthetic, training and held-out rows, and a generator -> the risk
RiskMeasure = Callable[[Tensor, Tensor, Tensor, torch.Generator], "TableRisk"]
TABLE_RISKS: dict[str, RiskMeasure] = {}
RECIPE_NAMES = ("distribution_matching",)  # of ``make_recipe``
# of the reference set, whose density is an average; of the synthetic set the nearest counts
REFERENCE_NEIGHBOURS = 5
# records that are attacked, as many as the source attacks; all others still count as neighbours
MAX_RISK_ATTACKS = 2000
# a column with at most so many different values holds kinds, and is compared for equality
MAX_KIND_VALUES = 12
# of a number's value: nearer guesses are right, as in the source's implementation
CLOSE_SHARE = 0.05
# predicates that are kept, and columns in each
PREDICATE_COUNT = 500
PREDICATE_COLUMNS = 3
TRIES_PER_PREDICATE = 4  # draws for each that is kept
SYNTHETIC_NOTE = "the external synthetic set"
GAPS_NOTE = (
    "{} missing values were read as their column's mean over the three files, and "
    "whether a value is missing as a column of "
    "its own."
)
NO_GENERATOR = "needs the function that makes such a set (target.generator, in Python generator=)"
NO_TABLE = "singling out, linkability and inference are defined for tables, x (n, columns)"
RISK_SOURCE = "Giomi et al. 2023"
SHOWN_PAIRS = 16  # pairs of pictures that the page shows
START_IMAGES = ("real", "noise")
MAX_RECIPE_COUNT = 10**6  # of each count


def synthetic_signals(
    synthetic: LabelledRecords,
    records: LabelledRecords,
    reference: LabelledRecords,
    scale: Tensor,
    classes: int,
) -> dict[str, Tensor]:
    """name -> (n,) float64. "distance": minus the distance to the nearest synthetic record;
    "density": the logarithm of the distance to the reference over that, a nearest-neighbour form of
    the density ratio of van Breugel et al. (2023, DOMIAS); "confidence": logit-scaled, of a ridge
    classifier trained on the synthetic set, where it has two classes."""
    record_rows, synthetic_rows, reference_rows = (
        flatten_records(records_set.x, scale) for records_set in (records, synthetic, reference)
    )
    distance = nearest_records(record_rows, synthetic_rows)[0][:, 0]
    around = nearest_records(
        record_rows, reference_rows, min(REFERENCE_NEIGHBOURS, len(reference_rows))
    )[0].mean(1)
    density = around.clamp_min(1e-9).log() - distance.clamp_min(1e-9).log()
    signals = {"distance": -distance, "density": density}
    if classes > 1 and len(synthetic.y.unique()) > 1 and int(synthetic.y.max()) < classes:
        learned = games.add_constant(synthetic_rows).float()
        asked = games.add_constant(record_rows).float()
        outputs = ridge_readout(learned, synthetic.y, asked, classes)
        signals["confidence"] = logit_scaled(outputs.double(), records.y)
    return signals


# Giomi, Boenisch, Wehmeyer and Tasnadi, "A unified framework for quantifying privacy risk in
# synthetic data" (PoPETs 2023), sections 4.1 to 4.3, reimplemented in their simplest form. Each
# attack is run against training records, and in the same way against held-out ones (the control);
# only what it does better on the first is the synthetic set's doing.


@dataclass(frozen=True)
class TableRisk:
    """hits: attacks that were right, of ``attacks``; control: the same against held-out records."""

    hits: int
    control: int
    attacks: int

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.attacks)

    @property
    def chance_rate(self) -> float:
        """The most that an attack may do without the synthetic set: upper end of the control's 95 %
        interval."""
        return binomial_interval(self.control, self.attacks)[1]

    @property
    def excess_risk(self) -> float:
        """Equation 3 of the source: how much of what the control leaves is found, at least 0."""
        base = self.control / max(1, self.attacks)
        if base < 1:
            return max(0.0, (self.hit_rate - base) / (1 - base))
        return 0.0


def enter_risk(name: str) -> Callable[[RiskMeasure], RiskMeasure]:
    """Enters a function in ``TABLE_RISKS``."""

    def enter(measure: RiskMeasure) -> RiskMeasure:
        TABLE_RISKS[name] = measure
        return measure

    return enter


def _kind_columns(*sets: Tensor) -> Tensor:
    """Which columns hold kinds, by all records: a few synthetic ones hold few values of
    anything."""
    return torch.tensor([len(column.unique()) <= MAX_KIND_VALUES for column in torch.cat(sets).T])


@enter_risk("singling_out")
def singling_out_risk(
    synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator
) -> TableRisk:
    """Section 4.1, multivariate: predicates that name one synthetic record of (m, d); a hit names
    exactly one training record of (n, d)."""
    size = min(len(train), len(heldout))
    train_rows, outside = (
        x[torch.randperm(len(x), generator=generator)[:size]] for x in (train, heldout)
    )
    kinds = _kind_columns(synthetic, train, heldout)
    middle = synthetic.median(0).values
    hits = control = guesses = tried = 0
    while guesses < PREDICATE_COUNT and tried < PREDICATE_COUNT * TRIES_PER_PREDICATE:
        tried += 1
        place = int(torch.randint(len(synthetic), (1,), generator=generator))
        row = synthetic[place]
        columns = torch.randperm(len(row), generator=generator)[:PREDICATE_COLUMNS]
        matches = []
        for x in (synthetic, train_rows, outside):
            fits = _matches_predicate(x, row, columns, kinds, middle)
            matches.append(int(fits.sum()))
        if matches[0] == 1:
            guesses += 1
            hits += matches[1] == 1
            control += matches[2] == 1
    return TableRisk(hits, control, guesses)


def _matches_predicate(
    x: Tensor, row: Tensor, columns: Tensor, kinds: Tensor, middle: Tensor
) -> Tensor:
    """(n,) bool: equal in columns of kinds; elsewhere at least as far from the middle as the
    record, on its side."""
    values = x[:, columns]
    row_values = row[columns]
    beyond = torch.where(row_values >= middle[columns], values >= row_values, values <= row_values)
    return torch.where(kinds[columns], values == row_values, beyond).all(1)


@enter_risk("linkability")
def linkability_risk(
    synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator
) -> TableRisk:
    """Section 4.2: two halves of a record's columns are linked where both halves' nearest synthetic
    records have one in common."""
    if synthetic.shape[1] < 2:
        raise ValueError("linkability: at least 2 columns are needed")
    size = min(len(train), len(heldout), MAX_RISK_ATTACKS)
    order = torch.randperm(synthetic.shape[1], generator=generator)
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    rates = []
    for x in (train, heldout):
        targets = x[torch.randperm(len(x), generator=generator)[:size]]
        first, second = (
            nearest_records(targets[:, half], synthetic[:, half])[1] for half in halves
        )
        rates.append(int((first == second).sum()))
    return TableRisk(rates[0], rates[1], size)


@enter_risk("inference")
def inference_risk(
    synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator
) -> TableRisk:
    """Section 4.3: one secret column, drawn for each record, is taken from the nearest synthetic
    record; right is the same kind, or a value within ``CLOSE_SHARE``."""
    if synthetic.shape[1] < 2:
        raise ValueError("inference: at least 2 columns are needed")
    size = min(len(train), len(heldout), MAX_RISK_ATTACKS)
    kinds = _kind_columns(synthetic, train, heldout)
    rates = []
    for x in (train, heldout):
        targets = x[torch.randperm(len(x), generator=generator)[:size]]
        secret = torch.randint(x.shape[1], (size,), generator=generator)
        right = 0
        for column in secret.unique().tolist():
            rows = targets[secret == column]
            right += _count_right_guesses(rows, synthetic, column, bool(kinds[column]))
        rates.append(right)
    return TableRisk(rates[0], rates[1], size)


def _count_right_guesses(targets: Tensor, synthetic: Tensor, column: int, kind: bool) -> int:
    is_known = torch.arange(synthetic.shape[1]) != column
    _, places = nearest_records(targets[:, is_known], synthetic[:, is_known])
    guess = synthetic[places[:, 0], column]
    true = targets[:, column]
    if kind:
        right = guess == true
    else:
        right = (guess - true).abs() <= CLOSE_SHARE * true.abs()
    return int(right.sum())


@dataclass(frozen=True)
class ShadowSetTask:
    """One shadow set: the generator, and what it is given."""

    generator: TrainingFunction
    records: LabelledRecords
    seed: int


def audit_synthetic_data(
    synthetic: LabelledRecords,
    train: LabelledRecords,
    heldout: LabelledRecords,
    generator: TrainingFunction | None,
    stated: StatedLimit,
    settings: ExternalAuditSettings,
    about: Mapping[str, Any],
) -> ExternalAudit:
    """The audit of a synthetic set. Raises BadConfig, one line, for sets that do not fit
    together."""
    began = time.monotonic()
    shadows = settings.shadows if generator is not None else 0
    if shadows:
        _check_generator_input(train, heldout, synthetic)
    gaps = _count_gaps((train, heldout, synthetic))
    train, heldout, synthetic = _align_sets(train, heldout, synthetic)
    keys = Keys(settings.seed).fold("target")
    game = games.draw_coin_game(train, heldout, settings.records, shadows, keys)
    sets: list[LabelledRecords] = []
    draws_randomly = False
    if generator is not None and shadows:
        sets, draws_randomly = _generate_shadow_sets(generator, game, keys, settings)
    training_end = time.monotonic()
    pictures = train.has_pictures and heldout.has_pictures
    scale = coordinate_scales(game.reference.x, pictures)
    view = _synthetic_view([synthetic, *sets], game, scale, pictures, stated, keys)
    attacks = _synthetic_attacks(view, shadows, settings.confidence)
    missing = {} if shadows else dict.fromkeys(("lira", "rmia"), NO_GENERATOR)
    budget = error_budget(settings.confidence, len(attacks) + len(missing), 0)
    attack_keys = Keys(settings.seed)
    judged = games.judge_attacks(view, attacks, missing, game, attack_keys, budget, SYNTHETIC_NOTE)
    apart = heldout.select_rows(game.repeats.outside)
    judged += _judge_copies(view.surface, (synthetic, train, apart), scale, pictures, keys)
    judged += _judge_risks(view.surface, (synthetic, train, apart), scale, keys)
    notes_on_gaps = [GAPS_NOTE.format(gaps)] if gaps else []
    facts = games.target_facts("synthetic", train, heldout, game, judged, notes=notes_on_gaps)
    done = time.monotonic()
    return audit_of_arrays(
        "synthetic set",
        about,
        seed=settings.seed,
        times=AuditTimes(began, training_end, done),
        train=train,
        sizes=[len(synthetic), len(train), len(heldout)],
        seen=[HeldArtifact(view.surface, "synthetic set", {"x": synthetic.x, "y": synthetic.y})],
        judged=judged,
        stated=stated,
        budget=budget,
        target=facts,
        draws_randomly="generator" if draws_randomly else "",
    )


def _check_generator_input(
    train: LabelledRecords, heldout: LabelledRecords, synthetic: LabelledRecords
) -> None:
    """Raises BadConfig if values are missing: a generator takes the records as they came."""
    check_no_gaps("target.train", train)
    check_no_gaps("target.heldout", heldout)
    check_no_gaps("target.synthetic", synthetic)


def _count_gaps(sets: Iterable[LabelledRecords]) -> int:
    """How many values are missing."""
    return sum(int(records.x.isnan().sum()) for records in sets if records.has_gaps)


def _align_sets(*sets: LabelledRecords) -> list[LabelledRecords]:
    """Training, held-out and synthetic records with columns and labels coded alike. Raises
    BadConfig where they are not alike."""
    keys = ("target.train", "target.heldout", "target.synthetic")
    aligned = align_columns(dict(zip(keys, sets)))
    if any(records.has_gaps for records in aligned):
        aligned = _fill_table_gaps(dict(zip(keys, aligned)))
    names = np.unique(np.concatenate([records.original_labels() for records in aligned]))
    if all(records.names is None for records in aligned) and names[-1] <= MAX_LABEL_SPREAD * len(
        names
    ):
        return aligned
    return [records.number_labels(names, key) for key, records in zip(keys, aligned)]


def _fill_table_gaps(sets: Mapping[str, LabelledRecords]) -> list[LabelledRecords]:
    """Tables whose missing values are the column's mean over all sets, each such column followed by
    one that shows where they were (``fill_gaps``). Raises BadConfig for missing values in anything
    but tables."""
    if any(records.x.ndim != 2 for records in sets.values()):
        for key, records in sets.items():
            check_no_gaps(key, records)
    filled = fill_gaps(*(records.x for records in sets.values()))
    return [replace(records, x=x) for records, x in zip(sets.values(), filled)]


def _generate_shadow_sets(
    generator: TrainingFunction, game: games.CoinGame, keys: Keys, settings: ExternalAuditSettings
) -> tuple[list[LabelledRecords], bool]:
    seeds = enumerate(draw_shadow_seeds(game, keys), 1)
    tasks = [ShadowSetTask(generator, game.shadow_set(k), seed) for k, seed in seeds]
    generated, draws_randomly = run_tasks(
        generate_shadow_set, tasks, "generate shadow sets", settings.engine
    )
    shadow_sets = []
    names = game.records.names
    for shadow_set in generated:
        shadow_set = align_columns({"target.train": game.records, "target.generator": shadow_set})[
            1
        ]
        check_no_gaps("target.generator", shadow_set)
        shadow_sets.append(
            shadow_set if names is None else shadow_set.number_labels(names, "target.generator")
        )
    return shadow_sets, draws_randomly


def generate_shadow_set(task: ShadowSetTask) -> tuple[LabelledRecords, bool]:
    """The synthetic set that the generator makes from one shadow set: (x, y), or x alone."""
    shadow_set, draws_randomly = call_user_function(
        task.generator, "target.generator", task.records, task.seed
    )
    if isinstance(shadow_set, tuple | list) and len(shadow_set) == 2:
        pair = shadow_set
    else:
        pair = (shadow_set, None)
    return records_from_arrays("target.generator", *pair, least=1), draws_randomly


def _synthetic_view(
    sets: list[LabelledRecords],
    game: games.CoinGame,
    scale: Tensor,
    pictures: bool,
    stated: StatedLimit,
    keys: Keys,
) -> View:
    classes = int(torch.cat([game.records.y, game.reference.y, game.rest.y]).max()) + 1
    signals_by_set = [
        synthetic_signals(shadow_set, game.records, game.reference, scale, classes)
        for shadow_set in sets
    ]
    signals = {}
    for name in signals_by_set[0]:
        if all(name in shadow_set for shadow_set in signals_by_set):
            signals[name] = torch.stack([shadow_set[name] for shadow_set in signals_by_set])
    delta = {"delta": stated.exchange_limit()[1]}
    knowledge = Knowledge(
        (1, 1, 1), classes, game.reference.x.double(), game.reference.y, settings=delta
    )
    if pictures:
        surface = Surface.SYNTHETIC_IMAGES
    else:
        surface = Surface.SYNTHETIC_REPRESENTATIONS
    return games.view_of_signals(surface, Adversary.PUBLIC, game, signals, knowledge, keys)


def _synthetic_attacks(view: View, shadows: int, confidence: float) -> dict[str, MembershipAttack]:
    """Each attack with the signal that it reads, settled before any score is seen."""
    readable: tuple[str, ...]
    if view.worlds is None:
        readable = ()
    else:
        readable = tuple(view.worlds.signals)
    attacks: dict[str, MembershipAttack] = {
        "nearest_synthetic": LossThreshold("distance", confidence),
        "density_ratio": LossThreshold("density", confidence),
    }
    if "confidence" in readable:
        attacks["loss_threshold"] = LossThreshold("confidence", confidence)
    if shadows:
        attacks |= {"lira": Lira("distance", confidence), "rmia": Rmia("distance", confidence)}
    return attacks


def _judge_copies(
    surface: Surface, sets: Sequence[LabelledRecords], scale: Tensor, pictures: bool, keys: Keys
) -> list[games.JudgedAttack]:
    """sets: synthetic, training and held-out records."""
    synthetic, train, _ = sets
    synthetic_rows, train_rows, heldout_rows = (
        flatten_records(records.x, scale) for records in sets
    )
    copies = count_copies(synthetic_rows, train_rows, heldout_rows)
    report = compare_copies(synthetic_rows, train_rows, heldout_rows, keys.fold("copies").torch())
    measures = ReconstructionMeasures(
        identified=report.closer,
        identified_chance=0.5,
        n=len(synthetic),
        diagnostics={
            **copies.to_diagnostics(),
            "closer_interval": list(report.interval),
            "compared": report.compared,
            "distance_member": float(copies.distance.mean()),
        },
    )
    note = (
        f"of {copies.released} synthetic records {copies.exact} equal one of "
        f"{copies.training} training records "
        f"({copies.exact_heldout} one of {copies.heldout} held-out ones) and {copies.near} "
        "lie nearer to one than any held-out "
        f"record does ({copies.near_heldout} the other way round)"
    )
    rate_note = (
        "identified: share that is nearer to a training record than to any of as many held-out ones"
    )
    finding = Finding(surface, "copy_detection", Family.RECONSTRUCTION, Adversary.PUBLIC, measures)
    tensors: dict[str, Tensor] = {"distance": copies.distance, "place": copies.place}
    if pictures:
        closest = copies.distance.argsort(stable=True)[:SHOWN_PAIRS]
        tensors |= {
            "real": train.x[copies.place[closest]].float(),
            "reconstructed": synthetic.x[closest].float().clamp(0, 1),
        }
    return [
        games.JudgedAttack(
            games.annotate_finding(finding, "copy_detection", SYNTHETIC_NOTE, note, rate_note),
            tensors,
        )
    ]


def _judge_risks(
    surface: Surface, sets: Sequence[LabelledRecords], scale: Tensor, keys: Keys
) -> list[games.JudgedAttack]:
    """Judge the risks of tables; the class is a column like any other. sets: synthetic, training
    and held-out records."""
    if any(records.x.ndim != 2 for records in sets):
        return games.findings_without_attack(
            surface, [*TABLE_RISKS], NO_TABLE, SYNTHETIC_NOTE, Family.RECONSTRUCTION
        )
    rows = []
    for records in sets:
        x = flatten_records(records.x, scale)
        rows.append(torch.cat([x, records.y[:, None].double()], 1))
    synthetic, train, heldout = rows
    judged = []
    for name, measure in TABLE_RISKS.items():
        risk = measure(synthetic, train, heldout, keys.fold(name).torch())
        judged.append(_judge_risk(surface, name, risk))
    return judged


def _judge_risk(surface: Surface, name: str, risk: TableRisk) -> games.JudgedAttack:
    if not risk.attacks:
        why = "no predicate singled out a synthetic record"
        return games.findings_without_attack(
            surface, [name], why, SYNTHETIC_NOTE, Family.RECONSTRUCTION
        )[0]
    measures = ReconstructionMeasures(
        identified=risk.hit_rate,
        identified_chance=risk.chance_rate,
        n=risk.attacks,
        diagnostics={
            "risk": risk.excess_risk,
            "hits": risk.hits,
            "control_hits": risk.control,
        },
    )
    note = (
        f"{RISK_SOURCE}: {risk.hits} of {risk.attacks} attacks right on training records, "
        f"{risk.control} on held-out ones"
    )
    baseline = "chance: upper end of the control's 95 % interval"
    finding = Finding(surface, name, Family.RECONSTRUCTION, Adversary.PUBLIC, measures)
    finding = games.annotate_finding(finding, name, SYNTHETIC_NOTE, note, baseline)
    return games.JudgedAttack(finding, {"hits": torch.tensor([risk.hits, risk.control])})


@dataclass(frozen=True)
class DistributionMatching:
    """Zhao and Bilen (WACV 2023), ``per_class`` images: mean features in ``iterations`` random
    networks are those of ``batch`` records of a class; lr: of SGD on the images; width: filters.
    Raises BadConfig."""

    per_class: int = 10
    iterations: int = 200
    batch: int = 128
    lr: float = 1.0
    start: Literal["real", "noise"] = "real"
    width: int = 32

    at_once: ClassVar[int] = 1024  # images of a forward pass

    def __post_init__(self) -> None:
        for name in ("per_class", "iterations", "batch", "width"):
            value = check_integer(
                f"target.args.{name}", getattr(self, name), 1, most=MAX_RECIPE_COUNT
            )
            object.__setattr__(self, name, value)  # 12.0 is 12
        check_number("target.args.lr", self.lr)
        if not self.lr > 0:
            raise BadConfig(f"target.args.lr={self.lr}: a number above 0 is needed")
        check_choice("target.args.start", self.start, START_IMAGES)

    def __call__(self, x: Any, y: Any, seed: int) -> tuple[Tensor, Tensor]:
        """Pictures x (n, c, h, w) in [0, 1] and labels y (n,) -> (classes * per_class, c, h, w) and
        labels. Raises ValueError for others."""
        pictures = torch.as_tensor(x).float()
        labels = torch.as_tensor(y).long()
        if pictures.ndim != 4 or min(pictures.shape[2:]) < 8:
            shape = tuple(pictures.shape[1:])
            raise ValueError(
                f"records of shape {shape}: must be images (c, h, w) of at least 8 x 8"
            )
        keys = Keys(seed)
        classes = int(labels.max()) + 1
        shape = (pictures.shape[1], pictures.shape[2], pictures.shape[3])
        spec = ModelSpec("convnet", width=self.width)
        cells = single_client_cells(Records(pictures, labels, torch.arange(len(labels))), classes)
        begin = partial(initial, spec, shape, classes)
        networks = fresh_networks(build(spec, shape, classes), begin, keys.fold("networks"))
        settings = MatchingSettings(
            self.iterations, batch=self.batch, lr=self.lr, chunk=self.at_once
        )
        start = draw_initial_images(self.start, cells, self.per_class, shape, keys.fold("start"))
        streams = MatchingStreams(keys.fold("batch"), keys.fold("augment"))
        synthetic = match_distributions(cells, start, networks, settings, streams)
        images, image_labels = labelled_images(cells, synthetic, 0)
        return images.clamp(0, 1), image_labels


def make_recipe(name: str, args: dict[str, Any]) -> DistributionMatching:
    """The recipe of this name. Raises BadConfig, one line, for settings that it does not have."""
    settings = [field.name for field in fields(DistributionMatching)]
    if unknown := [key for key in args if key not in settings]:
        raise BadConfig(f"target.args.{unknown[0]}: {name} takes {', '.join(settings)}")
    return DistributionMatching(**args)
