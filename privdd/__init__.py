"""privdd: what does each thing that leaves a federated client give away, and is the printed epsilon true?"""

from attacks import types as _attack_types

__version__ = "0.1.0"

if getattr(_attack_types, "MARKER", None) != "privdd-attacks":
    raise ImportError(
        f"another package named 'attacks' shadows privdd's: {_attack_types.__file__}; run from another folder"
    )
