"""Tests of ``privdd.external.membership_game``."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from attacks.measures import MembershipMeasures
from attacks.membership.quantile import QuantileRegression
from attacks.types import Adversary, Family, Finding, Surface
from privdd.api import audit_model, load_run
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.membership_game import (
    MAX_REFERENCE,
    JudgedAttack,
    _reversal_doubts,
    audited_count,
    describe_oversampling,
    draw_coin_game,
    find_duplicates,
    target_facts,
)
from privdd.external.records import LabelledRecords, records_from_arrays
from privdd.external.run_folder import ExternalAudit, StatedLimit
from privdd.external.trained_model import ExternalAuditSettings, audit_trained_model
from privdd.reporting.decision import decide_surfaces
from privdd.reporting.schema import Findings
from privdd.reporting.terminal import print_summary
from privdd.verification.run_folder import verify_run
from tests.external.memory import forgetful, records, remembering
from tests.reporting.contradictions import page_contradictions

# The coins are fair and independent, and every record is in at most one place.


TRAIN = LabelledRecords(torch.arange(200.0)[:, None], torch.zeros(200, dtype=torch.long))
HELDOUT = LabelledRecords(torch.arange(1000.0, 1300.0)[:, None], torch.zeros(300, dtype=torch.long))


def test_every_record_has_one_place() -> None:
    game = draw_coin_game(TRAIN, HELDOUT, 10_000, 5, Keys(1))
    x = game.records.x[:, 0]
    assert torch.equal(x < 1000, game.member_mask)
    assert torch.equal(torch.where(game.member_mask, x, x - 1000).long(), game.row)
    used = torch.cat([x, game.rest.x[:, 0], game.reference.x[:, 0]])
    assert len(used.unique()) == len(used) and set(TRAIN.x[:, 0].tolist()) <= set(used.tolist())
    assert (
        len(game.reference) == 100
        and len(draw_coin_game(TRAIN, HELDOUT, 20, 0, Keys(1)).member_mask) == 20
    )


def test_coins_are_fair_and_independent_of_one_another() -> None:
    masks = torch.cat(
        [draw_coin_game(TRAIN, HELDOUT, 10_000, 3, Keys(seed)).masks for seed in range(60)]
    )
    heads = int(masks.sum())
    tosses = masks.numel()
    assert binomtest(heads, tosses, 0.5).pvalue > 1e-4
    pairs = masks[:, 0::2][:, : masks.shape[1] // 2] == masks[:, 1::2]
    assert binomtest(int(pairs.sum()), pairs.numel(), 0.5).pvalue > 1e-4
    assert (
        binomtest(int((masks[0::4] == masks[1::4]).sum()), masks[0::4].numel(), 0.5).pvalue > 1e-4
    )


@pytest.mark.parametrize("least", [20, 100, 5000])
def test_so_many_records_almost_never_use_up_a_set(least: int) -> None:
    """By the binomial law, and one record more in 25 would be too many."""
    from scipy.stats import binom

    count = audited_count(least, least + 7, 10**6)
    assert 2 * binom.sf(least, count, 0.5) < 1e-6 < 2 * binom.sf(least, int(count * 1.25) + 3, 0.5)
    assert audited_count(least, least, 11) == 11


def test_other_names_give_other_coins() -> None:
    one = draw_coin_game(TRAIN, HELDOUT, 100, 0, Keys(1))
    other = draw_coin_game(TRAIN, HELDOUT, 100, 0, Keys(2))
    assert not np.array_equal(one.masks, other.masks) and MAX_REFERENCE >= 100


def test_too_few_records_are_refused() -> None:
    few = LabelledRecords(TRAIN.x[:9], TRAIN.y[:9])
    with pytest.raises(BadConfig, match=r"9 and 300 records leave . to audit; at least 8"):
        draw_coin_game(few, HELDOUT, 1000, 0, Keys(0))


# What the first screen says of a target's files: equal records counted, unfair files named, sound
# ones left alone.


Pair = tuple[Any, Any]


def learnable(count: int, seed: int) -> Pair:
    """Records whose labels follow from them, but for one in ten."""
    x, other = records(count, seed)
    return x, np.where(
        np.random.default_rng(seed).random(count) < 0.1, other, (x[:, 0] > 0).astype(int)
    )


TRAIN_FACTS = learnable(300, 1)
HELDOUT_FACTS = learnable(420, 2)
MODEL = LogisticRegression().fit(*TRAIN_FACTS)


def joined(*pairs: Pair) -> Pair:
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def some(pair: Pair, rows: slice) -> Pair:
    return pair[0][rows], pair[1][rows]


def run(model: Any, train: Pair, heldout: Pair, **more: Any) -> ExternalAudit:
    sets = (
        records_from_arrays("target.train", *train),
        records_from_arrays("target.heldout", *heldout),
    )
    return audit_trained_model(model, *sets, None, StatedLimit(**more), ExternalAuditSettings(), {})


def table(values: list[float]) -> LabelledRecords:
    return LabelledRecords(
        torch.tensor(values)[:, None], torch.zeros(len(values), dtype=torch.long)
    )


def test_equal_records_are_counted_and_only_those_alone_are_audited() -> None:
    one = find_duplicates(table([0.0, 1, 1, 2, 3, 4, 5, 6]), table([3.0, 7, 8, 8, 9, -0.0]))
    assert (one.training, one.heldout, one.shared, one.single) == (1, 1, 2, True)
    assert one.inside.tolist() == [3, 5, 6, 7] and one.outside.tolist() == [1, 4]
    many = find_duplicates(table([1.0, 1, 2, 2, 3, 3, 4]), table([7.0, 8, 4, 8]))
    assert (many.training, many.single) == (3, False)
    assert many.inside.tolist() == [0, 2, 4] and many.outside.tolist() == [0, 1]
    assert find_duplicates(table([1.0, 2]), table([3.0])).inside.tolist() == [0, 1]


def labelled(values: np.ndarray, labels: np.ndarray) -> LabelledRecords:
    return LabelledRecords(torch.from_numpy(values)[:, None], torch.from_numpy(labels))


@pytest.mark.parametrize("seed", range(5))
def test_oversampling_is_said_if_copies_stand_on_one_side_alone(seed: int) -> None:
    """Of 240 records one in six is of class 1, whose 40 training records are brought to 200."""
    rng = np.random.default_rng(seed)
    values = rng.permutation(480).astype(float)
    y = (np.arange(240) % 6 == 0).astype(int)
    heldout = labelled(values[240:], y)
    rare = np.flatnonzero(y)
    rows = np.concatenate([np.arange(240), rng.choice(rare, 160)])
    times = np.bincount(rows)
    copied = int(times[times > 1].sum())

    def said(train: LabelledRecords, others: LabelledRecords) -> list[str]:
        return describe_oversampling(train, len(others), find_duplicates(train, others))

    assert said(labelled(values[:240], y), heldout) == []
    (sentence,) = said(labelled(values[:240][rows], y[rows]), heldout)
    assert sentence.startswith("Oversampled after the split")
    assert f"{copied} of 400 training records equal another one, and 0 of 240" in sentence
    assert f"alone, {copied} of them in class 1, or were removed from the held-out" in sentence
    assert f"up to {times.max()} times" in sentence
    # copied first and split then, both sides hold copies alike
    both = rng.permutation(rows)
    halves = [labelled(values[half], y[half]) for half in (both[:200], both[200:])]
    assert not any("Oversampled after" in one for one in said(*halves))
    overlap = labelled(np.concatenate([values[240:], values[:60]]), np.concatenate([y, y[:60]]))
    (sentence,) = said(labelled(values[:240], y), overlap)
    assert sentence.startswith("Members among the held-out records")
    assert "0 of 240 training records equal another one, and 60 of 300" in sentence


def test_equal_records_that_a_split_kept_together_are_no_oversampling() -> None:
    """Copies in both files at one rate, and none across."""
    train = np.repeat(np.arange(900.0), np.where(np.arange(900) < 200, 2, 1))
    heldout = 5000 + np.repeat(np.arange(450.0), np.where(np.arange(450) < 100, 2, 1))
    files = [labelled(values, np.zeros(len(values), int)) for values in (train, heldout)]
    (sentence,) = describe_oversampling(files[0], len(heldout), find_duplicates(*files))
    assert sentence.startswith("Equal records that the split kept together")
    assert "400 of 1100 training records equal another one, and 0 of 550" in sentence


@pytest.mark.parametrize("seed", range(5))
def test_records_of_a_coarse_table_are_no_oversampling(seed: int) -> None:
    """Drawn alike from 200 kinds, many of them more than once."""
    rng = np.random.default_rng(seed)
    y = np.zeros(500, int)
    train, heldout = (labelled(rng.integers(0, 200, 500).astype(float), y) for _ in range(2))
    repeats = find_duplicates(train, heldout)
    assert repeats.training > 200 and repeats.shared > 200
    assert describe_oversampling(train, 500, repeats) == []


def test_no_copy_of_an_audited_record_is_left_in_shadow_models() -> None:
    inside = np.repeat(np.arange(60.0), 4).tolist()
    game = draw_coin_game(table(inside), table([100.0 + k for k in range(90)]), 1000, 2, Keys(0))
    audited = set(game.records.x[game.member_mask].flatten().tolist())
    assert len(audited) == int(game.member_mask.sum()) and not audited & set(
        game.rest.x.flatten().tolist()
    )


@pytest.mark.nightly(but=["3"])
@pytest.mark.parametrize("seed", range(4))
def test_sound_files_raise_no_doubt(seed: int) -> None:
    """Whether the model remembers or not, learned or not, and where a few records of a coarse table
    are equal."""
    for model, draw in (
        (remembering, records),
        (lambda *_: forgetful, records),
        (lambda x, y, _: LogisticRegression().fit(x, y), learnable),
    ):
        train = draw(240, 10 + seed)
        heldout = draw(360, 20 + seed)
        facts = run(model(*train, 0), train, heldout).target
        assert (
            facts["doubts"] == []
            and facts["notes"] == []
            and facts["shared"] == facts["repeated"] == 0
        )
    coarse = [
        (np.round(x, 0), y) for x, y in (learnable(240, 30 + seed), learnable(360, 40 + seed))
    ]
    assert run(LogisticRegression().fit(*coarse[0]), *coarse).target["doubts"] == []


def test_held_out_records_that_were_trained_on_are_left_out_and_counted() -> None:
    heldout = joined(HELDOUT_FACTS, some(TRAIN_FACTS, slice(0, 150)))
    found = run(MODEL, TRAIN_FACTS, heldout).target
    assert found["shared"] == 150 and found["doubts"] == []
    assert found["notes"][0].startswith("150 of 570 held-out records equal a training record")
    with pytest.raises(
        BadConfig, match=r"target.heldout: each of its 300 records is in target.train too"
    ):
        run(MODEL, TRAIN_FACTS, TRAIN_FACTS)


@pytest.mark.parametrize(("count", "doubts"), [(40, 0), (200, 1)])
def test_near_copies_of_training_records_are_counted(count: int, doubts: int) -> None:
    """Saved again with another rounding: no bytes are equal."""
    again = np.round(TRAIN_FACTS[0][:count], 2), TRAIN_FACTS[1][:count]
    found = run(MODEL, TRAIN_FACTS, joined(again, HELDOUT_FACTS)).target
    assert found["shared"] == 0 and len(found["doubts"]) == doubts
    assert re.match(
        rf"{count} of {min(500, count + 420)} held-out records that were compared with 300",
        found["notes"][0],
    )


@pytest.mark.nightly(but=["train3-heldout3-can be distinguished without the target"])
@pytest.mark.parametrize(
    ("train", "heldout", "said"),
    [
        (
            HELDOUT_FACTS,
            (TRAIN_FACTS[0], MODEL.predict(TRAIN_FACTS[0])),
            "right on .* of the training records and on 100",
        ),
        (
            (TRAIN_FACTS[0], np.roll(TRAIN_FACTS[1], 1)),
            HELDOUT_FACTS,
            "are the two files exchanged, or the labels not those",
        ),
        (
            TRAIN_FACTS,
            (HELDOUT_FACTS[0], np.roll(HELDOUT_FACTS[1], 1)),
            "labels of the two files do not fit their records alike",
        ),
        (
            TRAIN_FACTS,
            (HELDOUT_FACTS[0] * 16, HELDOUT_FACTS[1]),
            "can be distinguished without the target",
        ),
    ],
)
def test_files_that_allow_no_comparison_are_named(
    tmp_path: Path, train: Pair, heldout: Pair, said: str
) -> None:
    """Then the first screen is neither calm nor does it accuse: decision, headline, terminal and
    page."""
    found = audit_model(MODEL, train=train, heldout=heldout, out=tmp_path / "run")
    assert (
        found.target is not None
        and len(found.target.doubts) == 1
        and re.search(said, found.target.doubts[0])
    )
    (one,) = decide_surfaces(found)
    assert one.kind == "undecided" and one.tone == "warn" and one.can == ()
    shown = io.StringIO()
    print_summary(found, shown, 500)
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (shown.getvalue(), page):
        assert (
            found.target.doubts[0] in text
            and "No better than guessing" not in text
            and "No leak found by" not in text
        )
        assert "better than guessing" not in text.split("What each number means")[0]
    assert page_contradictions(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("attacks", "deviations", "doubted"),
    [(1, 4.1, 0), (1, 4.4, 1), (1, -9, 0), (4, 4.4, 0), (4, 4.7, 1)],
)
def test_an_attack_below_guessing_is_a_doubt_beyond_chance_over_all_attacks(
    attacks: int, deviations: float, doubted: int
) -> None:
    """A chance of 1e-5 over all of n attacks: 4.26 standard errors of one, 4.56 of four."""
    error = 0.01
    found = [
        JudgedAttack(
            Finding(
                next(iter(Surface)),
                "loss",
                Family.MEMBERSHIP,
                next(iter(Adversary)),
                MembershipMeasures(auc=auc, auc_ci=[auc - 1.96 * error, auc + 1.96 * error]),
            )
        )
        for auc in (0.5 - deviations * error, *(0.55,) * (attacks - 1))
    ]
    assert len(_reversal_doubts(found)) == doubted


def test_copies_are_one_unit_and_get_no_bound(tmp_path: Path) -> None:
    """A histogram with the noise that a row's epsilon of 1 needs, of records that stand eight times
    each: its epsilon holds."""
    copies = 8
    universe = 1500
    rng = np.random.default_rng(5)
    grid = rng.normal(size=(universe, 6))
    ids = rng.permutation(universe)
    rows = np.repeat(ids[:200], copies)
    outside = ids[200:900]
    counts = np.bincount(rows, minlength=universe) + rng.laplace(0, 2, universe)
    place = {grid[i].tobytes(): i for i in range(universe)}

    def model(x: Any) -> Any:
        at = np.array([place.get(np.asarray(row, np.float64).tobytes(), -1) for row in x])
        c = np.where(at >= 0, counts[at], 0.0) * np.where(np.asarray(x)[:, 0] > 0, 1, -1)
        return np.stack([-c, c], 1) / 2

    label = (grid[:, 0] > 0).astype(int)
    found = audit_model(
        model,
        train=(grid[rows], label[rows]),
        heldout=(grid[outside], label[outside]),
        stated={"epsilon": 1.0},
        out=tmp_path / "run",
    )
    assert (
        found.verdict == "unprotected" and found.target is not None and found.target.copies_together
    )
    assert found.target.repeated == 1400 and "no bound on ε is given" in found.target.notes[0]
    (loss,) = [row for row in found.findings if row.attack == "loss_threshold"]
    assert loss.auc is not None and loss.auc > 0.9 and loss.epsilon_shown is None
    assert verify_run(tmp_path / "run").disagreements == ()


def test_a_targets_page_speaks_of_what_was_brought(tmp_path: Path) -> None:
    audit_model(MODEL, train=TRAIN_FACTS, heldout=HELDOUT_FACTS, out=tmp_path / "run", name="mine")
    page = (tmp_path / "run" / "report.html").read_text()
    text = re.sub(r"<style.*?</style>|<svg.*?</svg>", " ", page, flags=re.S)
    for wrong in (
        "<dt>clients",
        "<dt>rounds",
        "<dt>preset",
        "Global model",
        "left a client",
        "What was sent",
        "method's paper",
    ):
        assert wrong not in text, wrong
    for right in (
        "Trained model",
        "External target",
        "<dt>model</dt><dd>mine",
        "<dt>training records</dt><dd>300",
        "on its training records",
    ):
        assert right in text, right
    assert page_contradictions(tmp_path / "run") == []
    found = load_run(tmp_path / "run").findings
    values = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    again = Findings.model_validate(values)
    assert again.model_dump(mode="json", by_alias=True, exclude_none=True) == values


def test_an_attack_that_cannot_run_leaves_itself_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 25 held-out records nothing is left for a regression; the others are judged all the
    same."""
    found = run(MODEL, TRAIN_FACTS, some(HELDOUT_FACTS, slice(0, 25)))
    rows = {one.finding.attack: one.finding.measures.to_row() for one in found.judged}
    assert rows["loss_threshold"]["auc"] > 0
    monkeypatch.setattr(QuantileRegression, "score", lambda *_: 1 / 0)
    rows = {
        one.finding.attack: one.finding.measures.to_row()
        for one in run(MODEL, TRAIN_FACTS, HELDOUT_FACTS).judged
    }
    assert (
        rows["quantile_regression"]["status"] == "not_attacked"
        and rows["loss_threshold"]["auc"] > 0
    )
    assert (
        "not attacked: it could not run (division by zero)" in rows["quantile_regression"]["note"]
    )


def test_facts_are_those_of_the_schema() -> None:
    sets = records_from_arrays("a", *TRAIN_FACTS), records_from_arrays("b", *HELDOUT_FACTS)
    game = draw_coin_game(*sets, 100, 0, Keys(0))
    facts = target_facts("updates", *sets, game, [], None, ["a note"])
    assert (
        facts["notes"] == ["a note"]
        and facts["training"] == 300
        and "accuracy_training" not in facts
    )
