"""A network of the user's own in an ordinary run: ``model=own model.target=net:Net``."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from privdd.core.user_modules import import_user_module
from privdd.models.networks import INITS, Classifier, ModelSpec, Shape

# layers that ``initial`` draws values for
INITIALISED_LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
NORM_LAYERS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)  # and those that start at weight 1, bias 0


@dataclass(frozen=True)
class OwnModel(ModelSpec):
    """target: module:Class, a torch module; args: what it is made with, beside ``shape`` (c, h, w)
    and ``classes`` where it takes them. It has to end with its last linear layer, which gives one
    number for each class.

    norm: "batch" where it has a layer of that kind, else "none"; the network is held to it. Raises
        ValueError."""

    name: str = "own"
    norm: str | None = "none"
    target: str = ""
    args: Any = None

    def __post_init__(self) -> None:
        for field, allowed in (("norm", ("none", "batch")), ("init", INITS)):
            if getattr(self, field) not in allowed:
                raise ValueError(
                    f"model.{field}={getattr(self, field)!r}: one of {', '.join(allowed)}"
                )
        if not (self.args is None or isinstance(self.args, Mapping | tuple)):
            raise ValueError(
                f"model.args={self.args!r}: a mapping is needed, as in model.args={{width:32}}"
            )
        if self.scale is not None:  # lists, from a config
            object.__setattr__(self, "scale", tuple(map(tuple, self.scale)))
        object.__setattr__(self, "args", tuple(sorted(dict(self.args or {}).items())))

    def build_module(self, shape: Shape, classes: int) -> nn.Module:
        """The user's own module. Raises ValueError, one line, where it cannot be found or made."""
        model_class = self._load_class()
        takes = inspect.signature(model_class).parameters
        arguments = {
            name: value for name, value in (("shape", shape), ("classes", classes)) if name in takes
        }
        try:
            return model_class(**{**arguments, **dict(self.args)})
        except Exception as error:  # whatever the class raises
            raise ValueError(
                f"model.target={self.target}: {type(error).__name__}: {format_error(error)}"
            ) from None

    def _load_class(self) -> Any:
        model_class = import_object(
            "model.target", self.target, "module:Class is needed, as in model.target=net:Net"
        )
        if not (inspect.isclass(model_class) and issubclass(model_class, nn.Module)):
            raise ValueError(f"model.target={self.target}: no class of torch modules")
        return model_class


class OwnNetwork(Classifier):
    """The user's module without its last linear layer, which is the head; checked when it is laid
    out."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        if not isinstance(spec, OwnModel):
            raise ValueError("model=own: model.target=module:Class is needed")
        network = spec.build_module(shape, classes)
        _check_layers(spec, network)
        uncut = copy.deepcopy(network)
        name, head = _cut_head(spec, network, classes)
        # in this order: attacks take the last parameters for the classifier's
        self.body = network
        self.head = head
        with torch.device("cpu"):
            _check_forward(spec, self, uncut, name, shape)

    def extract_features(self, x: Tensor) -> Tensor:
        return self.body(x)


class CutHead(nn.Module):
    """In the place of the layer that was cut off. A class of its own: nobody may widen what calls
    it (``is_vectorisable``)."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Example(nn.Module):
    """The default of ``model=own``: one hidden layer."""

    def __init__(self, shape: Shape, classes: int, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU())
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


def _check_untied(spec: OwnModel, whole: nn.Module) -> None:
    """Raises ValueError where two names hold one parameter or buffer, which a message would send
    twice."""
    first: dict[int, str] = {}
    named = (
        *whole.named_parameters(remove_duplicate=False),
        *whole.named_buffers(remove_duplicate=False),
    )
    for name, value in named:
        first_name = first.setdefault(id(value), name)
        if first_name != name:
            raise ValueError(
                f"model.target={spec.target}: {name} and {first_name} are one tensor (tied "
                "weights), which a message would send "
                "twice; call one layer twice, or let each have weights of its own"
            )


def _check_layers(spec: OwnModel, whole: nn.Module) -> None:
    """Raises ValueError for layers that nobody here can start, and for a norm other than the one
    that was said."""
    _check_untied(spec, whole)
    for name, part in whole.named_modules():
        layers = [
            leaf
            for leaf, _ in (
                *part.named_parameters(recurse=False),
                *part.named_buffers(recurse=False),
            )
        ]
        if layers and not isinstance(part, INITIALISED_LAYERS + NORM_LAYERS):
            raise ValueError(
                f"model.target={spec.target}: {name or type(part).__name__} "
                f"({type(part).__name__}) holds {', '.join(layers)}, "
                "whose first values are not known here; use Linear, Conv2d, "
                "ConvTranspose2d and norms"
            )
        if isinstance(part, _DropoutNd) and part.p:
            raise ValueError(
                f"model.target={spec.target}: {name} draws from torch's global generator; "
                "leave dropout out"
            )
    mixes = any(isinstance(part, _BatchNorm) for part in whole.modules())
    if mixes != (spec.norm == "batch"):
        needed = "batch" if mixes else "none"
        raise ValueError(
            f"model.norm={spec.norm}: {spec.target} has {'a' if mixes else 'no'} batch "
            f"norm; model.norm={needed}"
        )


def _cut_head(spec: OwnModel, whole: nn.Module, classes: int) -> tuple[str, nn.Linear]:
    """The last linear layer and its name, with ``CutHead`` in its place."""
    linear = [(name, part) for name, part in whole.named_modules() if isinstance(part, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise ValueError(
            f"model.target={spec.target}: it has to end with a linear layer of its own"
        )
    name, head = linear[-1]
    if head.out_features != classes:
        raise ValueError(
            f"model.target={spec.target}: gives {head.out_features} numbers, the data has "
            f"{classes} classes"
        )
    parent, _, leaf = name.rpartition(".")
    setattr(whole.get_submodule(parent), leaf, CutHead())
    return name, head


def _check_forward(
    spec: OwnModel, network: OwnNetwork, uncut: nn.Module, name: str, shape: Shape
) -> None:
    """Raises ValueError where records do not pass, or where the cut network does not compute what
    the whole one does."""
    generator = torch.Generator().manual_seed(0)
    whole = uncut.to_empty(device="cpu").eval()
    trial = copy.deepcopy(network).to_empty(device="cpu")
    trial.eval()
    for tensor in (*whole.parameters(), *whole.buffers()):
        tensor.data.copy_(
            torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
            - 0.3 * tensor.is_floating_point()
        )
    state = {
        key: value.abs() if key.endswith("running_var") else value
        for key, value in whole.state_dict().items()
    }
    whole.load_state_dict(state)
    trial.body.load_state_dict({key: state[key] for key in trial.body.state_dict()})
    trial.head.load_state_dict({key: state[f"{name}.{key}"] for key in trial.head.state_dict()})
    x = torch.rand(2, *shape, generator=generator)
    try:
        with torch.no_grad():
            wanted = whole(x)
            features = trial.features(x)
            agrees = features.ndim == 2 and torch.allclose(
                trial.head(features), wanted, rtol=1e-4, atol=1e-4
            )
    except Exception as error:  # whatever the module raises
        raise ValueError(
            f"model.target={spec.target}: cannot read records of shape {shape}: "
            f"{format_error(error)}"
        ) from None
    if not agrees:
        raise ValueError(
            f"model.target={spec.target}: its last linear layer has to be its last step, "
            "for (b, d) features"
        )


def import_object(key: str, text: str, needed: str) -> Any:
    """The object that module:Name stands for; its module is imported.

    key: the setting, for messages; needed: what it says to a text of another form. Raises
        ValueError, one line."""
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"{key}={text}: {needed}")
    try:
        return getattr(import_user_module(module), name)
    except Exception as error:  # importing a module may raise anything
        raise ValueError(f"{key}={text}: {type(error).__name__}: {format_error(error)}") from None


def format_error(error: BaseException) -> str:
    """The text of an error, at most 200 characters."""
    return " ".join(str(error).split())[:200]
