"""Several runs or trainings on one page, with tables and figures as files beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from rich.table import Table as Drawn
from rich.text import Text

from privdd.reporting import export, figures, finding_selection, page, wording
from privdd.reporting.export import TRAINING_COLUMNS, frontier_table, table_to_csv
from privdd.reporting.figures import FrontierPoint, RocLine, SeriesStyle, save_figure
from privdd.reporting.finding_selection import beats_guessing, has_no_signal
from privdd.reporting.frontier import PUBLISHED, Setting, frontier_places, group_runs
from privdd.reporting.page import PictureAlbum, Plot
from privdd.reporting.run_record import RunRecord, read_run_config, read_run_record
from privdd.reporting.schema import GRAVITY, EpsilonPair, Findings, Privacy, Run, Seconds, Utility
from privdd.reporting.summary import is_weak_limit
from privdd.reporting.terminal import console_for
from privdd.reporting.wording import format_number, format_share, join_names, page_limits
from privdd.runtime.files import DamagedRun, read_json, write_bytes

CURVES = 8  # one per colour


def comparison_headline(made: Sequence[Setting]) -> str:
    """The verdicts counted in words."""
    counts = Counter(setting.verdict for setting in made)
    parts = [f"{counts[kind]} {wording.VERDICT[kind].lower()}" for kind in GRAVITY if counts[kind]]
    return f"{len(made)} setting{'s' if len(made) > 1 else ''} compared: {', '.join(parts)}."


def comparison_sentences(made: Sequence[Setting]) -> list[str]:
    """The strongest leak of each setting, the gravest first, by the rule of every page; then what
    keeps runs apart."""
    leaks = [(setting, setting.leak()) for setting in made]
    leaking = sorted(
        ((leak.order, setting.label, leak) for setting, leak in leaks if leak),
        key=lambda one: one[:2],
    )
    said = [f"{label}: {_lower_first(leak.first_sentence)}" for _, label, leak in leaking[:CURVES]]
    if len(leaking) > CURVES:
        said.append(f"{len(leaking) - CURVES} more settings leak; their own pages say what.")
    said += _unshown_sentences([setting for setting, leak in leaks if leak is None])
    said += wording.comparison_warnings(run.findings.privacy for s in made for run in s.runs)
    if terms := differing_terms(made):
        said.append(f"These runs do not share {join_names(terms)}: their ε are not comparable.")
    return said


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _unshown_sentences(made: Sequence[Setting]) -> list[str]:
    """The settings in which nothing was shown to beat chance; those that nothing could read are not
    among them."""
    untested = [
        s.label for s in made if all(has_no_signal(run.findings.findings) for run in s.runs)
    ]
    tested = [s.label for s in made if s.label not in untested]
    said = [f"No attack was shown to beat chance in {join_names(tested)}."] if tested else []
    return said + (
        [f"Not tested: no membership attack had anything to read in {join_names(untested)}."]
        if untested
        else []
    )


TERMS = {"delta": "δ", "unit": "the unit of privacy", "relation": "the neighbouring relation"}


def differing_terms(made: Sequence[Setting]) -> list[str]:
    """Of delta, unit and neighbouring relation, those in which the runs' epsilons differ."""
    privacies = [run.findings.privacy for setting in made for run in setting.runs]
    return [
        name for term, name in TERMS.items() if len({getattr(one, term) for one in privacies}) > 1
    ]


def page_styles(made: Sequence[Setting]) -> dict[str, SeriesStyle]:
    """The look of each setting by its label, on every figure of the page."""
    return {setting.label: figures.style_of(at) for at, setting in enumerate(made)}


def overlay_rocs(made: Sequence[Setting]) -> Plot | None:
    """The strongest attack on each setting, at most eight of them, on common axes."""
    lines: list[RocLine] = []
    styles = page_styles(made)
    for setting in made:
        if (found := setting.attack()) is not None:
            run, row = found
            name = (
                f"{setting.label}: {wording.surface_title(row).lower()}, "
                f"{wording.attack_title(row.attack)}"
            )
            line = page.roc_line_of(name, run.evidence(row))
            lines += [replace(line, style=styles[setting.label])] if line is not None else []
    if not lines:
        return None
    lines = sorted(lines, key=lambda line: -float(line.curve.tpr[1]))[:CURVES]
    said = "; ".join(f"{line.label}: AUC {format_share(line.curve.auc)}" for line in lines)
    bands = (
        "bands are pointwise 95 % intervals"
        if len(lines) <= figures.BANDS
        else "leaks.csv has the intervals"
    )
    caption = f"Each setting's strongest attack, at the median seed; {bands}."
    title = "Membership, method by method"
    return Plot("roc", title, caption, f"ROC curves. {said}.", figures.draw_roc(lines, 5.0))


def plot_frontier(made: Sequence[Setting]) -> Plot | None:
    """Epsilon against accuracy, of the settings that trained a model, beside what others published
    on the same data."""
    styles = page_styles(made)
    places = {id(p.setting): p for p in frontier_places(made)}
    made = [s for s in made if s.accuracies]
    if not made:
        return None
    points = []
    said = []
    for s in made:
        place = places[id(s)]
        terms = (s.shown, s.claim, bool(place.public), place.trust != "local")
        points.append(
            FrontierPoint(s.method, s.epsilon, s.accuracies, *terms, s.label, styles[s.label])
        )
        said.append(
            f"{s.label}: epsilon {format_number(s.epsilon)}, accuracy "
            f"{format_share(s.accuracy)}{place.terms}"
        )
    kinds = {
        run.findings.utility.accuracy_kind for s in made for run in s.runs if run.findings.utility
    }
    kind = kinds.pop() if len(kinds) == 1 else "global or personal"
    caption = (
        "Mean and range over seeds. Choosing the best point on private data costs privacy "
        "beyond its ε."
    )
    if terms := differing_terms(made):
        caption = f"Read each point alone: these ε differ in {join_names(terms)}. {caption}"
    published = [
        one for one in PUBLISHED if {one.data} == {s.runs[0].findings.run.data for s in made}
    ]
    if published:
        sources = "; ".join(dict.fromkeys(f"{one.kind}: {one.source}" for one in published))
        caption += (
            " Stars: others' figures for 60,000 records of one holder at δ = 1e-5, not run "
            f"here ({sources})."
        )
        said += [
            f"published, {p.source}: epsilon {p.epsilon:g}, accuracy {format_share(p.accuracy)}"
            for p in published
        ]
    figure = figures.draw_frontier(
        points, kind=kind, published=[(p.epsilon, p.accuracy) for p in published]
    )
    return Plot("frontier", "Epsilon against accuracy", caption, f"{'; '.join(said)}.", figure)


def plot_uploads(made: Sequence[Setting]) -> Plot | None:
    sizes = {s.label: float(s.uploaded) for s in made if s.uploaded is not None}
    if not sizes:
        return None
    said = "; ".join(f"{k}: {wording.format_bytes(v)}" for k, v in sizes.items())
    return Plot(
        "bytes",
        "Uploaded by each client",
        "Over the whole run.",
        said,
        figures.draw_bytes(sizes, styles=page_styles(made)),
    )


def draw_comparison(made: Sequence[Setting]) -> list[Plot]:
    """Every figure that these runs allow."""
    accuracy = page.plot_accuracy(((s.label, s.runs[0]) for s in made[:CURVES]), page_styles(made))
    drawn = [
        p
        for p in (overlay_rocs(made), plot_frontier(made), plot_uploads(made), accuracy)
        if p is not None
    ]
    return page.add_terms(drawn, [run.findings for setting in made for run in setting.runs])


def best_albums(made: Sequence[Setting]) -> list[PictureAlbum]:
    """For each setting, the images of its strongest reconstruction."""
    found = []
    for setting in made:
        run = setting.runs[0]
        best = finding_selection.strongest_reconstruction(run.findings.findings)
        album = page.picture_album(setting.label, run, best) if best else None
        found += [album] if album else []
    return found[:CURVES]


def write_comparison(
    dirs: Sequence[Path | str],
    out: Path | str,
    read: Callable[[Sequence[Path]], Sequence[RunRecord]] | None = None,
    say: Callable[[str], object] = lambda line: None,
    pdf: bool = False,
) -> Path:
    """Write ``out/comparison.html``, figures/, and frontier, leaks, findings as CSV and LaTeX.

    Args:
        dirs: Run folders; one that is named twice counts once.
        out: The folder that the page goes to.
        read: How folders are opened.
        say: Called with the page's headline and sentences, line by line.
        pdf: Whether figures are written as PDF too, beside SVG and PNG.

    Returns:
        The page's path.

    Raises:
        DamagedRun: No folder is given, or one is no finished, undamaged run (one line).
    """
    unique = {Path(path).resolve(): Path(path) for path in dirs}
    if not unique:
        raise DamagedRun("nothing to compare: no run folder was given")
    out = Path(out)
    paths = [*unique.values()]
    made = group_runs([read_run_record(path) for path in paths] if read is None else read(paths))
    title = comparison_headline(made)
    sentences = comparison_sentences(made)
    for line in (title, *sentences):
        say(line)
    drawn = draw_comparison(made)
    pictures = best_albums(made)
    named = {plot.name: plot for plot in drawn}
    template = page.template_environment().get_template("comparison.html.jinja")
    text = template.render(
        made=made,
        places=frontier_places(made),
        title=title,
        sentences=sentences,
        albums=pictures,
        **{name: named.get(name) for name in ("roc", "frontier", "bytes", "accuracy")},
        verdict="contradiction" if any(s.verdict == "contradiction" for s in made) else "plain",
        weak=is_weak_limit,
        beats_guessing=beats_guessing,
        limits=list(
            dict.fromkeys(
                said for s in made for run in s.runs for said in page_limits(run.findings.privacy)
            )
        ),
    )
    write_bytes(out / "comparison.html", text.encode(errors="replace"))
    tables = {
        "findings": export.findings_table,
        "frontier": frontier_table,
        "leaks": export.leak_table,
    }
    for name, table in tables.items():
        write_bytes(out / f"{name}.csv", table_to_csv(table(made)).encode())
    write_bytes(out / "leaks.tex", export.leaks_to_latex(made).encode())
    for plot in drawn:
        save_figure(plot.figure, plot.drawing, out / "figures", plot.name, pdf)
    for index, album in enumerate(pictures):
        album.save(out / "figures", f"pictures-{index + 1}-{page.make_slug(album.owner)}", pdf)
    return out / "comparison.html"


def read_training_record(path: Path) -> RunRecord:
    """One training as a run without findings. Raises DamagedRun, one line, for another folder."""
    config = read_run_config(path / "config.yaml")
    result = read_json(path / "training.json")
    try:
        privacy = {name: result[name] for name in ("delta", "unit", "relation")}
        seconds = Seconds(train=0, worlds=0, attacks=0, total=0)
        known = ("accuracy", "uploaded_bytes_per_client", "downloaded_bytes_per_client")
        sizes = {name: result[name] for name in known}
        utility = Utility(accuracy_kind="global", diverged=result.get("diverged"), **sizes)
        data, preset = (str(config[name]["name"]) for name in ("data", "preset"))
        run = Run(
            algo=str(config["name"]),
            data=data,
            preset=preset,
            seed=int(config["seed"]),
            version="",
            clients=0,
            rounds=0,
            seconds=seconds,
        )
        found = Findings(
            run=run,
            utility=utility,
            surfaces=[],
            findings=[],
            privacy=Privacy(epsilon=EpsilonPair(**result["epsilon"]), claims=[], **privacy),
            # never shown
            verdict="unprotected" if result["epsilon"]["pld"] == "inf" else "consistent",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedRun(
            f"{path}: not a finished training ({' '.join(str(error).split())[:100]})"
        ) from None
    return RunRecord(path, found, config=config)


def write_training_table(
    paths: Sequence[Path], out: Path, read: Callable[[Path], RunRecord] = read_training_record
) -> Path:
    """``out/training.csv`` of finished trainings, each opened by ``read``; returns its path."""
    table = frontier_table(group_runs([read(path) for path in paths]), TRAINING_COLUMNS)
    write_bytes(out / "training.csv", table_to_csv(table).encode())
    return out / "training.csv"


def print_training_table(paths: Sequence[Path], file: IO[str]) -> None:
    """Print the table of trainings for reading."""
    table = Drawn(title="Accuracy and proven epsilon", title_justify="left")
    table.add_column("setting", overflow="fold")
    for name in ("seeds", "accuracy", "epsilon (PLD)", "epsilon (RDP)", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in group_runs([read_training_record(path) for path in paths]):
        pld = max(run.findings.privacy.epsilon.pld for run in one.runs)
        numbers = (pld, one.epsilon_rdp, one.runs[0].findings.privacy.delta)
        cells = (one.label, len(one.runs), _accuracy_cell(one), *map(format_number, numbers))
        table.add_row(*(Text(str(cell)) for cell in cells))
    console_for(file).print(table)


def _accuracy_cell(setting: Setting) -> str:
    gone = f"{setting.diverged} of {len(setting.runs)} diverged" if setting.diverged else ""
    if not setting.accuracies:
        return gone
    low = min(setting.accuracies)
    high = max(setting.accuracies)
    spread = "" if math.isclose(low, high) else f" ({format_share(low)} to {format_share(high)})"
    return ", ".join(filter(None, (f"{format_share(setting.accuracy)}{spread}", gone)))
