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

from privdd.reporting import albums, export, finding_selection, page, plots, wording
from privdd.reporting.albums import PictureAlbum
from privdd.reporting.compared_settings import Setting, group_runs
from privdd.reporting.console import console_for
from privdd.reporting.export import TRAINING_COLUMNS, frontier_table, table_to_csv
from privdd.reporting.figures.frontier_marks import FrontierPoint, draw_frontier
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import save_figure
from privdd.reporting.figures.roc_curves import BANDS, RocLine, draw_roc
from privdd.reporting.figures.style import SeriesStyle, style_of
from privdd.reporting.figures.upload_bars import draw_bytes
from privdd.reporting.finding_selection import has_no_signal
from privdd.reporting.frontier import PUBLISHED, PublishedFigure, frontier_places
from privdd.reporting.plots import Plot
from privdd.reporting.run_record import RunRecord, read_run_config, read_run_record
from privdd.reporting.schema import GRAVITY, EpsilonPair, Findings, Privacy, Run, Seconds, Utility
from privdd.reporting.summary import is_weak_limit
from privdd.reporting.wording import format_number, format_share, join_names, page_limits
from privdd.runtime.files import DamagedRun, read_json, write_bytes

CURVES = 8  # one per colour
TERMS = {"delta": "δ", "unit": "the unit of privacy", "relation": "the neighbouring relation"}


def comparison_headline(settings: Sequence[Setting]) -> str:
    """The verdicts counted in words."""
    counts = Counter(setting.verdict for setting in settings)
    parts = [f"{counts[kind]} {wording.VERDICT[kind].lower()}" for kind in GRAVITY if counts[kind]]
    noun = "setting" if len(settings) == 1 else "settings"
    return f"{len(settings)} {noun} compared: {', '.join(parts)}."


def comparison_sentences(settings: Sequence[Setting]) -> list[str]:
    """Say what leaks in each setting.

    Args:
        settings: The settings of the page.

    Returns:
        The strongest leak of each setting, the gravest first, by the rule of every page; then what
        was not shown, and what keeps runs apart.
    """
    leaks = [(setting.label, setting.leak()) for setting in settings]
    leaking = [(label, leak) for label, leak in leaks if leak is not None]
    leaking.sort(key=lambda entry: (entry[1].order, entry[0]))
    sentences = [
        f"{label}: {_lower_first(leak.first_sentence)}" for label, leak in leaking[:CURVES]
    ]
    if len(leaking) > CURVES:
        sentences.append(f"{len(leaking) - CURVES} more settings leak; their own pages say what.")
    quiet = [setting for setting, (_, leak) in zip(settings, leaks) if leak is None]
    sentences += _unshown_sentences(quiet)
    runs = _all_runs(settings)
    sentences += wording.comparison_warnings(run.findings.privacy for run in runs)
    terms = differing_terms(settings)
    if terms:
        sentences.append(f"The runs differ in {join_names(terms)}, so their ε cannot be compared.")
    return sentences


def _all_runs(settings: Sequence[Setting]) -> list[RunRecord]:
    return [run for setting in settings for run in setting.runs]


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _unshown_sentences(settings: Sequence[Setting]) -> list[str]:
    """The settings in which nothing was shown to beat chance; those that nothing could read are not
    among them."""
    tested = []
    untested = []
    for setting in settings:
        if all(has_no_signal(run.findings.findings) for run in setting.runs):
            untested.append(setting.label)
        else:
            tested.append(setting.label)
    sentences = []
    if tested:
        sentences.append(f"No attack was shown to beat chance in {join_names(tested)}.")
    if untested:
        sentences.append(
            f"Not tested: no membership attack had anything to read in {join_names(untested)}."
        )
    return sentences


def differing_terms(settings: Sequence[Setting]) -> list[str]:
    """Of delta, unit and neighbouring relation, those in which the runs' epsilons differ."""
    names = []
    for term, name in TERMS.items():
        values = {getattr(run.findings.privacy, term) for run in _all_runs(settings)}
        if len(values) > 1:
            names.append(name)
    return names


def page_styles(settings: Sequence[Setting]) -> dict[str, SeriesStyle]:
    """The look of each setting by its label, on every figure of the page."""
    return {setting.label: style_of(index) for index, setting in enumerate(settings)}


def overlay_rocs(settings: Sequence[Setting]) -> Plot | None:
    """The strongest attack on each setting, at most eight of them, on common axes."""
    lines: list[RocLine] = []
    styles = page_styles(settings)
    for setting in settings:
        strongest = setting.attack()
        if strongest is None:
            continue
        run, row = strongest
        surface = wording.surface_title(row, run.findings.scope).lower()
        name = f"{setting.title}: {surface}, {wording.attack_title(row.attack)}"
        line = plots.roc_line_of(name, run.evidence(row))
        if line is not None:
            lines.append(replace(line, style=styles[setting.label]))
    if not lines:
        return None
    lines = sorted(lines, key=lambda line: -float(line.curve.tpr[1]))[:CURVES]
    aucs = [f"{line.label}: AUC {format_share(line.curve.auc)}" for line in lines]
    bands = "leaks.csv has the intervals"
    if len(lines) <= BANDS:
        bands = "bands are pointwise 95 % intervals"
    caption = f"Each setting's strongest attack, at the median seed; {bands}."
    title = "Members identified, setting by setting"
    alt = f"ROC curves. {'; '.join(aucs)}."
    return Plot("roc", title, caption, alt, draw_roc(lines))


def plot_frontier(settings: Sequence[Setting]) -> Plot | None:
    """Draw epsilon against accuracy, beside what others published on the same data.

    Args:
        settings: The settings of the page; those that trained no model are left out.

    Returns:
        The figure, or None if no setting trained a model.
    """
    styles = page_styles(settings)
    places = {id(place.setting): place for place in frontier_places(settings)}
    trained = [setting for setting in settings if setting.accuracies]
    if not trained:
        return None
    points = []
    numbers = []
    for setting in trained:
        place = places[id(setting)]
        points.append(
            FrontierPoint(
                method=setting.method,
                epsilon=setting.epsilon,
                accuracies=setting.accuracies,
                shown=setting.shown,
                claim=setting.claim,
                public=bool(place.public),
                trusted=place.trust != "local",
                label=setting.title,
                note=setting.noise,
                style=styles[setting.label],
            )
        )
        numbers.append(
            f"{setting.label}: epsilon {format_number(setting.epsilon)}, accuracy "
            f"{format_share(setting.accuracy)}{place.terms}"
        )
    caption = (
        "Mean and range over seeds. Choosing the best point on private data costs privacy "
        "beyond its ε."
    )
    terms = differing_terms(trained)
    if terms:
        caption = f"Read each point alone: these ε differ in {join_names(terms)}. {caption}"
    published = _published_on_same_data(trained)
    if published:
        sources = dict.fromkeys(f"{figure.kind}: {figure.source}" for figure in published)
        caption += (
            " Stars: others' figures for 60,000 records of one holder at δ = 1e-5, not run "
            f"here ({'; '.join(sources)})."
        )
    for figure in published:
        numbers.append(
            f"published, {figure.source}: epsilon {figure.epsilon:g}, accuracy "
            f"{format_share(figure.accuracy)}"
        )
    stars = [(figure.epsilon, figure.accuracy) for figure in published]
    drawing = draw_frontier(points, kind=_accuracy_kind(trained), published=stars)
    title = "Epsilon against accuracy"
    return Plot("frontier", title, caption, f"{'; '.join(numbers)}.", drawing)


def _accuracy_kind(settings: Sequence[Setting]) -> str:
    utilities = [run.findings.utility for run in _all_runs(settings)]
    kinds = {utility.accuracy_kind for utility in utilities if utility is not None}
    if len(kinds) == 1:
        return kinds.pop()
    return "global or personal"


def _published_on_same_data(settings: Sequence[Setting]) -> list[PublishedFigure]:
    """Figures of others; none if the settings are of several data sets."""
    data = {setting.runs[0].findings.run.data for setting in settings}
    return [figure for figure in PUBLISHED if data == {figure.data}]


def plot_uploads(settings: Sequence[Setting]) -> Plot | None:
    sizes = {
        setting.label: float(setting.uploaded)
        for setting in settings
        if setting.uploaded is not None
    }
    if not sizes:
        return None
    numbers = [f"{label}: {wording.format_bytes(size)}" for label, size in sizes.items()]
    figure = draw_bytes(sizes, styles=page_styles(settings))
    title = "Uploaded by each client"
    return Plot("bytes", title, "Over the whole run.", "; ".join(numbers), figure)


def draw_comparison(settings: Sequence[Setting]) -> list[Plot]:
    """Every figure that these runs allow."""
    first_runs = [(setting.label, setting.runs[0]) for setting in settings[:CURVES]]
    accuracy = plots.plot_accuracy(first_runs, page_styles(settings))
    drawings = [overlay_rocs(settings), plot_frontier(settings), plot_uploads(settings), accuracy]
    drawn = [plot for plot in drawings if plot is not None]
    return plots.add_terms(drawn, [run.findings for run in _all_runs(settings)])


def best_albums(settings: Sequence[Setting]) -> list[PictureAlbum]:
    """For each setting, the images of its strongest reconstruction."""
    pages = []
    for setting in settings:
        run = setting.runs[0]
        best = finding_selection.strongest_reconstruction(run.findings.findings, run.findings.scope)
        if best is None:
            album = None
        else:
            album = albums.picture_album(setting.label, run, best)
        if album is not None:
            pages.append(album)
    return pages[:CURVES]


def write_comparison(
    dirs: Sequence[Path | str],
    out: Path | str,
    read: Callable[[Sequence[Path]], Sequence[RunRecord]] | None = None,
    say: Callable[[str], object] = lambda line: None,
    paper: PaperStyle | None = None,
) -> Path:
    """Write ``out/comparison.html``, figures/, and frontier, leaks, findings as CSV and LaTeX.

    Args:
        dirs: Run folders; one that is named twice counts once.
        out: The folder that the page goes to.
        read: How folders are opened.
        say: Called with the page's headline and sentences, line by line.
        paper: The form of figures as PDF; None writes SVG and PNG alone.

    Returns:
        The page's path.

    Raises:
        DamagedRun: No folder is given, or one is no finished, undamaged run (one line).
    """
    folders = {Path(path).resolve(): Path(path) for path in dirs}
    if not folders:
        raise DamagedRun("nothing to compare: no run folder was given")
    out = Path(out)
    paths = [*folders.values()]
    records: Sequence[RunRecord]
    if read is None:
        records = [read_run_record(path) for path in paths]
    else:
        records = read(paths)
    settings = group_runs(records)
    for line in (comparison_headline(settings), *comparison_sentences(settings)):
        say(line)
    drawings = draw_comparison(settings)
    images = best_albums(settings)
    text = _render_comparison(settings, drawings, images)
    write_bytes(out / "comparison.html", text.encode(errors="replace"))
    _write_tables(settings, out)
    for plot in drawings:
        save_figure(plot.figure, plot.drawing, out / "figures", plot.name, paper)
    for index, album in enumerate(images):
        name = f"pictures-{index + 1}-{plots.make_slug(album.owner)}"
        album.save(out / "figures", name, paper)
    return out / "comparison.html"


def _render_comparison(
    settings: Sequence[Setting], drawings: Sequence[Plot], images: Sequence[PictureAlbum]
) -> str:
    by_name = {plot.name: plot for plot in drawings}
    limits: dict[str, None] = {}
    for run in _all_runs(settings):
        limits |= dict.fromkeys(page_limits(run.findings.privacy))
    is_contradicted = any(setting.verdict == "contradiction" for setting in settings)
    template = page.template_environment().get_template("comparison.html.jinja")
    return template.render(
        made=settings,
        places=frontier_places(settings),
        title=comparison_headline(settings),
        sentences=comparison_sentences(settings),
        albums=images,
        roc=by_name.get("roc"),
        frontier=by_name.get("frontier"),
        bytes=by_name.get("bytes"),
        accuracy=by_name.get("accuracy"),
        verdict="contradiction" if is_contradicted else "plain",
        weak=is_weak_limit,
        limits=list(limits),
    )


def _write_tables(settings: Sequence[Setting], out: Path) -> None:
    tables = {
        "findings": export.findings_table,
        "frontier": frontier_table,
        "leaks": export.leak_table,
    }
    for name, table in tables.items():
        write_bytes(out / f"{name}.csv", table_to_csv(table(settings)).encode())
    write_bytes(out / "leaks.tex", export.leaks_to_latex(settings).encode())


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
    for setting in group_runs([read_training_record(path) for path in paths]):
        privacies = [run.findings.privacy for run in setting.runs]
        cells = (
            setting.label,
            str(len(setting.runs)),
            _accuracy_cell(setting),
            format_number(max(privacy.epsilon.pld for privacy in privacies)),
            format_number(setting.epsilon_rdp),
            format_number(privacies[0].delta),
        )
        table.add_row(*(Text(cell) for cell in cells))
    console_for(file).print(table)


def _accuracy_cell(setting: Setting) -> str:
    diverged = ""
    if setting.diverged:
        diverged = f"{setting.diverged} of {len(setting.runs)} diverged"
    if not setting.accuracies:
        return diverged
    low = min(setting.accuracies)
    high = max(setting.accuracies)
    text = format_share(setting.accuracy)
    if not math.isclose(low, high):
        text += f" ({format_share(low)} to {format_share(high)})"
    return f"{text}, {diverged}" if diverged else text
