"""The page of opened canaries."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privdd.canary import sealed as sealed_files
from privdd.canary.sealed import SealedCanaries
from privdd.reporting.figures.roc_curves import RocLine, draw_roc, step_curve
from privdd.reporting.page import template_environment
from privdd.reporting.plots import Plot
from privdd.reporting.wording import format_number, format_share
from privdd.runtime.files import write_bytes

PAGE_FILE = "opened.html"
NOTHING_STATED = "nothing stated"  # the verdict of opened.json without a stated epsilon
BADGES = {
    "contradiction": ("contradiction", "Contradicted"),
    "consistent": ("consistent", "Consistent"),
    NOTHING_STATED: ("unprotected", "No ε stated"),
}
# bound of opened.json -> its source
SOURCES = {
    "one_run": "Steinke, Nasr and Jagielski (2023)",
    "fdp_one_run": "Mahloujifar, Melis and Chaudhuri (2024)",
}


def write_opened_page(folder: Path, opened: Mapping[str, Any], sealed: SealedCanaries) -> Path:
    """Write ``opened.html`` next to ``opened.json``.

    Args:
        folder: The sealed canaries' folder.
        opened: The content of opened.json, of ``opened_result``.
        sealed: The public part.

    Returns:
        The page.
    """
    tone, label = BADGES[opened["verdict"]]
    is_member = sealed_files.check_commitment(
        sealed, bytes.fromhex(opened["salt"]), opened["coins"]
    )
    template = template_environment().get_template("canary.html.jinja")
    page = template.render(
        o=opened,
        statement=sealed.statement,
        commitment=sealed.commitment,
        sites=sealed.site_counts,
        sources=SOURCES,
        folder=shlex.quote(folder.resolve().name),
        tone=tone,
        label=label,
        title=_page_title(opened),
        members=int(is_member.sum()),
        roc=_draw_scores(np.asarray(opened["scores"]), is_member),
    )
    path = folder / PAGE_FILE
    write_bytes(path, page.encode())
    return path


def _page_title(opened: Mapping[str, Any]) -> str:
    stated = format_number(opened["stated"])
    if opened["verdict"] == "contradiction":
        return f"The stated ε = {stated} is false."
    if opened["verdict"] == NOTHING_STATED:
        return f"The canaries show ε of at least {format_number(opened['bound'])}."
    return f"The canaries do not contradict ε = {stated}."


def _draw_scores(scores: np.ndarray, is_member: np.ndarray) -> Plot | None:
    """The ROC of the canaries' scores; None without a canary of each kind."""
    if is_member.all() or not is_member.any():
        return None
    curve = step_curve(scores, is_member)
    return Plot(
        "roc",
        "Canaries identified",
        "The share of inserted canaries that a threshold on the score identifies, against the "
        "share of the others that it accuses. Logarithmic axes.",
        f"ROC of the canaries' scores, AUC {format_share(curve.auc)}",
        draw_roc([RocLine("canaries", curve)]),
    )
