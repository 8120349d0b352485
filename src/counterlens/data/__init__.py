"""Where pictures come from: one word opens a set.

    FOLDER                 a sub-folder per class, or pictures without labels
    FILE.csv  FILE.jsonl   a manifest: path, and label where known
    pack:A.npz[+B.npz]     packed files
    known:NAME[/PART]@ROOT a public data set as its authors lay it out
    hf:DATASET#SPLIT       a data set of the Hugging Face hub
    sample:NAME            shipped with counterlens
    noise:KIND             made by code; noise:smooth@SPEC from the images of SPEC
    corrupted:NAME,SEVERITY@SPEC  the images of SPEC under a common corruption, severity 1 to 5
    slices:RUN#K           the images of a confirmed slice of an audit; slices:RUN of all of them

`NAME=SPEC` names a set; else its name is the file's stem or the last word.
"""

from typing import TYPE_CHECKING

from counterlens.data.specs import name_of, scheme_of
from counterlens.lazy import lazily

if TYPE_CHECKING:
    from counterlens.data.open import from_images, mined_with, open_set
    from counterlens.data.sets import subset
    from counterlens.data.sources.packed import write_pack

_HOMES = {
    "from_images": "data.open",
    "mined_with": "data.open",
    "open_set": "data.open",
    "subset": "data.sets",
    "write_pack": "data.sources.packed",
}

__all__ = [
    "from_images",
    "mined_with",
    "name_of",
    "open_set",
    "scheme_of",
    "subset",
    "write_pack",
]
__getattr__, _ = lazily("counterlens.data", _HOMES)
