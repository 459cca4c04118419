"""The papers' sentences about privacy, each with the test that decides it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privdd.reproduce import attack_verdicts as attack
from privdd.reproduce import formula_verdicts as formula
from privdd.reproduce.decided import Decided, Grounds


@dataclass(frozen=True)
class Sentence:
    """quote: the paper's words; reading: what must be true for it to hold; by: "formula", "attack" or "training"."""

    name: str
    where: str
    quote: str
    reading: str
    by: str
    decide: Callable[[Grounds], Decided]


SENTENCES: tuple[Sentence, ...] = (  # in the papers' order
    Sentence(
        "feddm.theorem", "FedDM, section 4.4",
        "using DP-SGD in local training of FedDM can satisfy (ϵ, δ)-differential privacy, with σ ≥ √(2 log(1/δ)/ϵ) "
        "for any Tq² ≤ ϵ/2",
        "the paper's own sigma, T and batch meet the condition on CIFAR-10, and an accountant then allows that epsilon",
        "formula", formula.feddm_theorem,
    ),
    Sentence(
        "fedrd.table2", "FedRD, section V-C",
        "We set the value of noise scale σ = 1, 3, 5 and the corresponding privacy budget ϵ = 10, 1.11, 0.4 with δ = 10⁻⁵",
        "the formula of the same section gives these numbers with the natural logarithm of its proof",
        "formula", formula.fedrd_table_two,
    ),
    Sentence(
        "fedrd.not-real", "FedRD, section IV-B",
        "the synthetic representations are not real instances of the local dataset",
        "whether a record was used cannot be told from the representations",
        "attack", attack.fedrd_not_real,
    ),
    Sentence(
        "fedrd.secret-map", "FedRD, section IV-B",
        "the attackers cannot infer from the representations [...] to obtain the original data x, as the local projection "
        "model is kept local",
        "an attacker without the projection rebuilds no picture better than a guess from public records",
        "attack", attack.fedrd_secret_map,
    ),
    Sentence(
        "fedfed.less-noise", "FedFed, theorem 3.3",
        "Given identical ϵ, δ, we attain σ < σ′",
        "at equal epsilon the noise on features is smaller than on raw records, taken by itself",
        "formula", formula.fedfed_less_noise,
    ),
    Sentence(
        "fedfed.square", "FedFed, theorem 3.3",
        "such that σ ∝ ‖x_s‖²",
        "twice the norm needs four times the noise at equal epsilon",
        "formula", formula.fedfed_square,
    ),
    Sentence(
        "fedfed.composition", "FedFed, theorem 3.4",
        "For k clients with (ϵ, δ)-differential privacy, FedFed satisfies [...]-differential privacy",
        "the printed bound is not below that of the theorem which it cites",
        "formula", formula.fedfed_composition,
    ),
    Sentence(
        "fedfed.raw", "FedFed, section 4.2",
        "sharing the full data with DP protection leads to a degradation in the performance of the FL system",
        "at equal protection, features give a higher accuracy than whole images (fedfed.figure11, scale=small)",
        "training", attack.fedfed_raw,
    ),
    Sentence(
        "fedfed.inversion", "FedFed, section 4.4",
        "FedFed could protect globally shared data",
        "no picture is rebuilt from the shared features better than a guess from public records",
        "attack", attack.fedfed_inversion,
    ),
    Sentence(
        "fedlgd.no-extra", "FedLGD, section on privacy",
        "FedLGD uses pre-existing information, i.e., shared averaged gradients and global model, to distill virtual data, "
        "so there is no extra privacy leakage",
        "membership in FedLGD's updates is found no better than in those of FedAvg on the same kind of virtual data",
        "attack", attack.fedlgd_no_extra,
    ),
    Sentence(
        "fedlgd.membership", "FedLGD, section on privacy",
        "attacking membership becomes more challenging",
        "membership is found worse in FedLGD's updates than in those of FedAvg on the records",
        "attack", attack.fedlgd_membership,
    ),
    Sentence(
        "fedlgd.lpips", "FedLGD, section on privacy",
        "it effectively alleviates the attack from perceptual perspective, by reducing LPIPS from 0.253 to 0.177",
        "a smaller LPIPS means a picture less like the record",
        "formula", formula.fedlgd_lpips,
    ),
)  # fmt: skip
