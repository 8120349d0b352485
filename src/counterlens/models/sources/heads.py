"""A classifier of three heads in a folder: the trunk's spec, its classes, all weights.

The folder holds `heads.json` and `model.safetensors`. FOLDER is the ensemble; FOLDER#shape,
FOLDER#texture and FOLDER#background are the heads.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.nets.heads import one_head, with_three_heads
from counterlens.models.sources.checkpoint import preprocess_of
from counterlens.models.sources.finetuned import from_anywhere
from counterlens.models.specs import check_consent
from counterlens.models.weights import file_hash, fill, read_state, save_state
from counterlens.runs import read_object, write_json

CARD, WEIGHTS = "heads.json", "model.safetensors"


def save_heads(folder: Path, classifier: Classifier, base: str, facts: dict[str, Any]) -> None:
    """Write all weights, and what is needed to build the network again.

    Args:
        base: spec of the model whose trunk it has.
        facts: what else the card says.
    """
    save_state(classifier.net, folder / WEIGHTS)
    card = {
        "base": from_anywhere(base),
        "name": classifier.name,
        "classes": list(classifier.classes),
        "preprocess": asdict(classifier.preprocess),
        "weights_sha256": file_hash(folder / WEIGHTS),
        **facts,
    }
    write_json(folder / CARD, card)


def load_heads(folder: Path, head: str | None = None, *, trust: bool = False) -> Classifier:
    """The classifier of such a folder, or one of its heads, on the CPU."""
    from counterlens.models import load

    card = read_object(folder / CARD)
    base, classes = card.get("base"), card.get("classes")
    if not isinstance(base, str) or not isinstance(classes, list) or len(classes) < 2:
        raise InputError(f"{folder / CARD} names no base and no classes: train the heads again.")
    if card.get("weights_sha256") != file_hash(folder / WEIGHTS):
        raise InputError(f"{folder / WEIGHTS} is not the file that its card describes.")
    check_consent(base, source=folder / CARD, trust=trust)
    start = load(base, device="cpu", trust_remote_code=trust)
    classifier = with_three_heads(start, tuple(map(str, classes)))
    classifier.preprocess = preprocess_of(card.get("preprocess", {}), source=str(folder / CARD))
    state, _ = read_state(folder / WEIGHTS)
    fill(classifier.net, state, str(folder / WEIGHTS))
    classifier.name = str(card.get("name", classifier.name))
    classifier.card = {**card, "base": base}
    return classifier if head is None else one_head(classifier, head)
