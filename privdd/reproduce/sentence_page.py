"""Decide every sentence; one page and one JSON of the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from privdd.reporting.plots import environment
from privdd.reproduce.audit_runs import AuditRuns
from privdd.reproduce.decided import HERE, NOT, OPEN, Decided
from privdd.reproduce.sentences import SENTENCES, Sentence
from privdd.reproduce.typed import Wish
from privdd.runtime.files import write_bytes, write_json
from privdd.runtime.progress import stage


def counted(decisions: Mapping[str, Decided]) -> str:
    """ "3 hold here, 4 do not, 2 are undecided"."""
    found = Counter(decision.verdict for decision in decisions.values())
    return f"{found[HERE]} hold here, {found[NOT]} do not, {found[OPEN]} are undecided"


def write_sentences(
    sentences: Sequence[Sentence], decisions: Mapping[str, Decided], folder: Path, command: str
) -> Path:
    """``privacy.html`` and ``privacy.json`` in ``folder`` -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    said = ("name", "where", "quote", "reading", "by")
    rows = [{name: getattr(s, name) for name in said} | asdict(decisions[s.name]) for s in sentences]
    write_json(folder / "privacy.json", {"schema": 1, "command": command, "sentences": rows})
    tones = {HERE: "consistent", NOT: "contradiction", OPEN: "unprotected"}
    text = (
        environment()
        .get_template("sentences.html.jinja")
        .render(rows=rows, tones=tones, counted=counted(decisions), command=command)
    )
    write_bytes(folder / "privacy.html", text.encode(errors="replace"))
    return folder / "privacy.html"


def tried(wish: Wish) -> int:
    evidence, decisions = AuditRuns(wish), {}
    with stage("sentences", len(SENTENCES)) as bar:
        for sentence in SENTENCES:
            decisions[sentence.name] = sentence.decide(evidence)
            bar.advance(sentence.name)
    for sentence in SENTENCES:
        print(f"{decisions[sentence.name].verdict:14} {sentence.where}: {sentence.quote}")
    page = write_sentences(SENTENCES, decisions, wish.out / "privacy", wish.command)
    print(f"{counted(decisions)}\npage: {page}", flush=True)
    return 0
