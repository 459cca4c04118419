"""Decide every sentence, and write the page."""

from __future__ import annotations

from privdd.reproduce.audit_runs import AuditRuns
from privdd.reproduce.sentence_page import counted, write_sentences
from privdd.reproduce.sentences import SENTENCES
from privdd.reproduce.typed import Wish
from privdd.runtime.progress import stage


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
