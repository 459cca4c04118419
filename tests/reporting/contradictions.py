"""Reads a finished run as a person does, page, terminal and files, and names statements that
exclude each other.

It shares no rule with the report: it knows what sentences claim, and computes medians from the
evidence itself."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from privdd.reporting.run_record import read_run_record
from privdd.reporting.terminal import print_summary
from privdd.reporting.wording import BROUGHT, SURFACE, attack_title
from tests.reporting.checker import VOID

GUESSING = re.compile(
    r"(?<!of all records it was )not shown to (?:identify|do better|distinguish)|"
    r"not shown to beat chance",
    re.IGNORECASE,
)
MEMBERS = re.compile(r"can (?:identify|distinguish)|identifies \d", re.IGNORECASE)
NO_PICTURE = re.compile(
    r"not shown to (?:reconstruct|find)|not shown to beat chance", re.IGNORECASE
)
PICTURE = re.compile(
    r"can reconstruct|finds (?:\d+ of \d+ )?released images (?:clearly closer|near)", re.IGNORECASE
)
PICTURE_TILES = ("Images reconstructed", "Images near training images")
ABSENCE = re.compile(
    r"no better than guessing|no attack beat|no attack worked|did not find any|attacks "
    r"tried here failed|can find no",
    re.IGNORECASE,
)
BEST = re.compile(r"\bbest(?! guess)(?: at| of)? ([\d.]+) dB", re.IGNORECASE)
NOTHING_SENT = re.compile(
    r"is the same whoever is in|nothing in it (?:that )?(?:depends|to tell)|same of every record",
    re.IGNORECASE,
)
NEIGHBOURS = re.compile(r"one (record|client) (?:added or removed|replaced|exchanged|emptied)")
AVERAGE = {"median": "median", "mean": "mean", "on average": "mean"}
BEFORE = re.compile(r"(median|mean) (?:of )?(\d[\d.]*|exact)(?: dB)")
BEHIND = re.compile(r"(\d[\d.]*) dB,? (?:the )?(median|on average) of")


@dataclass
class Node:
    tag: str = ""
    attrs: dict[str, str] = field(default_factory=dict)
    inside: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its words, without drawings."""
        parts = [one if isinstance(one, str) else " " + one.text + " " for one in self.inside]
        return (
            ""
            if self.tag in ("svg", "style")
            else re.sub(r"\s+", " ", "".join(parts).replace("\u00a0", " ")).strip()
        )

    def find(self, tag: str, name: str = "", value: str = "") -> Iterator[Node]:
        for one in self.inside:
            if isinstance(one, Node):
                if one.tag == tag and (not name or value in one.attrs.get(name, "").split()):
                    yield one
                yield from one.find(tag, name, value)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Node(tag))

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def parsed(page: str) -> Node:
    reader = _Reader()
    reader.feed(page)
    return reader.open[0]


@dataclass
class Said:
    """All that one run says: page, terminal, findings and card."""

    page: Node
    terminal: str
    findings: dict[str, Any]
    card: dict[str, Any]
    folder: Path

    def of(self, title: str) -> dict[str, str]:
        """place -> what is said there of one artifact."""
        found = {}
        for one in self.page.find("ul", "class", "decisions"):
            for item in one.find("li"):
                if next(item.find("strong")).text == title:
                    found["decision"] = item.text
        for row in self.rows():
            if row["What"].startswith(title):
                found["table"] = row["Worst attack"]
        for one in self.page.find("div", "class", "card"):
            head = next(one.find("h2"), Node()).text
            if head in ("Members identified", *PICTURE_TILES) and title in one.text:
                found[head] = one.text
        return found

    def rows(self) -> Iterator[dict[str, str]]:
        for table in self.page.find("table", "class", "surfaces"):
            for row in next(table.find("tbody")).find("tr"):
                cells = {
                    c.attrs["data-label"]: "; ".join(one.text for one in c.find("li")) or c.text
                    for c in row.find("td")
                }
                yield {"What": next(row.find("th")).text} | cells


def page_contradictions(run_dir: Path | str) -> list[str]:
    """Every pair of statements about one thing that cannot both hold; the folder holds report.html
    and card.json."""
    folder = Path(run_dir)
    out = io.StringIO()
    print_summary(read_run_record(folder).findings, out, 4000)
    said = Said(
        parsed((folder / "report.html").read_text()),
        out.getvalue().replace("\u00a0", " "),
        json.loads((folder / "findings.json").read_text()),
        json.loads((folder / "card.json").read_text()),
        folder,
    )
    tests = (
        _members,
        _pictures,
        _averages,
        _decided,
        _numbers,
        _units,
        _facts,
        _strongest,
        _exposed,
        _ladders,
        _absence,
        _polarity,
        _best,
    )
    return [wrong for test in tests for wrong in test(said)]


def _titles(said: Said) -> dict[str, str]:
    own = BROUGHT.get(said.findings.get("target", {}).get("kind", ""), {})
    return {
        row["surface"]: own.get(row["surface"], SURFACE[row["surface"]])[0]
        for row in said.findings["surfaces"]
    }


def _line(said: Said, surface: str) -> str:
    """What the terminal's table says of a surface."""
    return " ".join(line for line in said.terminal.splitlines() if line.startswith(f"│ {surface} "))


def _both(
    said: Said, yes: re.Pattern[str], no: re.Pattern[str], card: str, what: str
) -> Iterator[str]:
    anywhere = []
    for surface, title in _titles(said).items():
        places = said.of(title) | {"terminal": _line(said, surface)}
        places = {k: v for k, v in places.items() if k in ("decision", "table", "terminal", card)}
        found = [
            place
            for place, text in places.items()
            if any(yes.search(p) and not no.search(p) for p in _parts(text))
        ]
        none = [place for place, text in places.items() if no.search(_about(text, what))]
        anywhere += [f"{title}, {place}" for place in found]
        if found and none:
            yield f"{title}: {what} in {', '.join(found)}, and none in {', '.join(none)}"
    sentences = (
        " ".join(one.text for one in said.page.find("div", "class", "also"))
        + said.terminal.split("┏")[0]
    )
    heads = PICTURE_TILES if card in PICTURE_TILES else (card,)
    cards = [
        c.text
        for c in said.page.find("div", "class", "card")
        if next(c.find("h2"), Node()).text in heads
    ]
    for place, text in (
        ("the first sentences", _about(sentences, what)),
        (f"the card {card!r}", " ".join(cards)),
    ):
        if anywhere and no.search(text):
            yield f"{what} on {anywhere[0]}, and none by {place}"


def _about(text: str, what: str) -> str:
    """The parts of a text that speak of members, or of pictures."""
    parts = _parts(text)
    pictures = [part for part in parts if re.search(r"picture|image|dB", part)]
    return " ".join(
        pictures if what == "pictures" else [part for part in parts if part not in pictures]
    )


def _parts(text: str) -> list[str]:
    return re.split(r"(?<=[.;]) ", text)


def _members(said: Said) -> Iterator[str]:
    yield from _both(said, MEMBERS, GUESSING, "Members identified", "members")


def _pictures(said: Said) -> Iterator[str]:
    yield from _both(said, PICTURE, NO_PICTURE, "Images reconstructed", "pictures")


def _averages(said: Said) -> Iterator[str]:
    """What galleries, cards and tables call a median or a mean, against the evidence."""
    true: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in said.findings["findings"]:
        file = (
            said.folder
            / "evidence"
            / row.get("figure", f"{row['surface']}.{row['attack']}.safetensors")
        )
        held = load_file(file) if file.is_file() else {}
        if "real" in held and len(held["real"]) == row.get("n"):
            error = (held["real"].clip(0, 1).astype(float) - held["reconstructed"].clip(0, 1)) ** 2
            quality = np.minimum(
                -10 * np.log10(np.maximum(error.reshape(row["n"], -1).mean(1), 1e-20)), 200
            )
            known = {"median": float(np.median(quality)), "mean": float(quality.mean())}
            true.setdefault(
                (_titles(said)[row["surface"]], attack_title(row["attack"])), []
            ).append(known)
    for (title, name), known in true.items():
        for text in _told(said, title, name):
            found = BEFORE.findall(text) + [(kind, number) for number, kind in BEHIND.findall(text)]
            for kind, number in found:
                value = 200.0 if number == "exact" else float(number)
                if all(abs(value - one[AVERAGE[kind]]) > 0.06 for one in known):
                    yield (
                        f"{title}, {name}: {kind} {number} dB in {text[:60]!r}; its pictures "
                        f"have {known}"
                    )


def _told(said: Said, title: str, name: str) -> Iterator[str]:
    """What page and terminal say of the pictures of one attack on one surface."""
    for figure in said.page.find("figure"):
        head, caption = (next(figure.find(tag), Node()).text for tag in ("h3", "figcaption"))
        if head.split(" (")[0] == f"{title}, {name}":
            yield caption
    places = said.of(title)
    surface = next(one for one, known in _titles(said).items() if known == title)
    for text in (places.get("table", ""), _line(said, surface)):
        yield from (part for part in re.split("; |│", text) if part.strip().startswith(f"{name} "))
    decided = re.split(r"(?<=[.]) (?=[A-Z])", places.get("decision", ""))
    yield from (part for part in decided if part.lower().startswith(f"{name.lower()} "))
    yield from (
        text for place, text in places.items() if f"{title}, {name}:" in text and "Images" in place
    )


def _decided(said: Said) -> Iterator[str]:
    for one in said.card["artifacts"]:
        can = " ".join(one["attackers_can"])
        title = _titles(said)[one["surface"]]
        text = said.of(title).get("decision", "")
        if one["decision"] in ("no_leak_found", "undecided") and can:
            yield f"{title}: no leak found, and {can[:80]}"
        if one["title"] not in text or any(
            phrase.replace("\u00a0", " ") not in text for phrase in one["attackers_can"]
        ):
            yield f"{title}: page and card.json decide differently"
        if one["decision"] == "no_leak_found" and not can and re.search(r"an attack works", text):
            yield f"{title}: an attack works, and no leak found"
        if "an attack works" in one["why"] and not can:
            yield f"{title}: an attack works, and none is named"
        works = [
            p
            for p in _parts(said.of(title).get("table", ""))
            if MEMBERS.search(p) or (PICTURE.search(p) and not NO_PICTURE.search(p))
        ]
        if works and one["decision"] in ("no_leak_found", "undecided"):
            yield f"{title}: {works[0]!r} in the table, and no leak found"


def _numbers(said: Said) -> Iterator[str]:
    """The epsilons and verdicts of page, terminal and files."""
    lines = {row["What"]: row for row in said.rows()}
    for one in said.card["artifacts"]:
        title = _titles(said)[one["surface"]]
        row = next((line for what, line in lines.items() if what.startswith(title)), {})
        cells = [cell.strip() for cell in _line(said, one["surface"]).split("│")]
        for label, place in (("Stated ε", 3), ("Proven ε, at most", 4), ("Shown ε, at least", 5)):
            if row and len(cells) > place and row[label] != cells[place]:
                yield (
                    f"{title}: {label} is {row[label]} on the page, {cells[place]} in the terminal"
                )
        if row and len(cells) > 2 and not row["Verdict"].lower().startswith(cells[-2]):
            yield f"{title}: {row['Verdict']} on the page, {cells[-2]} in the terminal"
    tiles, notes = (
        {
            next(d.find("dt")).text: dd.text
            for t in said.page.find("dl", "class", "trio")
            for d in t.find("div")
            for dd in [[*d.find("dd")][at]]
        }
        for at in (0, 1)
    )
    claimed = re.search(
        r"([^\s(]+)(?: at delta (\S+))? \((claimed|stated)\)( is proven)?.*; delta ([^,]+),",
        said.terminal,
    )
    if claimed and tiles:
        number, own, kind, proven, delta = claimed.groups()
        note = notes.get(kind.capitalize(), "")
        if tiles.get(kind.capitalize()) != number:
            yield f"{claimed.group(0)} in the terminal, {tiles} on the page"
        if proven and "does not cover this run" in note:
            yield f"{number} is proven in the terminal, and does not cover this run on the page"
        there = re.search(r"at δ = ([^\s;,]+)", note)
        if there and there.group(1) != (own or delta):
            yield (
                f"{number} is claimed at delta {own or delta} in the terminal, "
                f"{there.group(1)} on the page"
            )
    shown = re.search(r"shown at least ([^;]+);", said.terminal)
    if shown and tiles.get("Shown at least") != shown.group(1):
        yield f"{shown.group(0)} in the terminal, {tiles} on the page"


def _units(said: Said) -> Iterator[str]:
    unit = said.findings["privacy"]["unit"]
    text = said.page.text + json.dumps(said.card)
    for other in {found for found in NEIGHBOURS.findall(text) if found != unit}:
        yield f"the unit is a {unit}, and neighbours differ in a {other}"
    for other in re.findall(
        r"(?:How much can one|reveals about a|unit one|everything else, and that the|computed for "
        r"crafted) (record|client)",
        text,
    ):
        if other != unit:
            yield f"the unit is a {unit}, and a sentence speaks of a {other}"


def _facts(said: Said) -> Iterator[str]:
    text = said.page.text + said.terminal + json.dumps(said.findings["surfaces"])
    for found in NOTHING_SENT.findall(text):
        yield f"{found!r}: what an attack did not find, said of what was sent"
    if re.search(r"sampler works in floating point|use a vetted sampler", text, re.IGNORECASE):
        yield "a sampler that is not used"
    inside = "post-processing of what has a row" in text
    covered = re.search(r"not covered by the guarantee ([^.]*?)(?:The three|$)", said.page.text)
    if inside and covered and "accuracy" in covered.group(1)[:200]:
        yield "the accuracy is post-processing, and the limit does not cover it"


def _strongest(said: Said) -> Iterator[str]:
    """The attack that table, curve and most exposed records call the strongest on a surface."""
    curves = {}
    exposed = {}
    for figure in said.page.find("figure"):
        head, caption = (next(figure.find(tag), Node()).text for tag in ("h3", "figcaption"))
        if ": AUC" in caption and caption.endswith("non-members."):
            curves[head] = caption.split(": AUC")[0]
        if "records were chosen; they are identified in" in caption:
            exposed[head.split(", ")[0]] = head.split(", ", 1)[1]
    for title in _titles(said).values():
        named = re.search(
            r"(?:^|; )([^;]+?) can (?:identify|distinguish)", said.of(title).get("table", "")
        )
        names = [curves.get(title), exposed.get(title), named.group(1).strip() if named else None]
        if len({name for name in names if name}) > 1:
            yield f"{title}: strongest by curve, exposed records and table: {names}"


def _exposed(said: Said) -> Iterator[str]:
    for figure in said.page.find("figure"):
        caption = next(figure.find("figcaption"), Node()).text
        head = next(figure.find("h3"), Node()).text
        found = re.search(r"replays that hold them \(95 %: ([\d.]+) % to", caption)
        if (
            found
            and float(found.group(1)) > 20
            and GUESSING.search(_about(said.of(head.split(", ")[0]).get("table", ""), "members"))
        ):
            yield (
                f"{head}: the most exposed records are found, and no more members than by guessing"
            )


def _ladders(said: Said) -> Iterator[str]:
    for part in said.page.find("div", "aria-label", "ladder"):
        shares = [cell.text for row in part.find("tr") for cell in list(row.find("td"))[-1:]]
        seen = [float(one.rstrip(" %")) for one in shares if one.endswith("%")]
        if any(a < b for a, b in pairwise(seen)):
            yield f"{part.attrs['aria-label']}: who knows more identifies less: {seen}"


def _absence(said: Said) -> Iterator[str]:
    """An attack that did not beat chance shows nothing about what was sent."""
    text = said.page.text + said.terminal + json.dumps(said.card)
    for found in dict.fromkeys(ABSENCE.findall(text)):
        yield f"{found!r}: what was not shown is said not to be"


def _polarity(said: Said) -> Iterator[str]:
    """All statements about one attack on one artifact: sentences, tables, tiles and what the files
    hold."""
    kinds = {"members": (MEMBERS, GUESSING), "images": (PICTURE, NO_PICTURE)}
    for surface, title in _titles(said).items():
        rows = [row for row in said.findings["findings"] if row["surface"] == surface]
        for name in dict.fromkeys(attack_title(row["attack"]) for row in rows):
            texts = list(_statements(said, surface, title, name))
            for kind, (yes, no) in kinds.items():
                can = [place for place, text in texts if yes.search(text)]
                cannot = [place for place, text in texts if no.search(text)]
                if can and cannot:
                    yield f"{title}, {name}: {kind} in {can[0]}, and none in {cannot[0]}"
            unread = all(
                row.get("status") in ("nothing_to_read", "failed")
                for row in rows
                if attack_title(row["attack"]) == name
            )
            if unread and any(
                yes.search(text) or no.search(text)
                for _, text in texts
                for yes, no in kinds.values()
            ):
                yield f"{title}, {name}: had nothing to read, and has a result"


def _statements(said: Said, surface: str, title: str, name: str) -> Iterator[tuple[str, str]]:
    """(place, statement) that names an attack on an artifact."""
    places = said.of(title)
    for place, text in (("table", places.get("table", "")), ("terminal", _line(said, surface))):
        parts = (part.strip() for part in re.split("; |│", text))
        yield from ((place, part) for part in parts if part.startswith(f"{name} "))
    for place, text in places.items():
        if f"{title}, {name}:" in text:
            yield place, text
    lead = [*said.page.find("p", "class", "lead"), *said.page.find("div", "class", "also")]
    sentences = re.split(r"(?<=[.]) (?=[A-Z])", " ".join(one.text for one in lead))
    start = f"From the {title.lower()}, {name} "
    yield from (("sentences", one) for one in sentences if one.startswith(start))


def _best(said: Said) -> Iterator[str]:
    """What is called the best is the largest: of the gallery of that attack, where there is one."""
    for surface, title in _titles(said).items():
        for row in (
            one for one in said.findings["findings"] if one["surface"] == surface and "psnr" in one
        ):
            name = attack_title(row["attack"])
            shown = [
                float(one)
                for figure in said.page.find("figure")
                for one in _gallery(figure, f"{title}, {name}")
            ]
            for place, text in _statements(said, surface, title, name):
                for value in map(float, BEST.findall(text)):
                    if shown and value < max(shown) - 0.06:
                        yield (
                            f"{title}, {name}: best {value} dB in {place}, and {max(shown)} "
                            "dB in its gallery"
                        )


def _gallery(figure: Node, head: str) -> list[str]:
    title = next(figure.find("h3"), Node()).text
    if title.split(" (")[0] != head:
        return []
    spans = " ".join(one.text for item in figure.find("li") for one in item.find("span"))
    return re.findall(r"([\d.]+) dB", spans)
