"""An image of each class from logits on public images (Takahashi, Liu and Liu 2023).

Clients of FedMD and its kin send their networks' logits on images that everybody has. The server
learns to tell an image from the pair of its own logits and a client's, and asks for the image of
the pair that a private image of a class would have: the client, which trained on the class, is
certain of it, the server is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.images import bootstrap_interval, psnr
from attacks.inversion.evaluation import (
    class_mean_images,
    guess_class_images,
    measure_class_images,
)
from attacks.inversion.labels import VOTES_NOT_LOGITS
from attacks.tensors import accepts_numpy
from attacks.types import (
    SERVER_ONLY,
    Attack,
    Capture,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
)
from attacks.validation import check_non_negative, check_positive

LEAST_GAIN = 0.1  # dB: a fit to logits that say nothing moves the prior by less; a choice
# classes from which a gain is more than chance: all of fewer gain by chance in 1 of 16 clients
LEAST_CLASSES = 5
LOGITS = "logits"  # the tensor of a message on this surface
NO_IMAGES = "the attacker does not hold the public images that the logits are about"
ADDS_NOTHING = "adds nothing to a guess from public records"
TOO_FEW = f"fewer than {LEAST_CLASSES} classes may gain by chance"


@accepts_numpy
def invert_probabilities(
    probabilities: Tensor,
    images: Tensor,
    asked: Tensor,
    prior: Tensor,
    prior_weight: float,
    ridge: float,
) -> Tensor:
    """The images that a linear inversion assigns to probabilities.

    The inversion is fitted in closed form, to public pairs and to what is known beforehand of the
    images that are asked for (eq. 3 and 10 of Takahashi, Liu and Liu 2023, where a network is
    trained by the same two losses).

    Args:
        probabilities: (m, d) of the public images.
        images: the public images (m, ...), in [0, 1].
        asked: probabilities (C, d) of the images that are asked for.
        prior: what these images are thought to be beforehand, (C, ...).
        prior_weight: gamma >= 0, of the prior's images together beside the public ones.
        ridge: > 0, of the mean squared input.

    Returns:
        (C, ...) in [0, 1].
    """
    # W = argmin  sum_i |W f_i - x_i|^2 + gamma m/C sum_j |W q_j - a_j|^2 + ridge tr(G)/d |W|^2,
    # f, x, q, a relative to the mean public pair, G = sum_i f_i f_i^T + gamma m/C sum_j q_j q_j^T
    centre = probabilities.double().mean(0)
    mean_image = images.double().flatten(1).mean(0)
    pairs = probabilities.double() - centre
    questions = asked.double() - centre
    weight = prior_weight * len(pairs) / len(questions)
    gram = pairs.T @ pairs + weight * questions.T @ questions
    products = pairs.T @ (images.double().flatten(1) - mean_image)
    products = products + weight * questions.T @ (prior.double().flatten(1) - mean_image)
    shrinkage = ridge * gram.diagonal().mean().clamp_min(torch.finfo(gram.dtype).tiny)
    gram.diagonal().add_(shrinkage)
    inverted = questions @ torch.linalg.solve(gram, products) + mean_image
    return inverted.clamp(0, 1).view(len(asked), *images.shape[1:]).to(images)


def certain_client(classes: int) -> Tensor:
    """Probabilities (classes, classes) of a client that is certain of each class."""
    return torch.eye(classes)


def unsure_server(classes: int, doubt: float) -> Tensor:
    """Probabilities (classes, classes) of a server that leans to each class, and is unsure of it.

    Args:
        classes: how many there are.
        doubt: alpha > 0; the larger, the closer to uniform.
    """
    # row j maximises p_j + alpha H(p):   p_u = exp(1[u = j] / alpha) / sum_v exp(1[v = j] / alpha)
    return (torch.eye(classes) / doubt).softmax(1)


@dataclass(frozen=True)
class PairedLogitsInversion(Attack):
    """One image per class from a client's logits on public images, beside the server's own.

    The server's logits are those that it sent before the client's round (FedMD's consensus); where
    it had sent none yet, the client's stand alone. The prior of a class is its mean image among
    public records, or that of all of them if they have none of the class.

    Attributes:
        temperature: tau > 0 of both softmaxes; the larger, the more an improbable class says.
        doubt: alpha > 0, of the server's probabilities for a private image (``unsure_server``).
        prior_weight: gamma >= 0, of the prior.
        ridge: > 0, of the linear inversion.
    """

    temperature: float = 3.0
    doubt: float = 5.0
    prior_weight: float = 0.1
    ridge: float = 1e-3
    name: str = "paired_logits_inversion"
    images_only = True
    family = Family.MODEL_INVERSION
    surfaces = frozenset({Surface.LOGITS})
    adversaries = SERVER_ONLY

    def __post_init__(self) -> None:
        check_positive(self, "temperature", "doubt", "ridge")
        check_non_negative(self, "prior_weight")

    def nothing_to_read(self, view: View) -> str:
        if view.knowledge.settings.get("votes"):
            return VOTES_NOT_LOGITS
        images = view.knowledge.asked_images
        if images is None or len(images) != len(view.captures[0].value[LOGITS]):
            return NO_IMAGES
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (C, c, h, w): one a class; notes: whether the server's logits were read too."""
        knowledge = view.knowledge
        if knowledge.asked_images is None:
            raise ValueError(f"{view.surface}: {NO_IMAGES}")
        capture = view.captures[0]
        client = capture.value[LOGITS].double()
        probabilities = (client / self.temperature).softmax(1)
        asked = certain_client(knowledge.classes).to(probabilities)
        server = _sent_before(capture)
        if server is not None:
            shares = (server.to(client) / self.temperature).softmax(1)
            leaning = unsure_server(knowledge.classes, self.doubt).to(shares)
            probabilities = torch.cat([probabilities, shares], 1)
            asked = torch.cat([asked, leaning], 1)
        prior = class_mean_images(knowledge.public_x, knowledge.public_y, knowledge.classes)
        images = invert_probabilities(
            probabilities,
            knowledge.asked_images,
            asked,
            prior,
            self.prior_weight,
            self.ridge,
        )
        return Evidence(images=images, notes={"paired": server is not None})

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Against the mean image of each class that the client holds, beside guesses."""
        if evidence.images is None:
            raise ValueError("evidence.images must hold one image a class, not None")
        classes = view.knowledge.classes
        held = torch.bincount(truth.y, minlength=classes).nonzero()[:, 0]
        images = evidence.images[held].to(truth.x)
        means = class_mean_images(truth.x, truth.y, classes)[held]
        guesses = guess_class_images(view, held)
        closest = torch.stack([psnr(guess, means) for guess in guesses.values()]).amax(0)
        quality = psnr(images, means)
        gain = bootstrap_interval(quality - closest, torch.Generator().manual_seed(0))
        measures = measure_class_images(images, means, guesses)
        diagnostics = {"gain_interval": list(gain), "paired": bool(evidence.notes["paired"])}
        measures = replace(measures, diagnostics=diagnostics)
        if gain[0] < LEAST_GAIN:
            measures = replace(measures, note=f"{measures.note}; {ADDS_NOTHING}")
        elif len(held) < LEAST_CLASSES:
            measures = replace(measures, note=f"{measures.note}; {TOO_FEW}")
        figures = {"real": means, "reconstructed": images}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)


def _sent_before(capture: Capture) -> Tensor | None:
    """The server's logits (m, C) on the same images before the round; None where it had sent none,
    or the same for every image."""
    logits = capture.broadcast.get(LOGITS)
    if logits is None or logits.shape != capture.value[LOGITS].shape:
        return None
    if not bool((logits != logits[0]).any()):
        return None
    return logits
