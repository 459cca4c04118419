"""privdd: what does everything that leaves a federated client leak, and does the stated epsilon hold?"""

import attacks as _attacks

__version__ = "0.1.0"

if getattr(_attacks, "MARKER", None) != "privdd-attacks":
    raise ImportError(f"another package named 'attacks' shadows privdd's: {_attacks.__file__}; run from another folder")
