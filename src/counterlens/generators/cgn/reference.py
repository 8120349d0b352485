"""Checkpoints of the reference implementation of CGN on MNIST, as networks of this package.

The reference saves the state dict of three sequential networks, f_shape, f_text1 (object) and
f_text2 (background), and of the label embedding. Its textures end in a convolution with a bias
and a batch norm; the batch norm's running mean takes the bias in, so that outputs are the same.

Paper: Sauer and Geiger 2021 (cgn2021), MNIST code.
Differs: nothing in eval mode. In more training the folded bias would no longer be a parameter of
       its own; before a batch norm it changes nothing there either.
"""

from collections.abc import Mapping

from torch import Tensor

from counterlens.errors import InputError
from counterlens.generators.cgn.model import CGN, CLASSES, NOISE

# place in the reference's nn.Sequential → layer here
_SHAPE = {0: "start", 4: "up1.conv", 5: "up1.norm", 9: "up2.conv", 10: "up2.norm"}
_TEXTURE = {
    0: "start", 3: "up1.conv", 4: "up1.norm", 7: "up2.conv", 8: "up2.norm", 10: "last",
    11: "norm",
}  # fmt: skip
_PARTS = {
    "f_shape": ("shape", _SHAPE),
    "f_text1": ("object", _TEXTURE),
    "f_text2": ("background", _TEXTURE),
}
_PLACES = 64  # of the first linear layer's output, 8 × 8


def from_reference(state: Mapping[str, Tensor], source: str) -> CGN:
    """The network of a reference checkpoint, in eval mode.

    Args:
        state: its state dict.
        source: its file, for messages.
    """
    renamed = {_renamed(key): value.float() for key, value in state.items()}
    unknown = sorted(key for key in state if _renamed(key) == key)
    if unknown or "shape.start.weight" not in renamed:
        raise InputError(
            f"{source} holds {', '.join(unknown[:3] or ['no f_shape.0.weight'])}, expected the "
            "state dict of the reference CGN on MNIST: label_emb, f_shape, f_text1, f_text2."
        )
    rows, columns = renamed["shape.start.weight"].shape
    if columns != NOISE + CLASSES or rows % (2 * _PLACES):
        raise InputError(
            f"{source} has a first layer of {rows} × {columns} weights, expected "
            f"{NOISE + CLASSES} columns ({NOISE} latents, {CLASSES} classes) for images of 32 "
            "pixels, as in the published checkpoints."
        )
    for part in ("object", "background"):
        bias = renamed.pop(f"{part}.last.bias", None)
        if bias is not None and f"{part}.norm.running_mean" in renamed:
            renamed[f"{part}.norm.running_mean"] = renamed[f"{part}.norm.running_mean"] - bias
    net = CGN(width=rows // (2 * _PLACES))
    try:
        net.load_state_dict(renamed)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1:2]) or str(error)
        raise InputError(f"{source} does not fit the reference CGN: {reason}") from error
    return net.eval().requires_grad_(False)


def _renamed(key: str) -> str:
    """A name of the reference as a name here; unchanged where it is none.

    >>> _renamed("f_text1.10.weight"), _renamed("label_emb.weight"), _renamed("conv1.weight")
    ('object.last.weight', 'classes.weight', 'conv1.weight')
    """
    if key == "label_emb.weight":
        return "classes.weight"
    network, _, rest = key.partition(".")
    place, _, leaf = rest.partition(".")
    part, layers = _PARTS.get(network, ("", {}))
    layer = layers.get(int(place)) if place.isdecimal() else None
    return f"{part}.{layer}.{leaf}" if layer else key
