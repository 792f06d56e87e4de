"""One attention call as it was seen below the model, before anybody knows where its tokens lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# With fewer queries, what a call shares or could keep besides is not worth a copy.
MANY_QUERIES = 512


@dataclass(frozen=True)
class Keep:
    """What is kept of each call beside what it attends with.

    Attributes:
        values: Its values. Without them a record of a fused model takes a third less memory.
        outputs: What it returned.
    """

    values: bool = True
    outputs: bool = False


VALUES, NO_VALUES, EVERYTHING = Keep(), Keep(values=False), Keep(outputs=True)


@dataclass
class AttentionCall:
    """One attention call as the recorder saw it: leading axes, then tokens, then features.

    Attributes:
        module: Name of the calling module, ``""`` when none is on the stack.
        module_type: Its class.
        operation: The operation that was recognised.
        q: Queries, where a fused kernel got them.
        k: Keys, likewise.
        v: Values, ``None`` where they were left out.
        scale: What the kernel was told to multiply the scores with.
        bias: What the kernel added to the scores, or which keys a boolean mask lets through.
        causal: Whether the kernel hid later keys.
        lse: Row log-sum-exp, where the kernel gave it.
        softmax: The softmax, where it was not fused.
        blank: Queries that had no key left to look at: their softmax is uniform by arithmetic only.
        weights: What multiplied the values: the softmax again, or what was made of it.
        output: What the product with the values returned, where the recorder was asked to keep it.
        is_turned: Whether it is ``vᵀ Aᵀ``, rows and columns exchanged.
        gradient: What a change of ``output`` changes in what was asked for, in the same shape.
        projection: What the model makes of each head's output: ``[head, value, dim]``.
        from_scores: Whether the softmax was taken of queries times keys, not of something else.
    """

    module: str
    module_type: str
    operation: str
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    scale: float | None = None
    bias: Tensor | None = None
    causal: bool = False
    lse: Tensor | None = None
    softmax: Tensor | None = None
    blank: Tensor | None = None
    weights: Tensor | None = None
    output: Tensor | None = None
    is_turned: bool = False
    gradient: Tensor | None = None
    projection: Tensor | None = None
    from_scores: bool = True

    @property
    def taken(self) -> Tensor | None:
        """Weights times values, one row for each query."""
        return self.output.mT if self.is_turned and self.output is not None else self.output

    def leave_values(self) -> None:
        """Forget the values; what queries and keys shared with them is freed where it is much.

        A model that makes all three in one product gives views of it, and a view pins the whole.
        Below ``MANY_QUERIES`` a copy would take longer than it is worth.
        """
        self.v = None
        assert self.q is not None
        assert self.k is not None
        if self.q.shape[-2] >= MANY_QUERIES:
            self.q, self.k = _apart(self.q), _apart(self.k)

    @property
    def is_exact(self) -> bool:
        """Whether the softmax itself multiplied the values, and not something made from it."""
        if self.softmax is None or self.weights is None:
            return self.q is not None
        if self.weights.numel() != self.softmax.numel():
            return False
        if self.weights.data_ptr() == self.softmax.data_ptr():
            return True
        return torch.equal(self.weights.reshape(-1), self.softmax.reshape(-1))


def _apart(tensor: Tensor) -> Tensor:
    """The same numbers in memory of their own, where they lie among others."""
    if tensor.untyped_storage().nbytes() <= tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def for_all_heads(tensor: Tensor, call: AttentionCall) -> Tensor:
    """Keys or values once for every head of the queries, where heads share them."""
    if call.q is None or tensor.dim() < 4 or tensor.shape[-3] == call.q.shape[-3]:
        return tensor
    return tensor.repeat_interleave(call.q.shape[-3] // tensor.shape[-3], -3)
