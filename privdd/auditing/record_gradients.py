"""Loss gradients of single records at one model: products, lengths and inner products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from attacks.membership.signals import (
    solve_ridge,
)
from privdd.core.types import State

# Signals need gradients' inner products with a vector, and their lengths. Where the matrix (n, p)
# is too large, a product is a derivative along the vector (forward mode), and lengths and the
# columns of some layers are taken from blocks.
MAX_MATRIX_BYTES = 2**29  # bytes of all records' gradients, up to which they are one matrix
MAX_BLOCK_BYTES = 2**28  # bytes of the gradients of one block
RECORDS_PER_BLOCK = 32  # records that go through the model together, at most


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of the cross-entropy of each single record at a model, in the model's mode.

    Attributes:
        model: the network.
        state: its parameters and buffers.
        x: records (n, ...).
        y: their labels (n,).
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
    def parameter_count(self) -> int:
        """p."""
        return sum(self.state[name].numel() for name in self.names)

    @property
    def numel(self) -> int:
        return len(self) * self.parameter_count

    @property
    def is_one_matrix(self) -> bool:
        """Whether all are one matrix in memory."""
        return self.numel * self._item_bytes <= MAX_MATRIX_BYTES

    @property
    def _item_bytes(self) -> int:
        return max((self.state[name].element_size() for name in self.names), default=4)

    def of_parameters(self, names: Sequence[str]) -> RecordGradients:
        """The same records' gradients of these parameters alone."""
        return RecordGradients(self.model, self.state, self.x, self.y, tuple(names))

    def iterate_blocks(self) -> Iterator[Tensor]:
        """(b, p) each, of b records in turn, at most MAX_BLOCK_BYTES (or one record)."""
        pull = vmap(grad(self._record_loss), in_dims=(None, 0, 0))
        step = min(
            RECORDS_PER_BLOCK,
            max(1, MAX_BLOCK_BYTES // max(self.parameter_count * self._item_bytes, 1)),
        )
        for x, y in zip(self.x.split(step), self.y.split(step)):
            gradients = pull(self._parameter_values, x, y)
            yield torch.cat([gradients[name].flatten(1) for name in self.names], 1)

    @cached_property
    def gradient_matrix(self) -> Tensor:
        """(n, p). Ask ``is_one_matrix`` first."""
        matrix = self.x.new_empty(0)
        row = 0
        for block in self.iterate_blocks():
            if not row:
                matrix = block.new_empty(len(self), self.parameter_count)
            matrix[row : row + len(block)] = block
            row += len(block)
        return matrix

    @cached_property
    def gradient_norms(self) -> Tensor:
        """(n,) Euclidean lengths."""
        if self.is_one_matrix:
            return self.gradient_matrix.norm(dim=-1)
        return torch.cat([block.norm(dim=-1) for block in self.iterate_blocks()])

    def inner_products(self, vector: Tensor) -> Tensor:
        """<vector, g_i> (n,), for a vector (p,)."""
        if self.is_one_matrix:
            return vector @ self.gradient_matrix.T
        try:
            return self._derivatives_along(vector)
        except NotImplementedError:  # a layer without a derivative in forward mode
            return torch.cat([block @ vector for block in self.iterate_blocks()])

    def alignment_signals(self, vector: Tensor) -> dict[str, Tensor]:
        """ "gradient_product": ``inner_products``, "alignment": these over the lengths; (n,)
        each."""
        product = self.inner_products(vector)
        lengths = (vector.norm(dim=-1) * self.gradient_norms).clamp_min(
            torch.finfo(vector.dtype).tiny
        )
        return {"gradient_product": product, "alignment": product / lengths}

    def gram_matrix(self) -> Tensor:
        """(n, n) float64 of inner products. Where the gradients are not held, each block is met by
        all later ones, made anew."""
        if self.is_one_matrix:
            return self.gradient_matrix.double() @ self.gradient_matrix.double().T
        gram = torch.zeros(len(self), len(self), dtype=torch.float64, device=self.x.device)
        row = 0
        for block in self.iterate_blocks():
            rest = RecordGradients(self.model, self.state, self.x[row:], self.y[row:], self.names)
            below = torch.cat(
                [later_block.double() @ block.double().T for later_block in rest.iterate_blocks()]
            )
            gram[row:, row : row + len(block)] = below
            gram[row : row + len(block), row:] = below.T
            row += len(block)
        return gram

    def _derivatives_along(self, vector: Tensor) -> Tensor:
        parts = vector.split([self.state[name].numel() for name in self.names])
        way = {
            name: part.view_as(self.state[name]).to(self.state[name])
            for name, part in zip(self.names, parts)
        }

        def slope_along(x: Tensor, y: Tensor) -> Tensor:
            return jvp(
                lambda values: self._record_loss(values, x, y), (self._parameter_values,), (way,)
            )[1]  # type: ignore[no-any-return]

        each = vmap(slope_along)
        return torch.cat(
            [
                each(x, y)
                for x, y in zip(self.x.split(RECORDS_PER_BLOCK), self.y.split(RECORDS_PER_BLOCK))
            ]
        )

    @property
    def _parameter_values(self) -> State:
        return {name: self.state[name] for name in self.names}

    def _record_loss(self, values: State, x: Tensor, y: Tensor) -> Tensor:
        complete = {**self.state, **values}
        return F.cross_entropy(functional_call(self.model, complete, (x[None],)), y[None])


@dataclass(frozen=True)
class LayerCoefficients:
    """Takes a change (p,) to the records' parts in it (n,), as ridge regression's matrix does,
    which would be too large."""

    gradients: RecordGradients
    gram: Tensor
    ridge: float

    @classmethod
    def from_gradients(cls, gradients: RecordGradients, ridge: float) -> LayerCoefficients:
        return cls(gradients, gradients.gram_matrix(), ridge)

    def __matmul__(self, vector: Tensor) -> Tensor:
        return solve_ridge(
            self.gram, self.gradients.inner_products(vector).double(), self.ridge
        ).float()
