"""Mechanisms: randomised functions that return their value and their accounting together."""

from privdd.privacy.mechanisms.aggregate_clip import AggregateClip
from privdd.privacy.mechanisms.client_level import ClientLevel
from privdd.privacy.mechanisms.clipped_sum import ClippedSum
from privdd.privacy.mechanisms.gaussian_features import FeatureNoise
from privdd.privacy.mechanisms.noise_share import ClientShare, SumShare

__all__ = ["AggregateClip", "ClientLevel", "ClientShare", "ClippedSum", "FeatureNoise", "SumShare"]
