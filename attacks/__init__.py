"""Attacks on what federated clients share: membership, reconstruction, inversion. Needs no training
stack.

The names in ``__all__`` are the library: functions on arrays or tensors, and inverters of
gradients. They are imported on first use, so that ``import attacks`` needs no torch.

>>> from attacks import lira, roc_curve, tpr_at_fpr
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.certificates import likelihood_ratio_certificate as likelihood_ratio_certificate
    from attacks.epsilon import Bound as Bound
    from attacks.epsilon import from_scores as epsilon_from_scores
    from attacks.images import lpips as lpips
    from attacks.images import psnr as psnr
    from attacks.images import ssim as ssim
    from attacks.inversion.gradient import DLG as DLG
    from attacks.inversion.gradient import IDLG as IDLG
    from attacks.inversion.gradient import InvertingGradients as InvertingGradients
    from attacks.inversion.gradient import SeeThrough as SeeThrough
    from attacks.inversion.labels import recover_labels as recover_labels
    from attacks.inversion.victim import LocalSteps as LocalSteps
    from attacks.inversion.victim import Reconstruction as Reconstruction
    from attacks.inversion.victim import update_to_gradients as update_to_gradients
    from attacks.membership.base_attack import base as base
    from attacks.membership.label_only import label_robustness as label_robustness
    from attacks.membership.lira import lira as lira
    from attacks.membership.rmia import rmia as rmia
    from attacks.membership.shadow_classifier import shadow_classifier as shadow_classifier
    from attacks.membership.signals import logit_scaled as logit_scaled
    from attacks.membership.signals import negative_loss as negative_loss
    from attacks.membership.threshold import loss_threshold as loss_threshold
    from attacks.one_run import one_run_from_scores as epsilon_from_one_run
    from attacks.roc import Roc as Roc
    from attacks.roc import auc_interval as auc_interval
    from attacks.roc import roc as roc_curve
    from attacks.roc import tpr_at_fpr as tpr_at_fpr

# Public name -> its module, and its name there. No public name is that of a module of this package:
# importing the module would replace it.
PUBLIC = {
    "Bound": ("attacks.epsilon", "Bound"),
    "DLG": ("attacks.inversion.gradient", "DLG"),
    "IDLG": ("attacks.inversion.gradient", "IDLG"),
    "InvertingGradients": ("attacks.inversion.gradient", "InvertingGradients"),
    "LocalSteps": ("attacks.inversion.victim", "LocalSteps"),
    "Reconstruction": ("attacks.inversion.victim", "Reconstruction"),
    "Roc": ("attacks.roc", "Roc"),
    "SeeThrough": ("attacks.inversion.gradient", "SeeThrough"),
    "auc_interval": ("attacks.roc", "auc_interval"),
    "base": ("attacks.membership.base_attack", "base"),
    "epsilon_from_one_run": ("attacks.one_run", "one_run_from_scores"),
    "epsilon_from_scores": ("attacks.epsilon", "from_scores"),
    "label_robustness": ("attacks.membership.label_only", "label_robustness"),
    "likelihood_ratio_certificate": ("attacks.certificates", "likelihood_ratio_certificate"),
    "lira": ("attacks.membership.lira", "lira"),
    "logit_scaled": ("attacks.membership.signals", "logit_scaled"),
    "loss_threshold": ("attacks.membership.threshold", "loss_threshold"),
    "lpips": ("attacks.images", "lpips"),
    "negative_loss": ("attacks.membership.signals", "negative_loss"),
    "psnr": ("attacks.images", "psnr"),
    "recover_labels": ("attacks.inversion.labels", "recover_labels"),
    "rmia": ("attacks.membership.rmia", "rmia"),
    "roc_curve": ("attacks.roc", "roc"),
    "shadow_classifier": ("attacks.membership.shadow_classifier", "shadow_classifier"),
    "ssim": ("attacks.images", "ssim"),
    "tpr_at_fpr": ("attacks.roc", "tpr_at_fpr"),
    "update_to_gradients": ("attacks.inversion.victim", "update_to_gradients"),
}

__all__ = [
    "DLG",
    "IDLG",
    "Bound",
    "InvertingGradients",
    "LocalSteps",
    "Reconstruction",
    "Roc",
    "SeeThrough",
    "auc_interval",
    "base",
    "epsilon_from_one_run",
    "epsilon_from_scores",
    "label_robustness",
    "likelihood_ratio_certificate",
    "lira",
    "logit_scaled",
    "loss_threshold",
    "lpips",
    "negative_loss",
    "psnr",
    "recover_labels",
    "rmia",
    "roc_curve",
    "shadow_classifier",
    "ssim",
    "tpr_at_fpr",
    "update_to_gradients",
]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = PUBLIC[name]
    value = getattr(importlib.import_module(module), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
