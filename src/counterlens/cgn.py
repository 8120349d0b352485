"""Counterfactual generative networks: shape, texture and background drawn independently.

compose       counterfactual photographs, without a generator
train         train them on a coloured or textured MNIST
import_cgn    read the networks of the paper's own code
train_natural  the same of photographs, on a class-conditional generator
show          sheets of what they draw
generate      counterfactual training images
train_heads   a classifier with heads of shape, texture and background
evaluate      classifiers trained on them, measured

>>> import counterlens as cl
>>> sorted(cl.cgn.__all__)
['compose', 'evaluate', 'generate', 'import_cgn', 'show', 'train', 'train_heads', 'train_natural']
"""

from typing import TYPE_CHECKING

from counterlens.lazy import lazily

if TYPE_CHECKING:
    from counterlens.workflows.cgn.compose import compose
    from counterlens.workflows.cgn.evaluate import evaluate
    from counterlens.workflows.cgn.generate import generate
    from counterlens.workflows.cgn.natural import train_natural
    from counterlens.workflows.cgn.reference import import_cgn
    from counterlens.workflows.cgn.sheets import show
    from counterlens.workflows.cgn.train import train_cgn as train
    from counterlens.workflows.train.heads import train_heads

__all__ = [
    "compose",
    "evaluate",
    "generate",
    "import_cgn",
    "show",
    "train",
    "train_heads",
    "train_natural",
]

__getattr__, __dir__ = lazily(
    "counterlens.cgn",
    {
        "compose": "workflows.cgn.compose",
        "evaluate": "workflows.cgn.evaluate",
        "generate": "workflows.cgn.generate",
        "import_cgn": "workflows.cgn.reference",
        "show": "workflows.cgn.sheets",
        "train": "workflows.cgn.train:train_cgn",
        "train_heads": "workflows.train.heads",
        "train_natural": "workflows.cgn.natural",
    },
)
