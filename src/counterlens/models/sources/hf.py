"""`hf:ORG/NAME[@REVISION]` or `hf:FOLDER`: image classifiers of the transformers library.

The image processor is read as our Preprocess and then checked: both prepare the same test picture
and must agree, else the model is refused rather than measured on the wrong pixels.
Differs: where an odd number of pixels is cut off, transformers' crop may start one pixel before
ours, which is torchvision's; resizing may differ by a grey level or two.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from counterlens import images
from counterlens.classifier import Classifier
from counterlens.errors import CounterlensError, InputError, first_line
from counterlens.generators.diffusion.libraries import transformers_for
from counterlens.models.sources import timm as timm_models
from counterlens.models.sources.hub import fetching
from counterlens.models.specs import ModelSpec
from counterlens.runs import user_path
from counterlens.types import Interpolation, Preprocess

_RESAMPLE: dict[int, Interpolation] = {  # Pillow's numbers
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
Stats = tuple[tuple[float, ...], tuple[float, ...]]


def load_hf(spec: ModelSpec, *, trust: bool = False) -> Classifier:
    """The classifier of an `hf:` spec, on the CPU."""
    transformers = transformers_for(str(spec))
    local = user_path(spec.name)
    where = str(local) if local.is_dir() else spec.name
    if not local.is_dir() and (spec.name.count("/") > 1 or spec.name.startswith((".", "/", "~"))):
        raise InputError(f"{spec}: the folder {local} does not exist.")
    options = {"revision": spec.weights or "main", "trust_remote_code": trust}
    fetched = nullcontext() if local.is_dir() else fetching(str(spec), instead=_INSTEAD)
    with _reading(spec), _quietly(transformers), fetched:
        processor = transformers.AutoImageProcessor.from_pretrained(where, **options)
        net, report = transformers.AutoModelForImageClassification.from_pretrained(
            where,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused below by name
            **options,
        )
    _check(spec, net.config, report)
    preprocess, (mean, std), notes = read_processor(processor, str(spec))
    several = net.config.problem_type == "multi_label_classification" and net.config.num_labels > 1
    if net.config.num_labels == 1:
        notes = [*notes, "one logit z counts as the two logits (−z/2, z/2)"]
    classifier = Classifier(
        net,
        class_names(net.config),
        mean,
        std,
        preprocess=preprocess,
        name=local.name if local.is_dir() else spec.name.rpartition("/")[2],
        card={"source": "hf", **({"notes": notes} if notes else {})},
        multilabel=several,
    )
    compare_processor(classifier, processor, str(spec))
    return classifier


_INSTEAD = "Download it where there is a network and give the folder: hf:FOLDER."


@contextmanager
def _reading(spec: ModelSpec) -> Iterator[None]:
    """Turn what transformers raises about a model into one line."""
    try:
        yield
    except CounterlensError:
        raise
    except Exception as error:
        first = first_line(error, 200).partition(". ")[0].rstrip(".")
        if "trust_remote_code" in str(error):
            raise InputError(
                f"{spec} comes with code of its own, which was not run. Read it first; if you "
                "trust it, say trust_remote_code=True."
            ) from error
        raise InputError(
            f"{spec} cannot be read as an image classifier ({type(error).__name__}: {first})."
        ) from error


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """No progress bars and advice on standard error; what matters is checked and raised."""
    bars = transformers.utils.logging.is_progress_bar_enabled()
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.utils.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _check(spec: ModelSpec, config: Any, report: Mapping[str, Any]) -> None:
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise InputError(
            f"{spec} has no weights for {len(missing)} parts of the classifier "
            f"({', '.join(missing[:3])}): it is a backbone, to be fine-tuned first."
        )
    wrong = [
        f"{key} {tuple(stored)} instead of {tuple(wanted)}"
        for key, stored, wanted in report.get("mismatched_keys", ())
    ]
    if wrong:
        raise InputError(f"{spec}: weights do not fit config.json: {'; '.join(wrong[:3])}.")
    if getattr(config, "problem_type", None) == "regression" or config.num_labels < 1:
        raise InputError(
            f"{spec} solves a {config.problem_type} problem with {config.num_labels} outputs, "
            "expected a classifier."
        )


def class_names(config: Any) -> tuple[str, ...]:
    """The names of a transformers configuration, in the order of the logits."""
    labels = {int(index): str(name) for index, name in config.id2label.items()}
    if config.num_labels == 1:  # one logit, which the Classifier turns into two
        name = labels.get(0, "LABEL_0")
        return ("0", "1") if name == "LABEL_0" else (f"not {name}", name)
    return tuple(labels.get(index, str(index)) for index in range(config.num_labels))


def read_processor(processor: Any, source: str) -> tuple[Preprocess, Stats, list[str]]:
    """An image processor's settings in our terms, and what had to be given up."""
    timm_config = getattr(processor, "data_config", None)
    if isinstance(timm_config, Mapping):  # timm models inside transformers
        preprocess, notes = timm_models.preprocess_of(dict(timm_config))
        return preprocess, (tuple(timm_config["mean"]), tuple(timm_config["std"])), notes
    settings = processor.to_dict()
    return _geometry(settings, source), _normalisation(settings, source), []


def _geometry(settings: Mapping[str, Any], source: str) -> Preprocess:
    interpolation = _RESAMPLE.get(int(settings.get("resample") or 0))
    size, crop = _sides(settings.get("size")), _sides(settings.get("crop_size"))
    cropped = bool(settings.get("do_center_crop")) and crop is not None
    kind = str(settings.get("image_processor_type", ""))
    if interpolation is None or not settings.get("do_resize", True) or size is None:
        raise InputError(
            f"{source}: its image processor {kind} does not say to what size pictures are brought. "
            "Write FILE.py:FACTORY that returns Classifier(net, classes, preprocess=...)."
        )
    if isinstance(size, int):
        share = settings.get("crop_pct")
        if share is not None:  # ConvNeXt: small inputs are cropped, large ones squashed
            whole = None if size >= 384 else float(share)
            return Preprocess((size, size), whole, interpolation)
        if kind.startswith("Levit"):
            size = int(256 / 224 * size)
        height, width = _both(crop if cropped else size)
        return Preprocess((height, width), max(height, width) / size, interpolation)
    if not cropped or crop == size:
        return Preprocess(size, None, interpolation)
    into = _both(crop)
    if into[0] * size[1] != into[1] * size[0]:
        raise InputError(
            f"{source}: its image processor {kind} squashes to {size} and then crops to {into}, "
            "which Preprocess cannot say. Write FILE.py:FACTORY that returns Classifier(...)."
        )
    return Preprocess(into, into[0] / size[0], interpolation, squash=True)


def _sides(size: Any) -> int | tuple[int, int] | None:
    """A side for "the shorter one becomes", (height, width) for "both become"."""
    if isinstance(size, int):
        return size
    if not isinstance(size, Mapping):
        return None
    if size.get("shortest_edge"):
        return int(size["shortest_edge"])
    if size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    return None


def _both(sides: int | tuple[int, int] | None) -> tuple[int, int]:
    assert sides is not None
    return (sides, sides) if isinstance(sides, int) else sides


def _normalisation(settings: Mapping[str, Any], source: str) -> Stats:
    """Mean and standard deviation on the [0, 1] scale."""
    factor = float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale") else 1.0
    mean, std = np.zeros(3), np.ones(3)
    if settings.get("do_normalize"):
        mean = np.broadcast_to(np.asarray(settings["image_mean"], float), 3)
        std = np.broadcast_to(np.asarray(settings["image_std"], float), 3)
    if settings.get("include_top"):  # EfficientNet divides once more
        std = std * std
    if settings.get("rescale_offset"):  # and may shift by one before
        mean = mean + 1
    scale = 255 * factor
    if not scale > 0:
        raise InputError(f"{source}: rescale_factor is {factor}, expected above 0.")
    return tuple((mean / scale).tolist()), tuple((std / scale).tolist())


def compare_processor(classifier: Classifier, processor: Any, source: str) -> None:
    """Refuse a reading of the processor that does not give its pixels."""
    picture = _test_picture()
    theirs = processor(images=picture, return_tensors="pt")["pixel_values"].float()
    ours = torch.from_numpy(images.prepare(picture, classifier.preprocess))[None].float() / 255
    ours = (ours - classifier.mean) / classifier.std
    if theirs.shape != ours.shape:
        raise InputError(
            f"{source}: its image processor gives {tuple(theirs.shape[2:])} pixels, read as "
            f"{tuple(ours.shape[2:])}. Write FILE.py:FACTORY that returns Classifier(...)."
        )
    gap = ((theirs - ours) * classifier.std).abs()  # back on the [0, 1] scale
    if gap.mean().item() > 0.01:  # resizing libraries differ by a grey level or two
        raise InputError(
            f"{source}: its image processor {type(processor).__name__} prepares pictures in a way "
            f"Preprocess cannot say (pixels differ by {gap.mean().item():.3f} on average). "
            "Write FILE.py:FACTORY that returns Classifier(...)."
        )


def _test_picture() -> images.Pixels:
    """A smooth picture, wider than high, whose every part looks different."""
    rows, columns = np.mgrid[0:480, 0:640].astype(np.float64)
    waves = [np.sin(rows / 29 + columns / 17), np.cos(rows / 41), np.sin(columns / 23)]
    return ((np.stack(waves, -1) + 1) * 127.5).astype(np.uint8)
