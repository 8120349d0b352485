"""Which class is most like another: by the model's last layer, or by WordNet.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), appendix D: targets are classes of the same
       cluster of ImageNet's hierarchy.
Differs: WordNet numbers its nouns file by file, similar ones in a row, so the nearest number
       stands for the nearest in the tree; the tree itself is not needed.
"""

from collections.abc import Callable

from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.label_spaces.imagenet import imagenet, imagenet_index
from counterlens.models.parts import head


def by_head(classifier: Classifier) -> tuple[int, ...]:
    """For each class the one whose weights in the last layer point the most alike."""
    weight = normalize(head(classifier).weight.detach().float(), dim=1)
    alike = weight @ weight.T
    alike.fill_diagonal_(-2)
    return tuple(alike.argmax(1).tolist())


def by_wordnet(classifier: Classifier) -> tuple[int, ...]:
    """For each class the one with the nearest WordNet number."""
    labels = imagenet_index(classifier.classes)
    if labels is None or min(labels) < 0:
        raise InputError(
            f"{classifier.name} has classes outside ImageNet, so WordNet cannot compare them. "
            "Use target=near or target=near:head."
        )
    numbers = [int(imagenet()[k].wnid[1:]) for k in labels]
    return tuple(
        min((k for k in range(len(numbers)) if k != i), key=lambda k: abs(numbers[k] - mine))
        for i, mine in enumerate(numbers)
    )


SIMILAR_CLASSES: dict[str, Callable[[Classifier], tuple[int, ...]]] = {
    "near:head": by_head,
    "near:wordnet": by_wordnet,
}
"""Words for a target, and what they mean for a classifier."""
