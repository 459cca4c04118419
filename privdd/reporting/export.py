"""Tables for other programs: CSV with plain numbers, LaTeX with booktabs; long tables of a Markdown page as files."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

from privdd.reporting.frontier import Setting, frontier_places
from privdd.reporting.wording import format_number, format_share
from privdd.runtime.files import write_bytes

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "∞": r"$\infty$",
    "–": "--",
    "\u00a0": "~",
    "ε": r"$\varepsilon$",
}


def table_to_csv(table: Table) -> str:
    """Numbers with all their digits, infinity as "inf", nothing as an empty cell.

    A text that a spreadsheet would take for a formula gets an apostrophe before it; none ends its row early.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table[0])
    writer.writerows([[_csv_cell(value) for value in row] for row in table[1]])
    return buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    if not isinstance(value, str):
        return "" if value is None else value
    mark = "'" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else ""
    return mark + value.replace("\r", " ")  # which the writer does not quote, and readers take for the end of a row


def table_to_latex(table: Table) -> str:
    """A tabular of booktabs, texts to the left and numbers to the right; needs \\usepackage{booktabs}."""
    header, rows = table
    columns = "".join("r" if rows and _is_number_like(rows[0][i]) else "l" for i in range(len(header)))
    lines = [" & ".join(escape_latex(_latex_cell(cell)) for cell in row) + r" \\" for row in (header, *rows)]
    body = [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*body, r"\end{tabular}", ""])


def _is_number_like(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or str(value)[:1].isdigit()


def _latex_cell(value: Any) -> str:
    return format_number(value) if value is None or isinstance(value, int | float) else str(value)


def escape_latex(text: str) -> str:
    """Plain text as LaTeX shows it."""
    return "".join(_TEX.get(character, character) for character in text)


def frontier_table(settings: Sequence[Setting]) -> Table:
    """One row per setting; nothing in it depends on where or when a run was computed."""
    header = (
        "method", "setting", "seeds", "epsilon_pld", "epsilon_rdp", "epsilon_claimed", "epsilon_measured",
        "delta", "unit", "relation", "accuracy_mean", "accuracy_std", "accuracy_min", "accuracy_max", "diverged",
        "tpr_at_0.001", "tpr_at_0.01", "psnr", "uploaded_bytes_per_client", "verdict",
        "noise_source", "paired_noise", "trust", "public_data", "dominated_by",
    )  # fmt: skip
    placed = {id(p.setting): [p.trust, p.public or None, p.dominated or None] for p in frontier_places(settings)}
    return header, [[*_frontier_row(s), *placed.get(id(s), [None] * 3)] for s in settings]


def _frontier_row(s: Setting) -> list[Any]:
    privacy, rates = s.runs[0].findings.privacy, [s.tpr(key) for key in ("0.001", "0.01")]
    pld = max(run.findings.privacy.epsilon.pld for run in s.runs)
    spread = stdev(s.accuracies) if len(s.accuracies) > 1 else None
    return [
        s.method, " ".join(f"{k}={v}" for k, v in s.parameters), len(s.runs), pld, s.epsilon_rdp, s.claim, s.measured,
        privacy.delta, privacy.unit, privacy.relation, s.accuracy, spread, min(s.accuracies, default=None), max(s.accuracies, default=None), s.diverged,
        *(at.tpr if at else None for at in rates), s.psnr, s.uploaded, s.verdict,
        privacy.noise.source if privacy.noise else None, str(privacy.noise.paired).lower() if privacy.noise else None,
    ]  # fmt: skip


def leak_table(settings: Sequence[Setting]) -> Table:
    """For reading: rates with intervals, epsilons, pictures, accuracy, bytes."""
    header = (
        "Setting", "TPR at 0.1% FPR", "TPR at 1% FPR", "claimed", "accounted", "measured", "PSNR", "accuracy", "bytes",
    )  # fmt: skip
    rows = []
    for s in settings:
        rates = [_rate_text(s, key) for key in ("0.001", "0.01")]
        rows.append([s.label, *rates, s.claim, s.epsilon, s.measured, s.psnr, format_share(s.accuracy), s.uploaded])
    return header, rows


def _rate_text(setting: Setting, key: str) -> str:
    at = setting.tpr(key)
    return f"{format_share(at.tpr)} ({format_share(at.ci[0])} to {format_share(at.ci[1])})" if at else "–"


def findings_table(settings: Sequence[Setting]) -> Table:
    """Every finding of every run, one row each, for other programs."""
    plain = (
        "surface", "attack", "family", "adversary", "auc", "blind_auc", "epsilon_measured", "epsilon_stated",
        "epsilon_validity", "kappa", "kappa_allowed", "psnr", "ssim", "lpips", "identified", "label_accuracy", "n",
    )  # fmt: skip
    keys = ("0.001", "0.01", "0.1")
    header = ("setting", "seed", *plain, *(f"{part}_at_{key}" for key in keys for part in ("tpr", "lo", "hi")))
    rows = []
    for setting in settings:
        for run in setting.runs:
            for row in run.findings.findings:
                found = [(row.tpr_at_fpr or {}).get(key) for key in keys]
                rates = [v for at in found for v in ((at.tpr, *at.ci) if at and at.resolvable else (None,) * 3)]
                cells = [str(v) if isinstance(v := getattr(row, name), str) else v for name in plain]
                rows.append([setting.label, run.findings.run.seed, *cells, *rates])
    return header, rows


MOST_ROWS = 4  # of a table that stays on a page of the documentation
_MARKDOWN_TABLE = re.compile(r"^\|.*\n\|[-:| ]+\|\n((?:\|.*(?:\n|\Z))+)", re.M)


def split_markdown_tables(text: str, stem: str) -> tuple[str, dict[str, str]]:
    """(the page with a link in place of each long table, name of the file below data/ -> the table as CSV)."""
    files: dict[str, str] = {}

    def link_long_table(found: re.Match[str]) -> str:
        header, _, *rows = [_markdown_cells(line) for line in found.group().splitlines()]
        if len(rows) <= MOST_ROWS:
            return found.group()
        name = f"{stem}-{len(files) + 1}.csv"
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
        files[name] = buffer.getvalue()
        columns = ", ".join(filter(None, header))
        return f"[{len(rows)} rows](data/{name}): {columns}.\n"

    return _MARKDOWN_TABLE.sub(link_long_table, text), files


def _markdown_cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    return [cell.strip().replace("**", "").replace("`", "").replace("\\|", "|") for cell in cells]


def write_markdown_page(page: Path, text: str) -> None:
    """The page, and its long tables as CSV files in data/ beside it."""
    short, files = split_markdown_tables(text, page.stem)
    write_bytes(page, short.encode())
    for old in page.parent.glob(f"data/{page.stem}-[0-9]*.csv"):
        if old.name not in files:
            old.unlink()
    for name, table in files.items():
        write_bytes(page.parent / "data" / name, table.encode())
