"""Networks: a description (``ModelSpec``), its module (``build``) and its initial values (``initial``)."""

from privdd.models.build import build
from privdd.models.init import initial
from privdd.models.own import OwnModel
from privdd.models.projection import projected_shape
from privdd.models.spec import ModelSpec

__all__ = ["ModelSpec", "OwnModel", "build", "initial", "projected_shape"]
