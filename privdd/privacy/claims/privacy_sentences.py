"""What the papers say about privacy in words: claims without a number, each with the attacks that measure it."""

from __future__ import annotations

from privdd.privacy.claims.claim import Claim

MEMBERSHIP = ("lira", "rmia", "loss_threshold")


def feddm_membership() -> Claim:
    """Xiong et al. 2023 (FedDM), section 2: Dong et al. on membership inference, as "a complementary perspective"."""
    why = "points to Dong et al. 2022, where distillation itself hampers membership inference; no attack is run"
    return Claim("Xiong 2023, section 2", None, False, why, tested_by=MEMBERSHIP)


def fedrd_not_real(*, real_start: bool) -> Claim:
    """Zhang et al. (FedRD), section IV-B: "the synthetic representations are not real instances of the local dataset"."""
    why = '"the synthetic representations are not real instances of the local dataset": no theorem, no attack is run'
    if real_start:
        why += "; here they start from representations of real records (start=real)"
    return Claim("FedRD, section IV-B", None, False, why, tested_by=("copy_detection", "feature_inversion"))


def fedrd_secret_projection(*, frozen: bool) -> Claim:
    """Zhang et al. (FedRD), section IV-B: attackers "cannot infer" records "as the local projection model is kept local"."""
    why = 'attackers "cannot infer from the representations" the records, as the projection is kept local: no theorem'
    if frozen:
        why += "; in this run the projection is public"
    return Claim("FedRD, section IV-B (projection)", None, False, why, tested_by=("feature_inversion",))


def fedlgd_no_extra_leakage(*, statistics: bool) -> Claim:
    """Huang et al. (FedLGD), "Privacy": global virtual data come from shared gradients, "no extra privacy leakage"."""
    why = '"uses pre-existing information, i.e., shared averaged gradients and global model [...] no extra privacy leakage"'
    if statistics:
        why += (
            ": false here, the server's images start from statistics of the clients' classes, which are sent beside it"
        )
    else:
        why += ": what the server computes from updates adds nothing to them; what the updates show is not bounded"
    return Claim("FedLGD, section on privacy", None, not statistics, why, tested_by=("gradient_density", *MEMBERSHIP))


def fedlgd_attacks() -> Claim:
    """Huang et al. (FedLGD): virtual data "potentially defend" against membership inference and gradient inversion."""
    why = '"can potentially defend both attacks" (membership inference, gradient inversion): shown by examples, no theorem'
    tested = ("gradient_inversion", "gradient_density", *MEMBERSHIP)
    return Claim("FedLGD, section on privacy (attacks)", None, False, why, tested_by=tested)
