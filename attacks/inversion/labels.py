"""Labels from the gradient of a classifier's last linear layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacks.inversion.victim import (
    LocalSteps,
    PixelScale,
    local_steps,
    observed_gradients,
    victim_model,
)
from attacks.measures import LabelMeasures
from attacks.statistics import chance_of_exactly
from attacks.tensors import accepts_numpy
from attacks.types import (
    UPDATE_SURFACES,
    Adversary,
    Attack,
    Capture,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
)

MIN_NUMBER = 1e-12
NO_SHARES = "no tensor has one share a class, or all shares are equal"
VOTES_NOT_LOGITS = "these are sums of votes, not logits"
SHARES_SUM_ERROR = 1e-4  # of shares in single precision
CLASS_SURFACES = frozenset({Surface.PROTOTYPES, Surface.STATISTICS})  # numbers of each class


@accepts_numpy
def last_layer_gradients(
    model: nn.Module, gradients: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the model's last nn.Linear: weight (C, d), bias (C,) or None. Raises ValueError
    for a model without one."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("the model has no nn.Linear: pass labels=")
    by_id = {id(p): g for p, g in zip(model.parameters(), gradients)}
    head = layers[-1]
    weight = by_id[id(head.weight)]
    if head.bias is None:
        return weight, None
    return weight, by_id[id(head.bias)]


@accepts_numpy
def idlg(weight: Tensor) -> int:
    """The label of a single record: argmin_c sum_j dL/dW[c, j] (Zhao et al. 2020, eq. 5).

    Exact if the layer's inputs are non-negative. weight: (C, d).
    """
    return int(weight.sum(1).argmin())


@accepts_numpy
def label_counts_from_bias(bias: Tensor, batch: int, probabilities: Tensor) -> Tensor:
    """Label counts (C,) int64 of a batch, summing to ``batch``, from the bias gradient and the mean
    predicted probabilities (C,)."""
    # g_c = p_c - n_c / B,  so  n_c = B (p_c - g_c);  a negative g_c proves that class c is present.
    # The counts are rounded one by one, on the CPU.
    device = bias.device
    bias = bias.cpu()
    probabilities = probabilities.cpu()
    least = (bias < -MIN_NUMBER).long()
    while int(least.sum()) > batch:
        least[bias.masked_fill(least == 0, -torch.inf).argmax()] = 0
    exact = (batch * (probabilities - bias)).clamp_min(0)
    counts = torch.maximum(exact.floor().long(), least)
    while int(counts.sum()) != batch:
        gap = exact - counts
        if int(counts.sum()) < batch:
            counts[gap.argmax()] += 1
        else:
            counts[gap.masked_fill(counts <= least, torch.inf).argmin()] -= 1
    return counts.to(device)


@accepts_numpy
@torch.no_grad()
def mean_probabilities(model: nn.Module, images: Tensor) -> Tensor:
    """(C,) mean softmax over ``images`` (public ones, or noise), in evaluation mode."""
    return copy.deepcopy(model).eval()(images).softmax(1).mean(0)


@accepts_numpy
@torch.no_grad()
def head_inputs(model: nn.Module, images: Tensor) -> Tensor:
    """(d,) mean input of the last linear layer over ``images``."""
    means: list[Tensor] = []
    layer = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    hook = layer.register_forward_pre_hook(lambda _, inputs: means.append(inputs[0].mean(0)))
    try:
        mean_probabilities(model, images)
    finally:
        hook.remove()
    return means[-1]


@accepts_numpy
def recover_labels(
    model: nn.Module, gradients: Sequence[Tensor], batch: int, images: Tensor
) -> Tensor:
    """The labels of a batch from its gradient: iDLG's rule for one record (Zhao et al. 2020),
    counts from the last layer's bias for more.

    Args:
        model: the victim's; it needs a last nn.Linear.
        gradients: in the order of ``model.parameters()``.
        batch: number of records.
        images: public images or noise in the model's input range, from which its mean probabilities
            are estimated.

    Returns:
        (batch,) int64, in ascending order.

    Raises:
        ValueError: for a model without a linear layer.
    """
    weight, bias = last_layer_gradients(model, gradients)
    if batch == 1:
        if bias is None:
            label = idlg(weight)
        else:
            label = int(bias.argmin())
        return torch.tensor([label]).to(weight.device)
    if bias is None:  # a head without bias is read through its mean input: g_c = <dW_c, f> / |f|^2
        inputs = head_inputs(model, images)
        bias = weight @ inputs / inputs.square().sum().clamp_min(MIN_NUMBER)
    counts = label_counts_from_bias(bias, batch, mean_probabilities(model, images).to(bias))
    return torch.repeat_interleave(torch.arange(len(counts)), counts.cpu()).to(counts.device)


@accepts_numpy
def count_labels(labels: Tensor, classes: int) -> Tensor:
    """(n,) -> (classes,) counts."""
    return torch.bincount(labels.long().flatten(), minlength=classes)


@accepts_numpy
def label_overlap(recovered: Tensor, true: Tensor) -> float:
    """Share of the true multiset of labels that was recovered; both (C,) counts, scaled to one
    total."""
    # sum_c min(r_c / sum r, n_c / sum n)
    share = recovered.double() / recovered.sum().clamp_min(1)
    return float(torch.minimum(share, true.double() / true.sum().clamp_min(1)).sum())


@accepts_numpy
def chance_overlap(true: Tensor) -> float:
    """The expected ``label_overlap`` of uniformly guessed labels with ``true`` (C,) counts:
    exact."""
    # sum_c E min(K, n_c) / n,   K ~ Binomial(n, 1 / C)
    total = int(true.sum())
    classes = len(true)
    if not total >= 1:
        raise ValueError("true sums to 0: at least one record is needed")
    guess = torch.arange(total + 1)
    weight = torch.as_tensor(chance_of_exactly(guess.numpy(), total, 1 / classes))
    return float(sum((weight * guess.clamp_max(int(n))).sum() for n in true) / total)


def sgd_displacement(steps: int, momentum: float) -> float:
    """How far heavy-ball SGD moves along a constant unit gradient in ``steps`` steps of rate
    one."""
    velocity = 0.0
    distance = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        distance += velocity
    return distance


def label_counts_of_update(view: View, capture: Capture, generator: torch.Generator) -> Tensor:
    """Label counts (C,) of the records behind a model update or gradient."""
    model = victim_model(view, capture)
    settings = view.knowledge.settings
    local = local_steps(settings)
    public = view.knowledge.public_x
    scale = sgd_displacement(local.steps, local.momentum)
    gradients = [g / scale for g in observed_gradients(view, capture, model)]
    records = int(settings.get("batch_records", local.steps * (local.batch_size or 1)))
    bias = last_layer_gradients(model, gradients)[1]
    if records == 1 or bias is None:
        shape = (records, *view.knowledge.shape)
        labels = guess_labels(model, gradients, shape, PixelScale(), LocalSteps(), generator)
        return count_labels(labels, view.knowledge.classes)
    return label_counts_from_bias(bias, records, _midway_probabilities(model, capture, public))


def _midway_probabilities(model: nn.Module, capture: Capture, public: Tensor) -> Tensor:
    """Mean predicted probabilities on public records, half-way between the broadcast and the
    update."""
    before = mean_probabilities(model, public)
    if not capture.broadcast:
        return before
    after = copy.deepcopy(model)
    after.load_state_dict({**after.state_dict(), **capture.value}, strict=False)
    return (before + mean_probabilities(after, public)) / 2


def sent_class_counts(value: Mapping[str, Tensor], classes: int) -> Tensor | None:
    """(classes,) int64: how many records of each class, if a message holds one whole number a
    class, else None.

    A tensor of ``classes`` finite, non-negative, whole numbers that are not all 0; of several the
    one whose name says "count", else the first.
    """
    histograms = [name for name, tensor in value.items() if _is_histogram(tensor, classes)]
    if not histograms:
        return None
    chosen = next((name for name in histograms if "count" in name.lower()), histograms[0])
    return value[chosen].flatten().round().long()


def _is_histogram(tensor: Tensor, classes: int) -> bool:
    if tensor.numel() != classes or not tensor.ndim or len(tensor) != classes:
        return False
    numbers = tensor.detach().flatten().double()
    if not torch.isfinite(numbers).all() or not (numbers >= 0).all():
        return False
    return bool((numbers == numbers.round()).all()) and float(numbers.sum()) > 0


def sent_class_shares(value: Mapping[str, Tensor], classes: int) -> Tensor | None:
    """(classes,) float64: the share of each class, if a message holds one number a class that sum
    to 1; None without one, and if all are equal, since nobody need have counted then."""
    for tensor in value.values():
        shares = tensor.detach().flatten().double()
        if tensor.ndim != 1 or len(shares) != classes or not bool((shares >= 0).all()):
            continue
        is_distribution = abs(float(shares.sum()) - 1) < SHARES_SUM_ERROR
        if is_distribution and not bool((shares == shares[0]).all()):
            return shares
    return None


@accepts_numpy
def label_counts_of_logits(logits: Tensor, records: int) -> Tensor:
    """Label counts (C,) int64 of a client's records, summing to ``records``, from its network's
    logits (m, C) on images that are nobody's records.

    On images that say little of any class a network predicts each about as often as its training
    records had it, so the mean probability estimates the share (arXiv 2502.08001 compares the two).
    """
    # share_c = mean_j softmax(z_j)_c,   n_c = B share_c, rounded to the sum B
    share = logits.double().softmax(1).mean(0)
    exact = records * share
    counts = exact.floor().long()
    missing = records - int(counts.sum())
    counts[(exact - counts).argsort(descending=True)[:missing]] += 1
    return counts


@dataclass(frozen=True)
class LabelCounts(Attack):
    """How many records of each class the client holds: from an update's last layer, from logits on
    public images, or read from a message that holds counts. The shares that a server sends with a
    generator are those of all clients' records together.

    In class means or sums a class of one record is open: its mean is the record's own contribution.
    """

    name: str = "label_counts"
    family = Family.LABEL
    surfaces = (
        frozenset(
            {
                Surface.UPDATE,
                Surface.GRADIENT,
                Surface.LABELS,
                Surface.COUNTS,
                Surface.LOGITS,
                Surface.GENERATOR,
            }
        )
        | CLASS_SURFACES
    )
    unmeasured = frozenset({Surface.COUNTS})  # sizes are read off: there is no rate of success
    adversaries = frozenset({Adversary.SERVER, Adversary.PEER})

    def nothing_to_read(self, view: View) -> str:
        if view.surface == Surface.GENERATOR:
            shares = sent_class_shares(view.captures[0].value, view.knowledge.classes)
            return NO_SHARES if shares is None else ""
        if view.adversary == Adversary.PEER:
            return "the server joins all clients in it, and no client's classes stand by themselves"
        if view.surface == Surface.LOGITS and view.knowledge.settings.get("votes"):
            return VOTES_NOT_LOGITS
        if view.surface not in CLASS_SURFACES:
            return ""
        counts = sent_class_counts(view.captures[0].value, view.knowledge.classes)
        if counts is None:
            return "no tensor has one whole number a class"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """extra: counts (C,), summing to the number of records behind the artifact as far as it is
        known; of a generator their shares, summing to 1."""
        capture = view.captures[0]
        if view.surface == Surface.LABELS:
            counts = count_labels(capture.value["y"], view.knowledge.classes)
            return Evidence(extra={"counts": counts})
        if view.surface == Surface.GENERATOR:
            shares = sent_class_shares(capture.value, view.knowledge.classes)
            if shares is None:
                raise ValueError(f"{view.surface}: {NO_SHARES}")
            return Evidence(extra={"counts": shares})
        if view.surface in CLASS_SURFACES:
            class_counts = sent_class_counts(capture.value, view.knowledge.classes)
            if class_counts is None:
                raise ValueError(f"{view.surface}: no tensor has one whole number a class")
            return Evidence(extra={"counts": class_counts})
        if view.surface == Surface.LOGITS:
            records = int(view.knowledge.settings["batch_records"])
            counts = label_counts_of_logits(capture.value["logits"], records)
            return Evidence(extra={"counts": counts})
        if view.surface == Surface.COUNTS:
            sizes = torch.cat([tensor.flatten().double() for tensor in capture.value.values()])
            return Evidence(extra={"sizes": sizes})
        return Evidence(extra={"counts": label_counts_of_update(view, capture, generator)})

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        records = int(truth.counts.sum())
        if "counts" in evidence.extra:
            recovered = evidence.extra["counts"].cpu()
            true = truth.counts.cpu()
            if len(view.captures) > 1 and view.surface in UPDATE_SURFACES:
                # each capture has its own records; the first one was read
                true = count_labels(truth.y[:1], len(true))
            measures = LabelMeasures(
                n=records,
                label_accuracy=label_overlap(recovered, true),
                baselines={
                    "label_accuracy_chance": chance_overlap(true),
                    "label_accuracy_balanced": label_overlap(torch.ones_like(true), true),
                },
                diagnostics={"counts": recovered.tolist(), "true_counts": true.tolist()},
            )
            open_classes = []
            if view.surface in CLASS_SURFACES:
                # a 1 may also say that the client has the class at all
                is_open = (recovered == 1) & (true == 1)
                open_classes = is_open.nonzero()[:, 0].tolist()
            if open_classes:
                sentence = describe_open_classes(open_classes)
                measures = replace(
                    measures,
                    diagnostics={**(measures.diagnostics or {}), "open_classes": open_classes},
                    note=f"{sentence}: its upload is that record's own",
                )
        else:
            sizes = evidence.extra["sizes"].tolist()
            measures = LabelMeasures(n=records, diagnostics={"sent": sizes, "records": records})
        return Finding(view.surface, self.name, self.family, view.adversary, measures)


def describe_open_classes(classes: Sequence[int]) -> str:
    """Classes of one record each, in words."""
    if len(classes) == 1:
        return f"class {classes[0]} has one record, which is open"
    return f"classes {', '.join(map(str, classes))} have one record each, which is open"


@accepts_numpy
def guess_labels(
    model: nn.Module,
    gradients: Sequence[Tensor],
    shape: tuple[int, ...],
    pixels: PixelScale,
    local: LocalSteps,
    generator: torch.Generator,
) -> Tensor:
    """Labels (b,) from the gradients alone; predicted probabilities come from noise images."""
    noise = pixels.to_input(
        torch.rand((64, *shape[1:]), generator=generator, device=generator.device)
    )
    scale = sgd_displacement(local.steps, local.momentum)
    return recover_labels(model, [g / scale for g in gradients], shape[0], noise.to(gradients[0]))
