"""The membership game on a target that someone else trained: fair coins that its owner knew nothing
of, the attacks judged by them, and what a reader has to know of the files.

For each audited record a fair coin is tossed first. On heads it is the next record of a random
order of the training set, on tails the next of the held-out set. If both sets were drawn from one
distribution, this is the game of a training in which each audited record was put in by that coin,
its place being taken by another record of the same distribution otherwise; so bounds hold for one
record *exchanged* (Steinke, Nasr and Jagielski 2023; relation replace)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from attacks.inversion.copy_detection import nearest_records
from attacks.measures import MembershipMeasures
from attacks.membership.attack import require_worlds, unreadable_finding
from attacks.membership.blind_baseline import blind_record_scores, is_separable
from attacks.membership.label_only import first_replay
from attacks.membership.measures import one_run_bound
from attacks.membership.signals import logit_scaled, ridge_readout
from attacks.types import (
    Adversary,
    Attack,
    Capture,
    Evidence,
    Family,
    Finding,
    Knowledge,
    Surface,
    Truth,
    View,
    Worlds,
)
from privdd.auditing.attack_tasks import ErrorBudget, attack_seeds, attack_stream, corrected_bound
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.records import MIN_RECORDS, LabelledRecords, fill_gaps
from privdd.reporting.wording import format_share

# inclusion bits that would use up one set are as rare as one in five million, and are drawn again
COIN_SIGMAS = 5.2
MAX_REFERENCE = 1000
# The scores of these rank records, the first that ran
RANKING_ATTACKS = ("rmia", "lira", "quantile_regression", "density_ratio", "loss_threshold")
MAX_EXPOSED = 10  # most exposed records that a finding names
FILES_DIFFER_NOTE = (
    "training and held-out records can be distinguished without the target (blind control): "
    "part of this is that "
    "difference, and no bound on epsilon follows"
)
COPIES_TOGETHER_NOTE = (
    "each audited record stands for all its copies: no bound on epsilon follows for one of them"
)
_NO_RECORDS = torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)
# a membership attack is judged by the coins
NO_TRUTH = Truth(*_NO_RECORDS, *_NO_RECORDS, torch.zeros(1))
# of the classifier of labels: principal components, records of a file
CLASSIFIER_COMPONENTS = 24
MAX_CLASSIFIED = 1000
MAX_ACCURACY_RECORDS = 10_000  # training records that a model is asked about for its accuracy
# held-out records that are compared with so many training records
MOST_COMPARED = 500
MOST_AMONG = 2000
CLOSE = 0.1  # of the usual distance
MANY_CLOSE = 0.1  # of the held-out records so close: nothing can be told
RARE_CHANCE = 1e-5  # a chance below which two files that were drawn alike do not look so different
UNREADABLE_NOTE = "so neither a leak nor its absence can be read from these files"
EXCHANGED_NOTE = (
    "are the two files exchanged, or the labels not those of the records? Until this is known, "
    f"{UNREADABLE_NOTE.removeprefix('so ')}."
)


@dataclass(frozen=True)
class DuplicateRecords:
    """Equal records. inside, outside: places of the training and held-out records that may be
    audited. training, heldout: records that equal an earlier one of their file; shared: held-out
    ones that equal a training record; single: whether each audited record is the only one of
    its kind, else it stands for all its copies; copies (n,): how often each training record stands
        in its file."""

    inside: Tensor
    outside: Tensor
    training: int
    heldout: int
    shared: int
    single: bool
    copies: Tensor


def find_duplicates(train: LabelledRecords, heldout: LabelledRecords) -> DuplicateRecords:
    """Records that are the only ones of their kind in both files are audited, a fair game, if they
    are half of all kinds; else one of each kind."""
    kind = _number_equal_records(train.x, heldout.x)
    train_kind, heldout_kind = kind.split([len(train), len(heldout)])
    count = torch.bincount(train_kind, minlength=len(kind))
    apart = torch.bincount(heldout_kind, minlength=len(kind))
    is_apart = apart[train_kind] == 0
    is_outside = count[heldout_kind] == 0
    is_first = _is_first(train_kind)
    is_first_outside = _is_first(heldout_kind)
    alone = (count[train_kind] == 1) & is_apart
    train_kinds = int(is_first.sum())
    single = 2 * int(alone.sum()) >= train_kinds
    if single:
        train_rows = alone
        outside = (apart[heldout_kind] == 1) & is_outside
    else:
        train_rows = is_first & is_apart
        outside = is_first_outside & is_outside
    return DuplicateRecords(
        torch.nonzero(train_rows).flatten(),
        torch.nonzero(outside).flatten(),
        len(train_kind) - train_kinds,
        len(heldout_kind) - int(is_first_outside.sum()),
        int((~is_outside).sum()),
        single,
        count[train_kind],
    )


def _number_equal_records(*sets: Tensor) -> Tensor:
    """(n,): one number for records that are equal, number by number; what single precision cannot
    tell apart is, unless all sets are of higher precision."""
    exact = torch.promote_types(sets[0].dtype, sets[-1].dtype)
    if exact == torch.float64 and any(records.dtype != exact for records in sets):
        exact = torch.float32
    all_rows = (
        torch.cat([records.flatten(1).to(exact) for records in sets]) + 0
    )  # minus zero is zero
    if all_rows.is_floating_point():
        all_rows = torch.nan_to_num(all_rows, nan=math.pi * 1e30)
    rows = np.ascontiguousarray(all_rows.numpy())
    place: dict[bytes, int] = {}
    numbers = []
    for row in rows:
        digest = sha256(row).digest()
        numbers.append(place.setdefault(digest, len(place)))
    return torch.tensor(numbers)


def _is_first(kind: Tensor) -> Tensor:
    """(n,) bool: whether no earlier record is of the same kind."""
    places = torch.arange(len(kind))
    behind = torch.full((int(kind.max()) + 1,), len(kind))
    first_place = behind.scatter_reduce(0, kind, places, "amin")
    return first_place[kind] == places


@dataclass(frozen=True)
class CoinGame:
    """records: the n audited ones; masks (K, n) bool, row 0 the target's; row (n,): where each
    stands in its own file.
    rest: training records that are not audited, in every shadow model too; reference: held-out ones
        that the attacker knows."""

    records: LabelledRecords
    masks: Tensor
    row: Tensor
    rest: LabelledRecords
    reference: LabelledRecords
    repeats: DuplicateRecords

    @property
    def member_mask(self) -> Tensor:
        return self.masks[0]

    def shadow_set(self, world: int) -> LabelledRecords:
        """The training records of shadow model ``world``, at least one."""
        mine = self.records.select_rows(self.masks[world])
        x = torch.cat([self.rest.x, mine.x])
        y = torch.cat([self.rest.y, mine.y])
        return replace(self.rest, x=x, y=y)


def audited_count(members: int, others: int, most: int) -> int:
    """The most records n, up to ``most``, for which n fair coins use up neither set but with a
    chance of 2e-7."""
    least = min(members, others)
    # least = n / 2 + SIGMAS sqrt(n) / 2
    root = -COIN_SIGMAS / 2 + math.sqrt(COIN_SIGMAS**2 / 4 + 2 * least)
    return min(most, int(root * root))


def draw_coin_game(
    train: LabelledRecords, heldout: LabelledRecords, records: int, shadows: int, keys: Keys
) -> CoinGame:
    """The game with ``shadows`` worlds beside the target. Raises BadConfig where the sets are too
    small."""
    repeats = find_duplicates(train, heldout)
    non_members = repeats.outside
    reference = min(MAX_REFERENCE, len(non_members) // 3)
    shuffled = non_members[
        torch.randperm(len(non_members), generator=keys.fold("held-out").torch())
    ]
    aside = shuffled[:reference]
    unreferenced = shuffled[reference:]
    count = audited_count(len(repeats.inside), len(unreferenced), records)
    if repeats.shared == len(heldout):
        reason = f"each of its {len(heldout)} records is in target.train too"
        raise BadConfig(f"target.heldout: {reason}; records that were not used are needed")
    if count < 8:
        if repeats.shared:
            duplicates_text = f" (of which {repeats.shared} equal a training record)"
        else:
            duplicates_text = ""
        raise BadConfig(
            f"target.train, target.heldout: {len(train)} and {len(heldout)} "
            f"records{duplicates_text} "
            f"leave {count} to audit; "
            "at least 8 are needed, better 1000"
        )
    shuffled = torch.randperm(len(repeats.inside), generator=keys.fold("train").torch())
    order = repeats.inside[shuffled]
    most = min(len(order), len(unreferenced))
    member = _draw_coins(count, most, keys.fold("coins", "target").torch())
    member_rows = order[: int(member.sum())]
    outside = unreferenced[: int((~member).sum())]
    row = torch.empty(count, dtype=torch.long)
    row[member], row[~member] = member_rows, outside
    x = torch.empty(count, *train.record_shape, dtype=train.x.dtype)
    x[member], x[~member] = train.x[member_rows], heldout.x[outside].to(train.x.dtype)
    y = torch.empty(count, dtype=torch.long)
    y[member], y[~member] = train.y[member_rows], heldout.y[outside]
    tossed = [_draw_coins(count, count, keys.fold("coins", k).torch()) for k in range(shadows)]
    masks = torch.stack([member, *tossed])
    rest = train.select_rows(_unaudited_rows(train, order, member_rows))
    records_of_game = replace(train, x=x, y=y)
    return CoinGame(records_of_game, masks, row, rest, heldout.select_rows(aside), repeats)


def _unaudited_rows(train: LabelledRecords, order: Tensor, audited: Tensor) -> Tensor:
    """Places of the training records that are no copy of an audited one: the other candidates
    first, as they were drawn."""
    kind = _number_equal_records(train.x)
    free = ~torch.isin(kind, kind[audited])
    is_unaudited = torch.ones(len(train), dtype=torch.bool)
    is_unaudited[order] = False
    return torch.cat([order[len(audited) :], torch.nonzero(free & is_unaudited).flatten()])


def _draw_coins(count: int, most: int, generator: torch.Generator) -> Tensor:
    """``count`` fair coins (n,) bool with at most ``most`` of either side."""
    while True:
        bits = torch.rand(count, generator=generator) < 0.5
        if max(int(bits.sum()), count - int(bits.sum())) <= most:
            return bits


def view_of_signals(
    surface: Surface,
    adversary: Adversary,
    game: CoinGame,
    signals: Mapping[str, Tensor],
    known: Knowledge,
    keys: Keys,
    captures: tuple[Capture, ...] = (),
) -> View:
    """Signals (K, n) of the target and of its shadows, beside the blind control, as an adversary
    sees them."""
    records = game.records
    blind = blind_record_scores(records.x, records.y, game.member_mask, keys.fold("blind").torch())
    return View(surface, adversary, captures, known, Worlds(signals, game.masks, blind, records.y))


def view_of_outputs(
    surface: Surface,
    adversary: Adversary,
    game: CoinGame,
    logits: Tensor,
    classes: int,
    delta: float,
    keys: Keys,
) -> View:
    """Logits (K, n + m + (q - 1) n, C) of the models of a game, as an adversary sees them: for
    audited records, reference ones and, copy after copy, further queries of the audited ones."""
    records = game.records
    x = game.records.x
    public = game.reference.x
    if records.has_gaps or game.reference.has_gaps:
        x, public = fill_gaps(x, public)
    further = logits.shape[1] - len(records) - len(public)
    record_logits, theirs, copies = logits.split([len(records), len(public), further], 1)
    blind = blind_record_scores(x, records.y, game.member_mask, keys.fold("blind").torch())
    signals = {"confidence": logit_scaled(record_logits, records.y)}
    queries = {}
    if copies.shape[1]:
        answers = [record_logits, *copies.split(len(records), 1)]
        confidences = [logit_scaled(answer, records.y) for answer in answers]
        queries["confidence"] = torch.stack(confidences, -1)
    worlds = Worlds(
        signals,
        game.masks,
        blind,
        records.y,
        record_logits,
        theirs,
        records=x.double(),
        queries=queries,
    )
    knowledge = Knowledge(
        (1, 1, 1), classes, public.double(), game.reference.y, settings={"delta": delta}
    )
    return View(surface, adversary, (), knowledge, worlds)


@dataclass(frozen=True)
class JudgedAttack:
    """A row of the report, and what is kept of it as evidence."""

    finding: Finding
    evidence_tensors: Mapping[str, Tensor] = field(default_factory=dict)


def judge_attacks(
    view: View,
    attacks: Mapping[str, Attack],
    missing: Mapping[str, str],
    game: CoinGame,
    keys: Keys,
    budget: ErrorBudget,
    note: str,
) -> list[JudgedAttack]:
    """Each membership attack on the view, whose worlds' row 0 is the target; one that cannot run
    says why, as do
    ``missing`` ones. note: where the view comes from, which also names the random stream."""
    best = next((name for name in RANKING_ATTACKS if name in attacks), "")
    judged = []
    for name, attack in attacks.items():
        try:
            judged.append(_judge_attack(name, attack, view, game, keys, budget, note, name == best))
        except (
            ValueError,
            ArithmeticError,
            torch.linalg.LinAlgError,
        ) as error:  # on few records, or odd ones
            why = " ".join(str(error).split())[:200]
            judged += findings_without_attack(
                view.surface, [name], f"it could not run ({why})", note
            )
    for name, why in missing.items():
        judged += findings_without_attack(view.surface, [name], why, note)
    return judged


def _judge_attack(
    name: str,
    attack: Attack,
    view: View,
    game: CoinGame,
    keys: Keys,
    budget: ErrorBudget,
    note: str,
    naming: bool,
) -> JudgedAttack:
    began = time.monotonic()
    worlds = require_worlds(view)
    why = attack.nothing_to_read(view)
    if why:
        return JudgedAttack(annotate_finding(unreadable_finding(attack, view, why), name, note))
    stream = attack_stream(keys, name, str(view.surface), note)
    attacked = attack.run(view, stream)
    scores = attacked.scores
    if scores is None:
        raise ValueError(f"{name}: returned no scores")
    target = first_replay(worlds)
    first, second = attack_seeds(keys, name, str(view.surface), note)
    evidence = Evidence(
        scores=scores[:1],
        extra={part: value[:1] for part, value in attacked.extra.items()},
        notes={**attacked.notes, "seed": first, "queries": 0},
    )
    finding = attack.judge(evidence, replace(view, worlds=target), NO_TRUTH)
    if finding.measures.status == "nothing_to_read":
        return JudgedAttack(annotate_finding(finding, name, note))
    unlike = bool(is_separable(worlds.blind, worlds.masks[0]))
    diagnostics = dict(finding.diagnostics)
    if unlike or not game.repeats.single:
        # without fair inclusion bits, record by record, no bound on epsilon holds
        finding = replace(finding, measures=finding.measures.without_bound())
    else:
        rng = np.random.default_rng(second)
        delta = float(view.knowledge.settings["delta"])
        bound = one_run_bound(scores[:1], target.masks, delta, rng, confidence=budget.confidence)
        joint = corrected_bound(bound.value, finding.measures.epsilon_shown)
        diagnostics |= {"epsilon_familywise": joint, "tests": budget.tests}
    exposed = most_exposed_rows(scores[0], worlds.masks[0], game.row) if naming else []
    if exposed:
        diagnostics["most_exposed"] = exposed
    if diagnostics:
        finding = finding.with_measures(diagnostics=diagnostics)
    notes = [note, *_game_notes(game, unlike, exposed, len(worlds.masks) - 1)]
    finding = annotate_finding(finding, name, *notes).with_measures(
        seconds=time.monotonic() - began
    )
    return JudgedAttack(finding, _attack_tensors(scores[0], target, game.row))


def _game_notes(game: CoinGame, unlike: bool, exposed: Sequence[int], shadows: int) -> list[str]:
    """What a reader of a membership finding has to know of the game; unlike: the blind control
    tells members from non-members; exposed: rows of the most exposed training records."""
    places = (
        "most exposed training records, by their place in the file from 0: "
        f"{', '.join(map(str, exposed))}"
    )
    notes = []
    if unlike:
        notes.append(FILES_DIFFER_NOTE)
    if not game.repeats.single:
        notes.append(COPIES_TOGETHER_NOTE)
    if exposed:
        notes.append(places)
    if shadows:
        notes.append(f"{shadows} shadow models")
    return notes


def _attack_tensors(scores: Tensor, target: Worlds, row: Tensor) -> dict[str, Tensor]:
    """The evidence of an attack: scores (n,) of the audited records, and what they are compared
    with."""
    count = len(row)
    return {
        "scores": scores.double(),
        "members": target.masks.flatten().to(torch.uint8),
        "place": row,
        "blind": target.blind.double().expand(1, count).flatten(),
        "record": torch.arange(count),
        "world": torch.zeros(count, dtype=torch.long),
    }


def annotate_finding(finding: Finding, name: str, *notes: str) -> Finding:
    file = f"{finding.surface}.{name}.safetensors"
    sentences = [*notes, finding.measures.note]
    note = "; ".join(filter(None, sentences))
    return replace(finding.with_measures(note=note, figure=file), attack=name)


def most_exposed_rows(scores: Tensor, member: Tensor, row: Tensor) -> list[int]:
    """Places in the training file of the members with the highest scores, highest first."""
    member_rows = torch.nonzero(member).flatten()
    order = scores[member_rows].argsort(descending=True, stable=True)[:MAX_EXPOSED]
    return row[member_rows[order]].tolist()


def findings_without_attack(
    surface: Surface,
    attacks: Sequence[str],
    why: str,
    note: str,
    family: Family = Family.MEMBERSHIP,
) -> list[JudgedAttack]:
    """A row for each attack that could not be tried, with the reason."""
    measures = family.measures(n=0, status="not_attacked")
    bare = Finding(surface, "", family, Adversary.PUBLIC, measures)
    return [
        JudgedAttack(annotate_finding(bare, name, note, f"not attacked: {why}")) for name in attacks
    ]


def target_facts(
    kind: str,
    train: LabelledRecords,
    heldout: LabelledRecords,
    game: CoinGame,
    judged: Sequence[JudgedAttack],
    accuracies: tuple[float, float] | None = None,
    notes: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """``target`` of findings.json. accuracies: on training and held-out records; notes, more: what
    the caller knows."""
    repeats = game.repeats
    distinct_train = train.select_rows(repeats.inside)
    outside = heldout.select_rows(repeats.outside)
    near = _near_copy_doubts(distinct_train, outside)
    # The files' own difference comes first; what the target shows of it counts only where these
    # show none
    doubts = [*near[1:], *_difference_doubts(judged), *_label_doubts(distinct_train, outside)]
    doubts = doubts or _accuracy_doubts(
        accuracies, min(len(train), MAX_ACCURACY_RECORDS), len(heldout)
    )
    facts: dict[str, Any] = {
        "kind": kind,
        "training": len(train),
        "heldout": len(heldout),
        "repeated": repeats.training,
        "repeated_heldout": repeats.heldout,
        "shared": repeats.shared,
        "copies_together": not repeats.single,
        "notes": [
            *_describe_duplicates(game, len(train), len(heldout)),
            *describe_oversampling(train, len(heldout), repeats),
            *near[:1],
            *notes,
        ],
        "doubts": (doubts or _reversal_doubts(judged))[:1],
    }
    if accuracies is not None:
        facts["accuracy_training"] = accuracies[0]
    return facts | more


def _near_copy_doubts(train: LabelledRecords, heldout: LabelledRecords) -> list[str]:
    """Whether held-out records are near-copies of training records more often than these of each
    other; then what follows."""
    train_rows, heldout_rows = fill_gaps(train.x[:MOST_AMONG], heldout.x[:MOST_COMPARED])
    if len(train_rows) < 2 * MIN_RECORDS or len(heldout_rows) < MIN_RECORDS:
        return []
    spread = torch.cat([train_rows, heldout_rows]).std(0).clamp_min(1e-12)
    train_rows = train_rows / spread
    heldout_rows = heldout_rows / spread
    between = nearest_records(train_rows[:MOST_COMPARED], train_rows, 2)[0][:, 1]
    close = CLOSE * float(between.median())
    among = int((between < close).sum())
    close_rows = int((nearest_records(heldout_rows, train_rows)[0][:, 0] < close).sum())
    if (
        _chance_of_gap(
            among / len(between), close_rows / len(heldout_rows), len(between), len(heldout_rows)
        )
        > RARE_CHANCE
    ):
        return []
    text = (
        f"{close_rows} of {len(heldout_rows)} held-out records that were compared with "
        f"{len(train_rows)} "
        "training records are near-copies of one: "
        f"nearer than a tenth of the usual distance, as {among} of {len(between)} "
        "training records are to another."
    )
    doubt = (
        f"Held-out records are near-copies of training records ({close_rows} of "
        f"{len(heldout_rows)}), "
        f"{UNREADABLE_NOTE}."
    )
    if close_rows >= MANY_CLOSE * len(heldout_rows):
        return [text, doubt]
    return [text]


def _label_doubts(train: LabelledRecords, heldout: LabelledRecords) -> list[str]:
    """A classifier of half of the training records is right on the others as often as on held-out
    ones, if labels were given alike."""
    size = min(MAX_CLASSIFIED, len(train))
    classes = 1 + max(int(train.y.max()), int(heldout.y.max()))
    if classes < 2 or size < 2 * MIN_RECORDS or len(heldout) < MIN_RECORDS:
        return []
    x, heldout_rows = fill_gaps(train.x[:size], heldout.x[:size])
    centre = x.mean(0)
    spread = x.std(0).clamp_min(1e-12)
    x, heldout_rows = ((rows - centre) / spread for rows in (x, heldout_rows))
    if x.shape[1] > CLASSIFIER_COMPONENTS:
        axes = torch.linalg.svd(x, full_matrices=False).Vh[:CLASSIFIER_COMPONENTS].T
        x = x @ axes
        heldout_rows = heldout_rows @ axes
    half = torch.arange(size) % 2 == 0
    learned = add_constant(x[half]).float()
    queries = add_constant(torch.cat([x[~half], heldout_rows])).float()
    labels = train.y[:size]
    guess = ridge_readout(learned, labels[half], queries, classes).argmax(1)
    right = guess == torch.cat([labels[~half], heldout.y[:size]])
    count = int((~half).sum())
    train_accuracy = float(right[:count].double().mean())
    apart = float(right[count:].double().mean())
    chances = (
        _chance_of_gap(train_accuracy, apart, count, len(heldout_rows)),
        _chance_of_gap(apart, train_accuracy, len(heldout_rows), count),
    )
    if min(chances) > RARE_CHANCE:
        return []
    right_on = (
        f"right on {format_share(train_accuracy)} of other training records, and on "
        f"{format_share(apart)} of held-out ones"
    )
    return [
        "The labels of the two files do not fit their records alike: a classifier of "
        f"training records is {right_on}. "
        f"Until this is understood, {UNREADABLE_NOTE.removeprefix('so ')}."
    ]


def add_constant(x: Tensor) -> Tensor:
    """(n, d + 1): a column of ones behind the others."""
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def _chance_of_gap(less: float, more: float, first: int, second: int) -> float:
    """The chance that two shares of the same distribution lie so far apart in this direction (two
    proportions, one-sided)."""
    pooled = (less * first + more * second) / (first + second)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / first + 1 / second))
    if spread:
        return float(norm.sf((more - less) / spread))
    return 1.0


def _describe_duplicates(game: CoinGame, training: int, heldout: int) -> list[str]:
    repeats = game.repeats
    sentences = []
    if repeats.shared:
        why = (
            "they say nothing of records that were not used, and were left out with these "
            "training records"
        )
        sentences.append(
            f"{repeats.shared} of {heldout} held-out records equal a training record: {why}."
        )
    if repeats.single:
        then = "only records that occur once were audited"
    else:
        then = (
            "each was audited once for all its copies, and no bound on ε is given, since it "
            "would be for all copies together"
        )
    for count, total, what in (
        (repeats.training, training, "training"),
        (repeats.heldout, heldout, "held-out"),
    ):
        if count:
            sentences.append(
                f"{count} of {total} {what} records repeat another one of their file: {then}."
            )
    return sentences


def describe_oversampling(
    train: LabelledRecords, heldout: int, repeats: DuplicateRecords
) -> list[str]:
    """Whether copies were added to the training records alone, or to all before these were split.

    Of records that are drawn alike, a held-out one equals a training record as often as a training
    record equals another: a gap between the two shares is no chance.

    Args:
        train: the training records.
        heldout: how many held-out records there are.
        repeats: the equal records among both.

    Returns:
        Sentences for the page, [] if the two shares may be equal.
    """
    is_copied = repeats.copies > 1
    within = int(is_copied.sum()) / len(train)
    across = repeats.shared / heldout
    rates = (
        f"{int(is_copied.sum())} of {len(train)} training records equal another one, and "
        f"{repeats.shared} of {heldout} held-out records equal a training record"
    )
    is_rarer_across = _chance_of_gap(across, within, heldout, len(train)) <= RARE_CHANCE
    # of either file, the records that equal an earlier one of it
    heldout_repeats = repeats.heldout / heldout
    training_repeats = repeats.training / len(train)
    gap = _chance_of_gap(heldout_repeats, training_repeats, heldout, len(train))
    if is_rarer_across and gap > RARE_CHANCE:
        return [
            f"Equal records that the split kept together: {rates}, while {repeats.heldout} of "
            "these equal an earlier held-out one. Copies in both files and none across say that "
            "the split kept them together, or that overlaps were removed."
        ]
    if is_rarer_across:
        labels = train.original_labels()[is_copied.numpy()]
        names, counts = np.unique(labels, return_counts=True)
        most = int(counts.argmax())
        return [
            f"Oversampled after the split: {rates}, so copies were added to the training records "
            f"alone, {counts[most]} of them in class {names[most]}, or were removed from the "
            f"held-out ones. A record is trained on up to {int(repeats.copies.max())} times, and "
            "is then easier to identify than one that stands there once."
        ]
    if _chance_of_gap(within, across, len(train), heldout) <= RARE_CHANCE:
        return [
            f"Members among the held-out records: {rates}, more often than the two files' own "
            "repeats explain, so records were copied before the split, or the files overlap. A "
            "test accuracy on these held-out records counts training records."
        ]
    return []


def _difference_doubts(judged: Sequence[JudgedAttack]) -> list[str]:
    controls = [
        measures
        for measures in membership_measures_of(judged)
        if FILES_DIFFER_NOTE in (measures.note or "")
    ]
    if not controls:
        return []
    areas = [measures.blind_auc for measures in controls if measures.blind_auc is not None]
    auc = f"blind control, AUC {format_share(max(areas, default=0.5))}"
    why = f"the files differ in more than membership, {UNREADABLE_NOTE}"
    return [
        f"Training and held-out records can be distinguished without the target ({auc}): {why}."
    ]


def membership_measures_of(judged: Sequence[JudgedAttack]) -> list[MembershipMeasures]:
    """Of the membership attacks among them."""
    measures = [judged_attack.finding.measures for judged_attack in judged]
    return [one for one in measures if isinstance(one, MembershipMeasures)]


def _reversal_doubts(judged: Sequence[JudgedAttack]) -> list[str]:
    """Attacks that rank held-out records above training records, beyond chance over all of them."""
    rows = [
        (measures.auc, measures.auc_ci[1])
        for measures in membership_measures_of(judged)
        if measures.auc is not None and measures.auc_ci is not None
    ]
    wide = norm.isf(RARE_CHANCE / max(1, len(rows))) / norm.isf(0.025)
    below = [auc for auc, high in rows if auc + wide * (high - auc) < 0.5]
    if not below:
        return []
    auc = f"AUC {format_share(min(below))}, chance 50 %"
    return [f"An attack ranks held-out records above training records ({auc}): {EXCHANGED_NOTE}"]


def _accuracy_doubts(
    accuracies: tuple[float, float] | None, training: int, heldout: int
) -> list[str]:
    """A model that is right less often on what it was trained on."""
    if accuracies is None:
        return []
    if _chance_of_gap(*accuracies, training, heldout) > RARE_CHANCE:
        return []
    train_accuracy, heldout_accuracy = map(format_share, accuracies)
    return [
        f"The model is right on {train_accuracy} of the training records and on "
        f"{heldout_accuracy} of the "
        f"held-out ones: {EXCHANGED_NOTE}"
    ]
