"""`timm:NAME[.TAG]` and `timm:NAME@FILE`: timm architectures with hub or local weights.

Preprocessing is what timm states for the tag (for a local file: for the architecture's default
tag), at the training resolution, as timm resolves it by itself.
Differs: pictures are never padded to the input's aspect (timm's crop mode "border"); the centre is
cut out instead, and the card says so under `notes`.
"""

from typing import Any

from torch import nn

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.label_spaces import imagenet_names
from counterlens.models.class_names import names_beside
from counterlens.models.sources.efficientnet_port import is_port, rename_port
from counterlens.models.sources.hub import fetching
from counterlens.models.specs import ModelSpec, suggest
from counterlens.models.weights import (
    Weights,
    class_count,
    file_hash,
    fill,
    read_state,
    strip_prefixes,
)
from counterlens.types import Preprocess

_LABELLED = {1000, 11221, 11821, 19168, 21841, 21842, 21843}
"""Class counts of ImageNet and its supersets; other counts of timm's tags are embeddings."""


def load_timm(spec: ModelSpec, *, trust: bool = False) -> Classifier:
    """The classifier of a `timm:` spec, on the CPU."""
    import timm

    architecture, _, tag = spec.name.partition(".")
    _check_name(timm, spec, architecture, tag)
    if spec.weights is not None:
        return _from_file(timm, spec, trust=trust)
    config = timm.get_pretrained_cfg(spec.name)
    if config is None or not config.has_weights:
        raise InputError(
            f"timm has no weights for {spec.name}. Give a file: timm:{spec.name}@FILE."
        )
    _check_labelled(spec, config.num_classes)
    with fetching(f"timm:{spec.name}", instead=f"Give a file: timm:{architecture}@FILE."):
        net = timm.create_model(spec.name, pretrained=True)
    return _wrap(timm, net, spec, {}, None)


def _check_name(timm: Any, spec: ModelSpec, architecture: str, tag: str) -> None:
    if not timm.is_model(architecture):
        near = suggest(architecture, timm.list_models(), prefix="timm:")
        raise InputError(f"timm has no model {architecture!r}{near}.")
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        known = ", ".join(f"{architecture}.{t}" for t in tags) or "none"
        raise InputError(f"timm has no weights {spec.name!r}{suggest(tag, tags)}. It has: {known}.")


def _check_labelled(spec: ModelSpec, count: int) -> None:
    if count not in _LABELLED:
        raise InputError(
            f"timm:{spec.name} gives features, not classes, so it is no classifier. "
            "Choose a tag fine-tuned on classes (…_in1k), or put a head on it in FILE.py:FACTORY."
        )


def _from_file(timm: Any, spec: ModelSpec, *, trust: bool) -> Classifier:
    file = spec.weights_file
    if file is None:
        raise InputError(
            f"{spec}: there is no file {spec.weights!r}. A tag follows a dot: "
            f"timm:{spec.name}.{spec.weights}."
        )
    state, entry = read_state(file, trust=trust)
    net = timm.create_model(spec.name, pretrained=False)
    state = _fitted_names(spec, net, strip_prefixes(state, net.state_dict()))
    count = class_count(net, state, str(file), default=net.num_classes)
    if count != net.num_classes:
        net = timm.create_model(spec.name, pretrained=False, num_classes=count)
    fill(net, state, str(file))
    card = {"weights_sha256": file_hash(file), "weights_entry": entry}
    names = names_beside(file, max(count, 2))
    return _wrap(timm, net, spec, card, names)


def _fitted_names(spec: ModelSpec, net: nn.Module, state: Weights) -> Weights:
    if not is_port(state):
        return state
    if not spec.name.startswith("tf_efficientnet"):
        raise InputError(
            f"{spec.weights} holds EfficientNet weights of the TensorFlow port (its padding and "
            f"batch norm differ). Type timm:tf_{spec.name.removeprefix('tf_')}@{spec.weights}."
        )
    return rename_port(state, net)


def _wrap(
    timm: Any,
    net: nn.Module,
    spec: ModelSpec,
    card: dict[str, Any],
    names: tuple[str, ...] | None,
) -> Classifier:
    config = timm.data.resolve_model_data_config(net)
    preprocess, notes = preprocess_of(config)
    described = {
        "source": "timm",
        "tag": (getattr(net, "pretrained_cfg", None) or {}).get("tag"),
        "licence": (getattr(net, "pretrained_cfg", None) or {}).get("license"),
        "notes": notes,
    }
    return Classifier(
        net,
        names or class_names(timm, net),
        config["mean"],
        config["std"],
        preprocess=preprocess,
        name=spec.name,
        card={k: v for k, v in {**described, **card}.items() if v},
    )


def preprocess_of(config: dict[str, Any]) -> tuple[Preprocess, list[str]]:
    """timm's data configuration in our terms, and what had to be given up."""
    _, height, width = config["input_size"]
    crop, mode = float(config["crop_pct"]), config["crop_mode"]
    squash = mode == "squash"
    whole = squash and crop == 1
    notes = ["timm pads to the border; here the centre is cut out"] if mode == "border" else []
    preprocess = Preprocess(
        (height, width), None if whole else crop, config["interpolation"], squash and not whole
    )
    return preprocess, notes


def class_names(timm: Any, net: Any) -> tuple[str, ...]:
    """ImageNet's names where the network has its classes, else numbers."""
    if net.num_classes == 1:  # one logit, which the Classifier turns into two
        return numbered(2)
    if net.num_classes == 1000:
        return imagenet_names()
    subset = timm.data.infer_imagenet_subset(net)
    if subset is None:
        return numbered(net.num_classes)
    info = timm.data.ImageNetInfo(subset)
    if info.num_classes() != net.num_classes:
        return numbered(net.num_classes)
    return tuple(info.label_descriptions())
