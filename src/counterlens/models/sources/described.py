"""What a file of an exported model does not say: class names, normalisation, size.

An exported graph holds weights and operations. How its input is prepared and what its outputs are
called stands in a JSON file beside it, `FILE.json` (`net.onnx.json` beside `net.onnx`), or inside
the file under the name `counterlens`:

    {"classes": ["cat", "dog"], "mean": [0.485, …], "std": [0.229, …],
     "size": 224, "crop": 0.875, "interpolation": "bicubic"}

All are optional; `FILE.classes.txt` may name the classes, too. Without mean and std the graph gets
the pixels in [0, 1], and the card says that this was assumed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier, numbered, unwrap
from counterlens.errors import InputError, first_line
from counterlens.models.class_names import names_beside
from counterlens.models.sources.checkpoint import preprocess_of
from counterlens.models.weights import file_hash
from counterlens.runs import read_object

KEY = "counterlens"
"""Under which a file may hold its own description."""
KNOWN = (
    "classes",
    "mean",
    "std",
    "size",
    "crop",
    "interpolation",
    "squash",
    "channels",
    "name",
    "multilabel",
)
ASSUMED = (
    "the file does not state mean and std: it gets pixels in [0, 1] as they are; where that is "
    "wrong, write them into FILE.json"
)
InputShape = tuple[int | None, ...]
"""Batch, channels, height, width; None where the file leaves one open."""


def in_batches(run: Callable[[Tensor], Tensor], x: Tensor, size: int | None) -> Tensor:
    """Logits of a program that was exported for batches of `size` images; None: of any number."""
    if size is None or len(x) == size:
        return run(x)
    parts = []
    for i in range(0, len(x), size):
        rows = x[i : i + size]
        lack = size - len(rows)
        whole = torch.cat([rows, rows[-1:].expand(lack, *rows.shape[1:])]) if lack else rows
        parts.append(run(whole)[: len(rows)])
    return torch.cat(parts)


def described(path: Path, inside: str | None) -> dict[str, Any]:
    """What is said beside the file and inside it; beside wins."""
    facts: dict[str, Any] = {}
    if inside:
        try:
            stored = json.loads(inside)
        except ValueError as error:
            raise InputError(
                f"{path}: its entry {KEY!r} is not JSON ({first_line(error)}). Put the description "
                f"into {path.name}.json."
            ) from error
        facts |= stored if isinstance(stored, dict) else {}
    beside = path.with_name(path.name + ".json")
    if beside.is_file():
        facts |= read_object(beside)
    strange = sorted(set(facts) - set(KNOWN))
    if strange:
        raise InputError(
            f"the description of {path} has {', '.join(strange)}, expected {', '.join(KNOWN)}."
        )
    return facts


def wrap(
    net: nn.Module,
    path: Path,
    facts: Mapping[str, Any],
    *,
    shape: InputShape,
    card: Mapping[str, Any],
) -> Classifier:
    """The classifier of a network out of a file.

    Args:
        facts: of `described`.
        shape: of the input as far as the file says.
        card: how the file is run.
    """
    preprocess = preprocess_of(
        {k: facts[k] for k in ("crop", "interpolation", "squash") if k in facts}
        | {"size": facts.get("size") or _sides(shape, path)},
        source=f"{path.name}.json",
    )
    channels = facts.get("channels") or _channels(facts) or shape[1] or 3
    outputs = _outputs(net, (2, int(channels), *preprocess.size), path)
    several = bool(facts.get("multilabel"))
    count = outputs if several else max(outputs, 2)
    classes: Sequence[str] = facts.get("classes") or names_beside(path, count) or ()
    classes = classes or numbered(count)
    if len(classes) != count:
        raise InputError(
            f"{path} gives {outputs} logits, but {len(classes)} classes are named. Give one name "
            "per logit, in their order; two for a single logit."
        )
    notes = [] if "mean" in facts and "std" in facts else [ASSUMED]
    if outputs == 1:
        notes.append("one logit z counts as the two logits (−z/2, z/2)")
    return Classifier(
        net,
        classes,
        facts.get("mean", [0.0] * int(channels)),
        facts.get("std", [1.0] * int(channels)),
        preprocess=preprocess,
        name=str(facts.get("name") or path.stem),
        card={"weights_sha256": file_hash(path), **card, **({"notes": notes} if notes else {})},
        multilabel=several,
    )


def sha_buffer(path: Path) -> Tensor:
    """The hash of the file as a buffer, so that networks without parameters are distinguished."""
    return torch.tensor(list(bytes.fromhex(file_hash(path))), dtype=torch.uint8)


def as_logits(out: object) -> Tensor:
    """The logits of a graph's output: the tensor itself or the first of several, in float32."""
    first = out[0] if isinstance(out, tuple | list) and out else out
    if isinstance(first, Mapping):
        first = first.get("logits", next(iter(first.values()), None))
    tensor = first if isinstance(first, Tensor) else unwrap(first)
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return tensor.float()


def _sides(shape: InputShape, path: Path) -> list[int]:
    height, width = shape[2], shape[3]
    if height is None or width is None:
        raise InputError(
            f"{path} does not say the size of its input. Write it into {path.name}.json beside it: "
            '{"size": 224, "mean": […], "std": […], "classes": […]}.'
        )
    return [height, width]


def _channels(facts: Mapping[str, Any]) -> int | None:
    mean = facts.get("mean")
    return len(mean) if isinstance(mean, list) else None


def _outputs(net: nn.Module, shape: tuple[int, ...], path: Path) -> int:
    try:
        with torch.no_grad():
            out = net(torch.zeros(shape))
    except InputError:
        raise
    except Exception as error:  # whatever a foreign graph raises
        raise InputError(
            f"{path} cannot be run on images of shape {shape} ({type(error).__name__}: "
            f"{first_line(error)}). Write size and channels into {path.name}.json."
        ) from error
    if out.shape == (2,):
        return 1
    if out.ndim != 2 or len(out) != 2:
        raise InputError(
            f"{path} returns shape {tuple(out.shape)} for 2 images, expected (2, classes): is it a "
            "classifier?"
        )
    return int(out.shape[1])
