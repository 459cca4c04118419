"""Tables for other programs: CSV with plain numbers, LaTeX with booktabs; long tables of a Markdown
page as files."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

from privdd.reporting import wording
from privdd.reporting.compared_settings import Setting
from privdd.reporting.frontier import frontier_places
from privdd.reporting.schema import FindingRow, Privacy
from privdd.reporting.wording import format_bytes, format_number, format_share
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
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "κ": r"$\kappa$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": r"$^{2}$",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
FRONTIER_COLUMNS = (
    "method",
    "setting",
    "seeds",
    "epsilon_pld",
    "epsilon_rdp",
    "epsilon_claimed",
    "epsilon_shown",
    "delta",
    "unit",
    "relation",
    "accuracy_mean",
    "accuracy_std",
    "accuracy_min",
    "accuracy_max",
    "diverged",
    "tpr_at_0.001",
    "tpr_at_0.01",
    "psnr",
    "uploaded_bytes_per_client",
    "verdict",
    "noise_source",
    "paired_noise",
    "trust",
    "public_data",
    "dominated_by",
    "accuracy_kind",
)
# Of these, what training alone knows. Nothing was attacked, so nothing is judged.
TRAINING_COLUMNS = (
    "method",
    "setting",
    "seeds",
    "epsilon_pld",
    "epsilon_rdp",
    "delta",
    "unit",
    "relation",
    "accuracy_mean",
    "accuracy_std",
    "accuracy_min",
    "accuracy_max",
    "diverged",
    "uploaded_bytes_per_client",
)
LEAK_RATES = ("0.001", "0.01")
LEAK_COLUMNS = (
    "label",
    "data",
    "seeds",
    "tpr_at_0.001",
    "tpr_at_0.001_low",
    "tpr_at_0.001_high",
    "tpr_at_0.01",
    "tpr_at_0.01_low",
    "tpr_at_0.01_high",
    "epsilon_claimed",
    "epsilon_proven",
    "epsilon_shown",
    "delta",
    "unit",
    "relation",
    "psnr",
    "accuracy_mean",
    "accuracy_kind",
    "uploaded_bytes_per_client",
    "verdict",
)
# in leaks.csv
LEAK_NAMES = {
    "label": "setting",
    "accuracy_mean": "accuracy",
}
LEAK_HEADER = (
    "Setting",
    r"TPR at $0.1\,\%$ FPR",
    r"TPR at $1\,\%$ FPR",
    r"$\varepsilon$ claimed",
    r"$\varepsilon$ proven",
    r"$\varepsilon$ shown",
    r"$\delta$",
    "unit",
    "relation",
    "PSNR",
    "accuracy",
    "upload",
)
LEAK_COLUMN_TYPES = "lrrrrrrllrrr"
TERM_COLUMNS = slice(6, 9)  # δ, unit, relation
TERMS_MARK = "\0"  # of the caption, before its text is escaped
LEAK_CAPTION = (
    "Leaks, privacy and use on {data}. TPR: true-positive rate of the strongest "
    "membership attack at this false-positive rate, with "
    "its 95 % interval. ε: as claimed by the method or its paper, as proven at most by "
    "accounting, and as shown at least by attacks "
    "and tests, {terms}. PSNR: of the median image that the best "
    "attack reconstructed. Upload: of one client, over the whole run. –: not measured, or the "
    "sample is too small."
)
# in findings.csv
FINDING_COLUMNS = (
    "surface",
    "attack",
    "family",
    "adversary",
    "auc",
    "blind_auc",
    "epsilon_shown",
    "epsilon_stated",
    "epsilon_validity",
    "kappa",
    "kappa_allowed",
    "psnr",
    "ssim",
    "lpips",
    "identified",
    "label_accuracy",
    "n",
)
FINDING_RATES = ("0.001", "0.01", "0.1")
MOST_ROWS = 4  # of a table that stays whole on a page of the documentation
OPEN_ROWS = 14  # of a shortened table that is not folded
MOST_COLUMNS = 8
WIDEST_CELL = 60  # characters
_MARKDOWN_TABLE = re.compile(r"^\|.*\n\|[-:| ]+\|\n((?:\|.*(?:\n|\Z))+)", re.M)


def table_to_csv(table: Table) -> str:
    """Numbers with all their digits, infinity as "inf", nothing as an empty cell.

    A text that a spreadsheet would take for a formula gets an apostrophe before it; none ends its
    row early."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    header, rows = table
    writer.writerow(header)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])
    return buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    if not isinstance(value, str):
        return "" if value is None else value
    if value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        mark = "'"
    else:
        mark = ""
    # which the writer does not quote, and readers take for the end of a row
    return mark + value.replace("\r", " ")


def escape_latex(text: str) -> str:
    """Plain text as LaTeX shows it."""
    return "".join(_TEX.get(character, character) for character in text)


def frontier_table(settings: Sequence[Setting], columns: Sequence[str] = FRONTIER_COLUMNS) -> Table:
    """One row per setting; nothing in it depends on where or when a run was computed."""
    placed = {
        id(p.setting): (p.trust, p.public or None, p.dominated or None)
        for p in frontier_places(settings)
    }
    rows = [_setting_values(s, *placed.get(id(s), (None, None, None))) for s in settings]
    return columns, [[row[name] for name in columns] for row in rows]


def leak_table(settings: Sequence[Setting]) -> Table:
    """One row per setting, numbers alone: rates with the ends of their intervals, epsilons with
    delta, unit and relation, the rest."""
    return [LEAK_NAMES.get(name, name) for name in LEAK_COLUMNS], frontier_table(
        settings, LEAK_COLUMNS
    )[1]


def _setting_values(
    s: Setting, trust: str | None, public: str | None, dominated: str | None
) -> dict[str, Any]:
    """Column -> value of every table of settings."""
    found = s.runs[0].findings
    rates = dict[str, Any]()
    noise = found.privacy.noise
    utility = found.utility
    delta, unit, relation = privacy_terms(found.privacy)
    for key in LEAK_RATES:
        name = f"tpr_at_{key}"
        rates |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        rate = s.tpr(key)
        if rate is not None:
            low, high = rate.ci
            rates |= {name: rate.tpr, f"{name}_low": low, f"{name}_high": high}
    accuracy_std = None
    if len(s.accuracies) > 1:
        accuracy_std = stdev(s.accuracies)
    accuracy_kind = None
    if utility is not None:
        accuracy_kind = utility.accuracy_kind
    noise_source = None
    paired_noise = None
    if noise is not None:
        noise_source = noise.source
        paired_noise = str(noise.paired).lower()
    return {
        "method": s.method,
        "setting": " ".join(f"{k}={v}" for k, v in s.parameters),
        "label": s.label,
        "data": found.run.data,
        "seeds": len(s.runs),
        **rates,
        "epsilon_pld": max(run.findings.privacy.epsilon.pld for run in s.runs),
        "epsilon_rdp": s.epsilon_rdp,
        "epsilon_proven": s.epsilon,
        "epsilon_claimed": s.claim,
        "epsilon_shown": s.shown,
        "delta": delta,
        "unit": unit,
        "relation": relation,
        "accuracy_mean": s.accuracy,
        "accuracy_std": accuracy_std,
        "accuracy_min": min(s.accuracies, default=None),
        "accuracy_max": max(s.accuracies, default=None),
        "accuracy_kind": accuracy_kind,
        "diverged": s.diverged,
        "psnr": s.psnr,
        "uploaded_bytes_per_client": s.uploaded,
        "verdict": s.verdict,
        "noise_source": noise_source,
        "paired_noise": paired_noise,
        "trust": trust,
        "public_data": public,
        "dominated_by": dominated,
    }


def privacy_terms(privacy: Privacy) -> tuple[float, str, str]:
    """What stands beside every epsilon."""
    return privacy.delta, str(privacy.unit), str(privacy.relation)


def leaks_to_latex(settings: Sequence[Setting]) -> str:
    """``leak_table`` as a table with a caption, three digits a number; needs
    \\usepackage{booktabs}. Terms that all rows share stand in the caption, not in columns."""
    header, rows = leak_table(settings)
    cells = [_latex_leak_row(dict(zip(header, row, strict=True))) for row in rows]
    data = wording.join_names(list(dict.fromkeys(s.runs[0].findings.run.data for s in settings)))
    caption = escape_latex(LEAK_CAPTION.format(data=data, terms=TERMS_MARK))
    columns = LEAK_COLUMN_TYPES
    table = [list(LEAK_HEADER), *cells]
    terms = escape_latex("at the δ, for the unit and under the neighbouring relation of its row")
    shared = {tuple(row[TERM_COLUMNS]) for row in cells}
    if len(shared) == 1:
        delta, unit, relation = shared.pop()
        terms = rf"at $\delta =$ {delta}, for one {unit}, neighbouring relation {relation}"
        columns = columns[: TERM_COLUMNS.start] + columns[TERM_COLUMNS.stop :]
        for row in table:
            del row[TERM_COLUMNS]
    lines = [" & ".join(row) + r" \\" for row in table]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption.replace(TERMS_MARK, terms)}}}",
            r"\label{tab:leaks}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_leak_row(row: Mapping[str, Any]) -> list[str]:
    rates = []
    for key in LEAK_RATES:
        name = f"tpr_at_{key}"
        rates.append(_latex_rate(row[name], row[f"{name}_low"], row[f"{name}_high"]))
    epsilons = [_latex_number(row[f"epsilon_{name}"]) for name in ("claimed", "proven", "shown")]
    psnr = "–"
    if row["psnr"] is not None:
        psnr = wording.format_decibel(row["psnr"])
    accuracy = format_share(row["accuracy"])
    if row["accuracy"] is not None:
        accuracy += f" ({row['accuracy_kind']})"
    upload = row["uploaded_bytes_per_client"]
    size = "–"
    if upload is not None:
        size = format_bytes(upload)
    texts = [psnr, accuracy, size]
    return [
        escape_latex(row["setting"]),
        *rates,
        *epsilons,
        _latex_number(row["delta"]),
        escape_latex(row["unit"]),
        escape_latex(wording.relation_name(row["relation"])),
        *map(escape_latex, texts),
    ]


def _latex_rate(rate: float | None, low: float | None, high: float | None) -> str:
    if rate is None or low is None or high is None:
        return "--"
    return escape_latex(f"{format_share(rate)} ({format_share(low)} to {format_share(high)})")


def _latex_number(value: float | None) -> str:
    """Three digits; powers of ten as such."""
    digits, is_power, power = format_number(value).partition("e")
    if not is_power:
        return escape_latex(digits)
    power_of_ten = rf"10^{{{power}}}"
    if digits == "1":
        return f"${power_of_ten}$"
    return rf"${digits} \times {power_of_ten}$"


def findings_table(settings: Sequence[Setting]) -> Table:
    """Every finding of every run, one row each, for other programs."""
    header = ["setting", "seed", *FINDING_COLUMNS]
    for key in FINDING_RATES:
        header += [f"tpr_at_{key}", f"lo_at_{key}", f"hi_at_{key}"]
    rows = []
    for setting in settings:
        for run in setting.runs:
            for row in run.findings.findings:
                rows.append([setting.label, run.findings.run.seed, *_finding_cells(row)])
    return header, rows


def _finding_cells(row: FindingRow) -> list[Any]:
    """The values of a finding, then of each false-positive rate that its sample can resolve the
    true-positive rate with its interval."""
    cells: list[Any] = []
    for name in FINDING_COLUMNS:
        value = getattr(row, name)
        cells.append(str(value) if isinstance(value, str) else value)
    for key in FINDING_RATES:
        rate = (row.tpr_at_fpr or {}).get(key)
        if rate is not None and rate.resolvable:
            cells += [rate.tpr, *rate.ci]
        else:
            cells += [None, None, None]
    return cells


def split_markdown_tables(text: str, stem: str) -> tuple[str, dict[str, str]]:
    """(the page, of each long table with the main columns, name of the file below data/ -> the
    whole table as CSV)."""
    files: dict[str, str] = {}

    def shorten_table(found: re.Match[str]) -> str:
        header, _, *rows = [_markdown_cells(line) for line in found.group().splitlines()]
        if len(rows) <= MOST_ROWS:
            return found.group()
        name = f"{stem}-{len(files) + 1}.csv"
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
        files[name] = buffer.getvalue()
        return shown_table(header, rows, name)

    return _MARKDOWN_TABLE.sub(shorten_table, text), files


def shown_table(header: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """What a page shows of a long table.

    Args:
        header: Names of all columns.
        rows: Cells of all rows.
        name: The file below data/ that holds all of it.

    Returns:
        Markdown of the first columns with shortened cells, folded if it has many rows, and the
        link.
    """
    lines = [_markdown_row(header[:MOST_COLUMNS]), "|" + "---|" * len(header[:MOST_COLUMNS])]
    lines += [_markdown_row(row[:MOST_COLUMNS]) for row in rows]
    table = "\n".join(lines) + "\n"
    if len(rows) > OPEN_ROWS:
        summary = f"<summary>{len(rows)} rows</summary>"
        table = f"<details markdown>{summary}\n\n{table}\n</details>\n"
    hidden = [column for column in header[MOST_COLUMNS:] if column]
    more = f", with {', '.join(hidden)}" if hidden else ""
    return f"{table}\n[{len(rows)} rows](data/{name}) as CSV{more}.\n"


def _markdown_row(cells: Sequence[str]) -> str:
    short = [textwrap.shorten(cell, WIDEST_CELL, placeholder=" …") for cell in cells]
    escaped = [cell.replace("|", "\\|").replace("<", "&lt;") for cell in short]
    return f"| {' | '.join(escaped)} |"


def _markdown_cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    words = [" ".join(cell.split()) for cell in cells]  # a column that is padded for a terminal
    return [cell.replace("**", "").replace("`", "").replace("\\|", "|") for cell in words]


def write_markdown_page(page: Path, text: str) -> None:
    """The page, and its long tables as CSV files in data/ beside it."""
    short, files = split_markdown_tables(text, page.stem)
    write_bytes(page, short.encode())
    for old in page.parent.glob(f"data/{page.stem}-[0-9]*.csv"):
        if old.name not in files:
            old.unlink()
    for name, table in files.items():
        write_bytes(page.parent / "data" / name, table.encode())
