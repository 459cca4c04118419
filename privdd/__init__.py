"""privdd: what does everything that leaves a federated client leak, and does the stated epsilon hold?"""

from attacks import types as _attack_types

__version__ = "0.1.0"

if getattr(_attack_types, "MARKER", None) != "privdd-attacks":
    raise ImportError(
        f"another package named 'attacks' shadows privdd's: {_attack_types.__file__}; run from another folder"
    )
