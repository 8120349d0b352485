"""A captioner by hub id or folder: words for pictures, by any image-to-text model of transformers.

What it is used for here: words that may drive a unit, read off the pictures that drive it most.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from counterlens.errors import InputError, MissingExtra
from counterlens.images import Pixels
from counterlens.models.hub import fetching

Captioner = Callable[[Sequence[Pixels]], list[str]]
TOKENS = 20
_INSTEAD = "Offline, name a folder with a captioner, or a list of words: --words FILE."
_ARTICLE = re.compile(r"^(?:an?|the|some)\s+")


def load_captioner(spec: str, *, device: torch.device) -> Captioner:
    """Open a captioner; it gives one short phrase per picture."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(
            "--captioner needs transformers. Install it: pip install 'counterlens[diffusion]'."
        ) from error
    local = Path(spec).expanduser()
    if not local.is_dir() and (spec.count("/") != 1 or spec.startswith((".", "/", "~"))):
        raise InputError(
            f"no captioner {spec!r}: expected a hub id OWNER/MODEL or a folder. {_INSTEAD}"
        )
    where = str(local) if local.is_dir() else spec
    with nullcontext() if local.is_dir() else fetching(spec, instead=_INSTEAD):
        try:
            processor = transformers.AutoProcessor.from_pretrained(where)
            net = transformers.AutoModelForImageTextToText.from_pretrained(where)
        except ValueError as error:
            reason = str(error).strip().splitlines()[0][:160]
            raise InputError(f"{spec} is no captioner that can be opened: {reason}") from error
    net.to(device).eval().requires_grad_(False)

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
    bare = " ".join(text.split()).partition(".")[0].lower().strip(" ,;")
    return _ARTICLE.sub("", bare)
