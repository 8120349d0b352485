"""What workflows are given: specs as well as objects, one as well as several.

An object is turned into a classifier or a set of images at once. In settings and manifest a spec
stands for it, NAME=object:TYPE@HASH: a run made from objects can be resumed, reported and compared,
and a command that would have to open the object again says that it was one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.sources.noise import open_noise
from counterlens.data.sources.objects import as_image_set
from counterlens.data.sources.pixels import as_array
from counterlens.data.specs import split
from counterlens.errors import InputError
from counterlens.images import ImageSet, is_pillow
from counterlens.models import load, parse
from counterlens.models.sources.objects import as_classifier, object_spec
from counterlens.workflows._shared.multilabel import single_label
from counterlens.workflows._shared.names import named
from counterlens.workflows._shared.pictures import WHOLE, Given


@dataclass(frozen=True)
class Objects:
    """The objects of one call under the specs that stand for them.

    Args:
        device: of the models.
        limit, seed: how many images of a set, and of the draw.
        trust_remote_code: of models given as specs.
    """

    device: str = "auto"
    limit: int | None = None
    seed: int = 0
    trust_remote_code: bool = False
    models: dict[str, Classifier] = field(default_factory=dict)
    sets: dict[str, ImageSet] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)

    def model_specs(self, given: object) -> list[str]:
        """Specs of one model or several; a mapping names them."""
        if isinstance(given, Mapping):
            return [self.model_spec(one, str(name)) for name, one in given.items()]
        several = given if isinstance(given, list | tuple) else [given]
        if not several:
            raise InputError("no model given, expected one or more.")
        return [self.model_spec(one) for one in several]

    def model_spec(self, given: object, name: str | None = None) -> str:
        """The spec of a model; of an object one that stands for it."""
        if isinstance(given, str | Path):
            return f"{name}={given}" if name else str(given)
        ready = as_classifier(given, device=self.device)
        taken = {named(spec)[0] for spec in self.models}
        ready = _called(ready, _free(_plain(name or ready.name), taken))
        spec = object_spec(ready)
        self.models[spec] = ready
        return spec

    def set_specs(self, given: object) -> tuple[str, ...]:
        """Specs of some sets: a list, a mapping that names them, or one spec."""
        if isinstance(given, Mapping):
            return tuple(self.set_spec(one, str(name)) for name, one in given.items())
        if isinstance(given, str | Path):
            return (str(given),)
        if not isinstance(given, list | tuple):
            return (self.set_spec(given),)
        return tuple(self.set_spec(one) for one in given)

    def set_spec(self, given: object, name: str | None = None) -> str:
        """The spec of a set of images; of an object one that stands for it."""
        if isinstance(given, str | Path):
            return f"{name}={given}" if name else str(given)
        opened = as_image_set(given, name=name, limit=self.limit, seed=self.seed)
        opened = replace(opened, name=_plain(opened.name))
        spec = f"{opened.name}=object:{type(given).__name__}@{opened.fingerprint}"
        self.sets[spec] = opened
        return spec

    def load(self, spec: str) -> Classifier:
        """The classifier that a spec names or stands for."""
        if spec in self.models:
            return self.models[spec]
        return load(named(spec)[1], device=self.device, trust_remote_code=self.trust_remote_code)

    def open(self, spec: str, *, size: tuple[int, int], channels: int) -> ImageSet:
        """The set that a spec names or stands for."""
        if spec in self.sets:
            return self.sets[spec]
        name, scheme, rest = split(spec)
        kind, _, base = rest.partition("@")
        if scheme == "noise" and base in self.sets:
            return open_noise(
                kind, name=name, count=self.limit, seed=self.seed, size=size, channels=channels,
                base=self.sets[base],
            )  # fmt: skip
        return open_set(spec, limit=self.limit, seed=self.seed, size=size, channels=channels)


def texts(given: Any) -> tuple[Any, ...]:
    """Several as a tuple; one alone, be it a text, a number or a model, as a tuple of it.

    >>> texts("l2:0.5"), texts(["a", "b"]), texts(None), texts(0.5)
    (('l2:0.5',), ('a', 'b'), (), (0.5,))
    """
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def headline(model: str, classifier: Classifier) -> str:
    """What a run calls a model: its given name, the name its factory gave it, or its spec."""
    name, spec = named(model)
    if spec != model:
        return name
    factory = parse(spec)
    own = {factory.weights, type(classifier.net).__name__}
    return classifier.name if factory.scheme == "file" and classifier.name not in own else spec


def model_given(given: object, device: str) -> str | Classifier:
    """A model as its spec or, where it is an object, as a classifier on the device."""
    if isinstance(given, str | Path):
        return str(given)
    return single_label(as_classifier(given, device=device), "this command")


def load_all(
    specs: Sequence[object], *, device: str = "auto", trust_remote_code: bool = False
) -> list[Classifier]:
    """The classifiers of some specs and objects."""
    loaded = [
        as_classifier(one, device=device, trust_remote_code=trust_remote_code) for one in specs
    ]
    return [single_label(one, "this command") for one in loaded]


def pictures_given(given: Any, limit: int | None, seed: int) -> list[Given]:
    """Images to be explained, one or several, as paths, specs and sets of images.

    Of a whole data set `limit` images are drawn, 16 by default; of arrays and lists all count.
    """
    names = isinstance(given, tuple) and all(isinstance(one, str | Path) for one in given)
    parts = list(given) if names or isinstance(given, list) else None
    if isinstance(given, str | Path):
        parts = [given]
    if parts is None:
        held = isinstance(given, tuple) or as_array(given) is not None or is_pillow(given)
        images = as_image_set(given, limit=limit or (None if held else WHOLE), seed=seed)
        return [images]
    out: list[Given] = []
    for number, one in enumerate(parts, 1):
        if isinstance(one, str | Path):
            out.append(one)
            continue
        images = as_image_set(one, limit=limit, seed=seed)
        many = [f"picture {number}-{i}" for i in range(1, len(images) + 1)]
        out.append(replace(images, ids=many if len(images) > 1 else [f"picture {number}"]))
    return out


def words(given: object) -> str:
    """What stands for a spec, a path, a classifier or a set of images in a manifest."""
    if isinstance(given, ImageSet):
        return f"{given.name}=object:{len(given)} images@{given.fingerprint}"
    return object_spec(given) if isinstance(given, Classifier) else str(given)


def _plain(name: str) -> str:
    """A name that can stand before = in a spec."""
    return re.sub(r"[/\\:=@#+]+", "-", name).strip("- ") or "object"


def _called(classifier: Classifier, name: str) -> Classifier:
    return (
        classifier
        if name == classifier.name
        else as_classifier(classifier, name=name, device=str(classifier.mean.device))
    )


def _free(name: str, taken: set[str]) -> str:
    count = 2
    while (one := name if count == 2 else f"{name}-{count - 1}") in taken:
        count += 1
    return one
