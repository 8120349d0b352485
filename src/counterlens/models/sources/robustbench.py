"""`robustbench:NAME@FILE`: weights published with RobustBench or the robustness library.

NAME is the entry's name (Carmon2019Unlabeled, …) or the architecture (wrn-28-10, resnet-50, …).
The architecture is read off the file; the name must not contradict it. Colours are normalised as
the file's own buffers say, else as the entry or the family is known to.

Paper: Croce et al. 2021 (robustbench2021), RobustBench: a standardized adversarial robustness
       benchmark.
Differs: the package itself is used only where it is installed and no file is given.
"""

import re
from typing import Any

from torch import Tensor, nn

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError, MissingExtra
from counterlens.label_spaces import CIFAR10, CIFAR100, imagenet_names
from counterlens.models.nets.robust import WeightsLayout, recognise
from counterlens.models.specs import ModelSpec, suggest
from counterlens.models.weights import Weights, file_hash, fill, read_state
from counterlens.types import Preprocess

Colours = tuple[tuple[float, ...], tuple[float, ...]]

PLAIN: Colours = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
HALF: Colours = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CIFAR10_COLOURS: Colours = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
CIFAR100_COLOURS: Colours = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
IMAGENET_COLOURS: Colours = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

ENTRIES: dict[str, Colours] = {
    **dict.fromkeys(
        (
            *("Andriushchenko2020Understanding", "Carmon2019Unlabeled", "Sehwag2020Hydra"),
            *("Wang2020Improving", "Zhang2019Theoretically", "Huang2020Self", "Zhang2019You"),
            *("Zhang2020Attacks", "Wu2020Adversarial", "Wu2020Adversarial_extra", "Standard"),
            *("Sehwag2021Proxy", "Sehwag2021Proxy_R18", "Sitawarin2020Improving"),
            *("Cui2020Learnable_34_10", "Cui2020Learnable_34_20", "Zhang2020Geometry"),
            *("Sridhar2021Robust", "Sridhar2021Robust_34_15", "Addepalli2021Towards_RN18"),
            *("Addepalli2021Towards_WRN34", "Chen2021LTD_WRN34_10", "Chen2021LTD_WRN34_20"),
            *("Jia2022LAS-AT_34_10", "Jia2022LAS-AT_70_16", "Addepalli2022Efficient_RN18"),
            "Addepalli2022Efficient_WRN_34_10",
        ),
        PLAIN,
    ),
    **dict.fromkeys(
        ("Rice2020Overfitting", "Wong2020Fast", "Chen2020Efficient", "Kireev2021Effectiveness"),
        CIFAR10_COLOURS,
    ),
    "Hendrycks2019Using": HALF,
    "Hendrycks2020AugMix_WRN": HALF,
    "Engstrom2019Robustness": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "Rony2019Decoupling": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "Augustin2020Adversarial": ((0.4914, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)),
}
"""Colours of CIFAR-10 entries whose files may lack them; longer names of a family count too."""

_MEANS = ("mu", "mean", "normalize.mean", "normalizer.new_mean", "normalizer.mean", "0.mean")
_STDS = ("sigma", "std", "normalize.std", "normalizer.new_std", "normalizer.std", "0.std")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "1.")
_ARCHITECTURE = re.compile(r"(wrn|wideresnet|preactresnet|resnet|wide_resnet)[-_]?([\d_-]*)", re.I)


def load_robustbench(spec: ModelSpec, *, trust: bool = False) -> Classifier:
    """The classifier of a `robustbench:` spec, on the CPU."""
    file = spec.weights_file
    if spec.weights is None:
        return _from_package(spec)
    if file is None:
        raise InputError(f"{spec}: there is no file {spec.weights!r}.")
    stored, entry = read_state(file, trust=trust)
    state, own = take_colours(stored)
    layout = recognise(state)
    if layout is None:
        raise InputError(
            f"{file} is none of the architectures known here (wide ResNets, ResNets and "
            "PreActResNets for CIFAR, ResNets for ImageNet). Write FILE.py:FACTORY for it."
        )
    _check_name(spec, layout)
    count = int(state[f"{layout.head}.weight"].shape[0])
    colours = own or _colours(spec, layout, count)
    net = layout.make(count)
    fill(net, _renamed(state, layout), str(file))
    card: dict[str, Any] = {"source": "robustbench", "architecture_read": layout.name}
    card |= {"weights_sha256": file_hash(file)} | ({"weights_entry": entry} if entry else {})
    if own is None and colours == PLAIN:
        card["notes"] = ["the file states no normalisation; pixels go in as they are"]
    return Classifier(
        net,
        _names(count),
        *colours,
        preprocess=_preprocess(layout.trained_on),
        name=spec.name,
        card=card,
    )


def take_colours(state: Weights) -> tuple[Weights, Colours | None]:
    """The network's own weights without wrappers, and the normalisation stored beside them."""
    weights, means, stds = {}, [], []
    for key, value in state.items():
        name = _without_prefixes(key)
        if name in _MEANS:
            means.append(value)
        elif name in _STDS:
            stds.append(value)
        elif not name.startswith("attacker."):  # a second copy of the same network
            weights[name] = value
    if not means or not stds:
        return weights, None
    return weights, (_three(means[0]), _three(stds[0]))


def _without_prefixes(key: str) -> str:
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if key.startswith(prefix):
                key, stripped = key[len(prefix) :], True
    return key


def _three(value: Tensor) -> tuple[float, ...]:
    values: list[float] = value.flatten().double().tolist()
    return tuple(values * 3 if len(values) == 1 else values)


def _renamed(state: Weights, layout: WeightsLayout) -> Weights:
    pairs = ((layout.rename(key), value) for key, value in state.items())
    return {key: value for key, value in pairs if key is not None}


def _check_name(spec: ModelSpec, layout: WeightsLayout) -> None:
    """Refuse an architecture by name that is not the one in the file."""
    named = _ARCHITECTURE.fullmatch(spec.name)
    if named is None:
        return
    family = named[1].lower().replace("wideresnet", "wrn")
    numbers = [n for n in re.split(r"[-_]", named[2]) if n]
    wanted = "-".join([family, *numbers])
    read = re.sub(r"(?<=resnet)(?=\d)", "-", layout.name).replace("_", "-")
    if wanted.replace("_", "-") not in (read, read.partition("-")[0]):
        raise InputError(
            f"{spec.weights} holds a {layout.name}, not a {spec.name}. "
            f"Type robustbench:{layout.name}@{spec.weights}."
        )


def _colours(spec: ModelSpec, layout: WeightsLayout, count: int) -> Colours:
    if layout.trained_on == "imagenet":
        return IMAGENET_COLOURS
    if layout.normalised:
        return CIFAR100_COLOURS if count == 100 else CIFAR10_COLOURS
    family = [name for name in ENTRIES if spec.name == name or spec.name.startswith(name + "_")]
    if family:
        return ENTRIES[max(family, key=len)]
    if _ARCHITECTURE.fullmatch(spec.name):
        return PLAIN
    raise InputError(
        f"{spec.name!r} is no entry known here{suggest(spec.name, ENTRIES)}, and {spec.weights} "
        f"does not say how colours are normalised. Type robustbench:{layout.name}@{spec.weights} "
        "if pixels go in as they are, else write FILE.py:FACTORY."
    )


def _preprocess(trained_on: str) -> Preprocess:
    if trained_on.startswith("cifar"):
        return Preprocess((32, 32))
    return Preprocess((224, 224), 0.875, "bilinear")


def _names(count: int) -> tuple[str, ...]:
    known = {10: CIFAR10, 100: CIFAR100}
    return imagenet_names() if count == 1000 else known.get(count, numbered(count))


def _from_package(spec: ModelSpec) -> Classifier:
    """RobustBench's own loader: robustbench:[DATASET/[THREAT/]]NAME."""
    try:
        from robustbench.utils import load_model
    except ImportError as error:
        raise MissingExtra(
            f"{spec} needs the package robustbench, which cannot be imported ({error}). Download "
            f"the weights and give the file: {spec}@FILE."
        ) from error
    *before, name = spec.name.split("/")
    dataset, threat = [*before, "cifar10", "Linf"][:2] if len(before) != 1 else (before[0], "Linf")
    try:
        net: Any = load_model(model_name=name, dataset=dataset, threat_model=threat)
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:160]
        raise InputError(
            f"robustbench cannot give {name} for {dataset}, {threat} "
            f"({type(error).__name__}: {text})."
        ) from error
    assert isinstance(net, nn.Module)
    counts = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
    names = _names(counts.get(dataset, 1000))
    card = {"source": "robustbench", "threat": threat}
    return Classifier(net, names, preprocess=_preprocess(dataset), name=name, card=card)
