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
# One curve: as the noise multiplier goes up, epsilon and accuracy go down. Here the runs are
# trained alone, at smoke size and with one seed; one command audits every point of a larger sweep:
# `python -m privdd.audit -m algo=fedavg privacy=dpsgd privacy.noise_multiplier=0.5,1,2,4
# seed=0,1,2`.

# %%
import matplotlib.pyplot as plt

from privdd.api import train

SIZE = ("preset=smoke", "partition.clients=2", "algo.rounds=2", "algo.local_epochs=1")
NOISES = (0.5, 2.0, 8.0)
runs = {
    z: train(
        *SIZE, "algo=fedavg", "privacy=dpsgd", f"privacy.noise_multiplier={z}", out=f"runs/z{z}"
    )
    for z in NOISES
}
free = train(*SIZE, "algo=fedavg", out="runs/free")
{z: (run["epsilon"], run["accuracy"]) for z, run in runs.items()}

# %%
figure, axes = plt.subplots(figsize=(5, 3.4))
axes.plot(
    [run["epsilon"]["pld"] for run in runs.values()],
    [run["accuracy"] for run in runs.values()],
    "o-",
    label="DP-SGD",
)
axes.axhline(free["accuracy"], color="grey", ls="--", label="no protection (ε = ∞)")
axes.set(xscale="log", xlabel="ε at δ = 1e-5, one record, add/remove (PLD)", ylabel="accuracy")
legend = axes.legend()

# %% [markdown]
# All points share the clients, their records and the first model, because every random stream has
# an address of its own; noise and sampling are each point's own, or two of them together would undo
# the noise. **Choosing the best point by looking at private data costs privacy beyond its ε** (Liu
# and Talwar, 2019; Papernot and Steinke, 2022).
#
# The other way round: name an epsilon, and the noise is calibrated before training.

# %%
asked = train(*SIZE, "algo=fedavg", "privacy=dpsgd", "privacy.epsilon=3", out="runs/asked")
asked["epsilon"]

# %%
epsilons = [run["epsilon"]["pld"] for run in runs.values()]
assert epsilons == sorted(epsilons, reverse=True)
assert 2.9 < asked["epsilon"]["pld"] <= 3
