"""Checkpoint folders: `model.safetensors` and `card.json`.

The card is written last and carries the hash of the weights, so a folder is either whole or
refused. It holds everything needed to rebuild the classifier:

    schema, name, architecture, classes, mean, std, preprocess, temperature, recipe, data,
    numbers, licence, weights_sha256
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError, first_line
from counterlens.models.weights import file_hash, fill, read_state
from counterlens.runs import atomic, read_object, write_json
from counterlens.types import Interpolation, Preprocess

SCHEMA = 1
_NEEDED = ("name", "architecture", "classes", "mean", "std", "preprocess")


def save(folder: Path, net: nn.Module, card: Mapping[str, Any], *, half: bool = False) -> Path:
    """Write a checkpoint folder.

    Args:
        folder: made if absent; a checkpoint already there is replaced.
        net: the network, or a Classifier, whose name, classes, normalisation and preprocessing
            then fill in what the card leaves out.
        card: facts; `architecture` must be what `models.nets.build` understands.
        half: store floats in half precision; they are read back as float32.
    """
    folder = Path(folder)
    if isinstance(net, Classifier):
        card = {**facts(net), **card}
        net = net.net
    absent = [key for key in _NEEDED if card.get(key) is None]
    if absent:
        raise InputError(f"the card of {folder} lacks {', '.join(absent)}.")
    state = {key: _stored(key, value, half=half) for key, value in net.state_dict().items()}
    from safetensors.torch import save_file

    with atomic(folder / "model.safetensors") as part:
        save_file(state, part)
    whole = {"schema": SCHEMA, "temperature": 1.0, **card}
    if isinstance(whole["preprocess"], Preprocess):
        whole["preprocess"] = asdict(whole["preprocess"])
    whole["weights_sha256"] = file_hash(folder / "model.safetensors")
    write_json(folder / "card.json", whole)
    return folder


def _stored(key: str, value: Tensor, *, half: bool) -> Tensor:
    value = value.detach().cpu()
    if value.is_floating_point():
        value = value.to(torch.float16) if half else value
        if not value.isfinite().all():
            raise InputError(f"{key} is not finite{' in half precision' if half else ''}.")
    return value.clone(memory_format=torch.contiguous_format)  # shared storage is refused


def facts(classifier: Classifier) -> dict[str, Any]:
    """What a card says about the classifier itself."""
    return {
        **{k: v for k, v in classifier.card.items() if k != "spec"},
        "name": classifier.name,
        "classes": list(classifier.classes),
        "mean": classifier.mean.flatten().tolist(),
        "std": classifier.std.flatten().tolist(),
        "preprocess": asdict(classifier.preprocess),
    }


def load(folder: Path) -> Classifier:
    """The classifier of a checkpoint folder, on the CPU."""
    folder = Path(folder)
    card = read_card(folder)
    file = folder / "model.safetensors"
    if not file.is_file():
        raise InputError(f"{folder} lacks model.safetensors: the checkpoint is not whole.")
    expected = card.get("weights_sha256")
    if expected is not None and file_hash(file) != expected:
        raise InputError(
            f"{file} is not the file its card describes (SHA-256 differs): the checkpoint was cut "
            "short or changed. Copy both files again."
        )
    from counterlens.models.nets import resnets

    try:
        net = resnets.build(card["architecture"], len(card["classes"]))
        state, _ = read_state(file)
        fill(net, state, str(file))
        return Classifier(
            net,
            card["classes"],
            card["mean"],
            card["std"],
            preprocess=preprocess_of(card["preprocess"], source=str(folder / "card.json")),
            name=card["name"],
            card=card,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder / 'card.json'} describes no classifier "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a checkpoint folder, checked for what loading needs."""
    path = Path(folder) / "card.json"
    if not path.is_file():
        raise InputError(f"{folder} is no checkpoint: it has no card.json beside the weights.")
    card = read_object(path)
    if card.get("schema", SCHEMA) != SCHEMA:
        raise InputError(
            f"{path} has schema {card['schema']}, this version reads {SCHEMA}. Update counterlens."
        )
    absent = [key for key in _NEEDED if card.get(key) is None]
    if absent:
        raise InputError(f"{path} lacks {', '.join(absent)}: it describes no classifier.")
    if not isinstance(card["classes"], list) or len(card["classes"]) < 2:
        raise InputError(f"{path}: classes is {card['classes']!r}, expected two names or more.")
    return card


def preprocess_of(stored: Mapping[str, Any], *, source: str) -> Preprocess:
    """Preprocessing as a card writes it: {"size": [h, w], "crop": …, "interpolation": …}."""
    size, crop = stored.get("size"), stored.get("crop", 1.0)
    interpolation = stored.get("interpolation", "bicubic")
    if isinstance(size, int):
        size = (size, size)
    if (
        not isinstance(size, (list, tuple))
        or len(size) != 2
        or not all(isinstance(side, int) and side > 0 for side in size)
    ):
        raise InputError(f"{source}: preprocess.size is {size!r}, expected [height, width].")
    if crop is not None and not 0 < crop <= 2:
        raise InputError(f"{source}: preprocess.crop is {crop!r}, expected in (0, 2] or null.")
    if interpolation not in get_args(Interpolation):
        known = ", ".join(get_args(Interpolation))
        raise InputError(
            f"{source}: preprocess.interpolation is {interpolation!r}, expected one of {known}."
        )
    return Preprocess((size[0], size[1]), crop, interpolation, bool(stored.get("squash", False)))
