"""`torchscript:FILE` and `export:FILE.pt2`: programs that torch itself has stored.

TorchScript and torch.export both keep gradients with respect to the pixels. Their layers cannot be
hooked by name as those of a module in Python can, so they have no features and no CAM. Weights in
half precision are run in half precision where the device can, with logits in float32.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError, first_line
from counterlens.models.sources.described import (
    KEY,
    InputShape,
    as_logits,
    described,
    in_batches,
    sha_buffer,
    wrap,
)
from counterlens.models.specs import ModelSpec
from counterlens.runs import user_path

_ENTRY = f"{KEY}.json"
OPEN: InputShape = (None, None, None, None)


class Program(nn.Module):
    """A stored program as a module that is always in evaluation mode."""

    closed = "layers of a stored program cannot be looked into"

    file_sha256: Tensor

    def __init__(self, program: nn.Module, path: Path, batch: int | None) -> None:
        super().__init__()
        self.batch = batch
        self.program = program
        self.register_buffer("file_sha256", sha_buffer(path), persistent=True)

    def train(self, mode: bool = True) -> "Program":
        """Remember the flag; exported programs have no training mode to switch."""
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return in_batches(self._run, x, self.batch)

    def _run(self, x: Tensor) -> Tensor:
        like = next((p for p in self.program.parameters() if p.is_floating_point()), x)
        return as_logits(self.program(x.to(like.dtype)))


def load_torchscript(spec: ModelSpec) -> Classifier:
    """The classifier of a `torchscript:` spec, on the CPU."""
    path = _existing(spec, "torchscript:FILE")
    extra = {_ENTRY: ""}
    program = _read(
        path,
        lambda: torch.jit.load(  # type: ignore[no-untyped-call]
            str(path), map_location="cpu", _extra_files=extra
        ),
        "torch.jit.save(torch.jit.trace(net.eval(), images), FILE)",
    )
    program.eval()
    inside: Any = extra[_ENTRY]
    facts = described(path, inside.decode() if isinstance(inside, bytes) else inside)
    card = {"source": "torchscript", "runtime": "TorchScript", "gradients": "by torch"}
    return wrap(Program(program, path, None), path, facts, shape=OPEN, card=card)


def load_export(spec: ModelSpec) -> Classifier:
    """The classifier of an `export:` spec, on the CPU."""
    path = _existing(spec, "export:FILE.pt2")
    extra = {_ENTRY: ""}
    stored = _read(
        path,
        lambda: torch.export.load(str(path), extra_files=extra),
        "torch.export.save(torch.export.export(net.eval(), (images,)), FILE)",
    )
    shape = _shape(stored, path)
    facts = described(path, extra[_ENTRY])
    card = {"source": "export", "runtime": "torch.export", "gradients": "by torch"}
    net = Program(stored.module(), path, shape[0])
    return wrap(net, path, facts, shape=shape, card=card)


def _existing(spec: ModelSpec, form: str) -> Path:
    path = user_path(spec.name)
    if not path.is_file():
        raise InputError(f"{path} does not exist, expected {form}.")
    return path


def _read(path: Path, load: Callable[[], Any], how: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is on its way out: not our advice
            return load()
    except Exception as error:  # readers of foreign files raise almost anything
        raise InputError(
            f"{path} cannot be loaded ({type(error).__name__}: {first_line(error)}). Write it "
            f"with {how}."
        ) from error


def _shape(stored: Any, path: Path) -> InputShape:
    """The shape of the only input; None where it was exported as dynamic."""
    names = stored.graph_signature.user_inputs
    nodes = [node for node in stored.graph.nodes if node.name in names]
    value = nodes[0].meta.get("val") if len(nodes) == 1 else None
    if not isinstance(value, Tensor) or value.ndim != 4:
        raise InputError(
            f"{path} takes {len(nodes)} inputs, expected one batch of images (n, channels, height, "
            "width)."
        )
    return tuple(side if isinstance(side, int) else None for side in value.shape)
