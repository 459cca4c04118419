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
# # Epsilon against accuracy
# One curve of one method: as the noise multiplier σ goes up, epsilon and accuracy go down. The
# method is FedFed with a guarantee that holds (`algo=fedfed_dp`): generator and classifier are
# trained by DP-SGD, and each record's shared feature is clipped and noised. Here the runs are
# trained alone, at smoke size and with one seed; one command audits every point of a larger sweep:
# `python -m privdd.audit -m algo=fedfed_dp privacy.noise_multiplier=0.5,1,2 seed=0,1,2`.

# %%
import matplotlib.pyplot as plt

from privdd.api import train

SIZE = ("preset=smoke", "partition.clients=2", "algo.base.rounds=6")
SIGMAS = (0.5, 1.0, 2.0)
runs = {
    sigma: train(
        *SIZE, "algo=fedfed_dp", f"privacy.noise_multiplier={sigma}", out=f"runs/sigma{sigma}"
    )
    for sigma in SIGMAS
}
printed = train(*SIZE, "algo=fedfed", out="runs/printed")
{sigma: (run["epsilon"], run["accuracy"]) for sigma, run in runs.items()}

# %%
figure, axes = plt.subplots(figsize=(5, 3.4))
epsilons = [run["epsilon"]["pld"] for run in runs.values()]
accuracies = [run["accuracy"] for run in runs.values()]
axes.plot(epsilons, accuracies, "o-", label="fedfed_dp")
for sigma, epsilon, accuracy in zip(SIGMAS, epsilons, accuracies, strict=True):
    axes.annotate(f"σ = {sigma:g}", (epsilon, accuracy), xytext=(6, 6), textcoords="offset points")
axes.axhline(
    printed["accuracy"], color="grey", ls="--", label="fedfed as printed, no limit (ε = ∞)"
)
axes.set(xscale="log", xlabel="ε at δ = 1e-5, one record, zero-out (PLD)", ylabel="accuracy")
legend = axes.legend()

# %% [markdown]
# All points share the clients, their records and the first model, because every random stream has
# an address of its own; noise and sampling are each point's own, or two of them together would undo
# the noise. **Choosing the best point by looking at private data costs privacy beyond its ε** (Liu
# and Talwar, 2019; Papernot and Steinke, 2022).
#
# The other way round: name an epsilon, and the noise is calibrated before training.

# %%
asked = train(*SIZE, "algo=fedfed_dp", "privacy.epsilon=8", out="runs/asked")
asked["epsilon"]

# %%
assert epsilons == sorted(epsilons, reverse=True)
assert 7.8 < asked["epsilon"]["pld"] <= 8
