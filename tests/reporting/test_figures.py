"""The drawn ROC against scikit-learn and against closed forms; pictures against scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from privdd.core.rng import Keys
from privdd.reporting.figures.image_pairs import psnr_of_arrays
from privdd.reporting.figures.roc_curves import RocLine, draw_roc, step_curve
from tests.reporting.fixture import scores


def drawn(figure: Figure, label: str) -> tuple[np.ndarray, np.ndarray]:
    line = next(line for line in figure.axes[0].lines if line.get_label() == label)
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


@pytest.mark.parametrize("ties", [False, True])
def test_every_drawn_point_is_on_sklearns_curve(ties: bool) -> None:
    values, members, _ = scores(0, 1.2)
    values = np.round(values, 1) if ties else values
    found = step_curve(values, members)
    fpr, tpr, _ = roc_curve(members, values, drop_intermediate=False)
    expected = [tpr[fpr <= x + 1e-12].max() for x in found.fpr]
    x, y = drawn(draw_roc([RocLine("attack", found)]), "attack")
    seen = x >= 1e-4
    assert np.allclose(found.tpr, expected) and np.allclose(y[seen], found.tpr[seen])
    assert np.isclose(found.auc, roc_auc_score(members, values))


def test_a_curve_is_never_above_the_exact_one_between_points() -> None:
    """Steps after each point: at any rate in between, the drawn height is attained at a smaller
    rate."""
    values, members, _ = scores(1, 1.0)
    found = step_curve(values, members, points=12)
    fpr, tpr, _ = roc_curve(members, values, drop_intermediate=False)
    for rate in np.geomspace(1e-3, 1, 50):
        shown = found.tpr[np.searchsorted(found.fpr, rate, side="right") - 1]
        assert shown <= tpr[fpr <= rate].max() + 1e-12


def test_the_band_holds_the_truth_as_often_as_it_says() -> None:
    """Members N(1, 1), non-members N(0, 1): TPR at FPR f is Phi(1 - z(1 - f)); a band of nothing
    would miss it."""
    truth = norm.sf(norm.isf(0.1) - 1)
    hits = []
    wide = []
    for seed in range(60):
        values, members, _ = scores(seed, 1.0, 2000)
        found = step_curve(values, members, points=40)
        at = np.searchsorted(found.fpr, 0.1, side="right") - 1
        hits.append(found.lo[at] <= truth + 0.02 and truth - 0.02 <= found.hi[at])
        wide.append(found.hi[at] - found.lo[at])
    # 3.92 (TPR (1 - TPR) + slope^2 f (1 - f))^0.5 / 1000^0.5 = 0.101, the randomness of the
    # threshold included
    assert np.mean(hits) > 0.9 and max(wide) < 0.13


def test_clusters_widen_the_band() -> None:
    values, members, _ = scores(3, 1.0, 400)
    repeated = np.tile(values, 10)
    inside = np.tile(members, 10)
    label = np.tile(np.arange(400), 10)
    alone = step_curve(repeated, inside)
    grouped = step_curve(repeated, inside, clusters=(label,))
    middle = len(alone.fpr) // 2
    ratio = (grouped.hi - grouped.lo)[middle] / (alone.hi - alone.lo)[middle]
    assert 2.5 < ratio < 4  # ten copies of each score: the honest band is sqrt(10) times as wide


def test_the_mark_stands_at_one_non_member_and_the_control_is_drawn() -> None:
    values, members, blind = scores(0, 1.0)
    figure = draw_roc([RocLine("attack", step_curve(values, members), step_curve(blind, members))])
    upright = [line for line in figure.axes[0].lines if len(set(line.get_xdata())) == 1]
    assert [float(line.get_xdata()[0]) for line in upright] == [1 / 2000]
    assert len(drawn(figure, "blind control")[0]) > 10
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_psnr_agrees_with_scikit_image() -> None:
    import skimage.metrics as skimage

    rng = Keys(0).fold("pictures").numpy()
    a, b = rng.uniform(size=(2, 4, 3, 8, 8))
    expected = [
        skimage.peak_signal_noise_ratio(x, y, data_range=1) for x, y in zip(a, b, strict=True)
    ]
    assert np.allclose(psnr_of_arrays(a, b), expected) and (psnr_of_arrays(a, a) == 200).all()
