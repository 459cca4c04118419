"""Evidence that no picture can be drawn of is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privdd.reporting.run_record import FindingsError, _check_evidence


@pytest.mark.parametrize(("shape", "said"), [((2, 1, 0, 0), "at least one pixel"), ((2, 1, 4, 0), "at least one pixel"), ((2, 2, 4, 4), "1 or 3 channels")])
def test_pictures_that_cannot_be_drawn(shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(FindingsError, match=said):
        _check_evidence({"real": np.zeros(shape), "reconstructed": np.zeros(shape)}, Path("evidence.safetensors"))
