"""A fine-tuned classifier: the network of another spec with weights of its own.

The folder holds `finetuned.json` (the spec it started from, its classes, whether the last layer is
new) and `model.safetensors` (all weights). A network that was an object in Python has no spec: its
weights lie in the file under the names that its own `state_dict` has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.parts import head_name
from counterlens.models.specs import check_consent, parse
from counterlens.models.weights import file_hash, fill, read_state, save_state
from counterlens.runs import read_object, user_path, write_json

CARD, WEIGHTS = "finetuned.json", "model.safetensors"


def save_finetuned(
    folder: Path, classifier: Classifier, base: str | None, *, new_head: bool, facts: dict[str, Any]
) -> None:
    """Write all weights, and what is needed to build their network again.

    Args:
        folder: created if absent.
        classifier: the fine-tuned classifier.
        base: spec of the model it started from; None where that was an object.
        new_head: whether its last layer was replaced by one for other classes.
        facts: what else the card says: the data and the training.
    """
    save_state(classifier.net, folder / WEIGHTS)
    card = {
        "base": None if base is None else from_anywhere(base),
        "name": classifier.name,
        "classes": list(classifier.classes),
        "new_head": new_head,
        "weights_sha256": file_hash(folder / WEIGHTS),
        **facts,
    }
    write_json(folder / CARD, card)


def load_finetuned(folder: Path, *, trust: bool = False) -> Classifier:
    """The classifier of such a folder, on the CPU."""
    from counterlens.models import load

    card = read_object(folder / CARD)
    base, classes = card.get("base"), card.get("classes")
    if base is None:
        raise InputError(
            f"{folder} was fine-tuned from an object in Python, so the network cannot be built "
            f"again from here. Build it, load safetensors.torch.load_file('{folder / WEIGHTS}') "
            "into it, and give the object, or a FILE.py:FACTORY that does so."
        )
    if not isinstance(base, str) or not isinstance(classes, list) or len(classes) < 2:
        raise InputError(f"{folder / CARD} names no base and no classes: fine-tune again.")
    if card.get("weights_sha256") != file_hash(folder / WEIGHTS):
        raise InputError(f"{folder / WEIGHTS} is not the file that its card describes.")
    check_consent(base, source=folder / CARD, trust=trust)
    classifier = load(base, device="cpu", trust_remote_code=trust)
    if card.get("new_head"):
        classifier = with_new_head(classifier, classes)
    state, _ = read_state(folder / WEIGHTS)
    fill(classifier.net, state, str(folder / WEIGHTS))
    classifier.name = str(card.get("name", classifier.name))
    classifier.card = {**card, "spec": str(folder), "base": base}
    return classifier


def with_new_head(classifier: Classifier, classes: Sequence[str]) -> Classifier:
    """The same network with a fresh last layer for other classes; the layers before are shared."""
    name = head_name(classifier.net, len(classifier.classes))
    old = classifier.net.get_submodule(name)
    new: nn.Module
    if isinstance(old, nn.Conv2d):
        new = nn.Conv2d(old.in_channels, len(classes), 1)
    else:
        assert isinstance(old, nn.Linear)
        new = nn.Linear(old.in_features, len(classes))
    parent, _, last = name.rpartition(".")
    setattr(classifier.net.get_submodule(parent), last, new.to(classifier.mean.device))
    return Classifier(
        classifier.net,
        classes,
        classifier.mean.flatten().tolist(),
        classifier.std.flatten().tolist(),
        preprocess=classifier.preprocess,
        name=classifier.name,
    )


def from_anywhere(spec: str) -> str:
    """The spec so that it loads from any working folder."""
    parsed = parse(spec)
    if parsed.scheme not in ("folder", "file"):
        return spec
    path = str(user_path(parsed.name).resolve())
    return path if parsed.scheme == "folder" else f"{path}:{parsed.weights}"
