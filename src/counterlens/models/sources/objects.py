"""Classifiers from objects: modules, functions, classifiers, as well as specs.

A network given as an object is not changed: the classifier holds a copy of its structure that
shares its weights, in eval mode, on the wanted device.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.checks import check_logits
from counterlens.classifier import EXAMPLE, Classifier, pick_device
from counterlens.errors import InputError, first_line
from counterlens.models import load
from counterlens.models.sources.maite import MaiteNet, is_maite
from counterlens.models.weights import weights_hash
from counterlens.types import Preprocess

EXPECTED = "a spec such as zoo:cifar10-plain, a torch module, a Classifier or a function"
EVAL = "the network was in training mode; it is measured in eval mode"


def as_classifier(
    source: object,
    *,
    classes: Sequence[str] | int | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    size: int | tuple[int, int] | None = None,
    name: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Classifier:
    """The classifier behind a spec or an object, ready for use: eval mode, weights frozen.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    >>> as_classifier(net, classes=["cat", "dog"], size=8, device="cpu").name
    'Sequential'

    Args:
        source: a spec (see `load`); a Classifier; a torch module; a model of the MAITE protocol; a
            function from normalised images to logits. A module that says what it is
            (`pretrained_cfg` of timm, `config` of transformers, `classes` and `input_size` of your
            own) needs nothing else.
        classes: names in the order of the logits, or how many there are.
        mean, std: what pixels in [0, 1] are normalised with.
        size: side of the input, or (height, width).
        name: what reports call it.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        trust_remote_code: of a spec, see `load`.
    """
    if isinstance(source, str | Path):
        loaded = load(str(source), device=device, trust_remote_code=trust_remote_code)
        loaded.name = name or loaded.name
        return loaded
    if isinstance(source, type) or not callable(source):
        came = f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
        raise InputError(f"the model is {came}, expected {EXPECTED}. {_hint(source)}")
    if is_maite(source):
        source = MaiteNet(source)
        name = name or source.name
    classifier: Classifier
    if isinstance(source, Classifier):
        classifier = source
    else:
        given = {"classes": classes, "mean": mean, "std": std, "size": size}
        classifier = _wrapped(source, {k: v for k, v in given.items() if v is not None}, name)
    return ready(classifier, name, pick_device(device))


def ready(classifier: Classifier, name: str | None, device: torch.device) -> Classifier:
    """The classifier in eval mode, frozen, on the device: itself where it is so already."""
    training = any(module.training for module in classifier.net.modules())
    fit = not training and not any(p.requires_grad for p in classifier.parameters())
    here = {t.device.type for t in (*classifier.parameters(), *classifier.buffers())}
    if fit and here == {device.type} and name in (None, classifier.name):
        _check(classifier)
        return classifier
    own = frozen_copy(classifier)
    own.name = name or own.name
    if training:
        own.card["notes"] = [*own.card.get("notes", ()), EVAL]
    _check(own.to(device))
    return own


def frozen_copy(net: Classifier) -> Classifier:
    """A copy of the structure in eval mode that shares the weights and asks for no gradients."""
    shared: dict[int, Any] = {id(b): b for b in net.buffers()}
    for p in net.parameters():
        shared[id(p)] = nn.Parameter(p.detach(), requires_grad=False)
    try:
        own = copy.deepcopy(net, shared)
    except Exception as error:  # parts that cannot be copied: locks, open files, graph tensors
        raise InputError(
            f"{net.name} cannot be copied ({type(error).__name__}: {first_line(error)}). "
            "Give it ready: classifier.eval().requires_grad_(False), on the device."
        ) from error
    return own.eval()


def object_spec(classifier: Classifier) -> str:
    """What stands for an object in a run: NAME=object:TYPE@HASH.

    The hash covers weights, normalisation, preprocessing and class names.
    """
    facts = (
        weights_hash(classifier),
        classifier.mean.flatten().tolist(),
        classifier.std.flatten().tolist(),
        sorted(asdict(classifier.preprocess).items()),
        classifier.classes,
    )
    digest = sha256(repr(facts).encode()).hexdigest()[:16]
    return f"{classifier.name}=object:{type(classifier.net).__name__}@{digest}"


def _wrapped(source: Callable[..., Any], given: Mapping[str, Any], name: str | None) -> Classifier:
    """A module or a function with what the caller states about it, and what it states itself."""
    known = {**_described(source), **given}
    if "size" in given:
        known.pop("preprocess", None)
    wanted = ("classes", "size", "mean") if hasattr(source, "config") else ("classes", "size")
    missing = [
        key for key in wanted if key not in known and (key != "size" or "preprocess" not in known)
    ]
    if missing:
        called = name or getattr(source, "__name__", type(source).__name__)
        raise InputError(
            f"{called} does not say its {' and its '.join(missing)}. Say what they are: {EXAMPLE}."
        )
    return Classifier(source, name=name, **known)


def _described(net: Any) -> dict[str, Any]:
    """Classes, normalisation and size that a module carries."""
    config = getattr(net, "config", None)
    if hasattr(config, "id2label") and hasattr(config, "num_labels"):
        return _of_transformers(config)
    if isinstance(getattr(net, "pretrained_cfg", None), Mapping):
        return _of_timm(net)
    facts: dict[str, Any] = {}
    preprocess, size = getattr(net, "preprocess", None), getattr(net, "input_size", None)
    if isinstance(preprocess, Preprocess):
        facts["preprocess"] = preprocess
    elif isinstance(size, int | tuple | list):
        sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        facts["size"] = sides
    classes = getattr(net, "classes", None)
    if isinstance(classes, list | tuple):
        facts["classes"] = classes
    if getattr(net, "multilabel", False) is True:
        facts["multilabel"] = True
    return facts


def _of_timm(net: Any) -> dict[str, Any]:
    import timm

    from counterlens.models.sources.timm import class_names, preprocess_of

    config = timm.data.resolve_model_data_config(net)
    preprocess, notes = preprocess_of(config)
    return {
        "classes": class_names(timm, net),
        "mean": config["mean"],
        "std": config["std"],
        "preprocess": preprocess,
        "card": {"source": "timm", **({"notes": notes} if notes else {})},
    }


def _of_transformers(config: Any) -> dict[str, Any]:
    """Class names and size; its normalisation is known to its image processor alone."""
    from counterlens.models.sources.hf import class_names

    size = getattr(config, "image_size", None)
    several = config.problem_type == "multi_label_classification" and config.num_labels > 1
    facts: dict[str, Any] = {"classes": class_names(config), "multilabel": several}
    return facts | ({"size": tuple(size) if isinstance(size, list) else size} if size else {})


def _check(classifier: Classifier) -> None:
    """Refuse a network that cannot be run on its own size, or gives other than its classes."""
    shape = (2, classifier.channels, *classifier.preprocess.size)
    try:
        with torch.no_grad():
            out = classifier(torch.full(shape, 0.5, device=classifier.mean.device))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{classifier.name} cannot be run on images of shape {shape} "
            f"({type(error).__name__}: {first_line(error)}). Check size, and one mean and std per "
            f"channel: {EXAMPLE}."
        ) from error
    check_logits(out, rows=2, name=f"the output of {classifier.name}")
    if out.shape[1] != len(classifier.classes):
        raise InputError(
            f"{classifier.name} gives {out.shape[1]} logits, but {len(classifier.classes)} classes "
            "were named. Give one name per logit, in their order."
        )


def _hint(source: object) -> str:
    if isinstance(source, type):
        return f"Make one: {source.__name__}(…)."
    if isinstance(source, Mapping) and any(isinstance(v, Tensor) for v in source.values()):
        return "A state dict needs its network: net.load_state_dict(…)."
    return f"E.g. {EXAMPLE}."
