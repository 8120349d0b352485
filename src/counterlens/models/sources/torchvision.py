"""`torchvision:NAME[@WEIGHTS]`: torchvision classifiers with its own weights or a local file.

Preprocessing and class names are those of the weights' entry. A local file is recognised by its
SHA-256, of which torchvision's file names carry the first eight digits; an unknown file gets the
preprocessing of the architecture's first entry, and the card says so.
"""

from pathlib import Path
from typing import Any

from torch import nn

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.label_spaces import imagenet_names
from counterlens.models.class_names import names_beside
from counterlens.models.sources.hub import fetching
from counterlens.models.specs import ModelSpec, suggest
from counterlens.models.weights import class_count, file_hash, fill, read_state, strip_prefixes
from counterlens.types import Preprocess


def load_torchvision(spec: ModelSpec, *, trust: bool = False) -> Classifier:
    """The classifier of a `torchvision:` spec, on the CPU."""
    from torchvision import models

    names = models.list_models(module=models)
    if spec.name not in names:
        near = suggest(spec.name, names, prefix="torchvision:")
        raise InputError(f"torchvision has no classifier {spec.name!r}{near}.")
    entries = list(models.get_model_weights(spec.name))
    file = spec.weights_file
    if file is not None:
        return _from_file(models, spec, file, entries, trust=trust)
    entry = _entry(spec, entries, models.get_model_weights(spec.name))
    classes = _categories(spec, entry)
    with fetching(str(spec), instead=f"Give a file: torchvision:{spec.name}@FILE."):
        net = models.get_model(spec.name, weights=entry)
    return _wrap(net, spec, entry, classes, {})


def _entry(spec: ModelSpec, entries: list[Any], table: Any) -> Any:
    if not entries:
        raise InputError(f"torchvision has no weights for {spec.name}. Give a file: {spec}@FILE.")
    if spec.weights is None or spec.weights == "DEFAULT":
        return table.DEFAULT
    known = [entry.name for entry in entries]
    if spec.weights not in known:
        raise InputError(
            f"torchvision:{spec.name} has no weights {spec.weights!r}"
            f"{suggest(spec.weights, known)}. It has: {', '.join(known)}; or give a file."
        )
    return entries[known.index(spec.weights)]


def _from_file(
    models: Any, spec: ModelSpec, file: Path, entries: list[Any], *, trust: bool
) -> Classifier:
    if not entries:
        raise InputError(
            f"torchvision states no preprocessing for {spec.name}. Write FILE.py:FACTORY that "
            "returns Classifier(net, classes, mean, std, preprocess=...)."
        )
    state, inside = read_state(file, trust=trust)
    digest = file_hash(file)
    known = [e for e in entries if Path(e.url).stem.rpartition("-")[2][:8] == digest[:8]]
    entry = known[0] if known else entries[0]
    # the published weights of the two Inceptions expect torchvision's own re-scaling of colours
    inception = spec.name in ("googlenet", "inception_v3")
    options = {"init_weights": False, "transform_input": bool(known)} if inception else {}
    net = models.get_model(spec.name, weights=None, **options)
    state = strip_prefixes(state, net.state_dict())
    count = class_count(net, state, str(file), default=1000)
    if count != 1000:
        net = models.get_model(spec.name, weights=None, num_classes=count, **options)
    fill(net, state, str(file))
    card: dict[str, Any] = {"weights_sha256": digest, "weights_entry": inside}
    if not known:
        card["notes"] = [f"preprocessing of {entry}, since the file is none of torchvision's own"]
    names = names_beside(file, max(count, 2))
    if names is None:
        names = _categories(spec, entry) if count == 1000 else numbered(max(count, 2))
    return _wrap(net, spec, entry, names, card)


def _categories(spec: ModelSpec, entry: Any) -> tuple[str, ...]:
    categories = entry.meta.get("categories")
    if not categories:
        raise InputError(
            f"torchvision:{spec.name}@{entry.name} holds features without classes, so it is no "
            "classifier. Choose other weights."
        )
    return imagenet_names() if len(categories) == 1000 else tuple(categories)


def _wrap(
    net: nn.Module, spec: ModelSpec, entry: Any, names: tuple[str, ...], card: dict[str, Any]
) -> Classifier:
    transforms = entry.transforms()
    described = {"source": "torchvision", "tag": entry.name, "licence": "BSD-3-Clause"}
    return Classifier(
        net,
        names,
        transforms.mean,
        transforms.std,
        preprocess=preprocess_of(transforms),
        name=spec.name,
        card={k: v for k, v in {**described, **card}.items() if v},
    )


def preprocess_of(transforms: Any) -> Preprocess:
    """torchvision's evaluation transforms in our terms."""
    crop, resize = transforms.crop_size[-1], transforms.resize_size[-1]
    return Preprocess((crop, crop), crop / resize, transforms.interpolation.value)
