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
# # Membership ROC across methods
# The same attack on the four methods of the papers, on one pair of axes. One command audits
# several methods and compares them:
# `python -m privdd.audit -m algo=feddm,fedfed,fedlgd,fedrd preset=smoke`.

# %%
import csv
from pathlib import Path

from IPython.display import SVG, Markdown

from privdd.api import audit, compare

SIZE = (
    "preset=smoke",
    "partition.clients=2",
    "audit.worlds=6",
    "audit.records=40",
    "attack=[lira]",
    "audit.waive.global_model='needs replays of the whole federation'",
)
METHODS = ("feddm", "fedfed", "fedlgd", "fedrd")
found = {name: audit(*SIZE, f"algo={name}", out=f"runs/{name}") for name in METHODS}

# %%
page = compare([f"runs/{name}" for name in METHODS], "runs/comparison")
SVG(filename=str(page.parent / "figures" / "roc.svg"))

# %% [markdown]
# Both axes are logarithmic, because what counts is the left end: how many members an attacker
# identifies while hardly ever being wrong. False-positive rates below one over the number of
# non-members cannot be measured.

# %%
rows = list(csv.DictReader(Path("runs/comparison/leaks.csv").read_text().splitlines()))
head = list(rows[0])
head = [name for name in head if name.startswith(("setting", "tpr", "epsilon", "delta", "unit"))]
rows = [{name: row[name] for name in head} for row in rows]
Markdown(
    "\n".join(
        [
            " | ".join(head),
            " | ".join("---" for _ in head),
            *(" | ".join(row.values()) for row in rows),
        ]
    )
)

# %%
assert [row["setting"] for row in rows] == list(METHODS)
