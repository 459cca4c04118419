"""What attacks and tests found: one wording and one rank for every family.

A *leak* is a result above the chance level, by the one rule of ``finding_selection``, or a stated
guarantee that a test refutes. A refuted guarantee outranks everything, then a copy of a training
record, as whoever holds the release holds the record; an image that is reconstructed outranks a
rate, and labels come last: many methods cannot do without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from attacks.inversion.class_opening import EXACT_ROW
from attacks.types import Surface
from privdd.reporting import finding_selection, wording
from privdd.reporting.finding_selection import (
    FEATURE_ATTACKS,
    MembershipResult,
    epsilon_bound,
    is_above_chance,
)
from privdd.reporting.schema import FindingRow, Scope
from privdd.reporting.wording import format_decibel, format_number, format_share

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
SHARES_ERROR = 1e-6  # of class shares that travel in single precision
IMAGE_SURFACES = frozenset({Surface.SYNTHETIC_IMAGES, Surface.GLOBAL_IMAGES})
COPY_ATTACKS = frozenset({"copy_detection"})  # they compare a release with the training data itself
# dB by which shared features have to become closer before noise counts as removed
MIN_FEATURE_GAIN = 1.0
# attack -> the predicate; {hits} of {n}, {chance} by chance
IDENTIFIES: Mapping[str, str] = {
    "singling_out": (
        "singles out a training record with {hits} of {n} predicates (on held-out records {chance})"
    ),
    "linkability": (
        "links the two halves of {hits} of {n} training records (of held-out ones {chance})"
    ),
    "inference": (
        "infers the hidden column of {hits} of {n} training records (of held-out ones {chance})"
    ),
    "copy_detection": (
        "finds {hits} of {n} released {items} nearer to a training {item} than to any held-out one "
        "(chance {chance})"
    ),
}
OPENS = (
    "can solve classes of at most three records for {n} rows of single records, {hits} of them "
    "nearer to a training record than to any held-out one (chance {chance})"
)
OPENS_EXACTLY = "can solve for the {rows} of {records}, exactly: classes of at most three records"
MATCHES = "can match {hits} of {n} reconstructions to the right record (chance {chance})"


@dataclass(frozen=True)
class LeakResult:
    """One result above chance.

    Attributes:
        row: The finding that shows it.
        scope: What the finding was judged by.
        kind: The kind of leak.
        phrase: A predicate with intervals, "can identify ..."; for ``SENTENCES`` a whole sentence.
        brief: The same without intervals.
        certain: Whether it is shown with an interval, at 95 % for all rates of the run.
        strength: Within its kind, larger is graver.
    """

    row: FindingRow
    scope: Scope
    kind: Kind
    phrase: str
    brief: str
    certain: bool = True
    strength: float = 0.0

    @property
    def _subject(self) -> str:
        """The party that is played; of a comparison with the training data, which no party can
        make, the comparison."""
        if self.kind == "likeness" or self.row.attack in IDENTIFIES:
            return wording.attack_title(self.row.attack)
        return wording.ADVERSARY[self.row.adversary][0]

    @property
    def sentence(self) -> str:
        """For a place that names the artifact already: "The server can ..."."""
        if self.kind in SENTENCES:
            text = self.phrase
        else:
            text = f"{self._subject} {self.phrase}"
        return text[0].upper() + text[1:]

    @property
    def table_phrase(self) -> str:
        """For a table of artifacts: "LiRA can ..."."""
        if self.kind in SENTENCES:
            return self.brief
        return f"{wording.attack_title(self.row.attack)} {self.brief}"

    @property
    def short(self) -> str:
        """For a row of the first screen: at most a dozen words, without the attack."""
        return _short_text(self)

    @property
    def first_sentence(self) -> str:
        """For the first screen, with the artifact: "From the model update, the server can ..."."""
        place = wording.surface_title(self.row, self.scope).lower()
        if self.kind in ("refutation", "noise"):
            return f"On the {place}, {self.phrase}."
        if self.row.adversary == "analyst":
            place = f"noised sums behind the {place}"
        if self.kind == "copy":
            return f"{self.phrase} ({place})."
        setting = finding_selection.finding_setting(self.row)
        if setting and self.kind == "reconstruction":
            place = f"{place} ({setting})"
        return f"From the {place}, {self._subject} {self.brief}."

    @property
    def order(self) -> tuple[int, float]:
        """Sorts the gravest first; images that no interval shows come after identification."""
        kind = self.kind
        if kind == "reconstruction" and not self.certain:
            kind = "likeness"
        return RANKS.index(kind), -self.strength


def rank_leaks(rows: Iterable[FindingRow], scope: Scope) -> list[LeakResult]:
    """Find the strongest leak of each kind.

    Args:
        rows: Findings of one run, all or those on one surface.
        scope: What they are judged by.

    Returns:
        The gravest kind first; empty if nothing was shown to beat chance. Of identification, one
        leak for each game: attacks that match their reconstructions to records play the same one.
    """
    findings = list(rows)
    leaks = [
        *_copy_leaks(findings, scope),
        *_picture_leaks(findings, scope),
        *_nearest_leaks(findings, scope),
        *_membership_leaks(findings, scope),
        *_identification_leaks(findings, scope),
        *_feature_leaks(findings, scope),
        *_label_leaks(findings, scope),
    ]
    strongest: dict[tuple[Kind, str], LeakResult] = {}
    for leak in sorted(leaks, key=lambda leak: leak.order):
        topic = ""
        if leak.kind == "identification":
            topic = _identification_text(leak.row.attack)
        strongest.setdefault((leak.kind, topic), leak)
    return list(strongest.values())


def item_name(row: FindingRow, count: int = 2) -> str:
    """What a release consists of: "image" or "record", in the plural unless ``count`` is 1."""
    name = "image" if row.surface in IMAGE_SURFACES else "record"
    return name if count == 1 else f"{name}s"


# Guarantees.


def noise_leak(rows: Iterable[FindingRow], scope: Scope) -> LeakResult | None:
    """The largest epsilon that a test of a guarantee shows for a crafted record, if it is large.

    rows: the findings on an artifact that has noise and no guarantee.
    """
    best = finding_selection.largest_bound_finding(r for r in rows if r.family == "guarantee")
    if best is None or epsilon_bound(best) <= LARGE_EPSILON:
        return None
    text = (
        f"the noise does not hide every {scope.unit}: for a crafted one, "
        f"{wording.attack_title(best.attack)} shows that the true ε is at least "
        f"{format_number(epsilon_bound(best))}"
    )
    return LeakResult(best, scope, "noise", text, text, strength=epsilon_bound(best))


# Copies.


@dataclass(frozen=True)
class CopyCount:
    """The copies that an attack counted among the records of a release.

    Attributes:
        released: How many records were released.
        exact: How many of them equal a training record.
        near: How many are nearer to a training record than any held-out record is.
        control: exact and near together, with training and held-out records exchanged.
        chance: Of a record near one of either, the chance that it is a training record: their
            share of both.
    """

    released: int
    exact: int
    near: int
    control: int
    chance: float = 0.5

    @property
    def copies(self) -> int:
        return max(self.exact, self.near)


def copy_count(row: FindingRow) -> CopyCount | None:
    """The copies that a finding counted; None if it counted none."""
    counts = row.diagnostics or {}
    if row.attack not in COPY_ATTACKS or "exact_copies" not in counts:
        return None
    exact = int(counts["exact_copies"])
    training = int(counts.get("training", 1))
    heldout = int(counts.get("heldout", 1))
    return CopyCount(
        released=int(counts.get("released", row.n or 0)),
        exact=exact,
        near=int(counts.get("near_copies", exact)),
        control=int(counts.get("near_copies_of_heldout", 0)),
        chance=training / max(1, training + heldout),
    )


def shown_copies(row: FindingRow, scope: Scope) -> CopyCount | None:
    """The copies that a finding counted; None if it counted no more than chance explains.

    Of a release with such copies, nothing says that its images were not shown to be close to
    training images.
    """
    count = copy_count(row)
    if count is None or not _is_copying(row, count, scope):
        return None
    return count


def _copy_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    leaks = []
    for row in rows:
        count = shown_copies(row, scope)
        if count is None:
            continue
        text = copy_sentence(row, count)
        strength = count.copies / max(count.released, 1)
        leaks.append(LeakResult(row, scope, "copy", text, text, strength=strength))
    return leaks


def copy_sentence(row: FindingRow, count: CopyCount) -> str:
    """How many of the released records are copies, without a full stop."""
    copies = count.copies
    released = f"{count.released} released {item_name(row, count.released)}"
    originals = f"training {item_name(row, copies)}"
    if copies == 1:
        originals = f"a {originals}"
    if count.exact == 0:
        kind = "a near-copy" if copies == 1 else "near-copies"
    elif count.exact == copies:
        kind = "an exact copy" if copies == 1 else "exact copies"
    else:
        kind = f"copies ({count.exact} exact, the others near)"
    verb = "is" if copies == 1 else "are"
    return f"{copies} of {released} {verb} {kind} of {originals}"


def _is_copying(row: FindingRow, count: CopyCount, scope: Scope) -> bool:
    """An image that equals a training image is a copy by itself; else more copies of training
    records than of held-out ones.

    Without copying each is as likely near any of the n training and m held-out records: of all, the
    copies are Binomial(copies + control, n / (n + m)).
    """
    if row.surface in IMAGE_SURFACES and count.exact > count.control:
        return True
    total = count.copies + count.control
    return total > 0 and is_above_chance(count.copies / total, count.chance, total, scope.looks)


# Membership.


def membership_phrase(best: MembershipResult, brief: bool = False) -> str:
    """A membership attack's result as a predicate: the one wording of decision, table, sentence and
    card.

    brief: without intervals and single records.
    """
    rate = f"{format_share(best.fpr)} FPR"
    if not best.beats_chance:
        return f"was not shown to identify more members than chance at {rate}"
    if best.kind == "bound":
        bound = format_number(epsilon_bound(best.row))
        return f"can distinguish training records from non-members (ε of at least {bound})"
    if best.kind == "ranking":
        return (
            "can distinguish training records from non-members more often than "
            f"chance{_auc_note(best.row)}"
        )
    exposed = _exposed_phrase(best, brief)
    if best.kind == "exposed" or best.at is None:
        tail = "" if brief else _average_note(best)
        return f"can identify {exposed} at {rate}{tail}"
    interval = "" if brief else _interval_note(best.at.ci)
    if exposed:
        also = f"; repeatedly {exposed.rstrip(',')}"
    else:
        also = ""
    share = format_share(best.at.tpr)
    return f"can identify {share} of the training records at {rate}{interval}{also}"


def _auc_note(row: FindingRow) -> str:
    if row.auc is None:
        return ""
    return f" (AUC {format_share(row.auc)})"


def _exposed_phrase(best: MembershipResult, brief: bool) -> str:
    """The single records as a count: "2 of 117 records, one of them in 28 of the 35 replays that
    hold it"; "" for none."""
    records = best.exposed
    if not records:
        return ""
    count = f"{len(records)} of {best.row.n} records"
    if brief:
        return count
    top = records[0]
    subject = "" if len(records) == 1 else "one of them "
    return f"{count}, {subject}in {top.hits} of the {top.trials} replays that hold it,"


def _average_note(best: MembershipResult) -> str:
    also = ""
    if finding_selection.ranks_members(best.row, best.scope):
        also = f", yet it can distinguish them from non-members{_auc_note(best.row)}"
    return f"; of all records it was not shown to identify more than chance{also}"


def _interval_note(interval: tuple[float, float]) -> str:
    return f" (95 %: {format_share(interval[0])} to {format_share(interval[1])})"


def _membership_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    best = finding_selection.strongest_membership(rows, scope)
    if best is None or not best.beats_chance:
        return []
    kind: Kind
    if best.kind in ("rate", "exposed"):
        kind = "membership"
    else:
        kind = "separation"
    # a rate over all records is graver than single records, and these than no rate
    strength = best.at.tpr if best.counts and best.at is not None else 0.0
    phrase = membership_phrase(best)
    brief = membership_phrase(best, brief=True)
    return [LeakResult(best.row, scope, kind, phrase, brief, strength=strength)]


def nearest_phrase(row: FindingRow, scope: Scope) -> str:
    """All members that were identified by the nearest row that was sent, as a predicate with both
    denominators."""
    test = row.copy_test
    if test is None or not finding_selection.identifies_members(row, scope):
        return "was not shown to identify more members than chance by the nearest row that was sent"
    return (
        f"can identify {test.identified} of {test.members} training records, and wrongly "
        f"{test.false_alarms} of {test.nonmembers} non-members, by the nearest row that was sent"
    )


def _nearest_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    """Stronger than any rate over the audited records: of all records of the run, by a test that is
    exact."""
    leaks = []
    for row in rows:
        if row.copy_test is not None and finding_selection.identifies_members(row, scope):
            share = row.copy_test.identified / max(1, row.copy_test.members)
            phrase = nearest_phrase(row, scope)
            leaks.append(LeakResult(row, scope, "membership", phrase, phrase, strength=1 + share))
    return leaks


# Reconstruction, and likeness to the training data.


@dataclass(frozen=True)
class _ImageWords:
    """How an attack on images, or on rows of a table, is told.

    Attributes:
        can: What it can do.
        cannot: What it was not shown to do.
        guess: The name of the guess that it is held against.
        clear: Which single images count.
        some: What it finds or reconstructs.
    """

    can: str
    cannot: str
    guess: str
    clear: str
    some: str


def _reconstructed_name(row: FindingRow) -> str:
    """ "row" of a table, else "image"."""
    if (row.diagnostics or {}).get("columns"):
        return "row"
    return "image"


def _words_of(row: FindingRow) -> _ImageWords:
    """The words for the attack's images, or for the rows of a table that it reconstructed."""
    name = _reconstructed_name(row)
    if row.attack in COPY_ATTACKS:  # copies are compared with held-out records
        return _ImageWords(
            "finds",
            f"was not shown to find released {name}s clearly closer to training {name}s than "
            "held-out ones are",
            "nearest held-out",
            f"released {name}s clearly closer to a training {name} than every held-out one is",
            f"released {name}s near training {name}s",
        )
    return _ImageWords(
        "can reconstruct",
        f"was not shown to reconstruct {name}s clearly closer than a guess",
        "best guess without it",
        f"{name}s clearly closer than every guess",
        f"{name}s",
    )


def picture_phrase(row: FindingRow, scope: Scope, brief: bool = False) -> str:
    """A reconstruction's result as a predicate: the one wording of decision, table, sentence and
    card.

    brief: for the table.
    """
    words = _words_of(row)
    images = row.pictures
    if images is None:
        return _mean_phrase(row, scope, words)
    guess = f"({words.guess} {format_decibel(images.guess)})"
    typical = f"{format_decibel(images.median)}, the median of {images.n} {guess}"
    if brief:
        typical = f"a median of {format_decibel(images.median)} {guess}"
    extreme = (
        f"the one furthest above its guess at {format_decibel(images.best)} (guess "
        f"{format_decibel(images.best_guess)})"
    )
    count = f"{images.clear} of {images.n}"
    every = "" if brief else f"; all: {typical}"
    if finding_selection.has_clear_pictures(row, scope):
        return f"{words.can} {count} {words.clear}, {extreme}{every}"
    if finding_selection.rebuilds_records(row, scope):
        clear = ""
        if images.clear and not brief:
            clear = f"; {count} {words.clear}"
        return f"{words.can} {words.some}: {typical}{clear}"
    if not images.clear:
        return f"{words.cannot}: {typical}"
    return f"{words.cannot}: {count} are, too few to distinguish from chance, {extreme}{every}"


def _mean_phrase(row: FindingRow, scope: Scope, words: _ImageWords) -> str:
    """Means alone: of shared features, or of an attack that brings no guess for each image."""
    base = finding_selection.blind_guess_psnr(row)
    count = f" of {row.n}" if row.n else ""
    if base is None:
        guess = ""
    else:
        guess = f" ({words.guess} {format_number(base)} dB)"
    mean = f"{format_number(row.psnr)} dB on average{count}{guess}"
    if base is None or finding_selection.rebuilds_records(row, scope):
        return f"{words.can} {words.some} at {mean}"
    return f"{words.cannot}: {mean}"


def _picture_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    copies = [row for row in rows if row.attack in COPY_ATTACKS]
    reconstructions = [row for row in rows if row.attack not in COPY_ATTACKS]
    return [
        *_image_leak(reconstructions, scope, "reconstruction"),
        *_image_leak(copies, scope, "likeness"),
    ]


def _image_leak(rows: Sequence[FindingRow], scope: Scope, kind: Kind) -> list[LeakResult]:
    """The strongest of these attacks on images; [] if none is closer than a guess."""
    best = finding_selection.strongest_reconstruction(rows, scope)
    if best is None or not finding_selection.rebuilds_records(best, scope):
        return []
    certain = any(finding_selection.has_clear_pictures(row, scope) for row in rows)
    phrase = picture_phrase(best, scope)
    return [LeakResult(best, scope, kind, phrase, picture_phrase(best, scope, True), certain)]


# Identification: singling out, linkability, inference, and matching what is held to the right
# record.


def identification_phrase(row: FindingRow) -> str:
    """How many a finding identifies, as a predicate with its denominator. row: one with identified,
    identified_chance and n."""
    hits = round((row.identified or 0.0) * (row.n or 0))
    items = {"item": item_name(row, 1), "items": item_name(row)}
    if count := count_rows_solved_exactly(row):
        several = count > 1
        records = f"{count} training record{'s' * several}"
        return OPENS_EXACTLY.format(rows=f"row{'s' * several}", records=records)
    text = _identification_text(row.attack)
    return text.format(hits=hits, n=row.n, chance=format_share(row.identified_chance), **items)


def _identification_text(attack: str) -> str:
    """The predicate of an attack's game, with places for its counts."""
    if attack == "class_opening":
        return OPENS
    return IDENTIFIES.get(attack, MATCHES)


def count_rows_solved_exactly(row: FindingRow) -> int:
    """How many rows that were solved for are a training record's own up to rounding: no rate over
    many records is needed to tell this from chance."""
    if row.attack != "class_opening":
        return 0
    diagnostics = row.diagnostics or {}
    solved = zip(diagnostics.get("sizes", ()), diagnostics.get("errors", ()))
    return sum(size for size, error in solved if error <= EXACT_ROW)


def _identification_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    leaks = []
    for row in rows:
        rate = row.identified
        chance = row.identified_chance
        if rate is None or chance is None:
            continue
        if is_above_chance(rate, chance, row.n, scope.looks) or count_rows_solved_exactly(row):
            phrase = identification_phrase(row)
            strength = rate - chance
            leaks.append(
                LeakResult(row, scope, "identification", phrase, phrase, strength=strength)
            )
    return leaks


# Shared features, and labels.


def _feature_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    leaks = []
    for row in rows:
        if removes_noise(row):
            phrase = feature_phrase(row)
            strength = row.psnr or 0.0
            leaks.append(LeakResult(row, scope, "features", phrase, phrase, False, strength))
    return leaks


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
    """(finding, share of labels read, share that guessing reads or 0 if that is not known), of
    attacks on labels."""
    rates = []
    for row in rows:
        if row.family == "label" and row.label_accuracy is not None:
            chance = finding_selection.blind_label_rate(row) or 0.0
            rates.append((row, row.label_accuracy, chance))
    return rates


def label_phrase(row: FindingRow, rate: float, chance: float) -> str:
    """How much of the class counts was read, as a predicate."""
    if chance:
        guess = f" (chance level {format_share(chance)})"
    else:
        guess = ""
    if row.surface == Surface.GENERATOR and rate > 1 - SHARES_ERROR:
        return f"can read exactly which share of the last round's records each class has{guess}"
    if row.surface == Surface.GENERATOR:
        shares = f"can read the class shares of the last round's {row.n} records"
        return f"{shares}, which overlap by {format_share(rate)} with the true ones{guess}"
    if rate == 1:
        return f"can read exactly how many records of each class the client holds{guess}"
    return (
        f"can read the classes of {round(rate * (row.n or 0))} of the client's {row.n} "
        f"records{guess}"
    )


def _label_leaks(rows: Sequence[FindingRow], scope: Scope) -> list[LeakResult]:
    leaks = []
    for row, rate, chance in label_rates(rows):
        if is_above_chance(rate, chance, row.n, scope.looks):
            phrase = label_phrase(row, rate, chance)
            leaks.append(LeakResult(row, scope, "labels", phrase, phrase, strength=rate))
    return leaks


# The same results in a few words.


def _short_text(leak: LeakResult) -> str:
    match leak.kind:
        case "refutation":
            return leak.brief
        case "copy":
            return _short_copies(leak)
        case "reconstruction" | "likeness":
            return _short_images(leak)
        case "membership":
            return _short_membership(leak)
        case "identification":
            return _short_identification(leak)
        case "noise":
            return f"ε ≥ {format_number(epsilon_bound(leak.row))} for a crafted record"
        case "separation":
            return _short_separation(leak)
        case "features":
            return _short_features(leak)
        case "labels":
            return _short_labels(leak)


def _short_copies(leak: LeakResult) -> str:
    count = copy_count(leak.row)
    if count is None:
        return leak.brief
    items = item_name(leak.row, count.released)
    return f"{count.copies} of {count.released} released {items} copy training records"


def _short_images(leak: LeakResult) -> str:
    images = leak.row.pictures
    name = _reconstructed_name(leak.row)
    if images is None:
        return f"{name}s at {format_decibel(leak.row.psnr or 0.0)} on average"
    if finding_selection.has_clear_pictures(leak.row, leak.scope):
        best = format_decibel(images.best)
        guess = format_decibel(images.best_guess)
        return f"{images.clear} of {images.n} {name}s, one at {best} (guess {guess})"
    median = format_decibel(images.median)
    return f"median {name} {median} (guess {format_decibel(images.guess)})"


def _short_membership(leak: LeakResult) -> str:
    test = leak.row.copy_test
    if test is not None and finding_selection.identifies_members(leak.row, leak.scope):
        return f"{test.identified} of {test.members} training records identified"
    best = finding_selection.strongest_membership([leak.row], leak.scope)
    if best is None or best.at is None or not best.counts:
        return _short_exposed(best) or leak.brief
    rate = format_share(best.fpr)
    return f"{format_share(best.at.tpr)} of members identified at {rate} FPR"


def _short_exposed(best: MembershipResult | None) -> str:
    if best is None or not best.exposed:
        return ""
    top = best.exposed[0]
    count = len(best.exposed)
    return f"{count} of {best.row.n} records identified, one in {top.hits} of {top.trials} replays"


def _short_separation(leak: LeakResult) -> str:
    if finding_selection.bounds_members(leak.row):
        return f"members distinguished: ε ≥ {format_number(epsilon_bound(leak.row))}"
    return f"members distinguished: AUC {format_share(leak.row.auc)}"


def _short_identification(leak: LeakResult) -> str:
    row = leak.row
    hits = round((row.identified or 0.0) * (row.n or 0))
    return f"{hits} of {row.n} matched (chance {format_share(row.identified_chance)})"


def _short_features(leak: LeakResult) -> str:
    released = format_number(_released_psnr(leak.row))
    return f"noise removed: {format_number(leak.row.psnr)} dB, sent at {released} dB"


def _short_labels(leak: LeakResult) -> str:
    ((_, rate, chance),) = label_rates([leak.row])
    return f"{format_share(rate)} of labels read (chance {format_share(chance)})"
