"""Bring-your-own files and the self-test of the bounds."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from attacks.external_scores import audit_scores, describe_arrays, load_scores
from attacks.selftest import CoverageRow, main, run_selftest


def arrays(kind, seed=0, gap=2.0):
    rng = np.random.default_rng(seed)
    masks = rng.random((16, 60)) < 0.5
    labels = rng.integers(0, 4, 60)
    logits = rng.normal(size=(16, 60, 4))
    logits[:, np.arange(60), labels] += gap * masks
    return {
        "scores": {"scores": gap * masks[0] + rng.normal(size=60), "member": masks[0]},
        "signals": {"signals": gap * masks + rng.normal(size=masks.shape), "masks": masks},
        "logits": {"logits": logits, "labels": labels, "masks": masks},
    }[kind]


def save(folder, content):
    path = folder / "file.npz"
    np.savez(path, **content)
    return path


@pytest.mark.parametrize(("kind", "attacks"), [("scores", 1), ("signals", 5), ("logits", 6)])
def test_each_kind_of_file_gives_findings(tmp_path, kind, attacks):
    content = arrays(kind)
    findings = audit_scores(save(tmp_path, content))
    assert len(findings) == attacks and len({f.attack for f in findings}) == attacks
    for finding in findings:
        low, high = finding.measures.auc_ci
        assert 0.5 < low <= finding.measures.auc <= high
        assert (
            finding.measures.blind_auc is None
            and finding.measures.epsilon_validity == "finite_sample"
        )
    if kind == "scores":
        assert findings[0].measures.auc == pytest.approx(
            roc_auc_score(content["member"], content["scores"])
        )


@pytest.mark.parametrize("axis", [0, 1], ids=["the same in every model", "one number a model"])
def test_signals_that_say_nothing_get_no_rate(tmp_path, axis):
    content = arrays("signals")
    content["signals"] = np.broadcast_to(
        content["signals"].mean(axis, keepdims=True), content["masks"].shape
    ).copy()
    for finding in audit_scores(save(tmp_path, content)):
        assert finding.measures.status == "nothing_to_read" and finding.measures.auc is None


def test_a_blind_control_is_reported_when_brought(tmp_path):
    content = arrays("scores")
    content["blind"] = np.random.default_rng(1).normal(size=60)
    measures = audit_scores(save(tmp_path, content))[0].measures.to_row()
    assert measures["blind_auc"] == pytest.approx(
        roc_auc_score(content["member"], content["blind"])
    )


def test_no_epsilon_where_the_coins_were_not_fair(tmp_path):
    member = np.arange(200) < 150
    measures = audit_scores(save(tmp_path, {"scores": member + 0.0, "member": member}))[
        0
    ].measures.to_row()
    assert measures["auc"] == 1.0 and "epsilon_shown" not in measures


def test_same_file_same_findings(tmp_path):
    path = save(tmp_path, arrays("logits"))
    assert [f.measures.to_row() for f in audit_scores(path)] == [
        f.measures.to_row() for f in audit_scores(path)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.full(60, np.nan)}, "NaN"),
        ({"member": np.ones(59, dtype=bool)}, "member: shape"),
        ({"member": np.full(60, 3)}, "booleans"),
        ({"member": np.array(["yes"] * 60)}, "finite numbers"),
        ({"labels": np.zeros(3)}, "labels: shape"),
        ({"score": np.zeros(60)}, "unknown arrays"),
        ({"scores": np.zeros((2, 60))}, r"shape \(2, 60\), must be \(n,\), one number for each"),
        ({"scores": np.zeros(0)}, r"shape \(0,\), must be \(n,\), one number for each"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_scores(save(tmp_path, {**arrays("scores"), **change}))


def test_bare_scores_come_from_a_csv_as_from_an_npz(tmp_path):
    content = arrays("scores")
    lines = [
        f"{int(inside)},{score!r}"
        for score, inside in zip(content["scores"].tolist(), content["member"])
    ]
    table = tmp_path / "scores.csv"
    table.write_text("member, scores\n" + "\n".join(lines) + "\n")
    mine = audit_scores(table)[0].measures.to_row()
    theirs = audit_scores(save(tmp_path, content))[0].measures.to_row()
    assert mine == theirs
    table.write_text("member,scores\nTrue,1.5\nfalse,-2\n")
    assert load_scores(table)["member"].tolist() == [1, 0]
    for text, said in {
        "": "not a readable .csv .it is empty.",
        "1,0.5\n": "holds columns",
        "scores,member\n1,1\nx,0\n": "record 1 .* is 'x,0'",
        "scores,member\n1\n": "record 0",
        "scores,member\nnan,1\n": "NaN",
        "scores,member,extra\n1,1,1\n": "holds columns",
    }.items():
        table.write_text(text)
        with pytest.raises(ValueError, match=said) as caught:
            load_scores(table)
        assert "\n" not in str(caught.value)


def test_more_models_than_records_are_asked_about(tmp_path):
    """Records by models is the usual mistake: 200 records of 17 models, the wrong way round."""
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(200, 17))
    masks = rng.random((200, 17)) < 0.5
    with pytest.raises(
        ValueError,
        match=r"200 models and 17 records, more models than records; .* signals.T and masks.T",
    ):
        load_scores(save(tmp_path, {"signals": signals, "masks": masks}))
    turned = load_scores(save(tmp_path, {"signals": signals.T, "masks": masks.T}))
    assert describe_arrays(turned) == (
        "Read as signals of 17 models (rows, the audited one first) for 200 records (columns)."
    )
    meant = load_scores(
        save(tmp_path, {"signals": signals, "masks": masks, "labels": np.zeros(17, int)})
    )
    assert meant["signals"].shape == (200, 17)


def test_wrong_files_are_refused(tmp_path):
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    objects = save(tmp_path, {"scores": np.array([{}] * 3, dtype=object), "member": np.ones(3)})
    for path in (tmp_path / "absent.npz", text, objects):
        with pytest.raises(ValueError, match=r"not a readable \.npz"):
            load_scores(path)
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    with pytest.raises(ValueError, match=r"not a readable \.npz"):
        load_scores(single)
    with pytest.raises(ValueError, match="needed is one of"):
        load_scores(save(tmp_path, {"scores": np.zeros(3)}))
    with pytest.raises(ValueError, match="labels: whole numbers"):
        load_scores(save(tmp_path, {**arrays("logits"), "labels": np.full(60, 9)}))


def test_selftest_shows_valid_bounds_holding_and_the_gaussian_one_failing(capsys):
    assert main(["--runs", "1", "--trials", "60"]) == 0
    printed = capsys.readouterr().out
    assert "Clopper-Pearson, split" in printed and "above truth" in printed
    rows = {(row.mechanism, row.estimator): row for row in run_selftest(8, 600, seed=3)}
    assert not any(row.exceeds_level for row in rows.values() if row.validity == "finite_sample")
    assert rows["Laplace", "Gaussian-DP, fixed"].above >= 6
    assert rows["null", "Bayesian, split"].above == 8
    assert rows["Gaussian", "one run, corrected"].mean > 0.8


def test_a_bound_that_exceeds_its_level_would_be_seen():
    assert CoverageRow("null", 0.0, "x", "finite_sample", 30, 200, 0.1).exceeds_level
    assert not CoverageRow("null", 0.0, "x", "finite_sample", 12, 200, 0.1).exceeds_level
    with pytest.raises(ValueError, match="runs=0"):
        run_selftest(0, 100)
