"""privdd: what does everything that leaves a federated client leak, and does the stated epsilon
hold?"""

from pathlib import Path as _Path

import attacks as _attacks

__version__ = "0.1.0"

if (
    _Path(str(_attacks.__file__)).resolve().parent
    != (_Path(__file__).parents[1] / "attacks").resolve()
):
    raise ImportError(
        f"another package named 'attacks' shadows privdd's: {_attacks.__file__}; run from "
        "another folder"
    )
