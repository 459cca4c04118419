"""The corpus: what each mechanism states. Its faulty version and its twin state the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.conformance import of_crowds as crowds
from tests.conformance import of_records as records
from tests.conformance import of_updates as updates
from tests.conformance.parts import DELTA


@dataclass(frozen=True)
class Case:
    """settings: further arguments of ``privdd.api.check``."""

    name: str
    faulty: Callable[..., Any]
    twin: Callable[..., Any]
    kind: str
    relation: str
    epsilon: float
    delta: float = DELTA
    stated: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def asked(self) -> dict[str, Any]:
        stated = {"epsilon": self.epsilon, "delta": self.delta, **self.stated}
        return {"stated": stated, "kind": self.kind, "relation": self.relation, **self.settings}


def _update(name: str, faulty: Any, twin: Any, epsilon: float, relation: str = "zero_out", **more: Any) -> Case:
    return Case(name, faulty, twin, "update", relation, epsilon, **more)


u, c, r = updates, crowds, records
CASES = [
    _update("sensitivity apart from the clip", u.sensitivity_apart, u.sensitivity_is_the_clip, 4.0),
    _update("square root of the noise", u.square_root_of_the_noise, u.noise_as_it_is, 2.0),
    _update("epsilon of one round printed for twenty", u.calibrated_for_one_round, u.calibrated_for_twenty_rounds, 4.0,
            settings={"calls": 20}),
    _update("an uncounted metric", u.with_a_metric, u.with_a_noised_metric, 2.0),
    _update("noise on the first array only", u.only_the_first_array, u.every_array, 1.0),
    _update("clipped by layer, accounted as one", u.each_array_clipped, u.each_array_clipped_to_its_share, 8.0),
    _update("clipped by number, accounted by L2", u.each_number_clipped, u.each_number_clipped_and_counted, 4.0),
    _update("Laplace noise, L2 sensitivity", u.laplace_after_l2, u.laplace_after_l1, 2.0, delta=0.0),
    _update("noise scaled by the data's norm", u.noise_by_the_norm, u.noise_by_the_clip, 2.0),
    _update("NaN passes the clip", u.nan_slips_through, u.nan_is_zero, 2.0, settings={"inputs": "any"}),
    _update("sensitivity of zeroing, stated for replacing", u.calibrated_for_zeroing, u.calibrated_for_replacing, 4.0,
            relation="replace"),
    _update("noise cut off at two sigma", u.tails_cut_off, u.tails_left, 1.0),
    _update("low bits", u.plain_floats, u.on_a_lattice, 1.0, stated={"low_bits": True}),
    _update("a fixed seed", u.FixedSeed, u.FreshSeed, 2.0),
    _update("noise drawn once", u.NoiseDrawnOnce, u.NoiseDrawnEachTime, 2.0),
    _update("error feedback without limit", u.ErrorFeedback, u.ServerMomentum, 8.0),
    Case("weighted mean", c.weighted_mean, c.equal_mean, "aggregate", "zero_out", 4.0),
    Case("clip of the mean", c.mean_is_clipped, c.clients_are_clipped, "aggregate", "zero_out", 2.0),
    Case("noise divided twice", c.noise_divided_twice, c.noise_on_the_mean, "aggregate", "zero_out", 4.0),
    Case("normaliser from who came", c.sum_over_who_came, c.sum_over_who_was_expected, "aggregate", "add_remove", 2.0),
    Case("clip norm from the data", c.clip_at_the_median, c.clip_at_a_constant, "aggregate", "add_remove", 4.0),
    Case("integer cast", r.whole_noise, r.real_noise, "records", "add_remove", 4.0),
    Case("one noise for a batch", r.one_noise_for_all_rows, r.noise_for_each_row, "records", "zero_out", 4.0),
    Case("shuffle accounted as Poisson", r.shuffled_batches, r.batches_by_coins, "records", "add_remove", r.EPOCH),
    Case("normaliser from the realised batch", r.divided_by_the_batch, r.divided_by_a_constant, "records", "add_remove", 1.0),
    Case("a biased sampler", r.large_records_first, r.all_records_alike, "records", "add_remove", 1.0),
]  # fmt: skip
