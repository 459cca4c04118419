"""What the papers state: one function per printed theorem or sentence, each with its preconditions checked."""

from privdd.privacy.claims.claim import DELTA, NO_NUMBER, Claim, boldest
from privdd.privacy.claims.feature_theorems import (
    FEATURE_THEOREMS,
    FeatureRun,
    effective_std,
    feature_run,
    fedfed_3_3,
    fedfed_3_4,
    fedfed_3_4_source,
    fedfed_d_1,
    fedfed_d_2,
    fedfed_d_3,
    kairouz,
    lemma_d_2,
    printed_composition,
)
from privdd.privacy.claims.matching_theorems import (
    MatchingRun,
    feddm_3_1,
    feddm_3_2,
    fedrd_1,
    fedrd_table_2,
    matching_claims,
)
from privdd.privacy.claims.privacy_sentences import (
    feddm_membership,
    fedlgd_attacks,
    fedlgd_no_extra_leakage,
    fedrd_not_real,
    fedrd_secret_projection,
)

__all__ = [
    "DELTA", "FEATURE_THEOREMS", "NO_NUMBER", "Claim", "FeatureRun", "MatchingRun", "boldest", "effective_std",
    "feature_run", "feddm_3_1", "feddm_3_2", "feddm_membership", "fedfed_3_3", "fedfed_3_4", "fedfed_3_4_source",
    "fedfed_d_1", "fedfed_d_2", "fedfed_d_3", "fedlgd_attacks", "fedlgd_no_extra_leakage", "fedrd_1",
    "fedrd_not_real", "fedrd_secret_projection", "fedrd_table_2", "kairouz", "lemma_d_2", "matching_claims",
    "printed_composition",
]  # fmt: skip
