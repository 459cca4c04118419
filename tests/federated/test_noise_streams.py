"""Two runs of one seed are two draws of noise: together they tell no more than two releases may.

The attack: a release is u + z C n with the same direction n at both points of a sweep over z, so
that (z2 a - z1 b) / (z2 - z1) is the clipped update u itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import Problem
from privdd.federated.channel import ClientContext, OutputLog
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan, start_training
from privdd.privacy.mechanisms import ClientLevel
from tests.federations import tiny

CLIENT = ("fedavg", "privacy=client")
SECRET = "secret of the data holder"
OTHER = "another one of that length"


def keyed(secret: str) -> tuple[str, ...]:
    return ("privacy.noise_source=secret", f"privacy.secret={secret.replace(' ', '_')}")


@dataclass(frozen=True)
class Sent:
    """One client's noised update and the clipped one behind it, (numbers,) each; std: of the
    noise."""

    released: Tensor
    clipped: Tensor
    std: float


def sent(experiment: Experiment, client: int = 1, round: int = 0) -> Sent:
    plan = experiment.plan
    broadcast = plan.method.broadcast(start_training(plan, experiment.new_ledger()).server)
    ctx = plan.client_context(round, client, observer=OutputLog())
    upload, _ = plan.method.local(broadcast, {}, experiment.shards[client], ctx)
    plan.channel.send(upload, ctx)
    ((_, output),) = [(name, out) for name, out in ctx.observer.outputs if name == "update"]
    flat = [
        torch.cat([t.double().flatten() for t in (v or {}).values()])
        for v in (output.value, output.exact)
    ]
    return Sent(*flat, output.noise_std)


def recovered(one: Sent, two: Sent, z: tuple[float, float]) -> float:
    """Relative error of the clipped update, worked out from two releases as if they shared their
    noise."""
    guess = (z[1] * one.released - z[0] * two.released) / (z[1] - z[0])
    return float((guess - one.clipped).norm() / one.clipped.norm())


@pytest.mark.parametrize(
    "more", [(), keyed(SECRET), ("privacy.noise_source=os",)], ids=["seed", "secret", "os"]
)
def test_two_points_of_a_sweep_do_not_reveal_the_update(more: tuple[str, ...]) -> None:
    one, two = (sent(tiny(*CLIENT, f"privacy.noise_multiplier={z}", *more)) for z in (1.0, 4.0))
    assert torch.allclose(
        one.clipped, two.clipped, atol=4 * 2.0**-16
    )  # each truncated to the step of its own noise
    # relative size of the noise on the first
    noise = one.std * len(one.clipped) ** 0.5 / float(one.clipped.norm())
    # of independent noise, the guess has variance (4^2 + 4^2) / 3^2 times that of the first release
    assert recovered(one, two, (1.0, 4.0)) == pytest.approx(noise * 32**0.5 / 3, rel=0.05)


@pytest.mark.parametrize("more", [(), keyed(SECRET)], ids=["seed", "secret"])
def test_paired_noise_reveals_it(more: tuple[str, ...]) -> None:
    """The attack works where it can: so that the test above would see shared noise."""
    paired = (*more, "privacy.paired_noise=true")
    one, two = (sent(tiny(*CLIENT, f"privacy.noise_multiplier={z}", *paired)) for z in (1.0, 4.0))
    assert recovered(one, two, (1.0, 4.0)) < 5e-3  # what truncation to two different steps leaves


@pytest.mark.parametrize(
    "setting",
    [
        "algo.lr=0.02",
        "privacy.clip_norm=1.5",
        "participation=0.7",
        "data.limit=140",
        "name=x",
        "audit.records=9",
    ],
)
def test_noise_is_another_wherever_a_setting_is(setting: str) -> None:
    """A label is no setting: it changes nothing that is sent. The records left out for an audit are
    one."""
    command = "audit" if setting.startswith("audit") else "train"
    runs = [tiny_at(command, *more) for more in ((), (setting,))]
    noise = [experiment.plan.client_context(0, 1).noise.normal((50,)) for experiment in runs]
    assert torch.equal(*noise) is (setting == "name=x")


def tiny_at(command: str, *more: str) -> Experiment:
    from privdd.cli.build import build_experiment
    from tests.federations import tiny_config

    return build_experiment(tiny_config("fedavg", "privacy=client", *more, command=command))


def test_calibrated_noise_has_the_stream_of_the_multiplier_that_was_found() -> None:
    """And the same bits when it is calibrated again."""
    three, again, six = (tiny_at("train", f"privacy.epsilon={e}").plan for e in (3, 3, 6))
    assert three.noise_stream == again.noise_stream != six.noise_stream
    assert three.mechanisms["update"].noise_multiplier > six.mechanisms["update"].noise_multiplier


def test_a_secret_changes_the_noise_and_nothing_else() -> None:
    mine, again, other, seed = (
        tiny(*CLIENT, "participation=0.7", *more)
        for more in (keyed(SECRET), (*keyed(SECRET), "name=again"), keyed(OTHER), ())
    )
    one, same, two, three = (sent(e) for e in (mine, again, other, seed))
    assert torch.equal(one.released, same.released)
    assert torch.equal(one.clipped, two.clipped) and torch.equal(one.clipped, three.clipped)
    drawn = [s.released - s.clipped for s in (one, two, three)]
    for at, a in enumerate(drawn):
        for b in drawn[:at]:
            assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / len(a) ** 0.5
    plans = [e.plan for e in (mine, other, seed)]
    assert len({str([plan.participants(t) for t in range(20)]) for plan in plans}) == 1
    keys = [plan.client_context(0, 1).keys for plan in plans]
    assert (
        len({k.fold("batch").integer() for k in keys})
        == 1
        == len({p.client_context(0, 1).public("x").integer() for p in plans})
    )


def test_a_secret_is_no_part_of_any_text() -> None:
    """Of an object that an error message may show."""
    experiment = tiny(*CLIENT, *keyed(SECRET))
    ctx = experiment.plan.client_context(0, 0)
    shown = repr(experiment) + repr(experiment.plan) + repr(ctx) + repr(ctx.noise)
    assert (
        SECRET.replace(" ", "_") not in shown
        and ctx.keys.fold("secret", "noise").private().hex() not in shown
    )
    assert repr(ctx.keys.private()) not in shown


def test_streams_differ_by_client_round_and_world() -> None:
    plan = tiny(*CLIENT, *keyed(SECRET)).plan
    worlds = [plan, replace(plan, keys=plan.keys.fold("world", 1))]
    draws = [
        p.client_context(t, k).noise.normal((8,))
        for p in worlds
        for t in range(3)
        for k in range(3)
    ]
    assert len(torch.unique(torch.stack(draws))) == 8 * 18


def test_a_copy_of_the_context_goes_on_in_its_noise() -> None:
    """A method that narrows its context for a part of the work does not draw the first part's noise
    again."""
    keys = Keys(3)
    problem = Problem((1, 2, 2), 10, 2)
    whole = ClientContext(0, 0, keys, problem).noise.normal((6,))
    ctx = ClientContext(0, 0, keys, problem)
    first = ctx.noise.normal((3,))
    second = replace(ctx, mechanisms={}).noise.normal((3,))
    assert torch.equal(torch.cat([first, second]), whole) and not torch.equal(first, second)


def test_a_plan_without_a_config_has_its_mechanisms_streams() -> None:
    """As one writes it through privdd.api: no settings are known but the mechanisms' own."""
    base = tiny(*CLIENT).plan
    plans = [
        Plan(base.keys, base.problem, base.method, {"update": ClientLevel(z, 1.0)})
        for z in (1.0, 4.0)
    ]
    one, two = (p.client_context(0, 0).noise.normal((20,)) for p in plans)
    assert not torch.equal(one, two)
    one, two = (
        replace(p, paired_noise=True).client_context(0, 0).noise.normal((20,)) for p in plans
    )
    assert torch.equal(one, two)
