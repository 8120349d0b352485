"""Other models that are attacked in place of the audited one."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces import match_classes
from counterlens.search.fast.engine import differentiable
from counterlens.types import Images, Logits
from counterlens.workflows._shared.multilabel import single_label
from counterlens.workflows._shared.names import named
from counterlens.workflows.audit.protocol import Protocol, choose, judged_model
from counterlens.workflows.audit.settings import Settings


class Surrogate(nn.Module):
    """Another classifier, with the audited one's images in and the protocol's classes out."""

    columns: Tensor | None

    def __init__(self, model: nn.Module, size: tuple[int, int], name: str) -> None:
        super().__init__()
        self.model, self.size, self.name = model, size, name
        self.register_buffer("columns", None)

    def forward(self, x: Images) -> Logits:
        """Logits over the classes of the protocol."""
        if tuple(x.shape[2:]) != self.size:
            x = nn.functional.interpolate(x, self.size, mode="bilinear", antialias=True)
        logits: Tensor = self.model(x)
        return logits if self.columns is None else logits.index_select(1, self.columns)


def surrogates(
    settings: Settings,
    classifier: Classifier,
    images: ImageSet,
    protocol: Protocol,
    load: Callable[[str], Classifier],
) -> tuple[list[Surrogate], list[dict[str, str]]]:
    """The models to attack in place of this one, and a row on each: used, or why not.

    One that was asked for by name must fit; another model of the same audit is left out if its
    classes, channels or missing gradients do not allow it.
    """
    models, rows = [], []
    for spec in (*settings.surrogate, *settings.peers):
        name = named(spec)[0]
        try:
            fitted = _fitted(
                single_label(load(spec), "an attack"), name, classifier, images, protocol
            )
        except InputError as error:
            if spec in settings.surrogate:
                raise
            rows.append({"model": name, "used": "no", "why": str(error)})
            continue
        models.append(fitted)
        rows.append({"model": name, "used": "yes", "why": ""})
    return models, rows


def _fitted(
    other: Classifier, name: str, classifier: Classifier, images: ImageSet, protocol: Protocol
) -> Surrogate:
    if other.channels != classifier.channels:
        raise InputError(
            f"surrogate {name} takes {other.channels} channels, the model {classifier.channels}."
        )
    short = name.rpartition(":")[2] or name
    size = other.preprocess.size
    theirs = choose(other, images)
    if theirs.classes == protocol.classes:
        fitted = Surrogate(judged_model(other, theirs), size, short)
    else:
        fitted = Surrogate(other, size, short)
        fitted.columns = _columns(other, name, protocol.classes)
    device = classifier.mean.device
    if not differentiable(fitted, torch.full((1, classifier.channels, *size), 0.5, device=device)):
        raise InputError(f"surrogate {name} has no gradients, expected a model that has.")
    return fitted


def _columns(other: Classifier, name: str, classes: Sequence[str]) -> Tensor:
    """Where the surrogate has the classes of the protocol."""
    matching = match_classes(other.classes, classes)
    if matching.unmatched:
        raise InputError(
            f"surrogate {name} does not know {len(matching.unmatched)} of the {len(classes)} "
            f"classes, among them {matching.unmatched[0]!r}. Expected a model of the same classes."
        )
    places = [matching.map.columns[i] for i in matching.position]
    return torch.tensor(places, device=other.mean.device)
