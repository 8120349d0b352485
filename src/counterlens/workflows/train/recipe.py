"""Recipe: every setting of a training of a classifier, with its type and its default.

Paper: Augustin et al. 2020 (ratio2020): the defaults are its appendix's, for CIFAR-10.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from counterlens.workflows._shared.settings import Switch


@dataclass(frozen=True)
class AttackRecipe:
    """A training attack; a list of steps grows at the drops of the rate, or in equal stages."""

    norm: str = "l2"
    radius: float = 0.0
    steps: int | tuple[int, ...] = 7
    step_size: float | None = 0.1
    momentum: float = 0.9
    raises: str = "margin"


@dataclass(frozen=True)
class Judging:
    """When held-out images are judged, within which ball, and when by a stronger attack."""

    every: int = 5
    norm: str = "l2"
    radius: float = 0.5
    steps: int = 20
    probe_every: int = 20


@dataclass(frozen=True)
class Recipe:
    """Every setting that decides what is trained.

    Args:
        name, about: what it is called, and a line on it.
        loss: a name of `counterlens.losses.LOSSES`.
        loss_options: further keyword arguments of that loss.
        near, far: attacks around in- and out-distribution images, for losses that take them.
        out_weight, scale, beta, kind: of losses that take them.
        architecture: `kind` and its options, see `counterlens.models.nets.resnets.build`.
        start: model whose weights are the start.
        size, stored: side of the images, and at which they are decoded before augmentation.
        stream: read images while training in place of holding them all.
        mean, std: of the normalisation.
        augment, fill: policy of augmentation, and the colour of what it uncovers.
        held_out, held_out_rule: how many images are held out, and which.
        batch, out_batch: images of an update; of the out-distribution as many unless stated.
        epochs, lr, momentum, weight_decay, schedule, drops, warmup, average: of the optimiser.
        keep_best, patience: keep the best judged weights; stop after so many without a better one.
        checkpoint_minutes: time between two checkpoints.
        judge: how held-out images are judged.
        precision, compile, graph: "auto" is the fast choice on a GPU.
    """

    name: str = ""
    about: str = ""
    loss: str = "plain"
    near: AttackRecipe = AttackRecipe()
    far: AttackRecipe = AttackRecipe(steps=20)
    out_weight: float = 1.0
    scale: float | None = None
    beta: float = 6.0
    kind: Literal["noise", "fgsm", "pgd"] = "pgd"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    architecture: Mapping[str, Any] = field(default_factory=lambda: {"kind": "resnet18"})
    start: str | None = None
    size: int = 32
    stored: int | None = None
    stream: Switch = "auto"
    mean: tuple[float, ...] = (0.4914, 0.48216, 0.44653)
    std: tuple[float, ...] = (0.24703, 0.24349, 0.26159)
    augment: str = "cifar"
    fill: tuple[float, float, float] | None = None
    held_out: int = 2000
    held_out_rule: Literal["hash", "last"] = "hash"
    batch: int = 128
    out_batch: int | None = None
    epochs: float = 100
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "step"
    drops: tuple[float, ...] = ()
    warmup: float = 0.0
    average: float = 0.0
    keep_best: bool = False
    patience: int | None = None
    checkpoint_minutes: float = 1.0
    judge: Judging = Judging()
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: Switch = "auto"
    graph: Switch = "auto"


@dataclass(frozen=True)
class PairSizes:
    """Of a small image–text pair, see `counterlens.models.sources.clip_small.build_pair`."""

    side: int = 32
    patch: int = 4
    width: int = 192
    layers: int = 6
    text: int = 128
    text_layers: int = 2
    heads: int = 4


@dataclass(frozen=True)
class ClipRecipe:
    """Every setting of the training of an image–text pair."""

    name: str = "cifar10-clip"
    side: int = 32
    held_out: int = 2000
    variants: int = 6
    shares: tuple[float, ...] = (0.7, 0.3)
    tokens: int = 24
    merges: int = 400
    sizes: PairSizes = PairSizes()
    augment: str = "crop-flip"
    steps: int = 6000
    batch: int = 1024
    lr: float = 1e-3
    warmup: int = 300
    weight_decay: float = 0.05
    average: float = 0.999
    per_epoch: int = 250
    fast: Switch = "auto"


@dataclass(frozen=True)
class ModelSizes:
    """Of a small diffusion model, see `counterlens.generators.diffusion.tiny.Shape`."""

    vae: tuple[int, ...] = (96, 96)
    vae_blocks: int = 1
    latents: int = 4
    unet: tuple[int, ...] = (128, 224)
    unet_blocks: int = 1
    heads: int = 4
    text: int = 192
    layers: int = 3
    tokens: int = 24
    merges: int = 400


@dataclass(frozen=True)
class AutoencoderRecipe:
    """The first stage of a diffusion model.

    Args:
        loss: "squared" error, or "sharp": absolute error, LPIPS and a critic of patches.
        kl: weight of the divergence: per number with "squared", summed over an image with "sharp".
        lpips: for "sharp": file of the weights of LPIPS; None leaves its term out.
        critic_from: for "sharp": share of the updates after which the critic takes part.
        learns: "all", or the "decoder" alone: latents, and a denoiser of them, stay as they are.
    """

    steps: int = 6000
    batch: int = 512
    lr: float = 6e-4
    warmup: int = 200
    average: float = 0.999
    kl: float = 5e-5
    loss: Literal["squared", "sharp"] = "squared"
    lpips: str | None = None
    perceptual: float = 0.6
    adversarial: float = 0.06
    critic_from: float = 0.45
    learns: Literal["all", "decoder"] = "all"


@dataclass(frozen=True)
class DenoiserRecipe:
    """The second stage.

    Args:
        drop: share of images that get no caption.
        times: which times are drawn: all alike, or those in the middle more often.
        hold: share of the updates after which the rate falls to 0; None keeps it constant.
    """

    steps: int = 15000
    batch: int = 512
    lr: float = 4e-4
    warmup: int = 500
    average: float = 0.9995
    drop: float = 0.1
    times: Literal["uniform", "logit-normal"] = "uniform"
    hold: float | None = None


@dataclass(frozen=True)
class DiffusionRecipe:
    """Every setting of the training of a diffusion model.

    Args:
        stored: side of the decoded images, from which squares are cropped; None does not crop.
        views: latents of each image: itself and its mirror image, or as many random crops.
        variants: captions of each image.
        kinds: NAME=KIND of classes whose name does not say it, such as "beagle=dog".
        schedule: "stable-diffusion", or "cosine", with which the network predicts the velocity.
        normalise: bring each channel of the latents to mean 0 and deviation 1, not all together.
    """

    name: str = "cifar10-diffusion"
    side: int = 32
    stored: int | None = None
    views: int = 2
    held_out: int = 2000
    variants: int = 6
    kinds: tuple[str, ...] = ()
    schedule: str = "stable-diffusion"
    normalise: bool = False
    shares: tuple[float, ...] = (0.7, 0.3)
    shape: ModelSizes = ModelSizes()
    vae: AutoencoderRecipe = AutoencoderRecipe()
    unet: DenoiserRecipe = DenoiserRecipe()
    per_epoch: int = 250
    samples: int = 1000
    start: str | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: Switch = "auto"
    graph: Switch = "auto"


@dataclass(frozen=True)
class FewStepRecipe:
    """Every setting of the distillation of a diffusion model to few steps.

    The settings of the data are those of `DiffusionRecipe`.

    Args:
        first, last: steps of the teacher at first, and of the last student; each halving is one
            training, in which a student of half the steps learns from the one before it.
        guidance: of the teacher at first, which the students have in their weights.
        updates: of each halving.
        drop: share of images that get no caption.
    """

    name: str = "cifar10-diffusion-few"
    side: int = 32
    stored: int | None = None
    views: int = 2
    held_out: int = 2000
    variants: int = 6
    kinds: tuple[str, ...] = ()
    shares: tuple[float, ...] = (0.7, 0.3)
    first: int = 64
    last: int = 4
    guidance: float = 3.0
    updates: int = 3000
    batch: int = 512
    lr: float = 5e-5
    warmup: int = 100
    average: float = 0.999
    drop: float = 0.1
    per_epoch: int = 250
    samples: int = 1000
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: Switch = "auto"
    graph: Switch = "auto"


_DOGS = (
    "English springer", "Shih-Tzu", "Rhodesian ridgeback", "beagle", "English foxhound",
    "Border terrier", "Australian terrier", "golden retriever", "Old English sheepdog", "Samoyed",
    "dingo",
)  # fmt: skip
DIFFUSION_RECIPES = {
    "cifar10-diffusion": DiffusionRecipe(),
    "photos-diffusion": DiffusionRecipe(
        name="photos-diffusion",
        side=128,
        stored=136,
        views=10,
        held_out=1000,
        variants=8,
        kinds=tuple(f"{breed}=dog" for breed in _DOGS),
        schedule="cosine",
        normalise=True,
        shape=ModelSizes(
            vae=(64, 128, 192, 192), latents=8, unet=(192, 352), heads=4, text=192, layers=3,
            tokens=32, merges=900,
        ),
        vae=AutoencoderRecipe(
            steps=12000, batch=128, lr=4e-4, kl=2.5e-7, loss="sharp",
        ),
        unet=DenoiserRecipe(
            steps=20000, lr=4e-4, average=0.9996, times="logit-normal", hold=0.65,
        ),
        samples=1140,
    ),
}  # fmt: skip
"""The trainings of generators by name."""

FEW_STEP_RECIPES = {
    "cifar10-diffusion-few": FewStepRecipe(),
    "photos-diffusion-few": FewStepRecipe(
        name="photos-diffusion-few",
        side=128,
        stored=136,
        views=10,
        held_out=1000,
        variants=8,
        kinds=DIFFUSION_RECIPES["photos-diffusion"].kinds,
        guidance=3.5,
        samples=1140,
    ),
}
"""The distillations by name."""


def on(value: Switch, cuda: bool) -> bool:
    """Whether something is on; "auto" is on where there is a GPU."""
    return cuda if value == "auto" else value
