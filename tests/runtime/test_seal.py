"""A seal and a signature are of what the manifest says, in whatever order it says it."""

from __future__ import annotations

from privdd.runtime.seal import (
    PAGE_KEY,
    PLOTTING_KEY,
    SEAL_KEY,
    compute_seal,
    signed_bytes,
)

MANIFEST = {"files": {"b.json": "12", "a.json": "34"}, PAGE_KEY: "56", PLOTTING_KEY: "x 1"}


def reversed_order(manifest: dict[str, object]) -> dict[str, object]:
    files = manifest["files"]
    assert isinstance(files, dict)
    swapped = {**manifest, "files": dict(reversed(files.items()))}
    return dict(reversed(swapped.items()))


def test_the_order_of_keys_changes_neither_seal_nor_signature() -> None:
    assert compute_seal(MANIFEST) == compute_seal(reversed_order(MANIFEST))
    assert signed_bytes(MANIFEST) == signed_bytes(reversed_order(MANIFEST))


def test_a_seal_covers_all_but_itself_and_a_signature_not_what_a_new_page_changes() -> None:
    assert compute_seal(MANIFEST) == compute_seal({**MANIFEST, SEAL_KEY: "old"})
    drawn_anew = {**MANIFEST, PAGE_KEY: "78", PLOTTING_KEY: "x 2", SEAL_KEY: "old"}
    assert compute_seal(MANIFEST) != compute_seal(drawn_anew)
    assert signed_bytes(MANIFEST) == signed_bytes(drawn_anew)
    other_file = {**MANIFEST, "files": {"b.json": "12", "a.json": "35"}}
    assert compute_seal(MANIFEST) != compute_seal(other_file)
    assert signed_bytes(MANIFEST) != signed_bytes(other_file)
