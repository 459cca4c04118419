"""``data.standardise``: the method's classifiers standardise the images that they are given.

Images stay in [0, 1] wherever else they are: in attacks and their distances, in what mechanisms clip, in pictures. For
methods that average models this is what standardising the records would be. Methods that learn images (FedDM, FedLGD)
learn them in [0, 1], where the papers' code learns them in the standardised space.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from privdd.cli.read_settings import mapping_at
from privdd.core.errors import BadConfig
from privdd.data.standards import PUBLISHED, Scale

CLASSIFIERS = ("convnet", "resnet18", "smallcnn", "simplecnn", "lenet", "mlp")
OWN_SPACE = {  # their classifiers read what is no image: constants of images mean nothing there
    "FedRD": "its classifier reads projected records",
    "FedFed": "its classifier reads shared features beside the records",
    "FedFedVirtual": "its classifier reads shared features beside the records",
}


def standardising(config: DictConfig) -> Any:
    """``config.algo`` as plain values, its classifiers given the published constants where they are asked for.

    Raises BadConfig for a method whose classifiers read no images.
    """
    algo, data = dict(mapping_at(config, "algo")), config.get("data") or {}
    if not data.get("standardise"):  # stored configs of earlier versions have no such key
        return algo
    name = str(algo["_target_"]).rsplit(".", 1)[-1]
    if name in OWN_SPACE:
        raise BadConfig(f"data.standardise=true: not for {name}: {OWN_SPACE[name]}")
    changed = _with_scale(algo, PUBLISHED[str(data["name"])])
    if changed == algo:
        raise BadConfig(f"data.standardise=true: would do nothing: {name} has no network that reads images")
    return changed


def _with_scale(node: Any, scale: Scale) -> Any:
    if not isinstance(node, dict):
        return node
    made = {key: _with_scale(value, scale) for key, value in node.items()}
    own = str(node.get("_target_")).endswith(".OwnModel")
    if own or (str(node.get("_target_")).endswith(".ModelSpec") and node.get("name") in CLASSIFIERS):
        made["scale"] = [list(part) for part in scale]
    return made
