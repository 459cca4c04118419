# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Is the printed epsilon true?
# FedDM's Theorem 3.2 and FedRD's Theorem 1 print an epsilon for noisy distribution matching. Their
# equation clips the **mean** of a batch; the proof needs every **record** clipped. This notebook
# measures how far one record moves each of the two before any noise, in units of what the proof
# allows (kappa; it must not pass 1).

# %%
import math

import dp_accounting as dpa
import torch

from attacks.certificates import (
    gaussian_log_ratio,
    likelihood_ratio_certificate,
    subsampled_log_ratio,
)
from privdd.auditing.dp_tests.clean_values import sensitivity_unit
from privdd.core.rng import Keys
from privdd.privacy.accounting import epsilon
from privdd.privacy.claims import MatchingRun, feddm_3_2
from privdd.privacy.mechanisms import AggregateClip, ClippedSum
from privdd.privacy.noise import SeededNoise

SHAPE, BATCH, IPC, STEPS, DELTA = (3, 32, 32), 256, 10, 1000, 1e-5
SIGMA, CLIP = 5.0, 1.0  # the papers' largest noise; their C = 1
noise = SeededNoise(Keys(0).fold("notebook").torch())
printed = AggregateClip(SIGMA, CLIP)
sound = ClippedSum(SIGMA, CLIP, normaliser=BATCH)


def contributions(x):
    """Each record's gradient of the matching loss on a synthetic set that matches the black
    records."""
    return (-2 / IPC) * x.flatten(1).repeat(1, IPC)


def released(mechanism, x):
    return mechanism({"gradient": contributions(x)}, noise)


# %% [markdown]
# ## Tier 1: sensitivity
# Data: black records; the neighbour has one white record more.

# %%
black, white = torch.zeros(BATCH - 1, *SHAPE), torch.ones(1, *SHAPE)
allowed = sensitivity_unit(
    released(sound, black)
)  # what the stated noise allows one record: C / |B|


def kappa(mechanism):
    before, after = (
        released(mechanism, x).exact["gradient"] for x in (black, torch.cat([black, white]))
    )
    return float((after - before).norm()) / allowed


found = {"as printed": kappa(printed), "each record clipped": kappa(sound)}
{
    name: (round(size, 2), "holds" if size <= 1 + 1e-3 else "VIOLATED")
    for name, size in found.items()
}

# %% [markdown]
# As printed, the noise is 2·sqrt(3072/10) = 35 times too small for the proof.
#
# ## Tier 2: a certificate
# Each step uses the record with probability q, and the synthetic set is taken to stay matched.
# Along the direction of the record, a release is then N(kappa/sigma, 1) with it and N(0, 1) without
# it. The likelihood ratio is known exactly, so a hundred runs can prove "not (ε, δ)-DP" at 95 %
# confidence for an ε far above ln(100).

# %%
RATE = (
    BATCH / 20_000
)  # 20 000 records of a class, more than any CIFAR-10 client has: the theorem's best case
claim = feddm_3_2(MatchingRun(SIGMA, STEPS, RATE, DELTA, noise_init=True))


def certificate(change):
    generator, shift = Keys(2).torch(), torch.tensor([change / SIGMA], dtype=torch.float64)
    used = torch.rand(100, STEPS, 1, generator=generator, dtype=torch.float64) < RATE
    outputs = torch.randn(100, STEPS, 1, generator=generator, dtype=torch.float64) + used * shift
    ratios = gaussian_log_ratio(outputs, shift, torch.zeros(1), 1.0)
    return likelihood_ratio_certificate(subsampled_log_ratio(ratios, RATE))


proven = {name: certificate(size) for name, size in found.items()}
print(f"the theorem states     epsilon <= {claim.epsilon:.3g}")
for name, result in proven.items():
    print(f"{name:22} epsilon >= {result.epsilon:.3g} at 95 %")

# %% [markdown]
# ## What a proof does give
# The accountant's epsilon for both: of the mechanism as printed, at its true sensitivity 2C and as
# if every batch had the same, public size, and of the one with each record clipped. As printed, a
# class smaller than a batch gets more noise the smaller it is, so the noise tells its size, and the
# ledger of a run gives that mechanism no epsilon at all.


# %%
def accounted(event):
    return epsilon(dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(RATE, event), STEPS), DELTA)


bounds = {
    "as printed": accounted(dpa.GaussianDpEvent(SIGMA / (2 * BATCH))),
    "each record clipped": accounted(sound.event),
}
assert isinstance(released(printed, black).event, dpa.NonPrivateDpEvent)
print(bounds)

# %% [markdown]
# The audit runs these tests on every release that states a finite epsilon, accounted or printed:
# `python -m privdd.audit algo=feddm privacy=aggregate_clip algo.start=noise` against
# `algo=feddm_dp`.

# %%
assert (
    abs(found["as printed"] - 2 * math.sqrt(3072 / 10)) < 1e-2
    and found["each record clipped"] <= 1 + 1e-3
)
assert proven["as printed"].epsilon > claim.epsilon > proven["each record clipped"].epsilon
assert proven["as printed"].delta_below > DELTA
assert bounds["each record clipped"] < 1 < bounds["as printed"]
