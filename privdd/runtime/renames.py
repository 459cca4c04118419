"""Names that a stored config may still use: classes that moved, and settings that were renamed with them.

A run folder's config.yaml names classes by their Python path. It is read with today's names (``renamed``) and
fingerprinted under the oldest ones (``original``), so that a run of an earlier version can be resumed and attacked
again, and keeps its cached shadow models. Whoever moves a class that a yaml file names adds a line to ``RENAMED``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TARGET = "_target_"

RENAMED = {  # the name in configs of an earlier version -> today's
    "attacks.inversion.audit.AnalyticInversion": "attacks.inversion.analytic.AnalyticInversion",
    "attacks.inversion.audit.CopyDetection": "attacks.inversion.synthetic.CopyDetection",
    "attacks.inversion.audit.FeatureInversion": "attacks.inversion.feature_attack.FeatureInversion",
    "attacks.inversion.audit.GradientInversion": "attacks.inversion.gradient_attack.GradientInversion",
    "attacks.inversion.audit.LabelCounts": "attacks.inversion.labels.LabelCounts",
    "attacks.inversion.audit.ModelInversion": "attacks.inversion.model_attack.ModelInversion",
    "attacks.inversion.audit_release.CopyDetection": "attacks.inversion.synthetic.CopyDetection",
    "attacks.inversion.audit_release.FeatureInversion": "attacks.inversion.feature_attack.FeatureInversion",
    "attacks.inversion.audit_release.ModelInversion": "attacks.inversion.model_attack.ModelInversion",
    "attacks.inversion.audit_roles.RoleInversion": "attacks.inversion.role_attack.RoleInversion",
    "attacks.membership.audit.Base": "attacks.membership.base.Base",
    "attacks.membership.audit.GradientDensity": "attacks.membership.density.GradientDensity",
    "attacks.membership.audit.Lira": "attacks.membership.lira.Lira",
    "attacks.membership.audit.LossThreshold": "attacks.membership.threshold.LossThreshold",
    "attacks.membership.audit.Rmia": "attacks.membership.rmia.Rmia",
    "attacks.membership.audit.ShadowClassifier": "attacks.membership.shadow_classifier.ShadowClassifier",
    "privdd.distill.extractor.AlexNet": "privdd.distillation.public_features.AlexNet",
    "privdd.distill.fitting.Fitting": "privdd.distillation.fitting.Fitting",
    "privdd.distill.iterative.Virtual": "privdd.distillation.virtual_images.Virtual",
    "privdd.distill.matching.Matching": "privdd.distillation.distribution_matching.Matching",
    "privdd.distill.split.SplitLoss": "privdd.distillation.feature_split.SplitLoss",
    "privdd.methods.feddm.FedDM.configured": "privdd.methods.feddm.FedDM",
    "privdd.methods.fedrd.FedRD.configured": "privdd.methods.fedrd.FedRD",
    "privdd.methods.union.ServerTraining": "privdd.training.server.ServerTraining",
}
RENAMED_KEYS = {  # under the old name of their class: old key -> today's
    "privdd.methods.feddm.FedDM.configured": {"init": "start"},
    "privdd.methods.fedrd.FedRD.configured": {"init": "start"},
}
ORIGINAL = {new: old for old, new in reversed(RENAMED.items())}  # of several old names, the first


def renamed(config: Any) -> Any:
    """A plain config (dicts, lists, values) under today's names."""
    return _walk(config, RENAMED, RENAMED_KEYS)


def original(config: Any) -> Any:
    """The same under the oldest names known."""
    back = {RENAMED[old]: {new: key for key, new in keys.items()} for old, keys in RENAMED_KEYS.items()}
    return _walk(config, ORIGINAL, back)


def _walk(node: Any, targets: Mapping[str, str], keys: Mapping[str, Mapping[str, str]]) -> Any:
    if isinstance(node, list):
        return [_walk(part, targets, keys) for part in node]
    if not isinstance(node, dict):
        return node
    target = node.get(TARGET)
    changed = keys.get(target, {}) if isinstance(target, str) else {}
    walked = {changed.get(key, key): _walk(part, targets, keys) for key, part in node.items()}
    if isinstance(target, str):
        walked[TARGET] = targets.get(target, target)
    return walked
