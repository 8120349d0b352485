"""Under which protocol a model is judged on a data set: which answers count, for which labels."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces import LabelMap, Matching, declared_map, match_classes
from counterlens.metrics import coarse_right, group_means, restrict
from counterlens.types import Flags, Images, Labels, Logits


@dataclass(frozen=True)
class Protocol:
    """A data set's classes as answers of a model.

    Args:
        matching: which class is which, and the rule that turns outputs into answers.
        labels: true answer of each image as a column of `logits(…)`; −1 where it has none.
        text: the protocol in words, said with every number.
    """

    matching: Matching
    labels: Int64[np.ndarray, "n"]
    text: str

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the columns of `logits(…)`."""
        map_ = self.matching.map
        return (*map_.classes, "none of these") if map_.rule == "argmax" else map_.classes

    @property
    def known(self) -> Bool[np.ndarray, "n"]:
        """Images whose class the model knows."""
        return self.labels >= 0

    def logits(self, outputs: Logits) -> Logits:
        """The model's outputs as logits over the classes of the protocol.

        Equation: nae2021 §5   restrict to the subset first, then arg-max and softmax
        """
        map_ = self.matching.map
        match map_.rule:
            case "subset":
                whole = map_.columns == tuple(range(outputs.shape[1]))
                return outputs if whole else restrict(outputs, map_.columns)
            case "mean":
                shares = group_means(outputs.double().softmax(1), map_.groups)
                return shares.clamp_min(1e-300).log()
            case "argmax":
                return _by_answer(outputs, map_.mapping(outputs.shape[1]), len(map_.classes))
        raise InputError(f"label map {map_.name} has the unknown rule {map_.rule!r}.")

    def right_over_all(self, outputs: Logits, labels: Labels) -> Flags:
        """Whether the arg-max over all of the model's outputs belongs to the true class."""
        return coarse_right(outputs, labels, self.matching.map.mapping(outputs.shape[1]))


class ProtocolClassifier(nn.Module):
    """A classifier that answers with the classes of a protocol, as attacks must see it.

    The same logits as `Protocol.logits`, in the precision of the outputs and from stored tensors
    alone: it moves between devices, is frozen and copied with its network, its protocol is part
    of its state, and a forward pass never waits for the device.
    """

    members: Tensor
    absent: Tensor
    sizes: Tensor

    def __init__(self, classifier: Classifier, protocol: Protocol) -> None:
        super().__init__()
        map_ = protocol.matching.map
        groups = [list(group) for group in map_.groups]
        if map_.rule == "argmax":  # a last column for the classes in no group
            mapping = map_.mapping(len(classifier.classes))
            groups.append([k for k, group in enumerate(mapping) if group < 0])
        self.classifier = classifier
        self.mean = map_.rule == "mean"
        width, device = max(len(group) for group in groups), classifier.mean.device
        padded = [group + [0] * (width - len(group)) for group in groups]
        sizes = torch.tensor([len(group) for group in groups], device=device)
        self.register_buffer("members", torch.tensor(padded, device=device))
        self.register_buffer("absent", torch.arange(width, device=device) >= sizes[:, None])
        self.register_buffer("sizes", sizes)

    def forward(self, x: Images) -> Logits:
        """Logits over the classes of the protocol: each class stands for a group of outputs."""
        outputs: Tensor = self.classifier(x)
        outputs = outputs.float().log_softmax(1) if self.mean else outputs
        picked = outputs.index_select(1, self.members.flatten())
        picked = picked.view(len(x), *self.members.shape).masked_fill(self.absent, -1e30)
        if self.mean:
            return picked.logsumexp(2) - self.sizes.log()
        return picked.amax(2)


def judged_model(classifier: Classifier, protocol: Protocol) -> nn.Module:
    """The model as the protocol sees it: attacks must fool the answers that count."""
    map_ = protocol.matching.map
    if map_.rule == "subset" and map_.columns == tuple(range(len(classifier.classes))):
        return classifier
    return ProtocolClassifier(classifier, protocol)


@dataclass(frozen=True)
class Inside:
    """The reported images of the known set, as one view on them.

    Args:
        protocol: which answers count.
        outputs: all outputs of the model, a row per reported image.
        labels: true answers as columns of `logits`.
        temperature: fitted on other images.
    """

    protocol: Protocol
    outputs: Logits
    labels: Labels
    temperature: float

    @property
    def logits(self) -> Logits:
        """Logits over the classes of the protocol."""
        return self.protocol.logits(self.outputs)

    def against(self, other: ImageSet, classifier: Classifier) -> "Inside":
        """The view that an unknown set's own protocol asks for.

        ImageNet-O is distinguished from ImageNet images of 200 classes, over these 200 outputs; a
        frozen set of strangers from images of the classes on its card.
        """
        if self.protocol.matching.map.rule != "subset":
            return self
        if other.space == "imagenet-o":
            map_ = declared_map("imagenet-o", classifier.classes)
        elif other.space == "unknown-to-subset":
            known = match_classes(classifier.classes, other.classes)
            map_ = restricted(known, f"known classes of {other.name}").map
        else:
            return self
        if map_ is None or map_ == self.protocol.matching.map:
            return self
        place = {column: i for i, column in enumerate(map_.columns)}
        own = self.protocol.matching.map.columns
        moved = torch.tensor([place.get(own[int(label)], -1) for label in self.labels])
        rows = torch.nonzero(moved >= 0).flatten()
        if not len(rows):
            return self
        position = tuple(range(len(map_.classes)))
        matching = Matching(self.protocol.matching.rows, map_, position)
        words = _words(matching, len(classifier.classes))
        view = Protocol(matching, moved[rows].numpy(), words)
        return Inside(view, self.outputs[rows], moved[rows], self.temperature)


def choose(classifier: Classifier, images: ImageSet) -> Protocol:
    """Match the classes of a set with a model's; a declared label space brings its own rule."""
    if not images.classes:
        raise InputError(
            f"{images.name} has no classes, expected labelled images: a folder with a folder per "
            "class, or a manifest with a label column."
        )
    matching = match_classes(classifier.classes, images.classes, images.space)
    if images.space == "subset":
        matching = restricted(matching, images.name)
    labels = matching.relabel(images.labels)
    if not (labels >= 0).any():
        raise InputError(f"{images.name} has no image of a class that {classifier.name} knows.")
    return Protocol(matching, labels, _words(matching, len(classifier.classes)))


def restricted(matching: Matching, name: str) -> Matching:
    """Answers count over the matched classes of the data alone, as for a frozen set."""
    own = matching.map.columns
    held = [i for i in matching.position if i >= 0]
    indices = [
        row.data_class for row, i in zip(matching.rows, matching.position, strict=True) if i >= 0
    ]
    map_ = LabelMap(name, tuple(indices), tuple((own[i],) for i in held), "subset")
    place = iter(range(len(held)))
    position = tuple(next(place) if i >= 0 else -1 for i in matching.position)
    return Matching(matching.rows, map_, position)


def _words(matching: Matching, outputs: int) -> str:
    map_ = matching.map
    match map_.rule:
        case "mean":
            return f"{map_.name}: mean probability of each of {len(map_.classes)} groups"
        case "argmax":
            return f"{map_.name}: arg-max over {outputs} classes, then its group"
    if len(map_.classes) == outputs:
        return f"all {outputs} classes of the model"
    return f"{map_.name}: {len(map_.classes)} of the model's {outputs} classes"


def _by_answer(outputs: Logits, mapping: tuple[int, ...], classes: int) -> Logits:
    """The highest logit of each group, and in a last column that of the classes in no group.

    The arg-max over these columns is the group of the arg-max class, exactly.
    """
    place = torch.tensor([g if g >= 0 else classes for g in mapping], device=outputs.device)
    highest = outputs.new_full((len(outputs), classes + 1), -1e30)
    return highest.scatter_reduce(1, place.expand_as(outputs), outputs, "amax")
