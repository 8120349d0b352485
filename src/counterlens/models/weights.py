"""Weight files: read without running code, unwrapped, fitted strictly, hashed.

Differs: a checkpoint that holds both raw and averaged (EMA) weights gives the averaged ones, as
timm's own evaluation does; the card says which entry was taken.
"""

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError, first_line
from counterlens.models.inert import read_lightning
from counterlens.models.parts import head_name
from counterlens.runs import atomic

Weights = dict[str, Tensor]

_ENTRIES = (
    *("state_dict_ema", "model_ema", "ema_state_dict", "ema"),
    *("state_dict", "model_state_dict", "model", "net", "weights"),
)
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "attacker.model.", "backbone.")


TRUST_ADVICE = ", or, if you trust the file, say trust_remote_code=True"


def read_state(
    path: Path, *, trust: bool = False, advice: str = TRUST_ADVICE
) -> tuple[Weights, str | None]:
    """The tensors of a .safetensors or torch file, and the entry they are stored under.

    Args:
        path: the file.
        trust: unpickle whatever the file holds. This can run any code; without it only tensors
            and plain containers are read.
        advice: what else a user can do about a pickled file; empty where nothing can be trusted.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist: give the file of weights after the @.")
    if path.suffix.lower() == ".safetensors":
        return _read_safetensors(path), None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols, which are no news to the user
            stored = torch.load(path, map_location="cpu", weights_only=not trust)
    except Exception as error:  # broken files make the readers raise almost anything
        inert = None if trust else read_lightning(path)
        if inert is not None:
            return find_state(inert, str(path))
        if isinstance(error, pickle.UnpicklingError) and not trust:
            raise InputError(
                f"{path} is no plain file of weights: it holds pickled Python objects, which can "
                f"run any code when read; nothing was run. Save its state_dict() alone{advice}."
            ) from error
        raise InputError(
            f"{path} cannot be read as weights ({_message(error)}). "
            "It may be cut short: fetch it again."
        ) from error
    return find_state(stored, str(path))


def _read_safetensors(path: Path) -> Weights:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is no whole safetensors file ({_message(error)}). Fetch it again."
        ) from error


def save_state(net: nn.Module, path: Path) -> None:
    """All weights of a network as a safetensors file, whole or not at all."""
    from safetensors.torch import save_file

    state = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in net.state_dict().items()
    }
    with atomic(path) as part:
        save_file(state, part)


def find_state(stored: object, name: str) -> tuple[Weights, str | None]:
    """The state dict inside what a checkpoint file held, and the entry it stood under."""
    if isinstance(stored, nn.Module):  # only ever read with trust
        return dict(stored.state_dict()), None
    if isinstance(stored, Mapping):
        for entry in _ENTRIES:
            inner = stored.get(entry)
            if isinstance(inner, nn.Module):
                return dict(inner.state_dict()), entry
            if isinstance(inner, Mapping) and any(isinstance(v, Tensor) for v in inner.values()):
                return _tensors(inner), entry
        if stored and all(isinstance(v, Tensor) for v in stored.values()):
            return _tensors(stored), None
    held = f"entries {', '.join(map(str, list(stored)[:6]))}" if isinstance(stored, Mapping) else ""
    raise InputError(
        f"{name} holds no state dict but {held or type(stored).__name__}. "
        "Save it with torch.save(model.state_dict(), FILE)."
    )


def _tensors(state: Mapping[Any, Any]) -> Weights:
    return {str(key): value for key, value in state.items() if isinstance(value, Tensor)}


def strip_prefixes(state: Weights, wanted: Mapping[str, Tensor]) -> Weights:
    """Drop wrappers' prefixes (module., model., …) that every key carries and `wanted` lacks.

    Where only a part of the file is the network, as in a checkpoint of Lightning that also holds a
    loss or metrics, the one prefix under which all that is wanted stands is taken, the rest left.
    """
    while state and not state.keys() & wanted.keys():
        prefix = next((p for p in _PREFIXES if all(k.startswith(p) for k in state)), None)
        if prefix is None:
            break
        state = {key[len(prefix) :]: value for key, value in state.items()}
    if state.keys() & wanted.keys():
        return state
    needed = [key for key in wanted if not key.endswith("num_batches_tracked")]
    heads = {key.removesuffix(needed[0]) for key in state if key.endswith(f".{needed[0]}")}
    whole = [head for head in heads if all(head + key in state for key in needed)]
    if len(whole) != 1:
        return state
    size = len(whole[0])
    return {key[size:]: value for key, value in state.items() if key.startswith(whole[0])}


def fill(net: nn.Module, state: Weights, source: str) -> None:
    """Put the weights into the network; every name and shape must fit."""
    wanted = net.state_dict()
    missing = [
        key for key in wanted if key not in state and not key.endswith("num_batches_tracked")
    ]
    unexpected = [key for key in state if key not in wanted]
    if missing or unexpected:
        raise InputError(
            f"{source} does not fit the architecture: {_some('missing', missing)}, "
            f"{_some('unexpected', unexpected)}. Name the architecture the weights were made for."
        )
    wrong = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(wanted[key].shape)}"
        for key in wanted
        if key in state and state[key].shape != wanted[key].shape
    ]
    if wrong:
        raise InputError(
            f"{source} does not fit the architecture: {_some('of another shape', wrong)}. "
            "Name the architecture and class count the weights were made for."
        )
    broken = [k for k, v in state.items() if v.is_floating_point() and not v.isfinite().all()]
    if broken:
        raise InputError(f"{source} holds NaN or infinite weights: {_some('broken', broken)}.")
    net.load_state_dict(state, strict=False)  # lacks at most batch counters, checked above


def class_count(net: nn.Module, state: Weights, source: str, *, default: int) -> int:
    """How many classes the weights were made for: the rows of the head in the file.

    The file knows better than the architecture's `default`; all else must fit. One row is a
    binary head, whose single logit a Classifier of two names turns into two.
    """
    name = head_name(net, default)
    weight = state.get(f"{name}.weight")
    if weight is None:
        fill(net, state, source)  # names what is missing
        raise InputError(f"{source} lacks {name}.weight, the last layer.")
    return int(weight.shape[0])


def _some(what: str, keys: list[str]) -> str:
    shown = ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
    return f"{len(keys)} {what}" + (f" ({shown})" if keys else "")


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hash(net: nn.Module) -> str:
    """SHA-256 of all parameters and buffers, by name: the same on every device.

    For a Classifier it is the hash of the network inside: normalisation is on the card.
    """
    digest = hashlib.sha256()
    inside = net.net if isinstance(net, Classifier) else net
    for key, value in sorted(inside.state_dict().items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def shared_weights(one: nn.Module, other: nn.Module) -> float | None:
    """Share of the weights of `one` that `other` has too, whatever they are called.

    Compared are matrices and kernels as loaded, each with those of its shape, to 1 % of its largest
    weight: a copy in half precision is the same. None where `one` has no such weights.
    """
    by_shape: dict[tuple[int, ...], list[Tensor]] = {}
    for theirs in _kernels(other):
        by_shape.setdefault(tuple(theirs.shape), []).append(theirs)
    total = shared = 0
    for ours in _kernels(one):
        limit = 0.01 * float(ours.abs().max())
        total += ours.numel()
        if any(
            bool((ours - theirs).abs().max() <= limit)
            for theirs in by_shape.get(tuple(ours.shape), ())
        ):
            shared += ours.numel()
    return shared / total if total else None


def _kernels(net: nn.Module) -> list[Tensor]:
    inside = net.net if isinstance(net, Classifier) else net
    return [
        value.detach().cpu().float()
        for value in inside.state_dict().values()
        if value.is_floating_point() and value.ndim >= 2 and bool(value.any())
    ]


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error).rstrip('. ')}"
