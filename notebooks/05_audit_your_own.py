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
# # Audit your own
# There are two ways in: a method of your own inside privdd, and scores that you computed elsewhere.
#
# ## A method of your own
# A class and a yaml. This one sends only the signs of the model's change, scaled to its mean size.

# %%
import sys
from pathlib import Path

import numpy as np

from privdd.api import audit

mine = Path("mine/algo")
mine.mkdir(parents=True, exist_ok=True)
(mine / "signs.yaml").write_text(
    "defaults: [fedavg, _self_]\n_target_: signs.Signs\nupdate_is_delta: true\n"
)
Path("mine/signs.py").write_text('''
from dataclasses import dataclass, replace

from privdd.api import FedAvg


@dataclass(frozen=True, kw_only=True)
class Signs(FedAvg):
    """Each client sends the signs of its change, scaled by their mean size."""

    def local(self, broadcast, memory, shard, ctx):
        upload, memory = super().local(broadcast, memory, shard, ctx)
        update = upload["update"]
        signs = {name: t.sign() * t.abs().mean() for name, t in update.value.items()}
        return {**upload, "update": replace(update, value=signs)}, memory
''')
sys.path.insert(0, "mine")

SIZE = (
    "preset=smoke",
    "partition.clients=2",
    "algo.rounds=1",
    "audit.worlds=6",
    "attack=[lira]",
    "audit.waive.global_model='needs replays of the whole federation'",
)
signs = audit(*SIZE, "algo=signs", config_dir="mine", out="runs/signs")
(
    signs.run.algo,
    signs.utility.accuracy,
    [(f.surface, f.status or round(f.auc, 3)) for f in signs.findings],
)

# %% [markdown]
# In a shell: `PYTHONPATH=mine python -m privdd.audit --config-dir mine algo=signs`.
#
# ## Scores of your own
# `signals (K, n)`: the score of each of n records under each of K models, where fair coins decided
# which records each model was trained on; row 0 is the audited model. `masks (K, n)`: the coins.
# `privacy.epsilon` is the limit that you state. The
# scores below are drawn at random: those of members are 2.5 higher on average, far more than ε =
# 0.5 allows.

# %%
rng = np.random.default_rng(0)
masks = rng.random((16, 300)) < 0.5
np.savez("scores.npz", signals=2.5 * masks + rng.normal(size=masks.shape), masks=masks)
told = audit(
    "scores=scores.npz", "scores_surface=synthetic_images", "privacy.epsilon=0.5", out="runs/scores"
)
(
    told.verdict,
    [
        (f.attack, round(f.auc, 3), round(f.epsilon_shown, 2))
        for f in told.findings
        if f.auc is not None
    ],
)

# %%
assert signs.run.algo == "signs" and signs.utility.accuracy > 0.15
assert told.verdict == "contradiction"
