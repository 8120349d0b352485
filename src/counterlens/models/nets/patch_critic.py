"""A critic that scores the patches of an image, not the image as a whole.

Paper: Isola et al. 2017, Image-to-Image Translation with Conditional Adversarial Networks
       (pix2pix2017), section 3.2.2; Miyato et al. 2018, Spectral Normalization for Generative
       Adversarial Networks (spectralnorm2018).
Differs: spectral norm in place of batch norm, so that no image changes the score of another.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class PatchCritic(nn.Module):
    """Convolutions of stride 2, then one score for each place: high for a real patch.

    Args:
        widths: channels after each convolution of stride 2; three see patches of 46 pixels.
    """

    def __init__(self, widths: Sequence[int] = (64, 128, 256)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            layers += [spectral_norm(nn.Conv2d(channels, width, 4, 2, 1)), nn.LeakyReLU(0.2)]
            channels = width
        layers.append(spectral_norm(nn.Conv2d(channels, 1, 4, 1, 1)))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 y x"]:
        """Scores of images in [−1, 1]."""
        out: Tensor = self.layers(x)
        return out
