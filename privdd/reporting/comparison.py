"""Several runs on one page, with the tables and figures as files beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from privdd.reporting import epsilon_figures, figures, noise_words, plots, readings, strongest, tables, words
from privdd.reporting.epsilon_figures import FrontierPoint
from privdd.reporting.figures import RocLine
from privdd.reporting.findings_file import FindingsError
from privdd.reporting.folder import RunRecord, read_run
from privdd.reporting.frontier import places
from privdd.reporting.grouping import Setting, settings
from privdd.reporting.plots import Album, Plot
from privdd.reporting.schema import TprAt
from privdd.reporting.strongest import beats_guessing
from privdd.reporting.style import save
from privdd.reporting.summary import weak
from privdd.runtime.files import write_bytes

CURVES = 8  # one per colour


def headline(made: Sequence[Setting]) -> str:
    """The verdicts counted in words."""
    counts = Counter(setting.verdict for setting in made)
    parts = [f"{counts[kind]} {words.VERDICT[kind].lower()}" for kind in words.GRAVITY if counts[kind]]
    return f"{len(made)} setting{'s' if len(made) > 1 else ''} compared: {', '.join(parts)}."


def sentences(made: Sequence[Setting]) -> list[str]:
    """Who leaks most and least, at the smallest false-positive rate that every setting can resolve."""
    said = []
    for key in ("0.001", "0.01", "0.1"):
        found = [(at.tpr, s.label, at) for s in made if (at := s.tpr(key)) is not None]
        if len(found) == len(made) > 1:
            said += _members_found(float(key), sorted(found, key=lambda one: one[:2]))
            break
    said += noise_words.several(run.findings.privacy for s in made for run in s.runs)
    if not comparable(made):
        said.append("These runs do not share δ, unit and neighbouring relation: their ε are not comparable.")
    return said


def comparable(made: Sequence[Setting]) -> bool:
    """Whether all runs state their epsilon at one delta, for one unit and one neighbouring relation."""
    return len({(p.delta, p.unit, p.relation) for s in made for p in (r.findings.privacy for r in s.runs)}) <= 1


def _members_found(fpr: float, found: Sequence[tuple[float, str, TprAt]]) -> list[str]:
    """The strongest and the weakest; what is not above guessing by the rule of every page is said to be guessing."""
    above = [one for one in found if beats_guessing(one[2], fpr)]
    rate = words.one_in(fpr)
    if not above:
        return [f"At {rate} false alarms no attack named more training records than guessing does in any setting."]
    high, most, _ = above[-1]
    said = f"At {rate} false alarms an attacker finds {words.share(high)} of the training records of {most}"
    low, least, at = found[0]
    if least == most:
        return [f"{said}."]
    if beats_guessing(at, fpr):
        return [f"{said}, and {words.share(low)} of those of {least}."]
    between = f"95 %: {words.share(at.ci[0])} to {words.share(at.ci[1])}"
    return [f"{said}; for {least} its success cannot be told from guessing ({between})."]


def roc_overlay(made: Sequence[Setting]) -> Plot | None:
    """The strongest attack on each setting, at most eight of them, on common axes."""
    lines: list[RocLine] = []
    for setting in made:
        if (found := setting.attack()) is not None:
            run, row = found
            name = f"{setting.label}: {words.title(row).lower()}, {words.attack(row.attack)}"
            line = plots.roc_line(name, run.evidence(row))
            lines += [line] if line is not None else []
    if not lines:
        return None
    lines = sorted(lines, key=lambda line: -float(line.curve.tpr[1]))[:CURVES]
    said = "; ".join(f"{line.label}: AUC {words.share(line.curve.auc)}" for line in lines)
    caption = "Each setting's strongest attack, at the median seed; bands are pointwise 95 % intervals."
    title = "Membership, method by method"
    return Plot("roc", title, caption, f"ROC curves. {said}.", figures.roc(lines, 5.0), *readings.roc(lines))


def frontier(made: Sequence[Setting]) -> Plot | None:
    """Epsilon against accuracy, of the settings that trained a model."""
    made = [s for s in made if s.accuracies]
    if not made:
        return None
    points = [FrontierPoint(s.method, s.epsilon, s.accuracies, s.measured, s.claim) for s in made]
    said = "; ".join(f"{s.label}: epsilon {words.number(s.epsilon)}, accuracy {words.share(s.accuracy)}" for s in made)
    caption = "Mean and range over seeds. Choosing the best point on private data costs privacy beyond its ε."
    if not comparable(made):
        caption = f"Read each point alone: these ε are not of one δ, unit and neighbouring relation. {caption}"
    return Plot("frontier", "Epsilon against accuracy", caption, f"{said}.", epsilon_figures.frontier(points))


def uploads(made: Sequence[Setting]) -> Plot | None:
    sizes = {s.label: float(s.uploaded) for s in made if s.uploaded is not None}
    if not sizes:
        return None
    said = "; ".join(f"{k}: {figures.size(v)}" for k, v in sizes.items())
    return Plot("bytes", "Uploaded by each client", "Over the whole run.", said, figures.bytes_bar(sizes))


def draw(made: Sequence[Setting]) -> list[Plot]:
    """Every figure that these runs allow."""
    accuracy = plots.accuracy((s.label, s.runs[0]) for s in made[:CURVES])
    return [p for p in (roc_overlay(made), frontier(made), uploads(made), accuracy) if p is not None]


def albums(made: Sequence[Setting]) -> list[Album]:
    """For each setting, the pictures of its best reconstruction."""
    best = [(setting, strongest.best_pictures(setting.runs[0].findings.findings)) for setting in made]
    found = (plots.album(setting.label, setting.runs[0], row) for setting, row in best if row)
    return [one for one in found if one is not None][:CURVES]


def write_comparison(
    dirs: Sequence[Path | str], out: Path | str, read: Callable[[Path | str], RunRecord] = read_run
) -> Path:
    """``out/comparison.html``, figures/, and frontier, leaks, findings as CSV and LaTeX; returns the page's path.

    read: how a folder is opened. Raises FindingsError or DamagedRun (one line) on a folder that is no finished, undamaged run.
    """
    unique = {Path(path).resolve(): Path(path) for path in dirs}
    if not unique:
        raise FindingsError("nothing to compare: no run folder was given")
    out = Path(out)
    made = settings([read(path) for path in unique.values()])
    drawn, pictures = draw(made), albums(made)
    page = plots.environment().get_template("comparison.html.jinja")
    text = page.render(
        made=made,
        places=places(made),
        title=headline(made),
        sentences=sentences(made),
        albums=pictures,
        **_by_name(drawn),
        verdict="contradiction" if any(s.verdict == "contradiction" for s in made) else "plain",
        weak=weak,
        beats_guessing=beats_guessing,
        limits=list(dict.fromkeys(said for s in made for run in s.runs for said in words.limits(run.findings.privacy))),
    )
    write_bytes(out / "comparison.html", text.encode(errors="replace"))
    _write_tables(made, out)
    for plot in drawn:
        save(plot.figure, plot.drawing, out / "figures", plot.name)
    for index, album in enumerate(pictures):
        album.save(out / "figures", f"pictures-{index + 1}-{plots.slug(album.owner)}")
    return out / "comparison.html"


def _by_name(drawn: Sequence[Plot]) -> dict[str, Plot | None]:
    named: dict[str, Plot | None] = dict.fromkeys(("roc", "frontier", "bytes", "accuracy"))
    return named | {plot.name: plot for plot in drawn}


def _write_tables(made: Sequence[Setting], out: Path) -> None:
    write_bytes(out / "findings.csv", tables.to_csv(tables.findings_table(made)).encode())
    write_bytes(out / "frontier.csv", tables.to_csv(tables.frontier_table(made)).encode())
    write_bytes(out / "leaks.csv", tables.to_csv(tables.leak_table(made)).encode())
    write_bytes(out / "leaks.tex", tables.to_latex(tables.leak_table(made)).encode())
