"""counterlens: the debugger for image classifiers.

The public names, loaded when first used: `import counterlens` itself loads neither torch nor any
other heavy library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from counterlens.version import __version__ as __version__

if TYPE_CHECKING:
    from counterlens.ball import Ball
    from counterlens.classifier import Classifier
    from counterlens.data import open_set
    from counterlens.data.sources.objects import as_image_set
    from counterlens.doctor import examine
    from counterlens.errors import CounterlensError, InputError
    from counterlens.metrics import classification_numbers, ood_numbers
    from counterlens.models import load
    from counterlens.models.sources.objects import as_classifier
    from counterlens.runs import Number, Run
    from counterlens.search import robust, worst_confidence
    from counterlens.search.apgd import apgd
    from counterlens.search.bpda import bpda
    from counterlens.search.pgd import pgd
    from counterlens.types import Preprocess
    from counterlens.workflows.audit.run import audit
    from counterlens.workflows.compare.run import compare
    from counterlens.workflows.disagree.run import disagree
    from counterlens.workflows.explain.run import explain
    from counterlens.workflows.repair.run import repair
    from counterlens.workflows.train.run import train

_HOMES = {
    "Ball": "ball",
    "Classifier": "classifier",
    "CounterlensError": "errors",
    "InputError": "errors",
    "Number": "runs",
    "Preprocess": "types",
    "Run": "runs",
    "apgd": "search.apgd",
    "as_classifier": "models.sources.objects",
    "as_image_set": "data.sources.objects",
    "audit": "workflows.audit.run",
    "bpda": "search.bpda",
    "classification_numbers": "metrics",
    "compare": "workflows.compare.run",
    "disagree": "workflows.disagree.run",
    "examine": "doctor",
    "explain": "workflows.explain.run",
    "load": "models",
    "ood_numbers": "metrics",
    "open_set": "data",
    "pgd": "search.pgd",
    "repair": "workflows.repair.run",
    "robust": "search",
    "train": "workflows.train.run",
    "worst_confidence": "search",
}

__all__ = [
    "Ball",
    "Classifier",
    "CounterlensError",
    "InputError",
    "Number",
    "Preprocess",
    "Run",
    "apgd",
    "as_classifier",
    "as_image_set",
    "audit",
    "bpda",
    "classification_numbers",
    "compare",
    "disagree",
    "examine",
    "explain",
    "load",
    "ood_numbers",
    "open_set",
    "pgd",
    "repair",
    "robust",
    "train",
    "worst_confidence",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"counterlens has no {name!r}")
    return getattr(import_module(f"counterlens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
