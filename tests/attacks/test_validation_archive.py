"""What an npz file declares: too much, pickled or larger than its data is refused before it is unpacked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attacks.validation import check_archive


def test_honest_arrays_pass_up_to_the_limit(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000), y=np.arange(3, dtype=np.uint8), z=np.zeros((0, 3)))
    check_archive(tmp_path / "a.npz")
    check_archive(tmp_path / "a.npz", limit=8 * 1000 + 3 + 3 * 128)  # three headers
    with pytest.raises(ValueError, match="more than"):
        check_archive(tmp_path / "a.npz", limit=8 * 1000)


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickled"):
        check_archive(tmp_path / "a.npz")
