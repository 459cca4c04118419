"""Networks: a description (``ModelSpec``), its module (``build``) and its initial values
(``initial``)."""

from privdd.models.build import build, build_skeleton, initial
from privdd.models.networks import ModelSpec, projected_shape
from privdd.models.own import OwnModel

__all__ = ["ModelSpec", "OwnModel", "build", "build_skeleton", "initial", "projected_shape"]
