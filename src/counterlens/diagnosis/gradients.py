"""Can the answer be followed back to the pixels? What attacks and explanations stand on."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.diagnosis.finding import Finding
from counterlens.errors import first_line
from counterlens.types import Images, Logits, Scores

STEP = 0.02
"""Promised change of the score for the difference quotient, as a share of the logits' spread."""
LEAST, MOST = 0.5, 2.0
_CANNOT = (
    " Accuracy, calibration and OOD need none; attacks run without gradients and are not to be "
    "quoted, and explanations that follow gradients cannot be made."
)
_SHAPE = (
    "Where they are wanted: remove rounding, uint8 casts, .detach(), torch.no_grad() or NumPy from "
    "the way between pixels and logits, or give a differentiable stand-in with counterlens.bpda."
)


def gradients(forward: Callable[[Images], Logits], x: Images, *, steady: bool = True) -> Finding:
    """Are gradients of the winning margin there, finite, not zero, and true?

    Never a failure: no prediction depends on them, and attacks judge for themselves.

    Args:
        steady: whether equal passes agree; only then can a difference quotient be believed.
    """
    name = "gradients"
    try:
        grad, spread = _margin_gradient(forward, x)
    except Exception as error:  # each kind of model without gradients fails in its own way
        message = f"no gradient reaches the pixels ({first_line(error, 90)}).{_CANNOT}"
        return Finding(name, "warn", message, "high", _SHAPE)
    size = grad.flatten(1).norm(dim=1)
    broken = int((~torch.isfinite(size)).sum())
    if broken:
        message = f"NaN or infinite gradients on {broken} of {len(x)} images.{_CANNOT}"
        fix = "Look for a square root or a division at 0 in forward, or half precision."
        return Finding(name, "warn", message, "high", fix)
    dead = int((size == 0).sum())
    if dead:
        message = f"the gradient is exactly zero on {dead} of {len(x)} images.{_CANNOT}"
        return Finding(name, "warn", message, "high", _SHAPE)
    if not steady:
        return Finding(
            name, "ok", f"finite, not zero on {len(x)} images; not followed further.", "low"
        )
    ratio = _difference_ratio(forward, x, grad, spread).median().item()
    if not LEAST <= ratio <= MOST:
        message = (
            f"a small step along the gradient changes the margin by {ratio:.2f} times what the "
            "gradient predicts."
        )
        return Finding(name, "warn", message, "medium", _SHAPE)
    message = (
        f"finite, not zero on {len(x)} images; a small step changes the margin by {ratio:.2f} "
        "times what the gradient predicts."
    )
    return Finding(name, "ok", message)


def _margin_gradient(forward: Callable[[Images], Logits], x: Images) -> tuple[Images, float]:
    z = x.clone().requires_grad_()
    with torch.enable_grad():
        out = forward(z)
        (grad,) = torch.autograd.grad(_margin(out, out.detach()).sum(), z)
    return grad, out.detach().std().item()


def _margin(out: Logits, reference: Logits) -> Scores:
    """Lead of the reference's answer over its runner-up."""
    first, second = reference.topk(2, dim=1).indices.unbind(1)
    rows = torch.arange(len(out), device=out.device)
    return out[rows, first] - out[rows, second]


def _difference_ratio(
    forward: Callable[[Images], Logits], x: Images, grad: Images, spread: float
) -> Float[Tensor, "b"]:
    """Central difference along the gradient over what the gradient predicts."""
    length = grad.flatten(1).norm(dim=1)
    step = (STEP * spread / length).view(-1, 1, 1, 1) * grad / length.view(-1, 1, 1, 1)
    with torch.no_grad():
        reference = forward(x)
        change = _margin(forward(x + step), reference) - _margin(forward(x - step), reference)
    return change / (2 * STEP * spread)
