"""`onnx:FILE`: answers by onnxruntime, gradients by a conversion to torch that was checked.

The logits are always those of onnxruntime, since that is what ships. Where a gradient is wanted and
the conversion (onnx2torch) gives the same logits on random images, the gradient is that of the
conversion at the same point; the rounding of uint8 inputs has the gradient 1. Where a layer is
looked into (features, CAM), the whole answer comes from the conversion. A graph that cannot be
converted, such as one of int8 weights, has no gradient: attacks that need none remain.
"""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError, MissingExtra, first_line
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

PARITY = 1e-3
"""Largest difference between conversion and onnxruntime, as a share of the logits' spread."""
OPSET = 17
"""The newest set of operators that onnx2torch knows as a whole."""
HALF_PARITY = 0.02
"""The same for graphs in half precision, whose own rounding is of this size."""
_BYTES = "tensor(uint8)"
_INTEGER = re.compile(rb"QuantizeLinear|QLinear[A-Z]|ConvInteger|MatMulInteger")
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    _BYTES: np.uint8,
}


def load_onnx(spec: ModelSpec) -> Classifier:
    """The classifier of an `onnx:` spec, on the CPU."""
    path = user_path(spec.name)
    if not path.is_file():
        raise InputError(f"{path} does not exist, expected onnx:FILE.")
    net = OnnxNet(path)
    facts = described(path, net.metadata().get(KEY))
    classifier = wrap(
        net, path, facts, shape=net.shape, card={"source": "onnx", "runtime": "onnxruntime"}
    )
    if net.kind == _BYTES and ("mean" in facts or "std" in facts):
        raise InputError(
            f"{path} takes uint8 pixels, so it normalises them itself. Leave mean and std out of "
            f"{path.name}.json."
        )
    classifier.card["quantised"] = net.quantised()
    how = net.attach((classifier.channels, *classifier.preprocess.size))
    classifier.card["gradients"] = how
    return classifier


class OnnxNet(nn.Module):
    """A graph of onnxruntime as a module; `converted` is its copy in torch, where there is one."""

    file_sha256: Tensor

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path: Path = path
        self._session: Any = None
        entry = _entry(self._opened())
        sides = [d if isinstance(d, int) and d > 0 else None for d in entry.shape]
        if len(sides) != 4 or entry.type not in _TYPES:
            raise InputError(
                f"{path} takes {entry.type} of {len(sides)} axes, expected one batch of images "
                "(n, channels, height, width) as float."
            )
        self.batch: int | None = sides[0]
        self.kind, self.entry = entry.type, entry.name
        self.last = sides[3] in (1, 3) and sides[1] not in (1, 3)
        axes = (0, 3, 1, 2) if self.last else (0, 1, 2, 3)
        self.shape: InputShape = tuple(sides[i] for i in axes)
        self.converted: nn.Module | None = None
        self.closed = ""
        self.register_buffer("file_sha256", sha_buffer(path), persistent=True)

    def metadata(self) -> dict[str, str]:
        """The texts that the exporting program wrote into the file."""
        return dict(self._opened().get_modelmeta().custom_metadata_map)

    def quantised(self) -> bool:
        """Whether the graph computes with integers: its file names the operators as text."""
        return _INTEGER.search(self.path.read_bytes()) is not None

    def attach(self, shape: tuple[int, ...]) -> str:
        """Convert to torch, compare the logits on random images, and say what the result is."""
        why = self._attached(shape)
        self.closed = "" if self.converted is not None else why
        return why if self.converted is not None else f"none: {why}"

    def _attached(self, shape: tuple[int, ...]) -> str:
        x = torch.rand((4, *shape), generator=torch.Generator().manual_seed(0))
        if self.kind == _BYTES:
            x = (x * 255).round() / 255
        half = self.kind == "tensor(float16)"
        limit = HALF_PARITY if half else PARITY
        try:
            self.converted = _convert(self.path)
            if half:  # as float32 where the graph allows it: rounded gradients are poor ones
                self.converted = _as_float(self.converted, x[:1])
            with torch.no_grad():
                truth = in_batches(self._runtime, x, self.batch)
                ours = in_batches(self._torch, x, self.batch)
            gap = float((truth - ours).abs().max() / truth.std().clamp(min=1e-6))
        except MissingExtra as error:
            self.converted = None
            return str(error)
        except Exception as error:  # onnx2torch and the graphs it makes raise almost anything
            self.converted = None
            operator = re.search(r"operation_type='(\w+)'", str(error))
            if operator:
                return f"the graph has {operator[1]}, which onnx2torch cannot convert to torch"
            return f"the graph cannot be converted to torch ({first_line(error, 90)})"
        if not gap <= limit:  # written so that NaN fails too
            self.converted = None
            return f"the conversion's logits differ by {gap:.2g} of their spread"
        return f"by onnx2torch, whose logits differ by at most {gap:.1g} of their spread"

    def forward(self, x: Tensor) -> Tensor:
        return in_batches(self._answer, x, self.batch)

    def _answer(self, x: Tensor) -> Tensor:
        if self.converted is None:
            return self._runtime(x.detach())
        if any(module._forward_hooks for module in self.converted.modules()):
            return self._torch(x)
        answer = self._runtime(x.detach())
        if not (torch.is_grad_enabled() and x.requires_grad):
            return answer
        path = self._torch(x)
        return answer + (path - path.detach())

    def _runtime(self, x: Tensor) -> Tensor:
        images = x.permute(0, 2, 3, 1) if self.last else x
        array = images.cpu().contiguous().numpy()
        if self.kind == _BYTES:
            array = (array * 255).round().clip(0, 255)
        out = self._opened().run(None, {self.entry: array.astype(_TYPES[self.kind])})[0]
        return torch.from_numpy(np.array(out, dtype=np.float32)).to(x.device)

    def _torch(self, x: Tensor) -> Tensor:
        assert self.converted is not None
        images = x.permute(0, 2, 3, 1) if self.last else x
        images = 255 * images if self.kind == _BYTES else images
        like = next((p for p in self.converted.parameters() if p.is_floating_point()), images)
        return as_logits(self.converted(images.to(like.dtype)))

    def _opened(self) -> Any:
        """The session; made again in a copy or another process."""
        if self._session is None:
            runtime = _library()
            options = runtime.SessionOptions()
            options.intra_op_num_threads = max(1, torch.get_num_threads())
            options.log_severity_level = 3
            try:
                self._session = runtime.InferenceSession(
                    str(self.path), options, providers=_providers(runtime)
                )
            except Exception as error:
                raise InputError(
                    f"{self.path} cannot be opened by onnxruntime ({first_line(error)}). Export it "
                    "again, or check it: python -m onnx.checker FILE."
                ) from error
        return self._session

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}


def _library() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra(
            "onnx: needs onnxruntime. Install it: pip install 'counterlens[onnx]'."
        ) from None
    return onnxruntime


def _providers(runtime: Any) -> list[str]:
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    return [name for name in wanted if name in runtime.get_available_providers()]


def _entry(session: Any) -> Any:
    entries = session.get_inputs()
    if len(entries) != 1:
        named = ", ".join(entry.name for entry in entries)
        raise InputError(f"the graph has the inputs {named}, expected images alone.")
    return entries[0]


def _convert(path: Path) -> nn.Module:
    try:
        import onnx
        import onnx.version_converter
        import onnx2torch
    except ImportError:
        raise MissingExtra(
            "gradients need onnx and onnx2torch: pip install 'counterlens[onnx]'."
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of read-only arrays, inside onnx2torch
        graph = onnx.load(str(path))
        for node in graph.graph.node:  # torch's exporter sets allowzero, which onnx2torch refuses;
            if node.op_type == "Reshape":  # it matters to images of no pixels alone
                attributes = [a for a in node.attribute if a.name != "allowzero"]
                del node.attribute[:]
                node.attribute.extend(attributes)
        try:
            net: nn.Module = onnx2torch.convert(graph)
        except NotImplementedError:  # operators of newer opsets than it knows, in their older form
            net = onnx2torch.convert(onnx.version_converter.convert_version(graph, OPSET))
    return net.eval()


def _as_float(net: nn.Module, x: Tensor) -> nn.Module:
    """A network of half precision in float32, unless constants of its graph are bound to half."""
    whole = copy.deepcopy(net).float()
    try:
        with torch.no_grad():
            whole(x)
    except RuntimeError:
        return net
    return whole
