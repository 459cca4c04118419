"""The corpus: what each mechanism states. Its faulty version and its twin state the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.conformance import of_answers as answers
from tests.conformance import of_counts as counts
from tests.conformance import of_crowds as crowds
from tests.conformance import of_libraries as libraries
from tests.conformance import of_noise as noise
from tests.conformance import of_plans as plans
from tests.conformance import of_records as records
from tests.conformance import of_robust as robust
from tests.conformance import of_rounds as rounds
from tests.conformance import of_sampling as sampling
from tests.conformance import of_shapes as shapes
from tests.conformance import of_state as state
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


def _update(
    name: str, faulty: Any, twin: Any, epsilon: float, relation: str = "zero_out", **more: Any
) -> Case:
    return Case(name, faulty, twin, "update", relation, epsilon, **more)


def _crowd(
    name: str, faulty: Any, twin: Any, epsilon: float, relation: str = "zero_out", **more: Any
) -> Case:
    return Case(name, faulty, twin, "aggregate", relation, epsilon, **more)


def _table(
    name: str, faulty: Any, twin: Any, epsilon: float, relation: str = "add_remove", **more: Any
) -> Case:
    return Case(name, faulty, twin, "records", relation, epsilon, **more)


u = updates
c = crowds
r = records
n = noise
b = robust
t = sampling
s = state
p = plans
d = counts
e = rounds
a = answers
k = libraries
f = shapes
CASES = [
    _update("sensitivity apart from the clip", u.sensitivity_apart, u.sensitivity_is_the_clip, 4.0),
    _update("square root of the noise", u.square_root_of_the_noise, u.noise_as_it_is, 2.0),
    _update(
        "epsilon of one round printed for twenty",
        u.calibrated_for_one_round,
        u.calibrated_for_twenty_rounds,
        4.0,
        settings={"calls": 20},
    ),
    _update("an uncounted metric", u.with_a_metric, u.with_a_noised_metric, 2.0),
    _update("noise on the first array only", u.only_the_first_array, u.every_array, 1.0),
    _update(
        "clipped by layer, accounted as one",
        u.each_array_clipped,
        u.each_array_clipped_to_its_share,
        8.0,
    ),
    _update(
        "clipped by number, accounted by L2",
        u.each_number_clipped,
        u.each_number_clipped_and_counted,
        4.0,
    ),
    _update(
        "Laplace noise, L2 sensitivity", u.laplace_after_l2, u.laplace_after_l1, 2.0, delta=0.0
    ),
    _update("noise scaled by the data's norm", u.noise_by_the_norm, u.noise_by_the_clip, 2.0),
    _update(
        "NaN passes the clip", u.nan_slips_through, u.nan_is_zero, 2.0, settings={"inputs": "any"}
    ),
    _update(
        "sensitivity of zeroing, stated for replacing",
        u.calibrated_for_zeroing,
        u.calibrated_for_replacing,
        4.0,
        relation="replace",
    ),
    _update("noise cut off at two sigma", u.tails_cut_off, u.tails_left, 1.0),
    _update("low bits", u.plain_floats, u.on_a_lattice, 1.0, stated={"low_bits": True}),
    _update("a fixed seed", u.FixedSeed, u.FreshSeed, 2.0),
    _update("noise drawn once", u.NoiseDrawnOnce, u.NoiseDrawnEachTime, 2.0),
    _update("error feedback without limit", u.ErrorFeedback, u.ServerMomentum, 8.0),
    Case("weighted mean", c.weighted_mean, c.equal_mean, "aggregate", "zero_out", 4.0),
    Case(
        "clip of the mean", c.mean_is_clipped, c.clients_are_clipped, "aggregate", "zero_out", 2.0
    ),
    Case(
        "noise divided twice",
        c.noise_divided_twice,
        c.noise_on_the_mean,
        "aggregate",
        "zero_out",
        4.0,
    ),
    Case(
        "normaliser from who came",
        c.sum_over_who_came,
        c.sum_over_who_was_expected,
        "aggregate",
        "add_remove",
        2.0,
    ),
    Case(
        "clip norm from the data",
        c.clip_at_the_median,
        c.clip_at_a_constant,
        "aggregate",
        "add_remove",
        4.0,
    ),
    Case("integer cast", r.whole_noise, r.real_noise, "records", "add_remove", 4.0),
    Case(
        "one noise for a batch",
        r.one_noise_for_all_rows,
        r.noise_for_each_row,
        "records",
        "zero_out",
        4.0,
    ),
    Case(
        "shuffle accounted as Poisson",
        r.shuffled_batches,
        r.batches_by_coins,
        "records",
        "add_remove",
        r.EPOCH,
    ),
    Case(
        "normaliser from the realised batch",
        r.divided_by_the_batch,
        r.divided_by_a_constant,
        "records",
        "add_remove",
        1.0,
    ),
    Case(
        "a biased sampler", r.large_records_first, r.all_records_alike, "records", "add_remove", 1.0
    ),
    _update("a pool of noise used in turn", s.PoolOfNoise, s.NewNoise, 2.0),
    _update("every tenth call without noise", s.EveryTenthCallPlain, s.NewNoise, 2.0),
    _update("antithetic noise", s.SecondNoiseIsTheFirstNegated, s.NewNoise, 2.0),
    _update(
        "noise fades over twenty calls", s.NoiseFades, s.NoiseStays, 4.0, settings={"calls": 20}
    ),
    _table(
        "one sample for all rounds",
        s.OneSampleForAllRounds,
        s.NewSampleInEachRound,
        r.EPOCH,
        settings={"calls": 10},
    ),
    _update("seeded by the second", s.seeded_by_the_second, s.seeded_by_the_system, 2.0),
    _update("seeded by the data", s.seeded_by_the_data, s.seeded_by_the_system, 8.0),
    _update(
        "clipped before momentum",
        s.ClippedBeforeMomentum,
        s.NoisedBeforeMomentum,
        4.0,
        settings={"calls": 10},
    ),
    _update("noise skipped in 2 % of calls", n.skipped_in_two_of_a_hundred, n.never_skipped, 2.0),
    _update("uniform noise", n.uniform_of_the_same_variance, n.gaussian, 4.0),
    _update("noise cut off at three sigma", n.cut_off_at_three_sigma, n.not_cut_off, 1.0),
    _update("one noise for each column", n.one_noise_for_each_column, n.noise_for_each_number, 2.0),
    _update("only the sign of the noise", n.signs_of_noise, n.gaussian, 4.0),
    _update(
        "the textbook's formula above epsilon 1", n.textbook_above_one, n.exact_above_one, 50.0
    ),
    _update("noise over the root of the size", n.noise_over_the_root_of_the_size, n.gaussian, 4.0),
    _update("zeros get no noise", n.noise_where_there_is_something, n.gaussian, 4.0),
    _update("biases get no noise", n.weights_but_not_biases, n.gaussian, 4.0),
    _update(
        "epsilon for the scale of Laplace noise",
        n.laplace_with_epsilon_for_scale,
        n.laplace_with_its_inverse,
        0.5,
        delta=0.0,
    ),
    _update(
        "clipped beyond ten times the norm only",
        n.clipped_beyond_ten_only,
        n.clipped_beyond_one,
        2.0,
    ),
    _update("learning rates after the clip", n.rates_after_the_clip, n.rates_before_the_clip, 4.0),
    _update("projected after the clip", n.projected, n.projected_and_clipped, 4.0),
    _update(
        "largest numbers of the raw update", n.largest_of_the_raw, n.largest_of_the_noised, 4.0
    ),
    _update("precision by the norm", n.precision_by_the_norm, n.one_precision, 4.0),
    _update("whole epsilon for each sign", n.eight_signs, n.signs_that_share, 2.0, delta=0.0),
    _crowd(
        "a client alone gets no noise", b.plain_for_a_client_alone, b.noised_for_a_client_alone, 2.0
    ),
    _crowd(
        "median with the mean's noise",
        b.median_with_noise_for_the_mean,
        b.median_with_noise_for_the_median,
        4.0,
    ),
    _crowd("zero updates are not counted", b.mean_of_those_that_sent, b.mean_of_all, 4.0),
    _crowd("shares of noise for ten clients", b.shares_of_ten, b.shares_of_those_who_came, 4.0),
    _crowd("scaled by the largest norm", b.scaled_by_the_largest, b.scaled_by_a_constant, 4.0),
    _crowd("one client chosen", b.nearest_to_all, b.mean_of_all, 4.0),
    _crowd("share of clipped clients", b.weights_as_metric, b.noised_metric, 4.0),
    _table("a sampler with a fixed seed", t.coins_of_a_fixed_seed, t.fresh_coins, 1.0),
    _table(
        "what does not fill a batch is dropped", t.whole_batches_only, t.the_last_batch_too, 4.0
    ),
    _table("batches of a fixed size", t.of_fixed_size, t.fresh_coins, 1.0),
    _table("drawn with replacement", t.with_replacement, t.fresh_coins, 1.0),
    _table(
        "report noisy max with half the noise", t.winner_of_half_the_noise, t.winner, 1.0, delta=0.0
    ),
    _table("noised sum over the count", t.divided_by_the_count, t.divided_by_a_public_count, 4.0),
    _table("empty bins get no noise", t.bins_with_something_in, t.all_bins, 2.0, delta=0.0),
    _table("standardised by the data", t.standardised, t.standardised_by_constants, 4.0),
    _table(
        "copies of a record clipped alone", t.copies_clipped_alone, t.copies_clipped_together, 4.0
    ),
    _table(
        "a count bounded by itself", t.counted_as_they_are, t.counted_with_noise, 1.0, delta=0.0
    ),
    _table("told who was drawn", t.told_who_was_drawn, t.fresh_coins, 1.0, relation="zero_out"),
    _table(
        "within the range of the data",
        t.within_the_range_of_the_data,
        t.within_a_public_range,
        4.0,
        relation="zero_out",
    ),
    _table(
        "largest value with a mean's noise",
        t.largest_with_noise_of_a_mean,
        t.mean_with_noise_of_a_mean,
        2.0,
        relation="zero_out",
        delta=0.0,
    ),
    _update("scaled together with its noise", n.scaled_with_its_noise, n.gaussian, 4.0),
    _update("rounded after the clip", n.rounded_after_the_clip, n.rounded_before_the_clip, 4.0),
    _update("noise upwards only", n.noise_upwards_only, n.gaussian, 4.0),
    _update("noise as a factor", n.noise_as_a_factor, n.gaussian, 4.0),
    _update("a checksum of the update", n.with_a_checksum, n.with_a_checksum_of_what_is_sent, 4.0),
    _update("the head is not clipped", n.head_not_clipped, n.gaussian, 4.0),
    _update(
        "Laplace noise composed by the root",
        n.laplace_by_the_root,
        n.laplace_by_the_sum,
        2.0,
        delta=0.0,
        settings={"calls": 16},
    ),
    _update("clipped by the last call's norm", s.ClippedByTheLastNorm, s.NewNoise, 2.0),
    _update("half of the numbers get no noise", n.coins_decide_who_is_noised, n.gaussian, 4.0),
    _update("zeros are left out", n.zeros_are_left_out, n.gaussian, 4.0),
    _update(
        "two releases, each with the whole budget",
        n.released_twice,
        n.released_twice_and_counted,
        2.0,
    ),
    _table(
        "exponential mechanism at three times its epsilon",
        t.chosen_at_three_times_epsilon,
        t.chosen,
        1.0,
        delta=0.0,
    ),
    _update("noise that cancels in a sum", p.differences_of_noise, p.noise_of_its_own, 2.0),
    _update(
        "a tree's root without noise", p.TopNodePlain, p.EveryNodeNoised, 4.0, settings={"calls": 8}
    ),
    _update(
        "restarted with its seed",
        p.RestartedWithItsSeed,
        p.RestartedAnew,
        4.0,
        settings={"calls": 8},
    ),
    _update(
        "a learning rate that the clip decides",
        p.RateByTheClip,
        p.RateByTheCall,
        4.0,
        settings={"calls": 8},
    ),
    _update("rounded up after the clip", p.rounded_up, p.rounded_up_and_counted, 2.0),
    _crowd("shares of noise that drop out", p.shares_of_who_stayed, p.shares_made_up_for, 4.0),
    _crowd("the quietest group", p.the_quietest_group, p.the_median_group, 4.0),
    _table("sampled at twice the rate", p.at_twice_the_rate, p.at_the_rate, 1.0),
    _table(
        "batches in turn accounted as coins",
        p.EachTenthInTurn,
        p.CoinsInEachCall,
        1.5,
        settings={"calls": 10},
    ),
    _table(
        "exponential mechanism at one and a half times its epsilon",
        p.chosen_at_half_as_much_again,
        p.chosen_with_room,
        1.0,
        delta=0.0,
    ),
    _table(
        "what the votes cost, by the votes",
        p.told_how_clear_it_was,
        p.told_the_winner,
        1.0,
        delta=0.0,
    ),
    _table(
        "sparse vector without noise on the queries",
        p.threshold_noised_only,
        p.threshold_and_queries_noised,
        1.0,
        delta=0.0,
    ),
    _table("median by a noised rank", p.middle_by_noised_rank, p.middle_of_a_grid, 1.0, delta=0.0),
    _table(
        "half the noise on a symmetric matrix",
        p.half_the_noise_on_a_symmetric_matrix,
        p.one_noise_on_each_pair,
        2.0,
    ),
    _table(
        "randomised response of two among six",
        d.kept_as_if_of_two,
        d.kept_as_of_six,
        1.0,
        relation="replace",
        delta=0.0,
    ),
    _table(
        "the winner's noised votes",
        d.winner_with_its_noised_votes,
        d.winner_then_its_votes,
        1.0,
        delta=0.0,
    ),
    _table(
        "sparse vector that goes on",
        d.goes_on_after_the_first,
        d.stops_at_the_first,
        1.0,
        delta=0.0,
    ),
    _table(
        "geometric noise with ends",
        d.noise_of_eight_steps_at_most,
        d.noise_of_any_steps,
        0.5,
        delta=0.0,
    ),
    _table("binomial noise of ten coins", d.ten_coins, d.a_hundred_coins, 1.0),
    _table("names of rare values", d.names_above_three, d.names_above_what_delta_needs, 1.0),
    _table(
        "a replaced row counted as one bin",
        d.a_row_moves_one_bin,
        d.a_row_moves_two_bins,
        1.0,
        relation="replace",
        delta=0.0,
    ),
    _table(
        "amplified by a shuffle that is not made",
        d.amplified_in_order,
        d.amplified_and_shuffled,
        d.shuffled_epsilon(),
        relation="replace",
        delta=d.SHUFFLED,
    ),
    _table("as many rows as records", d.as_many_rows_as_there_are, d.always_a_hundred_rows, 4.0),
    _table(
        "a row with noise of a mean",
        d.a_row_with_noise_of_a_mean,
        d.a_row_with_noise_of_a_row,
        4.0,
        relation="zero_out",
    ),
    _table(
        "trained with the mean gradient clipped",
        d.trained_with_the_mean_clipped,
        d.trained_with_each_clipped,
        4.0,
    ),
    _update(
        "clipped by the spectral norm", e.clipped_by_the_spectral_norm, e.clipped_by_the_norm, 4.0
    ),
    _update(
        "clipped by the root of the mean square",
        e.clipped_by_the_root_of_the_mean,
        e.clipped_by_the_norm,
        4.0,
    ),
    _update(
        "noise of exponential length", e.of_exponential_length, e.of_gamma_length, 2.0, delta=0.0
    ),
    _update("clipped after the noise", e.clipped_after_the_noise, e.clipped_before_and_after, 4.0),
    _update("rounded by chance only", e.rounded_by_chance, e.rounded_by_chance_then_noised, 4.0),
    _update(
        "kept for the same data", e.KeptForTheSameData, e.NothingKept, 4.0, settings={"calls": 2}
    ),
    _update(
        "noise taken off in the next call",
        e.NoiseTakenOffAgain,
        e.NoiseTakenOffAndCounted,
        4.0,
        settings={"calls": 8},
    ),
    _crowd(
        "clipped around the last mean",
        e.AroundTheLastMean,
        e.AroundTheLastRelease,
        4.0,
        settings={"calls": 8},
    ),
    _crowd(
        "clip follows a count",
        e.ClipFollowsTheUpdates,
        e.ClipFollowsANoisedCount,
        4.0,
        settings={"calls": 8},
    ),
    _crowd(
        "trimmed mean with the mean's noise",
        e.trimmed_with_noise_of_the_mean,
        e.trimmed_with_noise_of_its_own,
        4.0,
    ),
    _update("noise for fifty calls", s.NoiseForFiftyCalls, s.NewNoise, 2.0),
    _update(
        "noise skipped once in a thousand calls", s.skipped_once_in_a_thousand, s.NewNoise, 2.0
    ),
    _update("seeds of fourteen bits", s.seeds_of_fourteen_bits, s.NewNoise, 2.0),
    _update("the best of eight releases", s.best_of_eight, s.one_alone, 4.0),
    _update(
        "redrawn until it points the same way",
        s.redrawn_until_it_points_the_same_way,
        s.NewNoise,
        2.0,
    ),
    _update("noise along the update only", s.noise_along_the_update_only, s.one_alone, 4.0),
    _update("a norm without the last array", s.norm_without_the_last_array, s.one_alone, 4.0),
    _update("one key for all arrays", k.one_key_for_all_arrays, k.a_key_that_is_split, 4.0),
    _update(
        "scaled by the squares of plain gradients",
        k.ScaledByPlainSquares,
        k.ScaledByNoisedSquares,
        4.0,
        settings={"calls": 4},
    ),
    _update(
        "a sketch longer than what is sketched",
        k.sketched_after_the_clip,
        k.sketched_before_the_clip,
        4.0,
    ),
    _update(
        "correlated noise for one of eight calls",
        k.CountedForOneCall,
        k.CountedForEightCalls,
        4.0,
        settings={"calls": 8},
    ),
    _update(
        "a direction with epsilon for its kappa",
        f.pointed_with_epsilon,
        f.pointed_with_half_of_epsilon,
        2.0,
        relation="replace",
        delta=0.0,
    ),
    _update(
        "one of twenty is named",
        f.one_of_twenty_is_named,
        f.one_of_a_hundred_is_named,
        1.0,
        delta=f.SHAMED,
    ),
    _crowd("padded by repetition", k.padded_by_repetition, k.padded_by_zeros, 4.0),
    _crowd("masks are the noise", k.masks_are_the_noise, k.masks_and_noise, 4.0),
    _crowd(
        "nothing below five clients",
        k.nothing_below_five_clients,
        k.nothing_below_a_noised_five,
        2.0,
        relation="add_remove",
    ),
    _table("coins are the noise", k.coins_are_the_noise, k.coins_beside_the_noise, 1.0),
    _table("batches by place where rows come and go", k.batches_by_place, k.batches_by_lot, 4.0),
    _table(
        "clipped by four",
        k.clipped_by_four,
        k.clipped_by_four_and_counted,
        4.0,
        relation="zero_out",
    ),
    _table("half precision", k.half_precision, k.double_precision, 4.0),
    _table(
        "silent unless the votes are clear",
        a.silent_unless_votes_are_clear,
        a.silent_unless_noised_votes_are_clear,
        1.0,
        delta=0.0,
    ),
    _table(
        "permute and flip without the permutation",
        a.flipped_in_their_order,
        a.flipped_in_any_order,
        1.0,
        delta=0.0,
    ),
    _table(
        "a quantile without the intervals' lengths",
        a.intervals_alike,
        a.intervals_by_their_length,
        1.0,
        delta=0.0,
    ),
    _table(
        "three choices for the price of one",
        a.three_for_the_price_of_one,
        a.three_for_the_price_of_three,
        1.0,
        delta=0.0,
    ),
    _table(
        "piecewise noise with all of epsilon",
        a.near_with_all_of_epsilon,
        a.near_with_half_of_epsilon,
        2.0,
        relation="replace",
        delta=0.0,
    ),
    _table(
        "stopped by the plain gradient",
        a.stopped_by_the_plain_gradient,
        a.stopped_by_the_noised_gradient,
        4.0,
    ),
    _table(
        "redrawn until it is in the range",
        f.redrawn_with_plain_noise,
        f.redrawn_with_twice_the_noise,
        1.0,
        delta=0.0,
    ),
    _table(
        "logistic noise of Laplace's variance",
        f.logistic_of_the_same_variance,
        f.logistic_of_the_same_scale,
        1.0,
        delta=0.0,
    ),
    _table(
        "Laplace noise cut off early",
        f.cut_off_early,
        f.cut_off_where_delta_allows,
        1.0,
        delta=f.CUT,
    ),
    _table(
        "stairs half as wide", f.stairs_half_as_wide, f.stairs_as_wide_as_a_record, 1.0, delta=0.0
    ),
    _table(
        "median with its local sensitivity",
        f.median_with_its_local_sensitivity,
        f.median_with_its_smooth_sensitivity,
        1.0,
        relation="zero_out",
        delta=0.0,
    ),
    _table("a text that seldom tells", d.seldom_says_that_it_clipped, d.seldom_says_something, 1.0),
    _update(
        "normal noise by four uniforms", n.normal_by_four_uniforms, n.normal_by_four_normals, 2.0
    ),
]
