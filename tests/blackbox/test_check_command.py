"""``python -m privdd.check``: its arguments, exit status and files; conditions and declared
noise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privdd.auditing.method_contract import BrokenContract
from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.check_arguments import check_request
from privdd.blackbox.check_command import CHECK
from privdd.blackbox.check_report import CheckReport, SingleTestResult
from privdd.blackbox.check_verdict import KEEPS, Checked, conclude_check
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.declarations import check_declared_batches, check_declared_noise
from privdd.blackbox.identification_games import find_noiseless_number
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.low_bits import check_low_bits
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.pair_screening import screen_pairs
from privdd.blackbox.stages.conditions import check_nonfinite_inputs
from privdd.blackbox.target import guess_kind, load_target, make_plugin, make_target
from privdd.check import main
from privdd.core.validation import BadConfig
from privdd.integrations.component_rows import ROWS
from privdd.integrations.components import (
    checked_cells,
    format_component_page,
    known_cells,
    missing_cells,
)
from privdd.reporting.export import write_markdown_page

RNG = np.random.default_rng(20)
CODE = """
import numpy as np
RNG = np.random.default_rng({seed})
def release(x, std={std}):
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return x.sum(0) + RNG.normal(0, std, x.shape[1])
"""


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Statistical tests at one in a thousand repeat themselves, in any order."""
    RNG.bit_generator.state = np.random.default_rng(20).bit_generator.state


FEW = ("kind=records", "max_calls=30000", "input.rows=[4,3]")


def written(folder: Path, **values: object) -> str:
    (folder / "mine.py").write_text(CODE.format(**{"seed": "", "std": 5.0, **values}))
    return f"mechanism={folder / 'mine.py'}:release"


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("stated.epsilom=1", "did you mean stated.epsilon"),
        ("kind", "KEY=VALUE"),
        ("relation=swap", "allowed are add_remove, replace, zero_out"),
        ("calls=0.5", "a whole number"),
        ("stated.epsilon=x", "a number is needed"),
        ("input.rows=3", "are of this form"),
        ("confidence=2", "confidence in"),
        ("calls=1e999", "a finite number"),
        ("seed=-1", "from 0"),
        ("input.clients=1e999", "are of this form"),
        ("input.rows=[1,3]", "no neighbours"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    argument: str, says: str, tmp_path: Path, capsys
) -> None:
    extra = [] if argument.startswith("stated.epsilon=") else ["stated.epsilon=1", "stated.delta=0"]
    assert main([written(tmp_path), argument, *extra]) == 1
    err = capsys.readouterr().err
    assert says in err.splitlines()[-1]


@pytest.mark.nightly
def test_exit_status_says_refuted_or_not_and_a_seed_is_seen_across_processes(
    tmp_path: Path, capsys
) -> None:
    assert main([written(tmp_path), "stated.epsilon=1", "stated.delta=1e-5", *FEW]) == 0
    assert (
        main(
            [
                written(tmp_path),
                "stated.epsilon=1",
                "stated.delta=1e-5",
                "args.std=1",
                f"out={tmp_path / 'o'}",
                *FEW,
            ]
        )
        == 2
    )
    assert (
        "REFUTED" in capsys.readouterr().out
        and "args.std=1" in (tmp_path / "o" / "check.html").read_text()
    )
    assert main([written(tmp_path, seed=3), "stated.epsilon=1", "stated.delta=1e-5", *FEW]) == 2
    assert "two fresh starts gave the same noise" in capsys.readouterr().out


def test_names_lead_to_callables_and_arguments_to_the_statement(tmp_path: Path) -> None:
    class Made:
        def __init__(self, epsilon: float, delta: float = 0.5) -> None:
            self.said = epsilon, delta

        def __call__(self, updates, weights):
            return self.said

    make, fresh = make_target(Made, {}, {"epsilon": 3.0, "delta": 1e-5})
    assert make()([], []) == (3.0, 0.5) and fresh and guess_kind(make()) == "aggregate"
    assert guess_kind(lambda x: x) == "records" and guess_kind(lambda update: update) == "update"
    for name, says in (
        ("nothing", "package.module:Name"),
        ("math:nope", "no nope"),
        ("no.such:f", "No module"),
        ("math:pi", "called"),
    ):
        with pytest.raises(BadConfig, match=says):
            load_target(name)
    assert check_request(
        CHECK.parse(["mechanism=a:b", "args.x=[1,2]", "stated.epsilon=1"]), lambda *at: None
    ).args == {"x": [1, 2]}


def clipped(update):
    flat = np.concatenate([a.ravel() for a in update])
    return flat / max(1.0, float(np.linalg.norm(flat)))


def gaussian(std: float):
    return BlackBox(
        lambda: lambda update: clipped(update) + RNG.normal(0, std, sum(a.size for a in update)),
        "update",
    )


def test_conditions_are_told_and_nan_decides_where_it_is_stated() -> None:
    clock = CallBudget(60, 10**6)
    stated = CheckedClaim(1.0, 1e-5)
    assert [
        look.name for look in check_nonfinite_inputs(gaussian(4.0), stated, InputShapes(), clock)
    ] == ["finite inputs"]
    assert (
        check_nonfinite_inputs(
            gaussian(4.0), CheckedClaim(1.0, 1e-5, inputs="any"), InputShapes(), clock
        )
        == []
    )
    loose = BlackBox(
        lambda: (
            lambda update: [a + RNG.normal(size=np.shape(a)) * (np.ndim(a) > 0) for a in update]
        ),
        "update",
    )
    assert "scalars" in [
        look.name for look in check_nonfinite_inputs(loose, stated, InputShapes(), clock)
    ]


@pytest.mark.nightly
def test_low_bits_of_floats_tell_and_those_of_a_lattice_do_not() -> None:
    stated = CheckedClaim(1.0, 1e-5, low_bits=True)
    clock = CallBudget(60, 10**6)
    plain = gaussian(3.7)
    lattice = BlackBox(
        lambda: (
            lambda update: (
                np.trunc(clipped(update) * 2**14) / 2**14
                + np.rint(RNG.normal(0, 3.7, sum(a.size for a in update)) * 2**14) / 2**14
            )
        ),
        "update",
    )
    assert [
        look.outcome
        for m in (plain, lattice)
        for look in check_low_bits(m, stated, InputShapes(), clock, 0.999)
    ] == ["refuted", "not refuted"]
    assert (
        check_low_bits(plain, stated, InputShapes(), clock, 1 - 1e-12)[0].epsilon
        < check_low_bits(plain, stated, InputShapes(), clock, 0.9)[0].epsilon
    )


def test_low_bits_as_a_condition_leave_most_calls_to_other_looks() -> None:
    few = gaussian(3.7)
    many = gaussian(3.7)
    stated = CheckedClaim(1.0, 1e-5)
    (some,) = check_low_bits(few, stated, InputShapes(), CallBudget(60, 12_000), 1 - 1e-12)
    (all_,) = check_low_bits(many, stated, InputShapes(), CallBudget(60, 10**6), 1 - 1e-12)
    assert few.calls == 1200 < many.calls  # one pair of inputs; all of them
    assert (
        some.says.endswith("; 1 of 6 pairs of inputs were tested") and "looked at" not in all_.says
    )


def test_declared_noise_is_tested() -> None:
    clock = CallBudget(60, 10**6)
    for stated, outcomes in (
        (CheckedClaim(1.0, 1e-5, noise="gaussian", noise_std=4.0), ["not refuted", "not refuted"]),
        (CheckedClaim(1.0, 1e-5, noise="laplace", noise_std=6.0), ["refuted", "refuted"]),
        (CheckedClaim(1.0, 1e-5), []),
    ):
        assert [
            look.outcome
            for look in check_declared_noise(
                gaussian(4.0), stated, InputShapes(), clock, lambda: 0.999
            )
        ] == outcomes


def test_declared_batches_are_held_against_their_accountant() -> None:
    """Ten shuffled batches at noise multiplier 1 cost 4.34 at least and 4.38 at most; as Poisson
    samples they would cost 2.4."""
    for epsilon, outcome in ((2.4, "refuted"), (4.38, "not refuted")):
        stated = CheckedClaim(
            epsilon, 1e-5, kind="records", noise_multiplier=1.0, sampling="shuffled", batches=10
        )
        (look,) = check_declared_batches(stated)
        assert (
            look.outcome == outcome
            and 4.3 < look.epsilon < 4.38
            and "10 in each of 1 epochs" in look.says
        )
    assert check_declared_batches(CheckedClaim(2.4, 1e-5, noise_multiplier=1.0)) == []
    with pytest.raises(BadConfig, match="noise_multiplier"):
        CheckedClaim(1.0, 1e-5, sampling="shuffled")
    with pytest.raises(BadConfig, match="zero_out"):
        CheckedClaim(1.0, 1e-5, noise_multiplier=1.0, sampling="shuffled", relation="replace")


def test_constant_numbers_are_named_and_noised_ones_are_not() -> None:
    clock = CallBudget(60, 10**6)
    rng = np.random.default_rng(0)
    leaky = BlackBox(
        lambda: lambda update: [RNG.normal(size=2), float(np.linalg.norm(update[0]))], "update"
    )
    found = find_noiseless_number(leaky, InputShapes(), clock, rng, lambda: BoundLevel(1e-5, 0.999))
    assert found is not None and found.place == 2 and found.epsilon > 13
    assert (
        find_noiseless_number(
            gaussian(1.0), InputShapes(), clock, rng, lambda: BoundLevel(1e-5, 0.999)
        )
        is None
    )


def test_the_search_prefers_the_pair_that_shifts() -> None:
    from privdd.blackbox.neighbours import neighbouring_pairs

    found, refusals = screen_pairs(
        gaussian(1.0),
        neighbouring_pairs("update", "zero_out", InputShapes()),
        lambda d: [d],
        CallBudget(60, 200_000),
        0.25,
        keep=3,
    )
    assert (
        refusals == []
        and all("norm 0.001" not in one.pair.says for one in found)
        and found[0].score > 0.7
    )


def test_plugins_are_made_and_held_to_their_role() -> None:
    from attacks.membership.threshold import LossThreshold

    assert isinstance(make_plugin("attack", LossThreshold, {}), LossThreshold)
    with pytest.raises(BadConfig, match="not an Attack"):
        make_plugin("attack", Path, {})
    with pytest.raises(BadConfig, match="a class is needed"):
        make_plugin("method", math.sqrt, {})


def test_a_method_that_breaks_its_contract_ends_in_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(method: object) -> None:
        raise BrokenContract("one fault\nanother")

    # here, where it can be replaced
    monkeypatch.setattr(
        "privdd.blackbox.child_process.run_in_child", lambda work, seconds: work(print)
    )
    attack = "attacks.membership.threshold:LossThreshold"
    assert (
        main([f"attack={attack}"]) == 0
        and capsys.readouterr().out == f"{attack}: keeps the contract of an attack\n"
    )
    monkeypatch.setattr("privdd.blackbox.target.make_plugin", lambda *given: None)
    for check, status, said in (
        (broken, 2, ["one fault", "another", "breaks"]),
        (lambda method: None, 0, ["keeps"]),
    ):
        monkeypatch.setattr("privdd.auditing.method_contract.check_method", check)
        assert main([f"method={attack}"]) == status
        *faults, last = capsys.readouterr().out.splitlines()
        assert [*faults, last.split(": ")[1].split(" ")[0]] == said


def test_every_row_of_the_table_has_its_command_and_is_kept_while_that_and_the_version_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # most of the libraries are no extras of privdd
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    result = Checked(
        "m",
        CheckedClaim(1.0, 1e-5),
        KEEPS,
        0.5,
        0.2,
        1.01,
        1.0,
        "gaussian",
        "w",
        (SingleTestResult("a", "not refuted", "b"),),
        (),
        0.99,
        1,
        1.0,
    )
    done = [checked_cells(row, result) for row in ROWS[:-1]] + [missing_cells(ROWS[-1])]
    text = format_component_page(done, "c")
    page = tmp_path / "page.md"
    assert (
        all(row.check_command in text for row in ROWS)
        and text.count("keeps (nothing refutes it)") == len(ROWS) - 1
    )
    assert known_cells(page, ROWS[0]) is None
    write_markdown_page(page, text)
    assert [known_cells(page, row) for row in ROWS] == [
        *done[:-1],
        None,
    ]  # the last was never checked
    assert known_cells(page, replace(ROWS[0], seconds=1)) is None
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2")
    assert known_cells(page, ROWS[0]) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert known_cells(page, ROWS[0]) == done[0]


def test_looks_that_were_not_made_leave_a_row_undecided_and_those_made_less_closely_do_not() -> (
    None
):
    cursory = "the calls were spent before 'a' could be tested as closely as planned"

    def concluded(**seen: list[str]) -> Checked:
        return conclude_check(
            "m",
            CheckedClaim(1.0, 1e-5),
            CheckReport(**seen),
            confidence=0.99,
            calls=1,
            seconds=1.0,
        )

    assert concluded(
        undecided=["the calls were spent before 'a' could be tested everywhere"]
    ).is_undecided
    assert (
        not concluded(notes=[cursory]).is_undecided and cursory in concluded(notes=[cursory]).says
    )
