"""Tests of ``privdd.reporting.frontier``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privdd.reporting.compared_settings import Setting, group_runs
from privdd.reporting.comparison import plot_frontier, write_comparison
from privdd.reporting.figures.frontier_marks import FrontierPoint, draw_frontier
from privdd.reporting.frontier import frontier_places, public_data_of, trust_of_config
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import validate_findings
from tests.reporting.fixture import write_run
from tests.reporting.test_decision import row
from tests.reporting.test_decision import run as released

# Who is beaten on equal terms: by epsilon and accuracy, and never by a setting that trusts or knows
# more.


ALEXNET = {"rows": {"extractor": {"_target_": "privdd.distillation.alexnet.AlexNet"}}}


def setting_frontier(
    label: str, epsilon: float, *accuracies: float, trust: str = "local", **more: Any
) -> Setting:
    terms = {"delta": 1e-5, "unit": "record", "relation": "add_remove"} | more
    bound = SimpleNamespace(proven=epsilon, shown=more.get("shown"))
    privacy = SimpleNamespace(
        epsilon=bound, delta=terms["delta"], unit=terms["unit"], relation=terms["relation"]
    )
    config = {
        "trust": {"name": trust},
        "algo": more.get("algo", {}),
        "partition": {"clients": more.get("clients", 3)},
    }
    runs = [
        SimpleNamespace(
            config=config,
            findings=SimpleNamespace(
                run=SimpleNamespace(data="digits"),
                privacy=privacy,
                utility=SimpleNamespace(
                    accuracy=a, diverged=None, accuracy_kind=more.get("kind", "global")
                ),
                findings=[],
            ),
        )
        for a in accuracies
    ]
    return Setting(label, label, (), tuple(runs))  # type: ignore[arg-type]


def beaten(*made: Setting) -> dict[str, str]:
    return {p.setting.label: p.dominated for p in frontier_places(made)}


def test_less_accuracy_at_no_less_epsilon_is_beaten() -> None:
    assert beaten(
        setting_frontier("a", 1.0, 0.8),
        setting_frontier("b", 3.0, 0.7),
        setting_frontier("c", 3.0, 0.9),
    ) == {"a": "", "b": "c", "c": ""}


@pytest.mark.parametrize(
    "other",
    [
        {"trust": "secagg"},
        {"algo": ALEXNET},
        {"unit": "client"},
        {"relation": "zero_out"},
        {"delta": 1e-6},
        {"clients": 10},
        {"kind": "personal"},
    ],
    ids=str,
)
def test_a_setting_on_other_terms_beats_nobody(other: dict[str, Any]) -> None:
    assert (
        beaten(setting_frontier("weak", 3.0, 0.7), setting_frontier("strong", 1.0, 0.9, **other))[
            "weak"
        ]
        == ""
    )


def test_nothing_dominates_without_a_finite_epsilon() -> None:
    bare = (
        setting_frontier("weak", float("inf"), 0.7),
        setting_frontier("strong", float("inf"), 0.9),
    )
    assert beaten(*bare) == {"weak": "", "strong": ""}
    assert beaten(bare[0], setting_frontier("limited", 2.0, 0.8)) == {
        "weak": "limited",
        "limited": "",
    }


def test_at_equal_accuracy_the_smaller_epsilon_beats_the_larger() -> None:
    assert beaten(setting_frontier("dear", 3.0, 0.8), setting_frontier("cheap", 1.0, 0.8)) == {
        "dear": "cheap",
        "cheap": "",
    }


def test_stricter_terms_beat_laxer_ones() -> None:
    lax = setting_frontier("lax", 3.0, 0.7, trust="secagg", algo=ALEXNET)
    assert beaten(lax, setting_frontier("strict", 3.0, 0.8)) == {"lax": "strict", "strict": ""}


def test_accuracies_within_the_seeds_spread_are_equal() -> None:
    """Seeds of standard deviation 0.05, three a setting: a difference has standard error 0.05
    (2/3)^0.5 = 0.041."""
    for gap, told_apart in ((0.02, False), (0.07, False), (0.09, True)):
        close = (
            setting_frontier("one", 1.0, 0.70, 0.80, 0.75),
            setting_frontier("two", 1.0, *(a + gap for a in (0.70, 0.80, 0.75))),
        )
        assert beaten(*close) == {"one": "two" if told_apart else "", "two": ""}
    far = (
        setting_frontier("one", 1.0, 0.70, 0.71, 0.72),
        setting_frontier("two", 1.0, 0.80, 0.81, 0.82),
    )
    assert beaten(*far) == {"one": "two", "two": ""}


@pytest.mark.parametrize("asked", [True, False])
def test_a_sweep_of_epsilon_is_named_by_epsilon_and_one_of_noise_by_noise(asked: bool) -> None:
    """The noise multiplier that epsilon chose is no setting of its own."""
    runs = []
    for epsilon, noise in ((1, 11.883910915342135), (10, 1.5911376854958816)):
        privacy = {
            "epsilon": epsilon if asked else None,
            "noise_multiplier": noise,
            "mechanisms": {"a": {"noise_multiplier": noise}},
        }
        found = SimpleNamespace(
            run=SimpleNamespace(algo="dp_head", data="digits", preset="smoke", seed=0),
            privacy=SimpleNamespace(epsilon=SimpleNamespace(proven=float(epsilon))),
        )
        runs.append(SimpleNamespace(config={"privacy": privacy}, findings=found, path=Path("run")))
    labels = [one.label for one in group_runs(runs)]  # type: ignore[arg-type]
    by_noise = [
        "dp_head noise_multiplier=1.5911376854958816",
        "dp_head noise_multiplier=11.883910915342135",
    ]
    assert labels == (["dp_head epsilon=10", "dp_head epsilon=1"] if asked else by_noise)


def test_what_is_read_from_a_stored_config() -> None:
    assert (trust_of_config({}), trust_of_config({"trust": {"name": "secagg"}})) == (
        "local",
        "secagg",
    )
    assert (
        public_data_of({"algo": ALEXNET}) == "ImageNet (AlexNet's weights)"
        and public_data_of({"algo": {"lr": 1}}) == ""
    )
    assert public_data_of({}) == ""


def test_the_page_and_its_csv_say_who_is_beaten(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(z), algo="fedfed_dp", kind="consistent", noise=z, seed=0)
        for z in (0.5, 2.0)
    ]
    page = write_comparison(runs, tmp_path / "out")
    assert "Beaten by" in page.read_text(encoding="utf-8")
    head = (tmp_path / "out" / "frontier.csv").read_text(encoding="utf-8").splitlines()[0]
    assert head.endswith("trust,public_data,dominated_by,accuracy_kind")


def test_a_setting_of_one_seed_is_said_to_have_one() -> None:
    said = {
        p.setting.label: p.beaten_by
        for p in frontier_places(
            [
                setting_frontier("a", 1.0, 0.8),
                setting_frontier("b", 3.0, 0.7),
                setting_frontier("c", 3.0, 0.6, 0.61),
            ]
        )
    }
    assert said == {"a": "", "b": "a (one seed)", "c": "a"}


# Several seeds as one setting: the cautious epsilon, the median attack, and no rate that the sample
# cannot show.


def rates(small: float, large: float, *, resolvable: bool = True) -> dict[str, Any]:
    """At 1 and at 10 false alarms in 1 000; only the first may be too small a rate for the
    sample."""
    return {
        "0.001": {"tpr": small, "ci": [small - 0.01, small + 0.01], "resolvable": resolvable},
        "0.01": {"tpr": large, "ci": [large - 0.01, large + 0.01], "resolvable": True},
    }


def record(
    seed: int,
    pld: Any = 2.0,
    rdp: Any = 3.0,
    claims: Sequence[Any] = (),
    found: tuple[dict[str, Any], ...] = (),
    **privacy: Any,
) -> RunRecord:
    """A run that released features, and its attacks with these rates (``rates``)."""
    attacks = [
        row(one, epsilon_shown=0.25 + seed, epsilon_validity="finite_sample") for one in found
    ]
    data = released(attacks, "consistent", pld).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    data["run"]["seed"] = seed
    said = [
        one
        if isinstance(one, dict)
        else {"source": "s", "epsilon": one, "sound": False, "why": "w"}
        for one in claims
    ]
    data["privacy"] |= {"epsilon": {"pld": pld, "rdp": rdp}, "claims": said, **privacy}
    data["utility"] = {
        "accuracy": 0.5 + seed / 10,
        "accuracy_kind": "global",
        "uploaded_bytes_per_client": 800 + seed,
    }
    return RunRecord(Path(str(seed)), validate_findings(data), config={"privacy": {"noise": 1}})


def setting(*runs: RunRecord, label: str = "m z=1") -> Setting:
    return Setting(label, label.split()[0], (("z", "1"),), runs)


def test_of_several_seeds_the_cautious_number_counts() -> None:
    """Seeds can change the data's split, and with it the sampling rate and the epsilon."""
    made = setting(record(0, 1.0, 1.5, (0.7,)), record(1, 2.0, 2.5, (0.4, 0.9)))
    assert (made.epsilon, made.epsilon_rdp, made.claim, made.uploaded) == (2.0, 2.5, 0.4, 801)


def test_a_claim_at_a_larger_delta_does_not_stand_beside_the_run_s() -> None:
    claims = [
        {"source": "s", "epsilon": number, "sound": False, "why": "w", "delta": delta}
        for number, delta in ((0.3, 1e-4), (0.8, 1e-6))
    ]
    assert (
        setting(record(0, claims=claims)).claim == 0.8
        and setting(record(0, claims=claims[:1])).claim is None
    )


def test_the_rate_of_a_setting_is_the_strongest_attack_of_the_seed_in_the_middle() -> None:
    seeds = [
        record(at, found=(rates(tpr, 0.9), rates(0.05, 0.1)))
        for at, tpr in enumerate((0.3, 0.1, 0.2))
    ]
    at = setting(*seeds).tpr("0.001")
    assert at is not None and at.tpr == 0.2


def test_a_rate_that_the_sample_cannot_show_is_none() -> None:
    hidden = record(0, found=(rates(0.9, 0.5, resolvable=False),))
    assert setting(hidden).tpr("0.001") is None
    beside = setting(record(0, found=(rates(0.9, 0.5, resolvable=False), rates(0.2, 0.4)))).tpr(
        "0.001"
    )
    assert beside is not None and beside.tpr == 0.2


def test_the_frontier_says_its_terms_and_the_figures_of_others_on_the_same_data() -> None:
    def drawn(data: str, **more: Any) -> Any:
        made = setting_frontier("m", 1.0, 0.8, **more)
        for run in made.runs:
            run.findings.run.data = data
            run.findings.utility.accuracy_kind, run.findings.privacy.claims = "global", []
        return plot_frontier([made])

    beside = drawn("fashion_mnist", trust="secagg", algo=ALEXNET)
    assert (
        ", sums only, public: ImageNet (AlexNet's weights); published, scattering features"
        in beside.alt
    )
    assert (
        "not run here (model: scattering features and a linear head (Tramèr and Boneh, "
        "ICLR 2021); data set: DPDM" in beside.caption
    )
    assert drawn("digits").alt == "m: epsilon 1, accuracy 80\u00a0%."


def test_no_note_covers_another() -> None:
    """Five settings at almost the same place, whose notes would lie over each other."""
    points = [
        FrontierPoint("m", 2 + step / 50, (0.8,), note=f"σ = {1 + step / 10:.1f}")
        for step in range(5)
    ]
    figure = draw_frontier(points)
    figure.draw_without_rendering()
    extents = [note.get_window_extent() for note in figure.axes[0].texts]
    assert len(extents) == 5
    for index, extent in enumerate(extents):
        assert extent.count_overlaps(extents[:index]) == 0
    for note in figure.axes[0].texts:  # as they stood before
        note.set_position((0, 9))
    together = [note.get_window_extent() for note in figure.axes[0].texts]
    assert together[0].count_overlaps(together[1:]) == 4


def test_the_two_ends_of_a_setting_are_drawn_alike_and_what_surrounds_them_is_larger() -> None:
    """A point's mark at its proven epsilon is as large as the triangle at the shown one: neither
    end counts for more. What is drawn around or over the mark must not vanish behind it."""
    point = FrontierPoint("m", 3.0, (0.8,), shown=1.0, claim=3.0, public=True, trusted=True)
    axes = draw_frontier([point]).axes[0]
    own = axes.containers[0].lines[0].get_markersize()
    sizes = {}
    for line in axes.lines:
        if line.get_marker() in (">", "s", "D") or line.get_fillstyle() == "left":
            sizes[line.get_marker()] = line.get_markersize()
    shown = sizes.pop(">")
    assert own == shown
    assert len(sizes) == 3 and min(sizes.values()) > own
