"""Checkpoints of Lightning, read without running code of theirs.

Such a file holds a state dict beside hyper-parameters and states of callbacks, which may be
objects of any class, so that torch's own safe reading refuses the whole. Here every class that is
not needed to rebuild a tensor becomes an inert placeholder: nothing of the class itself is called.
"""

import pickle
import types
from pathlib import Path
from typing import Any

import torch

MARK = "pytorch-lightning_version"
"""The entry by which a checkpoint of Lightning is known."""
_NEEDED = {
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class Placeholder:
    """What stands for an object of another class; it holds nothing and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "Placeholder":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> "Placeholder":
        return self

    def __setitem__(self, _: object, __: object) -> None:
        pass

    def append(self, _: object) -> None:
        """Items of a list-like object are dropped."""

    def extend(self, _: object) -> None:
        """Items of a list-like object are dropped."""

    def add(self, _: object) -> None:
        """Items of a set-like object are dropped."""


class InertUnpickler(pickle.Unpickler):
    """An unpickler that rebuilds tensors and plain containers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of a tensor's parts; a placeholder for any other."""
        if (module, name) in _NEEDED or (module == "torch" and name.endswith("Storage")):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return Placeholder


def _load(file: Any, **options: Any) -> Any:
    return InertUnpickler(file, **options).load()


def read_lightning(path: Path) -> dict[str, Any] | None:
    """What a checkpoint of Lightning holds, objects left out; None for any other file."""
    unpickling = types.ModuleType("inert_pickle")
    unpickling.Unpickler = InertUnpickler  # type: ignore[attr-defined]
    unpickling.load = _load  # type: ignore[attr-defined]
    try:
        stored = torch.load(path, map_location="cpu", weights_only=False, pickle_module=unpickling)
    except Exception:  # whatever a file of another kind makes the reader raise
        return None
    return stored if isinstance(stored, dict) and MARK in stored else None
