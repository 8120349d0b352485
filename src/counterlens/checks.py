"""Checks of what public functions accept, each with one clear message."""

import torch
from torch import Tensor

from counterlens.errors import InputError


def check_images(x: Tensor, *, name: str = "images") -> None:
    """Refuse anything but finite float images b × c × h × w in [0, 1]."""
    if x.ndim != 4:
        raise InputError(
            f"{name} has shape {tuple(x.shape)}, expected (batch, channels, height, width). "
            "Add the batch axis with x[None]."
        )
    if not x.is_floating_point():
        raise InputError(f"{name} is {x.dtype}, expected float in [0, 1]. Pass x.float() / 255.")
    if not x.numel():
        raise InputError(f"{name} is empty: shape {tuple(x.shape)}.")
    if not torch.isfinite(x).all():
        raise InputError(f"{name} holds NaN or infinite pixels, expected finite values in [0, 1].")
    low, high = x.min().item(), x.max().item()
    if low < 0 or high > 1:
        raise InputError(
            f"{name} spans [{low:.3g}, {high:.3g}], expected [0, 1]. Pass raw pixels divided by "
            "255; normalisation belongs to the model: Classifier(net, mean=..., std=...)."
        )


def check_labels(y: Tensor, *, classes: int, rows: int, name: str = "labels") -> None:
    """Refuse labels that are not `rows` whole numbers in 0 … classes − 1."""
    if y.ndim != 1 or len(y) != rows:
        raise InputError(f"{name} has shape {tuple(y.shape)}, expected ({rows},): one per image.")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(f"{name} is {y.dtype}, expected whole numbers (torch.int64).")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise InputError(
            f"{name} spans {y.min().item()} … {y.max().item()}, expected 0 … {classes - 1} "
            f"for a model of {classes} classes."
        )


def check_probs(p: Tensor, *, name: str = "probs") -> None:
    """Refuse rows that are not probabilities. Logits are refused, not guessed at."""
    if p.ndim != 2 or not p.is_floating_point():
        raise InputError(
            f"{name} is {p.dtype} of shape {tuple(p.shape)}, expected float (rows, classes)."
        )
    tolerance = 1e-3 if p.dtype in (torch.float16, torch.bfloat16) else 1e-4
    if p.numel() and (
        not torch.isfinite(p).all()
        or p.min() < 0
        or (p.sum(1) - 1).abs().max().item() > tolerance * max(1, p.shape[1] ** 0.5)
    ):
        raise InputError(
            f"{name} are not probabilities: they span "
            f"[{p.min().item():.3g}, {p.max().item():.3g}]. "
            "Rows must be ≥ 0 and sum to 1: pass logits.softmax(1)."
        )


def check_logits(z: Tensor, *, rows: int, name: str = "the classifier's output") -> None:
    """Refuse outputs that are not finite logits, one row per image, two classes or more."""
    if not isinstance(z, Tensor):
        raise InputError(
            f"{name} is {type(z).__name__}, expected one tensor of logits. Wrap the model so that "
            "it returns only the logits, e.g. lambda x: model(x)[0]."
        )
    if z.ndim != 2 or len(z) != rows:
        raise InputError(f"{name} has shape {tuple(z.shape)}, expected ({rows}, classes).")
    if z.shape[1] < 2:
        raise InputError(
            f"{name} has {z.shape[1]} class, expected at least 2. Name both classes of a one-logit "
            'model: Classifier(net, classes=["no", "yes"]).'
        )
