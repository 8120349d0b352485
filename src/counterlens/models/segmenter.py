"""A segmenter that is shown points: Segment Anything, plain or HQ, by hub id or folder; or SAM 2 as
exported files.

Paper: Kirillov et al. 2023 (sam2023); Ke et al. 2023 (hqsam2023), which digin2024 uses, with the
       high-quality token alone.
Differs: nothing; the networks are those of transformers, one mask per picture.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.images import to_pixels
from counterlens.models.sam_files import ExportedSam, exported
from counterlens.models.sources.hub import open_pretrained
from counterlens.runs import user_path
from counterlens.types import Images

Points = Int[Tensor, "b p 2"]
"""Places on the object, each as column and row."""
Segment = Callable[[Images, Points], Float[Tensor, "b 1 h w"]]
"""Images and points to what the points lie on, 1 there and 0 elsewhere."""
KINDS = ("sam", "sam_hq")
_INSTEAD = (
    "Offline, name a folder with it: --mask sam:FOLDER; or give your own mask: --mask FILE; or "
    "leave --mask out: then the mask is where the class word is attended to."
)


ARM = 0.1
"""Distance of the outer points from the middle, as a share of the side."""


def centre(x: Images) -> Points:
    """The middle of each image and four points around it, all on the object.

    One point alone may mean a part of the object: the nose for the cat.
    """
    height, width = x.shape[2:]
    across, down = max(1, round(ARM * width)), max(1, round(ARM * height))
    arms = torch.tensor([[0, 0], [-across, 0], [across, 0], [0, -down], [0, down]])
    return (torch.tensor([width // 2, height // 2]) + arms).expand(len(x), 5, 2)


def load_segmenter(spec: str, *, device: torch.device) -> Segment:
    """Open a segmenter of transformers, or exported files; every point is on the object."""
    folder = user_path(spec)
    if folder.is_dir() and (files := exported(folder)):
        return ExportedSam(*files)
    processor, net = open_pretrained(
        spec, "AutoModelForMaskGeneration", what="segmenter", option="--mask sam:…",
        instead=_INSTEAD, device=device,
    )  # fmt: skip
    if net.config.model_type not in KINDS:
        raise InputError(f"{spec} is a {net.config.model_type}, expected {' or '.join(KINDS)}.")

    def segment(x: Images, points: Points) -> Float[Tensor, "b 1 h w"]:
        pairs = zip(x, points, strict=True)
        return torch.stack([_mask(net, processor, one, spots, device) for one, spots in pairs])

    return segment


@torch.no_grad()
def _mask(
    net: Any,
    processor: Any,
    x: Float[Tensor, "c h w"],
    points: Int[Tensor, "p 2"],
    device: torch.device,
) -> Float[Tensor, "1 h w"]:
    given = processor(images=to_pixels(x), input_points=[[points.tolist()]], return_tensors="pt")
    more = {"hq_token_only": True} if net.config.model_type == "sam_hq" else {}
    output = net(
        pixel_values=given["pixel_values"].to(device),
        input_points=given["input_points"].to(device, torch.float32),
        multimask_output=False,
        **more,
    )
    sizes = given["original_sizes"], given["reshaped_input_sizes"]
    masks: Tensor = processor.post_process_masks(output.pred_masks.float().cpu(), *sizes)[0]
    return masks[0, :1].to(x.device, torch.float32)
