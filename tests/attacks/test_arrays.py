"""Every public function of tensors takes NumPy arrays, and gives back what it was given: the same
numbers, as arrays."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attacks
from attacks.inversion.victim import LocalSteps, PixelScale
from attacks.tensors import accepts_numpy

# Parts of an audit's own course, or differentiated inside a search: what they take besides tensors
# comes from there.
INSIDE = {
    "canaries:mislabel_records": "makes records for an audit",
    "canaries:craft_canaries": "makes records for an audit",
    "tensors:copy_to_device": "for loops of other modules",
    "tensors:draw_ahead": "for loops of other modules",
    "tensors:record_cuda_graph": "for loops of other modules",
    "tensors:average_pool": "layers of networks",
    "tensors:as_factor": "for loops of other modules",
    "inversion.evaluation:column_errors": "reads columns of a table",
    "inversion.evaluation:guess_class_images": "reads an audit's View",
    "inversion.evaluation:measure_class_images": "compares with an audit's View",
    "inversion.evaluation:has_record_shape": "compares with an audit's View",
    "inversion.evaluation:image_qualities": "compares with an audit's View",
    "inversion.evaluation:compare_with_records": "compares with an audit's View",
    "inversion.evaluation:chance_of_gain": "compares with an audit's View",
    "inversion.evaluation:pictures": "compares with an audit's View",
    "inversion.released_rows:shadow_map": "reads an audit's View",
    "inversion.class_opening:class_sums_of": "reads an audit's Capture",
    "inversion.class_opening:open_message": "reads an audit's Capture",
    "inversion.distiller_inference:describe_own_sets": "runs the algorithms that it is given",
    "inversion.released_rows:class_mean_rows": "reads an audit's View",
    "inversion.released_rows:opened_class_rows": "reads an audit's Capture",
    "inversion.generative:class_accuracy": "of a trained judge",
    "inversion.gradient_matching:max_problems_per_batch": "of a search over several victims",
    "inversion.gradient_matching:mean_total_variation": "differentiated inside a search",
    "inversion.gradient_matching:draw_normal_like": "the search itself",
    "inversion.gradient_matching:minimise_objective": "the search itself",
    "inversion.victim:check_gradient_request": "checks of a request",
    "inversion.gradient:sent_statistics": "differentiated inside a search",
    "inversion.gradient:batchnorm_distance": "differentiated inside a search",
    "inversion.victim:update_to_gradients": "of a captured client",
    "malicious.chosen_model:draw_gates": "builds the model that a malicious server sends",
    "malicious.chosen_model:cluster_rows": "builds the model that a malicious server sends",
    "malicious.chosen_model:isolation_share": "of a model and its client",
    "malicious.chosen_model:detection_rate": "of a model and its client",
    "malicious.imprint:records_from_layer": "reads the update of a chosen model",
    "malicious.planted_embedding:records_from_sums": "reads the means of a chosen model",
    "membership.attack:why_uninformative": "says what an audit's value holds",
    "membership.attack:why_all_uninformative": "says what an audit's value holds",
    "membership.attack:check_shadow_signals": "checks of a request",
    "membership.attack:score_leave_one_out": "scores an audit's Worlds",
    "membership.measures:membership_measures": "scores an audit's Worlds",
    "membership.measures:one_run_bound": "scores an audit's Worlds",
    "inversion.labels:sent_class_counts": "reads an audit's Capture",
    "inversion.labels:sent_class_shares": "reads an audit's Capture",
    "membership.nearest_row:map_to_rows": "reads an audit's View",
    "membership.stacking:select_replays": "selects from an audit's View",
    "membership.quantile:standardise_scores": "rows of its own regression",
    "membership.quantile:regression_features": "rows of its own regression",
}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(module:name, function) of everything public that has a tensor among its parameters."""
    for info in pkgutil.walk_packages(attacks.__path__, "attacks."):
        module = importlib.import_module(info.name)
        short = info.name.removeprefix("attacks.")
        for name, value in vars(module).items():
            if (
                name.startswith("_")
                or not inspect.isfunction(value)
                or value.__module__ != info.name
            ):
                continue
            hints = " ".join(
                str(hint) for key, hint in value.__annotations__.items() if key != "return"
            )
            if re.search(r"\bTensor\b", hints) and f"{short}:{name}" not in INSIDE:
                yield f"{short}:{name}", value


PUBLIC = dict(public())


def random(*shape: int, seed: int = 0, positive: bool = False) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.sigmoid() if positive else values


def coins(*shape: int) -> Tensor:
    return random(*shape, seed=7) > 0


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def net() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator())
    return model


Y = torch.tensor([0, 1, 2, 0, 1, 2])
GRADIENTS = (random(3, 4).float(), random(3, seed=1).float())
IMAGES = random(6, 1, 12, 12, positive=True)
OTHERS = random(6, 1, 12, 12, seed=1, positive=True)
SMALL = random(6, 1, 2, 2, positive=True).float()
SIGNALS = random(8, 6)
MASKS = torch.cat([coins(4, 6), ~coins(4, 6)])
PROBS = random(8, 6, positive=True)
PAIR = random(2, 4)
TRIPLE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
MOMENTS = (
    (PAIR.T @ PAIR)[None],
    torch.tensor([2]),
    random(6, 4),
    Y,
    torch.eye(4, dtype=torch.float64),
)
EXAMPLES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "inversion.evaluation:class_mean_images": lambda: (IMAGES, Y, 3),
    "inversion.evaluation:naive_reconstructions": lambda: (Y, IMAGES, Y, generator()),
    "inversion.evaluation:rank_in_gallery": lambda: (IMAGES, IMAGES, OTHERS),
    "certificates:bound_from_runs": lambda: (
        random(60, 2),
        random(60, 2, seed=1) + 1,
        {"delta": 1e-5, "generator": np.random.default_rng(0)},
    ),
    "certificates:gaussian_log_ratio": lambda: (random(9, 4, 2), random(2), torch.zeros(2), 1.5),
    "certificates:likelihood_ratio_certificate": lambda: (random(50),),
    "certificates:subsampled_log_ratio": lambda: (random(9, 4), 0.3),
    "images:bootstrap_interval": lambda: (random(20), generator()),
    "images:lpips": lambda: (IMAGES.float(), OTHERS.float()),
    "images:match": lambda: (IMAGES, IMAGES.flip(0)),
    "images:negative_mse": lambda: (IMAGES, OTHERS),
    "images:psnr": lambda: (IMAGES, OTHERS),
    "images:ssim": lambda: (IMAGES, OTHERS),
    "inversion.analytic:distinct_rows": lambda: (random(6, 4), 3),
    "inversion.analytic:layer_inputs": lambda: ((model := net()), list(GRADIENTS), model[1]),
    "inversion.analytic:linear_inputs": lambda: GRADIENTS,
    "inversion.analytic:reconstruct_from_layer": lambda: (net(), list(GRADIENTS), (2, 1, 2, 2)),
    "inversion.released_rows:average_copies": lambda: (random(6, 4), 2),
    "inversion.released_rows:release_as_images": lambda: (IMAGES, OTHERS),
    "inversion.released_rows:remove_shared_noise": lambda: (random(6, 4), 3, random(4, seed=1)),
    "inversion.gradient:gradient_norm": lambda: (list(GRADIENTS),),
    "inversion.labels:label_counts_of_logits": lambda: (random(6, 3), 10),
    "membership.signals:ridge_student": lambda: (random(6, 4), random(6, 3), random(3, 4)),
    "membership.signals:predicted_inclusion": lambda: (
        random(9, 5),
        torch.rand(9, 4, generator=generator()) > 0.5,
    ),
    "inversion.labels:chance_overlap": lambda: (torch.tensor([3, 1, 2]),),
    "inversion.labels:label_counts_from_bias": lambda: (random(3), 5, random(3, seed=1).softmax(0)),
    "inversion.labels:guess_labels": lambda: (
        net(),
        list(GRADIENTS),
        (2, 1, 2, 2),
        PixelScale(),
        LocalSteps(),
        generator(),
    ),
    "inversion.labels:head_inputs": lambda: (net(), SMALL),
    "inversion.labels:last_layer_gradients": lambda: (net(), list(GRADIENTS)),
    "inversion.labels:idlg": lambda: (random(3, 4),),
    "inversion.labels:mean_probabilities": lambda: (net(), SMALL),
    "inversion.labels:label_overlap": lambda: (torch.tensor([3, 1, 2]), torch.tensor([2, 2, 2])),
    "inversion.labels:recover_labels": lambda: (net(), list(GRADIENTS), 4, SMALL),
    "inversion.labels:count_labels": lambda: (Y, 3),
    "inversion.class_opening:open_pair": lambda: (PAIR.sum(0), PAIR.T @ PAIR),
    "inversion.class_opening:open_triple": lambda: (TRIPLE.sum(0), TRIPLE.T @ TRIPLE),
    "inversion.class_opening:open_classes": lambda: (
        torch.stack([PAIR[0], PAIR.sum(0)]),
        torch.tensor([1, 2]),
        torch.stack([torch.outer(PAIR[0], PAIR[0]), PAIR.T @ PAIR]),
    ),
    "inversion.paired_logits_inversion:invert_probabilities": lambda: (
        random(6, 3),
        IMAGES,
        random(2, 3, seed=1),
        OTHERS[:2],
        0.3,
        0.01,
    ),
    "inversion.distiller_inference:describe_set": lambda: (IMAGES, Y, IMAGES),
    "inversion.distiller_inference:distiller_scores": lambda: (random(3, 4, 5), random(5, seed=1)),
    "inversion.copy_detection:count_copies": lambda: (IMAGES, IMAGES, OTHERS),
    "inversion.copy_detection:nearest_records": lambda: (random(6, 4), random(5, 4, seed=1), 2),
    "inversion.copy_detection:copies_in_pool": lambda: (random(6, 4), random(5, 4, seed=1)),
    "inversion.copy_detection:compare_copies": lambda: (IMAGES, IMAGES, OTHERS, generator()),
    "low_bits:examine_low_bits": lambda: (random(200), 1.0),
    "low_bits:is_off_lattice": lambda: (random(20), 0.25),
    "low_bits:lowest_set_bits": lambda: (random(20),),
    "membership.base_attack:base": lambda: (-PROBS, MASKS, -PROBS[0]),
    "membership.density:density_ratio": lambda: (
        random(6, 4),
        random(6, 4, seed=1),
        random(3, 4, seed=2),
    ),
    "membership.multi_round:fit_distributions": lambda: (random(8, 6, 2), MASKS, True),
    "membership.multi_round:gaussian_likelihood_ratio": lambda: (
        random(8, 6, 2),
        MASKS,
        random(6, 2),
    ),
    "membership.label_only:label_robustness": lambda: (
        lambda x: x.flatten(1).sum(1) > 0,
        IMAGES,
        coins(6),
        2,
        generator(),
    ),
    "membership.lira:lira": lambda: (SIGNALS, MASKS, SIGNALS[0]),
    "membership.signals:class_mean_embeddings": lambda: (random(6, 4), Y, 3),
    "membership.signals:distance_to_synthetic": lambda: (random(6, 4), random(5, 4, seed=1), 2.0),
    "membership.signals:ridge_readout": lambda: (random(6, 4), Y, random(3, 4, seed=1), 3),
    "membership.blind_baseline:blind_record_scores": lambda: (
        random(30, 4),
        torch.arange(30) % 3,
        coins(30),
        generator(),
    ),
    "membership.blind_baseline:is_separable": lambda: (random(30), coins(30)),
    "membership.signals:class_ridge_coefficients": lambda: (random(3, 4), random(6, 4, seed=1), Y),
    "membership.signals:ridge_coefficients": lambda: (random(4), random(6, 4, seed=1)),
    "membership.signals:solve_ridge": lambda: (
        random(4, 4) @ random(4, 4).T + 4 * torch.eye(4),
        random(4, 3),
    ),
    "membership.signals:ridge_solver": lambda: (random(6, 4),),
    "membership.fedmia:stack_other_clients": lambda: (
        [[random(6), random(6, seed=1)], [random(6, seed=2)]],
    ),
    "membership.fedmia:has_other_clients": lambda: (random(4, 6, 3),),
    "membership.fedmia:fedmia": lambda: (random(6), random(4, 6, seed=1)),
    "membership.stacking:stack_scores": lambda: (
        random(4, 6, 2),
        random(4, 6, seed=1) > 0,
        random(2, 6, 2, seed=2),
    ),
    "membership.soft_labels:soft_label_student": lambda: (
        random(6, 4),
        random(6, 3, seed=1).softmax(1),
        random(3, 4),
    ),
    "membership.source_inference:source_margin": lambda: (random(6), random(4, 6, seed=1)),
    "membership.signals:moment_alignment": lambda: MOMENTS,
    "membership.signals:moment_coefficients": lambda: MOMENTS,
    "membership.nearest_row:count_nearest": lambda: (random(6), random(5, seed=1)),
    "membership.signals:patch_distance": lambda: (IMAGES, IMAGES[:2]),
    "membership.signals:single_record_means": lambda: (random(3, 4), torch.ones(3)),
    "membership.nearest_row:copy_test": lambda: (random(6), random(5, seed=1)),
    "membership.rmia:rmia": lambda: (PROBS, MASKS, PROBS[0]),
    "membership.shadow_classifier:shadow_classifier": lambda: (
        random(8, 6, 2),
        MASKS,
        random(6, 2),
        Y,
    ),
    "membership.shadow_classifier:top_k_features": lambda: (random(6, 4), Y, 2),
    "membership.shared_noise:noise_coincidence": lambda: (
        random(6, 4),
        Y,
        random(6, 4, seed=1),
        Y,
        2,
        1.0,
    ),
    "membership.signals:direction_alignment": lambda: (random(4), random(6, 4, seed=1)),
    "membership.signals:average_noisy_copies": lambda: (random(6, 4), (1.0, 2.0)),
    "membership.signals:class_log_density": lambda: (
        random(3, 2),
        random(3, 2, positive=True),
        random(6, 2),
        Y,
    ),
    "membership.signals:embedding_alignment": lambda: (random(3, 4), random(6, 4, seed=1), Y),
    "membership.signals:gradient_alignment": lambda: (random(4), random(6, 4, seed=1)),
    "membership.signals:logit_scaled": lambda: (random(6, 3), Y),
    "membership.signals:matched_filter": lambda: (random(5, 4), random(6, 4, seed=1), 1.0),
    "membership.signals:nearest_distance": lambda: (random(6, 4), random(5, 4, seed=1)),
    "membership.signals:generated_share": lambda: (random(6, 4), random(50, 4, seed=1), 2.0),
    "membership.signals:negative_loss": lambda: (random(6, 3), Y),
    "membership.signals:output_gradient": lambda: (random(6, 3), Y),
    "membership.threshold:loss_threshold": lambda: (random(6),),
    "membership.measures:measure_by_kind": lambda: (
        random(40, 60),
        coins(40, 60),
        {"kinds": {"mislabelled": torch.arange(5)}},
    ),
    "membership.measures:measure_rates_per_record": lambda: (
        random(40, 30),
        torch.cat([coins(20, 30), ~coins(20, 30)]),
    ),
    "membership.calibration:calibrate_by_record": lambda: (
        random(40, 30),
        torch.cat([coins(20, 30), ~coins(20, 30)]),
    ),
    "membership.measures:measure_worst_records": lambda: (
        random(40, 30),
        torch.cat([coins(20, 30), ~coins(20, 30)]),
    ),
}


def call(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    named = given[-1] if given and isinstance(given[-1], dict) else {}
    return function(*(given[:-1] if named else given), **named)


def as_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    return [as_arrays(one) for one in value] if isinstance(value, list) else value


def leaves(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value):
        return [
            leaf
            for field in dataclasses.fields(value)
            for leaf in leaves(getattr(value, field.name))
        ]
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    return (
        [leaf for one in value for leaf in leaves(one)]
        if isinstance(value, tuple | list)
        else [value]
    )


def test_every_public_function_of_tensors_has_the_door() -> None:
    assert len(PUBLIC) > 50 and set(PUBLIC) == set(EXAMPLES)
    assert [
        name for name, function in PUBLIC.items() if not hasattr(function, "takes_arrays")
    ] == []
    assert [
        one
        for one in INSIDE
        if not hasattr(
            importlib.import_module(f"attacks.{one.partition(':')[0]}"), one.partition(":")[2]
        )
    ] == []


NEEDS_WEIGHTS = "images:lpips"


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in sorted(PUBLIC) if name != NEEDS_WEIGHTS),
        pytest.param(NEEDS_WEIGHTS, marks=pytest.mark.extra("lpips_weights")),
    ],
)
def test_arrays_give_the_same_numbers_as_arrays(name: str) -> None:
    told = call(PUBLIC[name], EXAMPLES[name]())
    made = call(PUBLIC[name], tuple(as_arrays(one) for one in EXAMPLES[name]()))
    assert type(made) is type(told) or isinstance(made, np.ndarray)
    want = leaves(told)
    have = leaves(made)
    assert len(want) == len(have) > 0
    for a, b in zip(want, have):
        if isinstance(a, Tensor):
            assert isinstance(b, np.ndarray) and b.dtype == a.numpy().dtype, type(b)
            np.testing.assert_array_equal(b, a.numpy())
        else:
            assert not isinstance(b, Tensor) and (a == b or a != a)


def test_beside_a_tensor_tensors_come_back_and_what_was_given_stays() -> None:
    @accepts_numpy
    def doubled(a: Tensor, b: Tensor) -> Tensor:
        return a.add_(b)

    kept = np.ones(3)[::-1]
    kept.flags.writeable = False
    assert isinstance(doubled(kept, torch.ones(3)), Tensor) and doubled(
        kept, np.ones(3)
    ).tolist() == [2, 2, 2]
    assert kept.tolist() == [
        1,
        1,
        1,
    ]  # torch holds neither reversed nor read-only memory: it was given a copy


def test_other_arguments_pass_untouched() -> None:
    asked = object()
    assert accepts_numpy(lambda x: x)(asked) is asked
    assert accepts_numpy(lambda x, y: (x, {"k": [y]}))(3, np.arange(2))[1]["k"][0].tolist() == [
        0,
        1,
    ]
