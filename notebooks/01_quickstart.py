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
# # Quickstart
# One run: train a federated method, attack what its clients and its server send, and read the
# result. In a shell, `python -m privdd.audit` takes the same settings: `python -m privdd.audit
# algo=fedavg preset=smoke partition.clients=3 ...`.

# %%
from privdd.api import audit, load_run

OVERRIDES = (
    "algo=fedavg",
    "preset=smoke",
    "partition.clients=3",
    "algo.rounds=2",
    "audit.worlds=6",
    "attack=[lira,loss_threshold,model_inversion]",
)
found = audit(*OVERRIDES, out="runs/quickstart")
print(found.verdict)

# %% [markdown]
# Every surface that was sent, with its protection and the proven upper bound on epsilon (`inf`:
# nothing is proven).

# %%
for s in found.surfaces:
    print(
        f"{s.surface:14} sent by the {s.sender:8} protection: {s.mechanism:40} epsilon <= "
        f"{s.epsilon.proven:<8} {s.verdict}"
    )

# %% [markdown]
# The same as a figure: the epsilon that is claimed, proven and shown. `found.plot("roc")`, below,
# draws the membership attacks.

# %%
found.plot("epsilon")

# %% [markdown]
# Every attack. An `auc` of 0.5 is guessing; `blind_auc` is that of the control, which never saw the
# artifact. A row without numbers is an attack that found nothing to read, as in bare counts.

# %%
for f in found.findings:
    seen = {
        "auc": f.auc,
        "blind_auc": f.blind_auc,
        "epsilon at least": f.epsilon_shown,
        "psnr": f.psnr,
    }
    print(
        f"{f.surface:14} {f.attack:16}",
        {name: round(value, 3) for name, value in seen.items() if value is not None},
    )

# %% [markdown]
# The whole page is `runs/quickstart/report.html`; it opens offline.

# %%
found.plot("roc")

# %%
assert load_run("runs/quickstart").findings == found
assert all(0.3 < f.blind_auc < 0.7 for f in found.findings if f.blind_auc is not None)
