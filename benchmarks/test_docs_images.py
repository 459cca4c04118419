"""The gallery shows the command that each image comes from."""

from __future__ import annotations

from benchmarks.docs_images import OPTIONS, ROOT, image_command


def test_the_gallery_has_the_command_of_each_image() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for name in OPTIONS:
        assert f"`{image_command(name)}`" in text and f"({name}.png)" in text
        assert (ROOT / "docs" / f"{name}.png").is_file()
