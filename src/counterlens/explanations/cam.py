"""Class activation maps: where on the picture the evidence for a class or a neuron lies.

Paper: Selvaraju et al. 2017, Grad-CAM, arXiv:1610.02391 (gradcam2017, equations 1 and 2);
       Draelos and Carin 2020, HiResCAM, arXiv:2011.08891 (hirescam2020, equation 6).
Differs: the layer and the way its output lies on the picture are read from a run of the network
       (`models.parts.cam_layer`), so CNNs, ViTs, Swin and hybrids need no settings. Activations are
       copied before a following in-place layer can overwrite them. The graph starts at the layer
       and is freed with the call: no hook and no tensor is left behind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from counterlens.checks import check_images, check_labels
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.metrics.saliency import unit
from counterlens.models.parts import CamLayer, cam_layer, features, head
from counterlens.search import frozen
from counterlens.types import Images, Labels, Scores

Method = Literal["grad-cam", "hires-cam"]
METHODS: tuple[Method, ...] = ("grad-cam", "hires-cam")
CamScore = Callable[[Images], Scores]
LINED = 64  # smallest side on which a line does not hide the picture
LINE = (1.0, 0.62, 0.1)


@dataclass(frozen=True)
class CamMaps:
    """Saliency maps of a batch.

    Args:
        maps: evidence ≥ 0 at each place of the layer's grid.
        picture: the same scaled to [0, 1] and to the size of the images.
    """

    maps: Float[Tensor, "b rows columns"]
    picture: Float[Tensor, "b h w"]


def class_cam(
    classifier: Classifier,
    x: Images,
    target: Labels,
    *,
    method: Method = "grad-cam",
    layer: CamLayer | None = None,
) -> CamMaps:
    """Where the evidence for a class lies: the map of its logit."""
    check_labels(target, classes=len(classifier.classes), rows=len(x), name="target")
    wanted = target.to(classifier.mean.device)[:, None]
    return cam(
        classifier, x, lambda z: classifier(z).gather(1, wanted)[:, 0], method=method, layer=layer
    )


def neuron_cam(
    classifier: Classifier,
    x: Images,
    unit: int,
    *,
    method: Method = "hires-cam",
    layer: CamLayer | None = None,
) -> CamMaps:
    """Where a penultimate unit is driven from: the map of what enters the last linear layer."""
    count = head(classifier).in_features
    if not 0 <= unit < count:
        raise InputError(f"no unit {unit}: {classifier.name} has the units 0 … {count - 1}.")
    return cam(
        classifier, x, lambda z: features(classifier, z)[:, unit], method=method, layer=layer
    )


def cam(
    classifier: Classifier,
    x: Images,
    score: CamScore,
    *,
    method: Method = "grad-cam",
    layer: CamLayer | None = None,
) -> CamMaps:
    """The map of any score that the classifier's network computes, at one of its layers.

    Args:
        score: one number per image; must run `classifier.net` once.
        layer: where; None: the last layer with a grid, `cam_layer(classifier)`.
    """
    check_images(x)
    if method not in METHODS:
        raise InputError(f"method is {method!r}, expected one of {', '.join(METHODS)}.")
    with frozen(classifier):
        place = layer or cam_layer(classifier)
        acts, grads = _layer_and_gradient(classifier, x.to(classifier.mean), score, place)
    evidence = grad_cam(acts, grads) if method == "grad-cam" else hires_cam(acts, grads)
    size = (x.shape[2], x.shape[3])
    large = interpolate(unit(evidence)[:, None], size, mode="bilinear", align_corners=False)
    return CamMaps(evidence, unit(large[:, 0]))


def feature_maps(
    classifier: Classifier,
    x: Images,
    weights: Float[Tensor, "m d"],
    *,
    layer: CamLayer | None = None,
) -> Float[Tensor, "b m rows columns"]:
    """HiResCAMs of many weighted sums of features at once.

    Where the features are the mean of the layer over its places, the map of a sum is the same sum
    of the layer's channels: one pass for all. Elsewhere each costs a backward pass from the
    features to the layer.
    """
    check_images(x)
    with frozen(classifier):
        place = layer or cam_layer(classifier)
        start = x.to(classifier.mean)
        leaf, phi = _cut(classifier, start, lambda z: features(classifier, z), place)
        wide = torch.promote_types(phi.dtype, torch.float32)
        acts, weights = place.maps(leaf.detach()).to(wide), weights.to(phi)
        if _pooled(acts, phi):
            places = acts.shape[2] * acts.shape[3]
            return torch.einsum("md,bdhw->bmhw", weights.to(wide), acts).relu() / places
        maps = []
        for weight in weights:
            (grad,) = torch.autograd.grad((phi @ weight).sum(), leaf, retain_graph=True)
            maps.append(hires_cam(acts, place.maps(grad).to(wide)))
    return torch.stack(maps, 1)


def feature_saliency(
    classifier: Classifier,
    x: Images,
    weight: Float[Tensor, "d"],
    *,
    layer: CamLayer | None = None,
) -> Float[Tensor, "b h w"]:
    """HiResCAM of one weighted sum of features, scaled to [0, 1] and to the size of the images."""
    maps = feature_maps(classifier, x, weight[None], layer=layer)
    size = (x.shape[2], x.shape[3])
    return unit(interpolate(maps, size, mode="bilinear", align_corners=False)[:, 0])


def _pooled(acts: Float[Tensor, "b e h w"], phi: Float[Tensor, "b d"]) -> bool:
    """Whether the features are the layer's mean over its places."""
    if acts.shape[1] != phi.shape[1]:
        return False
    mean = acts.mean((2, 3))
    return torch.allclose(mean, phi.detach().to(mean), rtol=1e-3, atol=1e-5)


def grad_cam(
    acts: Float[Tensor, "b d h w"], grads: Float[Tensor, "b d h w"]
) -> Float[Tensor, "b h w"]:
    """Channels weighed by their mean gradient.

    Equation: gradcam2017 (2)   ReLU(Σ_k α_k A_k),  α_k = mean_ij ∂y/∂A_k,ij
    """
    weights = grads.mean((2, 3), keepdim=True)
    return (weights * acts).sum(1).relu()


def hires_cam(
    acts: Float[Tensor, "b d h w"], grads: Float[Tensor, "b d h w"]
) -> Float[Tensor, "b h w"]:
    """Each place weighed by its own gradient.

    Equation: hirescam2020 (6)   ReLU(Σ_k ∂y/∂A_k ⊙ A_k)
    """
    return (grads * acts).sum(1).relu()


def colours(saliency: Float[Tensor, "h w"]) -> Float[Tensor, "3 h w"]:
    """A map in the colours of viridis: dark where nothing is, yellow where the most is."""
    from matplotlib import colormaps

    painted = colormaps["viridis"](saliency.cpu().numpy())[..., :3]
    return torch.from_numpy(painted).permute(2, 0, 1).float()


def overlay(x: Images, saliency: Float[Tensor, "b h w"], *, strength: float = 0.6) -> Images:
    """Images with the map laid over them: cold places grey and dim, hot ones in their colours.

    One hue for all values, so it reads the same for colour-blind readers and in print. On pictures
    large enough for it, a line runs around what is at least half as strong as the strongest.
    """
    grey = x.mean(1, keepdim=True)
    hot = saliency[:, None].to(x)
    dimmed = (1 - strength) * grey + strength * 0.25
    shown = torch.clamp(hot * x + (1 - hot) * dimmed, 0, 1)
    if min(x.shape[2:]) < LINED:
        return shown
    peak = hot.amax((2, 3), keepdim=True)
    inside = ((hot >= peak / 2) & (peak > 0)).to(x)
    wide = 2 * round(min(x.shape[2:]) / 112) + 1
    core = -max_pool2d(-inside, wide, 1, wide // 2)
    line = (inside - core).expand_as(x).bool()
    colour = x.new_tensor(LINE)[:, None, None] if x.shape[1] == 3 else x.new_ones(1, 1, 1)
    return torch.where(line, colour, shown)


def _layer_and_gradient(
    classifier: Classifier, x: Images, score: CamScore, place: CamLayer
) -> tuple[Tensor, Tensor]:
    """A layer's output as maps, and the gradient of the scores with respect to it."""
    leaf, values = _cut(classifier, x, score, place)
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    wide = torch.promote_types(gradient.dtype, torch.float32)  # sums over channels in half drift
    return place.maps(leaf.detach()).to(wide), place.maps(gradient).to(wide)


def _cut(
    classifier: Classifier, x: Images, ask: Callable[[Images], Tensor], place: CamLayer
) -> tuple[Tensor, Tensor]:
    """A layer's output, and an answer whose graph starts at it."""
    leaves: list[Tensor] = []

    def cut(_: nn.Module, __: object, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()  # what follows may write into its input

    try:
        module = classifier.net.get_submodule(place.name)
    except AttributeError:
        raise InputError(f"{classifier.name} has no layer {place.name!r}.") from None
    handle = module.register_forward_hook(cut)
    try:
        with torch.enable_grad():
            answer = ask(x)
    finally:
        handle.remove()
    if len(leaves) != 1:
        raise InputError(
            f"layer {place.name!r} ran {len(leaves)} times in one pass, expected once."
        )
    return leaves[0], answer
