"""Models that someone else trained: a model that remembers is found, one that cannot is not, and
neither is over-stated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from privdd.api import audit_model, audit_synthetic, load_run
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.membership_game import FILES_DIFFER_NOTE, draw_coin_game, most_exposed_rows
from privdd.external.records import records_from_arrays
from privdd.external.run_folder import UNPROTECTED_REASON, StatedLimit
from privdd.external.shadow_models import call_user_function, shadow_outputs
from privdd.external.trained_model import (
    ExternalAuditSettings,
    audit_trained_model,
    noised_robustness,
)
from privdd.privacy.ledger import Ledger
from privdd.reporting.schema import FindingRow, Findings
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import read_tensors
from privdd.runtime.seal import seal_folder
from privdd.verification.run_folder import verify_run
from tests.external.memory import forgetful, records, remembering

TRAIN = records(240, 1)
HELDOUT = records(360, 2)


def row(found: Findings, attack: str) -> FindingRow:
    return next(one for one in found.findings if one.attack == attack)


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that remembers, audited with shadow models and a stated epsilon that it breaks."""
    folder = tmp_path_factory.mktemp("target") / "run"
    model = remembering(*TRAIN, 0)
    audit_model(
        model,
        train=TRAIN,
        heldout=HELDOUT,
        fit=remembering,
        shadows=6,
        stated={"epsilon": 0.5},
        out=folder,
    )
    return folder


def test_a_model_that_remembers_is_found(remembered: Path) -> None:
    found = load_run(remembered).findings
    for attack in ("loss_threshold", "quantile_regression", "lira", "rmia", "base"):
        assert row(found, attack).auc_ci[0] > 0.8, attack  # type: ignore[index]
    assert row(found, "label_only").auc_ci[0] > 0.6  # type: ignore[index]
    assert found.verdict == "contradiction" and found.privacy.epsilon.pld == np.inf
    assert found.privacy.relation == "replace" and found.privacy.claims[0].number == 0.5
    assert 0.35 < row(found, "rmia").blind_auc < 0.65  # type: ignore[operator]


def test_the_numbers_are_those_of_the_target_and_its_coins(remembered: Path) -> None:
    """AUC against scikit-learn's, on the evidence; the members are records of the training file, at
    the places given."""
    found = load_run(remembered).findings
    kept = read_tensors(remembered / "evidence" / "global_model.rmia.safetensors")
    assert row(found, "rmia").auc == pytest.approx(roc_auc_score(kept["members"], kept["scores"]))
    game = draw_coin_game(
        records_from_arrays("a", *TRAIN),
        records_from_arrays("b", *HELDOUT),
        10_000,
        6,
        Keys(0).fold("target"),
    )
    member = kept["members"].bool()
    assert torch.equal(member, game.member_mask)
    assert np.array_equal(TRAIN[0][kept["place"][member]], game.records.x[member].numpy())
    named = row(found, "rmia").diagnostics["most_exposed"]  # type: ignore[index]
    scores = dict(zip(kept["place"][member].tolist(), kept["scores"][member].tolist()))
    assert named == sorted(scores, key=lambda place: -scores[place])[:10]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_of_other_records_is_not_accused(seed: int) -> None:
    """Trained on neither file: every AUC interval at 99.9 % holds one half, and no bound reaches
    the statement."""
    settings = ExternalAuditSettings(seed=seed, shadows=6)
    stated = StatedLimit(0.5)
    train = records_from_arrays("a", *TRAIN)
    out = records_from_arrays("b", *HELDOUT)
    found = audit_trained_model(
        remembering(*records(240, 3), 0), train, out, remembering, stated, settings, {}
    )
    assert len(found.judged) == 6
    for one in found.judged:
        low, high = one.finding.measures.auc_ci
        assert abs(one.finding.measures.auc - 0.5) < (high - low) / 2 * 1.7, one.finding.attack
        assert one.finding.diagnostics["epsilon_familywise"] < 0.5


def test_sets_that_differ_by_themselves_give_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out records from elsewhere: any model would seem to leak, so nothing is held against the
    statement."""
    # other tests draw pages
    monkeypatch.setattr("privdd.external.run_folder.write_report", lambda path: path)
    found = audit_model(
        forgetful,
        train=TRAIN,
        heldout=records(360, 2, 1.5),
        stated={"epsilon": 0.5},
        out=tmp_path / "run",
    )
    one = row(found, "loss_threshold")
    assert one.blind_auc is not None and one.blind_auc > 0.9
    assert one.epsilon_shown is None and FILES_DIFFER_NOTE in str(one.note)
    assert found.verdict == "unprotected"
    assert verify_run(tmp_path / "run").disagreements == ()


def test_without_a_training_function_the_rows_say_what_was_not_tried() -> None:
    found = audit_trained_model(
        forgetful,
        records_from_arrays("a", *TRAIN),
        records_from_arrays("b", *HELDOUT),
        None,
        StatedLimit(),
        ExternalAuditSettings(),
        {},
    )
    rows = {one.finding.attack: one.finding.measures.to_row() for one in found.judged}
    for attack in ("lira", "rmia", "base"):
        assert rows[attack]["status"] == "not_attacked" and "auc" not in rows[attack]
        assert "needs a training function" in rows[attack]["note"]


@pytest.mark.nightly
def test_the_folder_verifies_and_refuses_edits(remembered: Path, tmp_path: Path) -> None:
    assert (
        verify_run(remembered).disagreements == ()
        and load_run(remembered).findings.run.algo == "model"
    )
    ledger = Ledger.from_json(json.loads((remembered / "ledger.json").read_text()))
    assert [r.nonprivate_reason for r in ledger.releases] == [UNPROTECTED_REASON]
    for sealed in (False, True):
        copy = Path(shutil.copytree(remembered, tmp_path / f"copy{sealed}"))
        text = json.loads((copy / "findings.json").read_text())
        text["findings"][0]["auc"] = 0.5
        (copy / "findings.json").write_text(json.dumps(text))
        if sealed:
            seal_folder(copy)
        assert any(
            "auc" in str(one) or "sha256" in str(one) for one in verify_run(copy).disagreements
        )
        with pytest.raises(DamagedRun):
            load_run(copy)


def test_a_tree_of_scikit_learn_is_audited_as_it_is() -> None:
    tree = DecisionTreeClassifier(random_state=0).fit(*TRAIN)
    found = audit_trained_model(
        tree,
        records_from_arrays("a", *TRAIN),
        records_from_arrays("b", *HELDOUT),
        None,
        StatedLimit(),
        ExternalAuditSettings(),
        {},
    )
    (loss,) = [one.finding for one in found.judged if one.finding.attack == "loss_threshold"]
    assert loss.measures.auc > 0.75 and found.accuracy == pytest.approx(tree.score(*HELDOUT))


def test_shadow_models_get_their_world_and_their_seed() -> None:
    train = records_from_arrays("a", *TRAIN)
    out = records_from_arrays("b", *HELDOUT)
    game = draw_coin_game(train, out, 40, 3, Keys(5))
    asked: list[tuple[np.ndarray, int]] = []

    def fit(x: np.ndarray, y: np.ndarray, seed: int) -> object:
        asked.append((x, seed))
        return remembering(x, y, seed)

    from privdd.runtime.engine import Engine

    questions = torch.cat([game.records.x, game.reference.x])
    found, drew = shadow_outputs(fit, "fit", game, questions, np.arange(3), Keys(5), Engine())
    assert found.shape == (3, 40 + len(game.reference), 3) and not drew
    for world, (x, seed) in enumerate(asked, 1):
        assert len(x) == len(game.rest) + int(game.masks[world].sum())
        assert seed == Keys(5).fold("shadow", world).integer() % (2**31 - 1)
    assert len({seed for _, seed in asked}) == 3


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "findings.json").touch()
    asked: list[int] = []
    for audit, given, how in (
        (audit_model, forgetful, "fit"),
        (audit_synthetic, TRAIN, "generator"),
    ):
        with pytest.raises(BadConfig, match=r"holds files of something else \(findings.json\)"):
            audit(
                given,
                train=TRAIN,
                heldout=HELDOUT,
                out=tmp_path,
                **{how: lambda x, y, seed: asked.append(seed)},
            )
    assert asked == []


def test_a_training_function_is_watched() -> None:
    """One that draws from the global generator is told from one that does not; whatever it raises
    is one line."""
    one = records_from_arrays("a", *TRAIN)
    assert call_user_function(lambda x, y, seed: torch.rand(1), "fit", one, 0)[1]
    assert not call_user_function(lambda x, y, seed: 1, "fit", one, 0)[1]
    with pytest.raises(BadConfig, match=r"fit: failed on 240 records: KeyError: 'a'") as caught:
        call_user_function(lambda x, y, seed: {}["a"], "fit", one, 0)
    assert "\n" not in str(caught.value)


def test_label_queries_ask_of_noised_copies() -> None:
    """A label that follows the sign of one coordinate: a record far from zero keeps it, one at zero
    is a coin."""
    x = torch.tensor([[30.0, 0.0], [0.0, 0.0], [-30.0, 1.0], [0.01, -1.0]] * 30)
    y = (x[:, 0] > 0).long()
    kept = noised_robustness(
        lambda v: (v[:, 0] > 0).long(), x, y, 8, torch.Generator().manual_seed(0)
    )
    assert (kept[0::4] == 1).all() and (kept[2::4] == 1).all()
    assert ((kept[1::4] > 0.2) & (kept[1::4] < 0.8)).all()


def test_only_members_are_called_exposed() -> None:
    scores = torch.tensor([5.0, 9.0, 7.0, 1.0])
    member = torch.tensor([True, False, True, True])
    assert most_exposed_rows(scores, member, torch.tensor([10, 11, 12, 13])) == [12, 10, 13]


def blurred(x: np.ndarray, seed: int) -> np.ndarray:
    """Each record with noise of its own, as a training that augments sees it."""
    return x + np.random.default_rng(seed).normal(size=x.shape).astype(x.dtype)


def test_queries_are_the_record_and_copies_under_the_training_s_transform(tmp_path: Path) -> None:
    """Each shadow model and the target are asked about the same copies; the first query is the
    record itself."""
    asked: list[np.ndarray] = []

    class Listener(DecisionTreeClassifier):
        def predict_proba(self, x):
            asked.append(np.asarray(x))
            return super().predict_proba(x)

    def fit(x, y, seed):
        return Listener(random_state=seed).fit(x, y)

    audit = dict(
        train=TRAIN, heldout=HELDOUT, fit=fit, shadows=4, records=40, transform=blurred, queries=5
    )
    found = audit_model(fit(*TRAIN, 0), **audit, out=tmp_path / "run")
    assert any("4 copies" in note for note in found.target.notes)  # type: ignore[union-attr]
    count = row(found, "lira").n
    assert count is not None
    lengths = [len(part) for part in asked]
    # the target and 4 others
    each = [part for part in asked if len(part) > 5 * count and lengths.count(len(part)) == 5]
    assert len(each) == 5 and all(np.array_equal(part, each[0]) for part in each)
    own = each[0][:count]
    copies = each[0][-4 * count :].reshape(4, count, -1)
    assert all(0.5 < np.abs(copy - own).mean() < 1.2 for copy in copies)  # mean of |N(0, 1)| is .8
    with pytest.raises(ValueError, match=r"target.transform: gives \(1,"):
        audit_model(
            fit(*TRAIN, 0), **{**audit, "transform": lambda x, seed: x[:1]}, out=tmp_path / "short"
        )
    with pytest.raises(ValueError, match=r"target.transform: failed on .* KeyError"):
        audit_model(
            fit(*TRAIN, 0),
            **{**audit, "transform": lambda x, seed: {}["a"]},
            out=tmp_path / "failing",
        )
