"""Loss gradients of single records at a model: one matrix where that is small, else never held together.

What signals need of them are inner products with a vector and lengths. Where the matrix (n, p) is too large, a product
is a derivative along the vector (forward mode), and lengths and the columns of some layers are taken from blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from attacks.membership.ridge import solved
from privdd.core.types import State

HELD = 2**29  # bytes of all records' gradients, up to which they are one matrix
AT_ONCE = 2**28  # bytes of the gradients of one block
BLOCK = 32  # records that go through the model together, at most


@dataclass(frozen=True)
class RecordGradients:
    """Of the cross-entropy of each record x (n, ...), y (n,) alone, at a model's ``state``, in the model's mode.

    names: the parameters, in the order of their numbers p.
    """

    model: nn.Module
    state: State
    x: Tensor
    y: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def size(self) -> int:
        """p."""
        return sum(self.state[name].numel() for name in self.names)

    @property
    def numel(self) -> int:
        return len(self) * self.size

    @property
    def held(self) -> bool:
        """Whether all are one matrix in memory."""
        return self.numel * self._item <= HELD

    @property
    def _item(self) -> int:
        return max((self.state[name].element_size() for name in self.names), default=4)

    def of(self, names: Sequence[str]) -> RecordGradients:
        """The same records' gradients of these parameters alone."""
        return RecordGradients(self.model, self.state, self.x, self.y, tuple(names))

    def blocks(self) -> Iterator[Tensor]:
        """(b, p) each, of b records in turn, at most AT_ONCE bytes (or one record)."""
        pull = vmap(grad(self._loss), in_dims=(None, 0, 0))
        step = min(BLOCK, max(1, AT_ONCE // max(self.size * self._item, 1)))
        for x, y in zip(self.x.split(step), self.y.split(step)):
            found = pull(self._values, x, y)
            yield torch.cat([found[name].flatten(1) for name in self.names], 1)

    @cached_property
    def matrix(self) -> Tensor:
        """(n, p). Ask ``held`` first."""
        whole, at = self.x.new_empty(0), 0
        for block in self.blocks():
            if not at:
                whole = block.new_empty(len(self), self.size)
            whole[at : at + len(block)] = block
            at += len(block)
        return whole

    @cached_property
    def norms(self) -> Tensor:
        """(n,) Euclidean lengths."""
        return self.matrix.norm(dim=-1) if self.held else torch.cat([block.norm(dim=-1) for block in self.blocks()])

    def products(self, vector: Tensor) -> Tensor:
        """<vector, g_i> (n,), for a vector (p,)."""
        if self.held:
            return vector @ self.matrix.T
        try:
            return self._along(vector)
        except NotImplementedError:  # a layer without a derivative in forward mode
            return torch.cat([block @ vector for block in self.blocks()])

    def aligned(self, vector: Tensor) -> dict[str, Tensor]:
        """ "gradient_product": ``products``, "alignment": these over the lengths; (n,) each."""
        product = self.products(vector)
        lengths = (vector.norm(dim=-1) * self.norms).clamp_min(torch.finfo(vector.dtype).tiny)
        return {"gradient_product": product, "alignment": product / lengths}

    def gram(self) -> Tensor:
        """(n, n) float64 of inner products. Where the gradients are not held, each block is met by all later ones, made anew."""
        if self.held:
            return self.matrix.double() @ self.matrix.double().T
        found, at = torch.zeros(len(self), len(self), dtype=torch.float64, device=self.x.device), 0
        for block in self.blocks():
            rest = RecordGradients(self.model, self.state, self.x[at:], self.y[at:], self.names)
            below = torch.cat([other.double() @ block.double().T for other in rest.blocks()])
            found[at:, at : at + len(block)] = below
            found[at : at + len(block), at:] = below.T
            at += len(block)
        return found

    def _along(self, vector: Tensor) -> Tensor:
        parts = vector.split([self.state[name].numel() for name in self.names])
        way = {name: part.view_as(self.state[name]).to(self.state[name]) for name, part in zip(self.names, parts)}

        def slope(x: Tensor, y: Tensor) -> Tensor:
            return jvp(lambda values: self._loss(values, x, y), (self._values,), (way,))[1]  # type: ignore[no-any-return]

        each = vmap(slope)
        return torch.cat([each(x, y) for x, y in zip(self.x.split(BLOCK), self.y.split(BLOCK))])

    @property
    def _values(self) -> State:
        return {name: self.state[name] for name in self.names}

    def _loss(self, values: State, x: Tensor, y: Tensor) -> Tensor:
        complete = {**self.state, **values}
        return F.cross_entropy(functional_call(self.model, complete, (x[None],)), y[None])


@dataclass(frozen=True)
class LayerParts:
    """Takes a change (p,) to the records' parts in it (n,), as ridge regression's matrix does, which would be too large."""

    gradients: RecordGradients
    gram: Tensor
    ridge: float

    @classmethod
    def of(cls, gradients: RecordGradients, ridge: float) -> LayerParts:
        return cls(gradients, gradients.gram(), ridge)

    def __matmul__(self, vector: Tensor) -> Tensor:
        return solved(self.gram, self.gradients.products(vector).double(), self.ridge).float()
