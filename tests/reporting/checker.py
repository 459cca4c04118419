"""A strict reader of our pages: every tag closed in order, unique ids, nothing from outside, no
script."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "img", "hr", "input", "wbr"})
LOADS = frozenset({"src", "href", "xlink:href", "srcset", "poster", "data", "action", "background"})


class Checker(HTMLParser):
    """Feed it a page, then read ``problems``."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag(tag, attrs)
        if "svg" not in self.open and tag not in VOID:
            self.problems.append(f"<{tag}/> closes itself outside a drawing")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.problems.append(f"</{tag}> while {self.open[-3:]} is open")
        else:
            self.open.pop()

    def _tag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        found = dict(attrs)
        self.tags.append((tag, found))
        if len(set(names)) != len(names):
            self.problems.append(f"<{tag}> has an attribute twice")
        if tag in ("script", "iframe", "object", "embed", "base", "form"):
            self.problems.append(f"<{tag}> is not allowed")
        if "id" in found:
            self.ids.append(found["id"] or "")
        for name, value in attrs:
            self._attribute(tag, name, value or "")
        self._accessible(tag, found)

    def _attribute(self, tag: str, name: str, value: str) -> None:
        if name.startswith("on"):
            self.problems.append(f"<{tag} {name}>")
        if name in LOADS and not value.startswith(("#", "data:")):
            self.problems.append(f"<{tag} {name}={value[:60]!r}> leaves the page")
        if "url(" in value and "url(#" not in value:
            self.problems.append(f"<{tag} {name}={value[:60]!r}> leaves the page")
        if name in ("aria-labelledby", "aria-describedby"):
            self.refers += value.split()
        if name == "href" and value.startswith("#"):
            self.refers.append(value[1:])

    def _accessible(self, tag: str, found: dict[str, str | None]) -> None:
        if tag == "img" and not found.get("alt"):
            self.problems.append("an img without alt text")
        if tag == "svg" and not (found.get("role") == "img" and found.get("aria-label")):
            self.problems.append("a drawing without a label")
        if tag == "th" and found.get("scope") not in ("row", "col"):
            self.problems.append("a th without scope")
        if tag == "html" and not found.get("lang"):
            self.problems.append("a page without lang")

    def close(self) -> None:
        super().close()
        self.problems += [f"<{tag}> is never closed" for tag in self.open]
        self.problems += [
            f"id {one!r} twice" for one in sorted({i for i in self.ids if self.ids.count(i) > 1})
        ]
        self.problems += [f"#{one} is nowhere" for one in self.refers if one not in self.ids]


def problems(page: str) -> list[str]:
    """Everything wrong with a page, in the order of the text."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker.problems
