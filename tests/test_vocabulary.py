"""One word for each thing: the words that docs/explanation/vocabulary.md replaces may not spread.

The page's third column holds, in code quotes, words that give way to the first column. They are
counted in names, messages, templates and docs, by place; ``tests/vocabulary.json`` holds the counts
that no place may exceed. After a place has fewer, write them down by ``python -m
tests.test_vocabulary``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "vocabulary.md"
COUNTS = Path(__file__).with_name("vocabulary.json")


def replaced_words(page: str) -> list[str]:
    """The words in code quotes of each table row's last column."""
    words = []
    for line in page.splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("| ") and len(cells) == 3:
            words += re.findall(r"`([^`]+)`", cells[2])
    return words


def pattern_of(word: str) -> re.Pattern[str]:
    """The word and its plural, in text and as a part of a name (``outsider_rate``)."""
    return re.compile(rf"(?<![a-z]){re.escape(word)}s?(?![a-z])", re.IGNORECASE)


def places() -> Iterator[tuple[str, Path]]:
    """(place, file): docs, templates, and each package of the product."""
    yield from (("docs", path) for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))])
    yield from (("templates", path) for path in sorted(ROOT.glob("privdd/reporting/templates/*")))
    yield from (("configs", path) for path in sorted(ROOT.glob("configs/**/*.yaml")))
    for path in [*sorted(ROOT.glob("attacks/**/*.py")), *sorted(ROOT.glob("privdd/**/*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:2]) if len(parts) > 2 else parts[0], path


def count_words() -> dict[str, dict[str, int]]:
    """place -> word -> how often it stands there."""
    patterns = {word: pattern_of(word) for word in replaced_words(PAGE.read_text(encoding="utf-8"))}
    counts: dict[str, Counter[str]] = {}
    for place, path in places():
        if path == PAGE:
            continue
        text = path.read_text(encoding="utf-8")
        total = counts.setdefault(place, Counter())
        for word, pattern in patterns.items():
            total[word] += len(pattern.findall(text))
    return {
        place: {word: n for word, n in sorted(c.items()) if n}
        for place, c in sorted(counts.items())
    }


def spread(counts: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]) -> list[str]:
    """Each place where a replaced word stands more often than allowed."""
    lines = []
    for place, words in counts.items():
        for word, count in words.items():
            most = allowed.get(place, {}).get(word, 0)
            if count > most:
                lines.append(f"{place}: {word!r} stands {count} times, {most} are allowed")
    return lines


def test_no_replaced_word_spreads() -> None:
    assert spread(count_words(), json.loads(COUNTS.read_text())) == []


def test_one_more_use_is_seen() -> None:
    allowed = {"privdd.auditing": {"coin": 3}}
    assert spread({"privdd.auditing": {"coin": 3}}, allowed) == []
    assert spread({"privdd.auditing": {"coin": 4}}, allowed)
    assert spread({"privdd.core": {"coin": 1}}, allowed)
    assert pattern_of("coin").findall("COIN_RATE, coins, coincidence, flip_coin") == [
        "COIN",
        "coins",
        "coin",
    ]


def test_the_page_lists_the_words() -> None:
    words = replaced_words(PAGE.read_text(encoding="utf-8"))
    assert {"outsider", "coin", "picture", "rebuild", "world"} <= set(words)
    assert len(words) == len(set(words))


if __name__ == "__main__":
    COUNTS.write_text(json.dumps(count_words(), indent=1) + "\n")
