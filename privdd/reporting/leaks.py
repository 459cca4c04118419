"""What attacks and tests found: one wording and one rank for every family.

A *leak* is a result above the chance level, by the one rule of ``finding_selection``, or a stated
guarantee that a test refutes. A refuted guarantee outranks everything, then a copy of a training
record, as whoever holds the release holds the record; an image that is reconstructed outranks a
rate, and labels come last: many methods cannot do without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from attacks.types import Surface
from privdd.reporting import finding_selection, wording
from privdd.reporting.finding_selection import (
    FEATURE_ATTACKS,
    MembershipResult,
    epsilon_bound,
    is_above_chance,
)
from privdd.reporting.schema import FindingRow
from privdd.reporting.wording import format_decibel, format_number, format_share, one_in

# The kinds of leak, the gravest first. "refutation": a stated guarantee is false; "noise": a test
# shows a large epsilon for a crafted record on what no guarantee covers, although noise was added;
# "likeness": images or records that are closer to the training data than to others, which only
# someone who holds the training data can see; "separation": members and non-members can be
# distinguished, at no rate of false alarms.
Kind = Literal[
    "refutation",
    "copy",
    "reconstruction",
    "membership",
    "identification",
    "noise",
    "likeness",
    "separation",
    "features",
    "labels",
]
RANKS: tuple[Kind, ...] = get_args(Kind)
LARGE_EPSILON = 8.0  # above it an epsilon is no reassurance: odds may change 3 000-fold
# Kinds whose phrase is a whole sentence with a subject of its own.
SENTENCES: frozenset[Kind] = frozenset({"copy", "refutation", "noise"})
IMAGE_SURFACES = frozenset({Surface.SYNTHETIC_IMAGES, Surface.GLOBAL_IMAGES})
COPY_ATTACKS = frozenset({"copy_detection"})  # they compare a release with the training data itself
MIN_FEATURE_GAIN = (
    1.0  # dB by which shared features have to become closer before noise counts as removed
)


@dataclass(frozen=True)
class LeakResult:
    """One result above chance. phrase, brief: a predicate, with and without intervals: "can
    identify ..."; for ``SENTENCES`` a whole sentence; certain: shown with an interval, at 95 % for
    all rates of the run."""

    row: FindingRow
    kind: Kind
    phrase: str
    brief: str
    certain: bool = True
    strength: float = 0.0  # within its kind: larger is graver

    @property
    def _subject(self) -> str:
        """The party that is played; of a comparison with the training data, which no party can
        make, the comparison."""
        by_attack = self.kind == "likeness" or self.row.attack in IDENTIFIES
        return (
            wording.attack_title(self.row.attack)
            if by_attack
            else wording.ADVERSARY[self.row.adversary][0]
        )

    @property
    def sentence(self) -> str:
        """For a place that names the artifact already: "The server can ..."."""
        text = self.phrase if self.kind in SENTENCES else f"{self._subject} {self.phrase}"
        return text[0].upper() + text[1:]

    @property
    def table_phrase(self) -> str:
        """For a table of artifacts: "LiRA can ..."."""
        if self.kind in SENTENCES:
            return self.brief
        return f"{wording.attack_title(self.row.attack)} {self.brief}"

    @property
    def first_sentence(self) -> str:
        """For the first screen, with the artifact: "From the model update, the server can ..."."""
        place = wording.surface_title(self.row).lower()
        if self.kind in ("refutation", "noise"):
            return f"On the {place}, {self.phrase}."
        place = f"noised sums behind the {place}" if self.row.adversary == "analyst" else place
        if self.kind == "copy":
            return f"{self.phrase} ({place})."
        note = f" ({self.row.note})" if self.row.note and self.kind == "reconstruction" else ""
        return f"From the {place}, {self._subject} {self.brief}{note}."

    @property
    def order(self) -> tuple[int, float]:
        """Sorts the gravest first."""
        return RANKS.index(self.kind), -self.strength


def rank_leaks(rows: Iterable[FindingRow]) -> list[LeakResult]:
    """The strongest leak of each kind, the gravest kind first; [] where nothing was shown to beat
    chance."""
    given = list(rows)
    found = [leak for read in READERS for leak in read(given)]
    best: dict[tuple[Kind, str], LeakResult] = {}
    for leak in sorted(found, key=lambda one: one.order):
        topic = leak.row.attack if leak.kind == "identification" else ""
        best.setdefault((leak.kind, topic), leak)
    return list(best.values())


def attacker_name(row: FindingRow) -> str:
    """The party that an attack plays, as a sentence begins: "The server"."""
    name = wording.ADVERSARY[row.adversary][0]
    return name[0].upper() + name[1:]


def item_name(row: FindingRow, count: int = 2) -> str:
    """What a release consists of: "image" or "record", in the plural unless ``count`` is 1."""
    name = "image" if row.surface in IMAGE_SURFACES else "record"
    return name if count == 1 else f"{name}s"


# Guarantees.


def noise_leak(rows: Iterable[FindingRow]) -> LeakResult | None:
    """The largest epsilon that a test of a guarantee shows for a crafted record, if it is large.

    rows: the findings on an artifact that has noise and no guarantee.
    """
    best = finding_selection.largest_bound_finding(r for r in rows if r.family == "guarantee")
    if best is None or epsilon_bound(best) <= LARGE_EPSILON:
        return None
    text = (
        f"the noise does not hide every {best._context.unit}: for a crafted one, "
        f"{wording.attack_title(best.attack)} shows that the true ε is at least "
        f"{format_number(epsilon_bound(best))}"
    )
    return LeakResult(best, "noise", text, text, strength=epsilon_bound(best))


# Copies.


@dataclass(frozen=True)
class CopyCount:
    """exact, near: of ``released`` records, how many equal a training record, and how many are
    nearer to one than any held-out record is; control: the same two together, with training and
    held-out records exchanged; chance: of a record near one of either, that it is a training
    record: their share of both."""

    released: int
    exact: int
    near: int
    control: int
    chance: float = 0.5


def copy_count(row: FindingRow) -> CopyCount | None:
    """The copies that a finding counted; None where it counted none."""
    known = row.diagnostics or {}
    if row.attack not in COPY_ATTACKS or "exact_copies" not in known:
        return None
    exact = int(known["exact_copies"])
    control = int(known.get("near_copies_of_heldout", 0))
    training = int(known.get("training", 1))
    heldout = int(known.get("heldout", 1))
    chance = training / max(1, training + heldout)
    return CopyCount(
        int(known.get("released", row.n or 0)),
        exact,
        int(known.get("near_copies", exact)),
        control,
        chance,
    )


def _copy_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    found = []
    for row in rows:
        count = copy_count(row)
        if count is None or not _is_copying(row, count):
            continue
        copies = max(count.exact, count.near)
        item = item_name(row, count.released)
        verb = "is a training" if copies == 1 else "are training"
        how = "exactly" if count.exact == copies else f"{count.exact} exactly, the others nearly"
        said = (
            f"{copies} of {count.released} released {item} {verb} {item_name(row, copies)} ({how})"
        )
        found.append(LeakResult(row, "copy", said, said, strength=copies / max(count.released, 1)))
    return found


def _is_copying(row: FindingRow, count: CopyCount) -> bool:
    """An image that equals a training image is a copy by itself; else more copies of training
    records than of held-out ones.

    Without copying each is as likely near any of the n training and m held-out records: of all, the
    copies are Binomial(copies + control, n / (n + m)).
    """
    if row.surface in IMAGE_SURFACES and count.exact > count.control:
        return True
    copies = max(count.exact, count.near)
    total = copies + count.control
    return total > 0 and is_above_chance(copies / total, count.chance, total, row._context.looks)


# Membership.


def membership_phrase(best: MembershipResult, brief: bool = False) -> str:
    """A membership attack's result as a predicate: the one wording of decision, table, sentence and
    card.

    brief: without intervals and single records.
    """
    row = best.row
    if not best.beats_guessing:
        return (
            f"was not shown to identify more members than chance at {one_in(best.fpr)} false alarms"
        )
    if best.kind == "bound":
        bound = format_number(epsilon_bound(row))
        return f"can distinguish training records from non-members (ε of at least {bound})"
    if best.kind == "ranking":
        return (
            "can distinguish training records from non-members more often than "
            f"chance{_auc_note(row, ' (')})"
        )
    single = _exposed_phrase(best, brief)
    if best.kind == "exposed" or best.at is None:
        tail = "" if brief else _average_note(best)
        return f"can identify {single} at {one_in(best.fpr)} false alarms{tail}"
    interval = "" if brief else _interval_note(best.at.ci)
    also = f"; again and again {single.rstrip(',')}" if single else ""
    return (
        f"can identify {format_share(best.at.tpr)} of the training records at "
        f"{one_in(best.fpr)} false alarms{interval}{also}"
    )


def _auc_note(row: FindingRow, before: str) -> str:
    return "" if row.auc is None else f"{before}AUC {format_share(row.auc)}"


def _exposed_phrase(best: MembershipResult, brief: bool) -> str:
    """The single records as a count: "2 of 117 records, one of them in 28 of the 35 replays that
    hold it"; "" for none."""
    records = best.exposed
    if not records:
        return ""
    said = f"{len(records)} of {best.row.n} records"
    top = records[0]
    which = "" if len(records) == 1 else "one of them "
    return (
        said if brief else f"{said}, {which}in {top.hits} of the {top.trials} replays that hold it,"
    )


def _average_note(best: MembershipResult) -> str:
    ranks = finding_selection.ranks_members(best.row)
    also = (
        f", yet it can distinguish them from non-members{_auc_note(best.row, ' (')})"
        if ranks
        else ""
    )
    return f"; of all records it was not shown to identify more than chance{also}"


def _interval_note(interval: tuple[float, float]) -> str:
    return f" (95 %: {format_share(interval[0])} to {format_share(interval[1])})"


def _membership_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    best = finding_selection.strongest_membership(rows)
    if best is None or not best.beats_guessing:
        return []
    kind: Kind = "membership" if best.kind in ("rate", "exposed") else "separation"
    return [
        LeakResult(best.row, kind, membership_phrase(best), membership_phrase(best, brief=True))
    ]


def nearest_phrase(row: FindingRow) -> str:
    """All members that were identified by the nearest row that was sent, as a predicate with both
    denominators."""
    test = row.copy_test
    if test is None or not finding_selection.identifies_members(row):
        return "was not shown to identify more members than chance by the nearest row that was sent"
    said = (
        f"can identify {test.identified} of {test.members} training records, and wrongly "
        f"{test.false_alarms} of"
    )
    return f"{said} {test.nonmembers} non-members, by what was sent nearly as it is"


def _nearest_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    """Stronger than any rate over the audited records: of all records of the run, by a test that is
    exact."""
    found = []
    for row in rows:
        if row.copy_test is not None and finding_selection.identifies_members(row):
            share = row.copy_test.identified / max(1, row.copy_test.members)
            said = nearest_phrase(row)
            found.append(LeakResult(row, "membership", said, said, strength=1 + share))
    return found


# Reconstruction, and likeness to the training data.


def picture_phrase(row: FindingRow, brief: bool = False) -> str:
    """A reconstruction's result as a predicate: the one wording of decision, table, sentence and
    card. brief: for the table."""
    seen = row.pictures
    closer = finding_selection.rebuilds_records(row)
    can, cannot, guess, closer_than = _picture_words(row)
    if (
        seen is None
    ):  # means alone: of shared features, or of an attack that brings no guess for each image
        base = finding_selection.blind_guess_psnr(row)
        known = f" ({guess} {format_number(base)} dB)" if base is not None else ""
        of = f"{format_number(row.psnr)} dB on average{f' of {row.n}' if row.n else ''}{known}"
        return f"{can} images at {of}" if closer or base is None else f"{cannot}: {of}"
    typical = (
        f"{format_decibel(seen.median)}, the median of {seen.n} ({guess} "
        f"{format_decibel(seen.guess)})"
    )
    typical = (
        f"a median of {format_decibel(seen.median)} ({guess} {format_decibel(seen.guess)})"
        if brief
        else typical
    )
    extreme = (
        f"the one furthest above its guess at {format_decibel(seen.best)} (guess "
        f"{format_decibel(seen.best_guess)})"
    )
    single = f"{can} {seen.clear} of {seen.n} {closer_than}, {extreme}"
    every = "" if brief else f"; all: {typical}"
    if finding_selection.has_clear_pictures(row):
        return f"{single}{every}"
    if closer:
        clear = f"; {seen.clear} of {seen.n} {closer_than}" if seen.clear and not brief else ""
        images = "released images near training images" if row.attack in COPY_ATTACKS else "images"
        return f"{can} {images}: {typical}{clear}"
    if not seen.clear:
        return f"{cannot}: {typical}"
    return (
        f"{cannot}: {seen.clear} of {seen.n} are, too few to distinguish from chance, "
        f"{extreme}{every}"
    )


def _picture_words(row: FindingRow) -> tuple[str, str, str, str]:
    """(what the attack can do, what it was not shown to do, the name of the guess, which single
    images count): copies are compared with held-out records."""
    if row.attack in COPY_ATTACKS:
        near = (
            "was not shown to find released images clearly closer to training images than "
            "held-out ones are"
        )
        which = "released images clearly closer to a training image than every held-out one is"
        return "finds", near, "nearest held-out", which
    cannot = "was not shown to reconstruct images clearly closer than a guess"
    return (
        "can reconstruct",
        cannot,
        "best guess without it",
        "images clearly closer than every guess",
    )


def _picture_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    found: list[LeakResult] = []
    groups: tuple[tuple[Kind, bool], ...] = (("reconstruction", False), ("likeness", True))
    for kind, copies in groups:
        mine = [row for row in rows if (row.attack in COPY_ATTACKS) is copies]
        best = finding_selection.strongest_reconstruction(mine)
        if best is not None and finding_selection.rebuilds_records(best):
            certain = any(map(finding_selection.has_clear_pictures, mine))
            found.append(
                LeakResult(
                    best, kind, picture_phrase(best), picture_phrase(best, brief=True), certain
                )
            )
    return found


# Identification: singling out, linkability, inference, and matching what is held to the right
# record.

# attack -> the predicate; {hits} of {n}, {rate} by chance
IDENTIFIES: Mapping[str, str] = {
    "singling_out": "singles out a training record with {hits} of {n} predicates (on held-out records "
    "{chance})",
    "linkability": "links the two halves of {hits} of {n} training records (of held-out ones {chance})",
    "inference": "infers the hidden column of {hits} of {n} training records (of held-out ones "
    "{chance})",
    "copy_detection": "finds {hits} of {n} released {items} nearer to a training {item} than to any "
    "held-out one (chance {chance})",
}
MATCHES = "can match {hits} of {n} reconstructions to the right record (chance {chance})"


def identification_phrase(row: FindingRow) -> str:
    """How many a finding identifies, as a predicate with its denominator. row: one with identified,
    identified_chance and n."""
    hits = round((row.identified or 0.0) * (row.n or 0))
    items = {"item": item_name(row, 1), "items": item_name(row)}
    text = IDENTIFIES.get(row.attack, MATCHES)
    return text.format(hits=hits, n=row.n, chance=format_share(row.identified_chance), **items)


def _identification_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    found = []
    for row in rows:
        hit = row.identified
        chance = row.identified_chance
        if (
            hit is None
            or chance is None
            or not is_above_chance(hit, chance, row.n, row._context.looks)
        ):
            continue
        said = identification_phrase(row)
        found.append(LeakResult(row, "identification", said, said, strength=hit - chance))
    return found


# Shared features, and labels.


def _feature_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    found = []
    for row in rows:
        if removes_noise(row):
            said = feature_phrase(row)
            found.append(
                LeakResult(row, "features", said, said, certain=False, strength=row.psnr or 0.0)
            )
    return found


def feature_phrase(row: FindingRow) -> str:
    """The result of an attack on noise that records share, as a predicate."""
    closer = f"{format_number(row.psnr)} dB instead of {format_number(_released_psnr(row))} dB"
    if not removes_noise(row):
        return f"was not shown to remove noise from the features ({closer})"
    return f"can remove the noise from others' features, given one record of the batch: {closer}"


def _released_psnr(row: FindingRow) -> float:
    """The PSNR in dB of shared features as they were released."""
    return (row.baselines or {}).get("psnr_as_released", 0.0)


def removes_noise(row: FindingRow) -> bool:
    """Whether shared features are closer after the attack than as they were released."""
    return (
        row.attack in FEATURE_ATTACKS and (row.psnr or 0.0) > _released_psnr(row) + MIN_FEATURE_GAIN
    )


def label_rates(rows: Iterable[FindingRow]) -> list[tuple[FindingRow, float, float]]:
    """(finding, share of labels read, share that guessing reads or 0 where that is not known), of
    attacks on labels."""
    return [
        (r, r.label_accuracy, finding_selection.blind_label_rate(r) or 0.0)
        for r in rows
        if r.family == "label" and r.label_accuracy is not None
    ]


def label_phrase(row: FindingRow, rate: float, chance: float) -> str:
    """How much of the class counts was read, as a predicate."""
    guess = f" (guessing {format_share(chance)})" if chance else ""
    if rate == 1:
        return f"can read exactly how many records of each class the client holds{guess}"
    return (
        f"can read the classes of {round(rate * (row.n or 0))} of the client's {row.n} "
        f"records{guess}"
    )


def _label_leaks(rows: Sequence[FindingRow]) -> list[LeakResult]:
    found = []
    for row, rate, chance in label_rates(rows):
        if is_above_chance(rate, chance, row.n, row._context.looks):
            said = label_phrase(row, rate, chance)
            found.append(LeakResult(row, "labels", said, said, strength=rate))
    return found


Reader = Callable[[Sequence[FindingRow]], list[LeakResult]]
READERS: tuple[Reader, ...] = (
    _copy_leaks,
    _picture_leaks,
    _nearest_leaks,
    _membership_leaks,
    _identification_leaks,
    _feature_leaks,
    _label_leaks,
)
