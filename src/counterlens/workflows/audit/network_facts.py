"""What kind of network a model is: size, family, attention, training, read off network and card."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from counterlens.classifier import Classifier
from counterlens.models.specs import parse

UNKNOWN = "not stated"
_GATES = re.compile(
    r"^((Channel)?Gate|SE[A-Z]\w*|SqueezeExcit\w*|SqueezeAndExcit\w*|EffectiveSE\w*)$"
)
_SIZES = re.compile(
    r"_(nano|pico|femto|atto|tiny|small|base|large|huge|giant|xlarge|s|m|l|xl)(_|$).*"
)


def network_facts(classifier: Classifier) -> dict[str, Any]:
    """Parameters, family, attention and training scheme, as far as network and card tell."""
    card = classifier.card
    return {
        "parameters": sum(p.numel() for p in classifier.net.parameters()),
        "family": str(card.get("family") or family(str(card.get("spec", "")), card, classifier)),
        "attention": str(card.get("attention") or attention(classifier.net)),
        "training": str(card.get("scheme") or training(card)),
    }


def family(
    spec: str, card: Mapping[str, Any] | None = None, classifier: Classifier | None = None
) -> str:
    """The kind of network a spec names, without its size; a checkpoint's card knows better.

    A gated network counts with its plain one. Where no name tells, the class of the network does.

    >>> family("timm:tf_efficientnet_lite0@f.pth"), family("torchvision:mobilenet_v2")
    ('efficientnet_lite', 'mobilenet')
    >>> family("runs/a/model", {"architecture": {"kind": "resnet18"}}), family("timm:seresnext50")
    ('resnet', 'resnext')
    >>> family("timm:swin_tiny_patch4_window7_224.ms_in1k"), family("timm:wide_resnet50_2")
    ('swin', 'wide_resnet')
    """
    built = (card or {}).get("architecture", {})
    kind = str(built.get("kind", "")) if isinstance(built, Mapping) else ""
    if not kind and classifier is not None and not spec.startswith(("timm:", "torchvision:")):
        return type(classifier.net).__name__.lower()
    name = Path((kind or spec).split("@")[0].split(":")[-1]).name
    name = name.split(".")[0].removeprefix("tf_").removeprefix("legacy_")
    short = re.sub(r"(_[a-z])?\d.*", "", _SIZES.sub("", name)).rstrip("_-")
    return re.sub(r"^se_?(?=res)", "", short) or name


def attention(net: nn.Module) -> str:
    """Squeeze and excitation (SE), self-attention, both, or none, by the layers there are."""
    kinds = {type(module).__name__ for module in net.modules()}
    kinds_of_attention = ["SE"] if any(_GATES.match(kind) for kind in kinds) else []
    kinds_of_attention += ["self-attention"] if any("Attention" in kind for kind in kinds) else []
    return " and ".join(kinds_of_attention) or "none"


def training(card: Mapping[str, Any]) -> str:
    """The training scheme in words: of our recipes by their loss, of hub weights by their tag."""
    recipe = card.get("recipe")
    if isinstance(recipe, Mapping):
        loss = str(recipe.get("loss", UNKNOWN))
        near = recipe.get("near") or {}
        if loss == "random-strength":
            words = {"noise": "uniform noise", "fgsm": "FGSM", "pgd": f"PGD-{near.get('steps')}"}
            return words.get(str(recipe.get("kind")), loss)
        if loss in ("plain", "outlier-exposure", "acet") or not near.get("radius"):
            return loss
        return f"{loss} {near.get('norm', '')} {float(near['radius']):g}"
    spec = str(card.get("spec") or "")
    own_file = bool(spec) and parse(spec).weights_file is not None
    return UNKNOWN if own_file else str(card.get("tag") or UNKNOWN)
