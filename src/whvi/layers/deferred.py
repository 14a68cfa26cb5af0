"""A tensor that is formed when it is used: what ``layer.weight`` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from whvi._kernel.backend import is_tracing


@final
class DeferredTensor(Tensor):
    """A tensor whose entries are computed by the first operation on it.

    Its shape, data type and device are known before: asking for them costs nothing.
    """

    _form: Callable[[], Tensor]
    _formed: Tensor | None

    @staticmethod
    def __new__(  # noqa: D102 - what torch wants of a tensor without memory
        cls, form: Callable[[], Tensor], shape: tuple[int, ...], like: Tensor
    ) -> DeferredTensor:
        return Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)

    def __init__(self, form: Callable[[], Tensor], shape: tuple[int, ...], like: Tensor) -> None:
        super().__init__()
        self._form, self._formed = form, None

    def formed(self) -> Tensor:
        """Return the plain tensor, computed once."""
        if self._formed is None:
            self._formed = self._form()
        return self._formed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FREE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(DeferredTensor, DeferredTensor.formed, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} does not see that the tensor is not formed yet: clone it first")


_FREE = {
    getattr(descriptor, "__get__", descriptor)
    for descriptor in (Tensor.shape, Tensor.dtype, Tensor.device, Tensor.ndim, Tensor.layout)
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.__hash__}


def deferred(form: Callable[[], Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return ``form()`` of the given shape, put off to the first operation on it."""
    return form() if is_tracing() else DeferredTensor(form, shape, like)
