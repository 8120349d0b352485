"""A captioner by hub id or folder: words for pictures, by any image-to-text model of transformers.

What it is used for here: words that may drive a unit, read off the pictures that drive it most.
"""

import re
from collections.abc import Callable, Sequence

import torch

from counterlens.images import Pixels
from counterlens.models.sources.hub import open_pretrained

Captioner = Callable[[Sequence[Pixels]], list[str]]
TOKENS = 20
_INSTEAD = "Offline, name a folder with a captioner, or a list of words: words=FILE."
_ARTICLE = re.compile(r"^(?:an?|the|some)\s+")


def load_captioner(spec: str, *, device: torch.device) -> Captioner:
    """Open a captioner; it gives one short phrase per picture."""
    processor, net = open_pretrained(
        spec, "AutoModelForImageTextToText", what="captioner", option="--captioner",
        instead=_INSTEAD, device=device,
    )  # fmt: skip

    def caption(pictures: Sequence[Pixels]) -> list[str]:
        given = processor(images=list(pictures), return_tensors="pt").to(device)
        with torch.no_grad():
            ids = net.generate(**given, max_new_tokens=TOKENS, do_sample=False)
        texts: list[str] = processor.batch_decode(ids, skip_special_tokens=True)
        return [phrase(text) for text in texts]

    return caption


def phrase(text: str) -> str:
    """A caption as a prompt has it: one clause, without its article or full stop.

    >>> phrase("A red car parked on a street. It is new.")
    'red car parked on a street'
    """
    sentence = " ".join(text.split()).partition(".")[0].lower().strip(" ,;")
    return _ARTICLE.sub("", sentence)
