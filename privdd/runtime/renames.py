"""Names under which classes enter the fingerprint of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privdd.runtime.yaml_files import TARGET

RENAMED = {  # the name in configs of an earlier version -> today's
    "attacks.inversion.audit.AnalyticInversion": "attacks.inversion.analytic.AnalyticInversion",
    "attacks.inversion.audit.CopyDetection": "attacks.inversion.copy_detection.CopyDetection",
    "attacks.inversion.audit.FeatureInversion": "attacks.inversion.feature_inversion.FeatureInversion",
    "attacks.inversion.audit.GradientInversion": "attacks.inversion.gradient_attack.GradientInversion",
    "attacks.inversion.audit.LabelCounts": "attacks.inversion.labels.LabelCounts",
    "attacks.inversion.audit.ModelInversion": "attacks.inversion.model_inversion.ModelInversion",
    "attacks.inversion.audit_release.CopyDetection": "attacks.inversion.copy_detection.CopyDetection",
    "attacks.inversion.audit_release.FeatureInversion": "attacks.inversion.feature_inversion.FeatureInversion",
    "attacks.inversion.audit_release.ModelInversion": "attacks.inversion.model_inversion.ModelInversion",
    "attacks.inversion.audit_roles.RoleInversion": "attacks.inversion.generative.RoleInversion",
    "attacks.membership.audit.Base": "attacks.membership.base.Base",
    "attacks.membership.audit.GradientDensity": "attacks.membership.density.GradientDensity",
    "attacks.membership.audit.Lira": "attacks.membership.lira.Lira",
    "attacks.membership.audit.LossThreshold": "attacks.membership.threshold.LossThreshold",
    "attacks.membership.audit.Rmia": "attacks.membership.rmia.Rmia",
    "attacks.membership.audit.ShadowClassifier": "attacks.membership.shadow_classifier.ShadowClassifier",
    "privdd.distill.extractor.AlexNet": "privdd.distillation.alexnet.AlexNet",
    "privdd.distill.fitting.Fitting": "privdd.distillation.image_fitting.FittingSettings",
    "privdd.distill.iterative.Virtual": "privdd.distillation.virtual_images.VirtualImages",
    "privdd.distill.matching.Matching": "privdd.distillation.distribution_matching.MatchingSettings",
    "privdd.distill.split.SplitLoss": "privdd.distillation.feature_split.SplitLoss",
    "privdd.methods.feddm.FedDM.configured": "privdd.methods.feddm.FedDM",
    "privdd.methods.fedrd.FedRD.configured": "privdd.methods.fedrd.FedRD",
    "privdd.methods.union.ServerTraining": "privdd.training.server.ServerTraining",
    "attacks.inversion.decoder.DecoderTraining": "attacks.inversion.feature_inversion.DecoderTraining",
    "attacks.inversion.feature_attack.FeatureInversion": "attacks.inversion.feature_inversion.FeatureInversion",
    "attacks.inversion.features.WhiteBox": "attacks.inversion.feature_inversion.WhiteBox",
    "attacks.inversion.judge.Judge": "attacks.inversion.generative.EvaluationClassifier",
    "attacks.inversion.model.ModelInversion": "attacks.inversion.model_inversion.MiFace",
    "attacks.inversion.model_attack.ModelInversion": "attacks.inversion.model_inversion.ModelInversion",
    "attacks.inversion.neighbour.KnownNeighbour": "attacks.inversion.known_neighbour.KnownNeighbour",
    "attacks.inversion.role_attack.RoleInversion": "attacks.inversion.generative.RoleInversion",
    "attacks.inversion.seethrough.SeeThrough": "attacks.inversion.gradient.SeeThrough",
    "attacks.inversion.synthetic.CopyDetection": "attacks.inversion.copy_detection.CopyDetection",
    "attacks.inversion.update_attack.UpdateInversion": "attacks.inversion.gradient_attack.UpdateInversion",
    "attacks.membership.few_shadows.FewShadowRmia": "attacks.membership.rmia.OfflineRmia",
    "attacks.membership.noised_reads.NoisedReads": "attacks.membership.noised_sums.NoisedSumAttack",
    "attacks.membership.rounds.Fusion": "attacks.membership.multi_round.Fusion",
    "attacks.membership.rounds.LiraRounds": "attacks.membership.multi_round.LiraRounds",
    "attacks.membership.rounds.Tracing": "attacks.membership.multi_round.Tracing",
    "privdd.distillation.coarse_pixels.CoarsePixels": "privdd.distillation.image_fitting.CoarsePixels",
    "privdd.distillation.distribution_matching.Matching": "privdd.distillation.distribution_matching.MatchingSettings",
    "privdd.distillation.fitting.Fitting": "privdd.distillation.image_fitting.FittingSettings",
    "privdd.distillation.gradient_images.GradientImages": "privdd.distillation.gradient_matching.GradientImages",
    "privdd.distillation.guided_images.Guiding": "privdd.distillation.image_fitting.GuidanceSettings",
    "privdd.distillation.guided_images.CoarsePixels": "privdd.distillation.image_fitting.CoarsePixels",
    "privdd.distillation.guided_images.GuidanceSettings": "privdd.distillation.image_fitting.GuidanceSettings",
    "privdd.distillation.private_set.SetGeneration": "privdd.distillation.gradient_matching.SetGeneration",
    "privdd.distillation.public_head.PublicRows": "privdd.distillation.public_rows.PublicRows",
    "privdd.distillation.random_features.RandomCosine": "privdd.distillation.random_cosine.RandomCosine",
    "privdd.distillation.stand_ins.OwnRecords": "privdd.distillation.virtual_images.OwnRecords",
    "privdd.distillation.virtual_images.Virtual": "privdd.distillation.virtual_images.VirtualImages",
}
RENAMED_KEYS = {  # under the old name of their class: old key -> today's
    "privdd.methods.feddm.FedDM.configured": {"init": "start"},
    "privdd.methods.fedrd.FedRD.configured": {"init": "start"},
}
ORIGINAL = {new: old for old, new in reversed(RENAMED.items())}  # of several old names, the first


def use_original_names(config: Any) -> Any:
    """The settings under the oldest known names."""
    back = {
        RENAMED[old]: {new: key for key, new in keys.items()} for old, keys in RENAMED_KEYS.items()
    }
    return _rename_nodes(config, ORIGINAL, back)


def _rename_nodes(
    node: Any, targets: Mapping[str, str], keys: Mapping[str, Mapping[str, str]]
) -> Any:
    if isinstance(node, list):
        return [_rename_nodes(part, targets, keys) for part in node]
    if not isinstance(node, dict):
        return node
    target = node.get(TARGET)
    if isinstance(target, str):
        changed = keys.get(target, {})
    else:
        changed = {}
    walked = {
        changed.get(key, key): _rename_nodes(part, targets, keys) for key, part in node.items()
    }
    if isinstance(target, str):
        walked[TARGET] = targets.get(target, target)
    return walked
