"""No serious accessibility violation by axe-core, on a report, a comparison, a check, opened
canaries and the overview of reproductions, in light and in dark.

axe-core (Deque Systems, MPL-2.0) is a tool of development: `tools/test_extras.sh` installs it by
npm into `.cache/axe`."""

from __future__ import annotations

import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privdd.blackbox.check_page import write_check_page
from privdd.blackbox.check_report import CheckReport, SingleTestResult
from privdd.blackbox.check_verdict import Checked, conclude_check
from privdd.blackbox.claims import CheckedClaim
from privdd.canary.opened_page import write_opened_page
from privdd.canary.sealed import check_commitment, opened_result, read_secret
from privdd.reporting.comparison import write_comparison
from privdd.reporting.page import write_report
from privdd.reproduce.page import write_overview
from tests.bare_machine import AXE_VERSION, axe_file
from tests.canary.small import issued
from tests.reporting.test_page import browse

pytestmark = pytest.mark.nightly

DIGEST = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
RUN = """<script>%s</script><script>
document.querySelectorAll("details").forEach(one => { one.open = true; });
axe.run(document, {resultTypes: ["violations"]}).then(found => {
  const out = document.createElement("pre");
  out.id = "axe-found";
  out.textContent = JSON.stringify({
    dark: matchMedia("(prefers-color-scheme: dark)").matches, passes: found.passes.length,
    bad: found.violations.map(one =>
      [one.impact, one.id, one.nodes.map(node => node.target.join(" ")).slice(0, 4)]),
  });
  document.body.append(out);
});</script></body>"""


def axe() -> str:
    path = axe_file()
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == DIGEST, f"{path} is not axe-core {AXE_VERSION}"
    return data.decode().replace("</script", "<\\/script")


def look(text: str, folder: Path, *, dark: bool) -> dict[str, Any]:
    """axe's violations of a page. The page's own policy forbids scripts, so the copy that is looked
    at has none."""
    (folder / "page.html").write_text(
        POLICY.sub("", text).replace("</body>", RUN % axe()), encoding="utf-8"
    )
    flags = (
        "--virtual-time-budget=60000",
        *(("--blink-settings=preferredColorScheme=0",) if dark else ()),
    )
    document, _ = browse(folder / "page.html", folder / "profile", *flags)
    found = re.search(r'<pre id="axe-found">(.*?)</pre>', document, re.DOTALL)
    assert found, "axe said nothing"
    return json.loads(html.unescape(found.group(1)))


@pytest.fixture(scope="module")
def pages(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {"report": write_report(runs["contradiction"])}
    made["comparison"] = write_comparison(list(runs.values()), tmp_path_factory.mktemp("out"))
    made["check"] = write_check_page(finished_check(), tmp_path_factory.mktemp("check"))
    made["canaries"] = write_canary_page(tmp_path_factory.mktemp("canaries"))
    made["overview"] = write_overview(tmp_path_factory.mktemp("overview"))
    return {name: path.read_text(encoding="utf-8") for name, path in made.items()}


def finished_check() -> Checked:
    """A refuted check with a condition: every part of the page is filled."""
    tests = [
        SingleTestResult("finite numbers", "condition", "numbers must be finite"),
        SingleTestResult("clip", "refuted", "the shift is 3 times the noise", epsilon=9.5),
    ]
    claim = CheckedClaim(2.0, 1e-5)
    return conclude_check(
        "own:f", claim, CheckReport(tests), confidence=0.99, calls=30, seconds=1.0
    )


def write_canary_page(folder: Path) -> Path:
    """Canaries of two sites, opened by scores that identify some of them."""
    sealed = issued(folder / "s")
    salt, coins = read_secret(folder / "s" / "secret.json")
    scores = np.random.default_rng(0).normal(size=len(sealed.canaries.x))
    scores += check_commitment(sealed, salt, coins)
    return write_opened_page(folder, opened_result(sealed, salt, coins, scores, {}), sealed)


@pytest.mark.extra("browser", "axe_core")
@pytest.mark.parametrize("name", ["report", "comparison", "check", "canaries", "overview"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_violation(pages: dict[str, str], name: str, dark: bool, tmp_path: Path) -> None:
    found = look(pages[name], tmp_path, dark=dark)
    assert found["dark"] is dark and found["passes"] > 20
    assert [one for one in found["bad"] if one[0] in ("serious", "critical")] == []


@pytest.mark.extra("browser", "axe_core")
def test_axe_sees_a_picture_without_words_and_grey_on_grey(
    pages: dict[str, str], tmp_path: Path
) -> None:
    bad = (
        pages["report"]
        .replace("</style>", ".also {color: #ccc !important}</style>")
        .replace("</main>", '<img src="data:,"></main>')
    )
    seen = {one[1] for one in look(bad, tmp_path, dark=False)["bad"]}
    assert {"image-alt", "color-contrast"} <= seen
