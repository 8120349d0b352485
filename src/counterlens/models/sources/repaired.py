"""A repaired classifier: the base model of a spec with another last linear layer.

The folder holds `repaired.json` (base spec, hash of the base weights) and `head.safetensors`; after
a fine-tuning also `network.safetensors`, all weights of the base with those of the fine-tuning.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.parts import head_name
from counterlens.models.specs import parse
from counterlens.models.weights import Weights, fill, read_state, weights_hash
from counterlens.runs import user_path
from counterlens.runs.files import atomic, read_object, write_json

CARD, HEAD, NETWORK = "repaired.json", "head.safetensors", "network.safetensors"


class Clipped(nn.Module):
    """A last linear layer less the positive parts of some contributions to its logits.

    Equation: neuhaus2023 SpuFix   f_k(x) − Σ_{l spurious} max(α_l(x), 0)

    Args:
        layer: the linear layer, or the 1×1 convolution that serves as one.
        weight, bias: contribution α = weight · x + bias.
        classes: the logit that each is taken off.
    """

    clip_weight: Tensor
    clip_bias: Tensor
    clip_classes: Tensor

    def __init__(self, layer: nn.Module, weight: Tensor, bias: Tensor, classes: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("clip_weight", weight)
        self.register_buffer("clip_bias", bias)
        self.register_buffer("clip_classes", classes)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Logits of features."""
        logits: Tensor = self.layer(x)
        alpha = linear(x.flatten(1), self.clip_weight, self.clip_bias).clamp_min(0)
        taken = torch.zeros_like(logits.flatten(1)).index_add(1, self.clip_classes, alpha)
        return logits - taken.reshape(logits.shape)


def save_repaired(
    folder: Path, base: str, classifier: Classifier, state: Weights, network: Weights | None = None
) -> None:
    """Write the new head beside the spec and the hash of what it belongs to.

    Args:
        folder: an existing folder.
        base: spec of the model that was repaired.
        classifier: that model, unchanged.
        state: `weight` and `bias` of its new last layer; with `clip_weight`, `clip_bias` and
            `clip_classes` also what is clipped (see Clipped).
        network: all weights, where those before the last layer changed, too.
    """
    from safetensors.torch import save_file

    parsed = parse(base)
    spec = base
    if parsed.scheme in ("folder", "file"):  # so that it loads from any working folder
        path = str(user_path(parsed.name).resolve())
        spec = path if parsed.scheme == "folder" else f"{path}:{parsed.weights}"
    facts = {"base": spec, "base_weights_hash": weights_hash(classifier)}
    stored = {
        key: (value.float() if value.is_floating_point() else value).contiguous().cpu()
        for key, value in state.items()
    }
    with atomic(folder / HEAD) as path_now:
        save_file(stored, path_now)
    if network is not None:
        whole = {key: value.detach().cpu().contiguous() for key, value in network.items()}
        with atomic(folder / NETWORK) as path_now:
            save_file({key: value.clone() for key, value in whole.items()}, path_now)
    write_json(folder / CARD, facts)


def load_repaired(folder: Path, *, trust: bool = False) -> Classifier:
    """The base model with the head of the folder, on the CPU."""
    from counterlens.models import load

    if not (folder / CARD).is_file():
        raise InputError(
            f"repaired:{folder} holds no {CARD}: give the run folder of counterlens repair."
        )
    card = read_object(folder / CARD)
    base, expected = card.get("base"), card.get("base_weights_hash")
    if not isinstance(base, str) or not isinstance(expected, str):
        raise InputError(f"{folder / CARD} names no base and base_weights_hash: repair again.")
    classifier = load(base, device="cpu", trust_remote_code=trust)
    actual = weights_hash(classifier)
    if actual != expected:
        raise InputError(
            f"{folder} repairs weights of hash {expected[:12]}, and {base} now has {actual[:12]}: "
            "bring back the old weights, or repair the new ones."
        )
    if (folder / NETWORK).is_file():
        fill(classifier.net, read_state(folder / NETWORK)[0], str(folder / NETWORK))
    put_state(classifier, read_state(folder / HEAD)[0])
    classifier.name = f"{classifier.name}-repaired"
    classifier.card.update(spec=f"repaired:{folder}", base=base)
    return classifier


def put_state(classifier: Classifier, state: Weights) -> None:
    """Replace the last layer by a stored one, with what it clips."""
    weight, bias = (state[key].to(classifier.mean) for key in ("weight", "bias"))
    put_head(classifier, weight, bias)
    if "clip_weight" in state:
        clip_weight, clip_bias = (
            state[f"clip_{key}"].to(classifier.mean) for key in ("weight", "bias")
        )
        classes = state["clip_classes"].to(classifier.mean.device)
        _replace(
            classifier.net,
            head_name(classifier.net, len(classifier.classes)),
            lambda layer: Clipped(layer, clip_weight, clip_bias, classes),
        )


def put_head(
    classifier: Classifier, weight: Float[Tensor, "k d"], bias: Float[Tensor, "k"]
) -> None:
    """Replace the weights of the last linear layer."""
    layer = classifier.net.get_submodule(head_name(classifier.net, len(classifier.classes)))
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if weight.numel() != layer.weight.numel() or len(bias) != len(layer.weight):
        raise InputError(
            f"a head of {tuple(weight.shape)} does not fit {classifier.name}, whose last layer "
            f"is {tuple(layer.weight.shape)}: give the model that was repaired."
        )
    with torch.no_grad():
        layer.weight.copy_(weight.reshape(layer.weight.shape))
    layer.bias = nn.Parameter(bias.to(layer.weight), requires_grad=False)


def _replace(net: nn.Module, name: str, change: Callable[[nn.Module], nn.Module]) -> None:
    """Put another layer where a layer is."""
    parent, _, last = name.rpartition(".")
    holder = net.get_submodule(parent)
    setattr(holder, last, change(holder.get_submodule(last)))
