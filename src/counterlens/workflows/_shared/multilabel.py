"""Models with several labels per image: what is done for them, and one label as two classes.

Audit and doctor take such models as they are. Attacks, explanations, curation, repair and
unknown images ask for one answer per image; they take one label of it, by `one_label`.
"""

from typing import overload

from torch import Tensor, nn

from counterlens.classifier import Classifier, unwrap
from counterlens.data.targets import one_label_set
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.types import Images


class OneLogit(nn.Module):
    """One column of a network's logits."""

    def __init__(self, net: nn.Module, place: int) -> None:
        super().__init__()
        self.net, self.place = net, place

    def forward(self, x: Images) -> Tensor:
        out = self.net(x)
        logits = out if isinstance(out, Tensor) else unwrap(out)
        return logits[:, self.place : self.place + 1]


@overload
def one_label(given: Classifier, label: str) -> Classifier: ...


@overload
def one_label(given: ImageSet, label: str) -> ImageSet: ...


def one_label(given: Classifier | ImageSet, label: str) -> Classifier | ImageSet:
    """One label of a multi-label model, or of a multi-label set, as two classes.

    The classes are "not LABEL" and LABEL; the logits are (−z/2, z/2) of the label's logit z, so
    everything that holds for a classifier of two classes holds for it.

    >>> from counterlens.classifier import Classifier
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    >>> several = Classifier(net, ["a", "b", "c"], size=8, multilabel=True)
    >>> one_label(several, "b").classes
    ('not b', 'b')

    Args:
        given: a Classifier with `multilabel=True`, or a set of images with several labels each.
        label: one of its names.
    """
    if isinstance(given, ImageSet):
        return one_label_set(given, label)
    if not given.multilabel:
        raise InputError(
            f"{given.name} gives one answer per image, expected a multi-label Classifier or a set "
            "of images with several labels each."
        )
    if label not in given.classes:
        raise InputError(
            f"{given.name} has no label {label!r}. It has {', '.join(given.classes[:10])}."
        )
    return Classifier(
        OneLogit(given.net, given.classes.index(label)),
        [f"not {label}", label],
        given.mean.flatten().tolist(),
        given.std.flatten().tolist(),
        preprocess=given.preprocess,
        name=f"{given.name} {label}",
        card={**given.card, "label": label},
    ).to(given.mean.device)


def single_label(classifier: Classifier, what: str) -> Classifier:
    """The classifier, unless it gives several labels per image: `what` asks for one answer."""
    if classifier.multilabel:
        raise InputError(
            f"{classifier.name} gives each image any number of labels, and {what} asks for one "
            "answer. Take one label as two classes: counterlens.one_label(model, "
            f"{classifier.classes[0]!r})."
        )
    return classifier
