"""Losses of a latent diffusion model: first of its autoencoder, then of its denoiser.

Paper: Rombach et al. 2022 (ldm2022), section 3 and appendix G; Ho et al. 2020 (ddpm2020).
Differs: squared error alone in pixels, without a perceptual or an adversarial term: at 32 pixels
       the aim is exactness. The text encoder is trained with the denoiser.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.generators.diffusion.few_steps import clean
from counterlens.generators.diffusion.schedule import Prediction
from counterlens.types import Batch

KL_WEIGHT = 5e-5


def autoencoding(net: Any, batch: Batch, step: int, *, kl: float = KL_WEIGHT) -> dict[str, Tensor]:
    """Squared error of the reconstruction, and a faint pull of the latents towards N(0, 1).

    Equation: ldm2022 §3.1   min E‖x − D(E(x))‖² + λ KL(q(z | x) ‖ N(0, 1))

    Args:
        net: images in [−1, 1] and noise to reconstruction, mean and log-variance.
        batch: "x" and "noise".
    """
    decoded, mean, log_variance = net(batch["x"], batch["noise"])
    return {
        "pixels": (decoded - batch["x"]).square().mean(),
        "kl": kl * gaussian_kl(mean, log_variance).mean(),
    }


def gaussian_kl(
    mean: Float[Tensor, "*any"], log_variance: Float[Tensor, "*any"]
) -> Float[Tensor, "*any"]:
    """Divergence of Gaussians from the standard one, per number.

    Equation: vae2014 §B   KL = ½ (μ² + σ² − 1 − log σ²)

    >>> gaussian_kl(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]))
    tensor([0., 2.])
    """
    return (mean.square() + log_variance.exp() - 1 - log_variance) / 2


def denoising(net: Any, batch: Batch, step: int) -> dict[str, Tensor]:
    """Squared error of what the network predicts: the noise, or the velocity.

    Equation: ldm2022 (3)   min E‖ε − ε_θ(z_t, t, τ_θ(y))‖²

    Args:
        net: noisy latents, times and token ids to the prediction.
        batch: "z" (noisy), "time", "ids" and "target".
    """
    predicted = net(batch["z"], batch["time"], batch["ids"])
    return {"noise": (predicted - batch["target"]).square().mean()}


def distilling(net: Any, batch: Batch, step: int, *, prediction: Prediction) -> dict[str, Tensor]:
    """Squared error of the clean latents that a student sees; noise counts where there is more.

    Equation: salimans2022 §4   min E max(ᾱ_t / (1 − ᾱ_t), 1) ‖x̃ − x̂_θ(z_t, t, c)‖²

    Args:
        net: noisy latents, times and conditions to the prediction.
        batch: "z" (noisy), "time", "level" (ᾱ), "cond" and "target" (x̃).
        prediction: what the network predicts.
    """
    level = batch["level"]
    seen = clean(net(batch["z"], batch["time"], batch["cond"]), batch["z"], level, prediction)
    weight = (level / (1 - level)).clamp_min(1).view(-1, 1, 1, 1)
    return {"clean": (weight * (seen - batch["target"]).square()).mean()}


def velocity(
    clean: Float[Tensor, "b c h w"], noise: Float[Tensor, "b c h w"], alpha: Float[Tensor, "b"]
) -> Float[Tensor, "b c h w"]:
    """What a network of velocities is to predict.

    Equation: salimans2022 §4   v = √ᾱ ε − √(1 − ᾱ) x₀
    """
    alpha = alpha.view(-1, 1, 1, 1)
    return alpha.sqrt() * noise - (1 - alpha).sqrt() * clean


class Autoencoder(nn.Module):
    """The autoencoder as one function of images and noise."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.vae = vae

    def forward(
        self, x: Float[Tensor, "b 3 h w"], noise: Float[Tensor, "b c y x"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction from a draw of the posterior, and the posterior."""
        vae: Any = self.vae
        mean, log_variance = vae.quant_conv(vae.encoder(x)).chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        z = mean + torch.exp(log_variance / 2) * noise
        return vae.decoder(vae.post_quant_conv(z)), mean, log_variance


class Denoiser(nn.Module):
    """UNet and text encoder as one function of latents, times and token ids."""

    def __init__(self, unet: nn.Module, text: nn.Module) -> None:
        super().__init__()
        self.unet, self.text = unet, text

    def forward(
        self, z: Float[Tensor, "b c h w"], time: Tensor, ids: Tensor
    ) -> Float[Tensor, "b c h w"]:
        """The noise seen in z."""
        cond = self.text(ids).last_hidden_state
        out: Tensor = self.unet(z, time, encoder_hidden_states=cond).sample
        return out


class Student(nn.Module):
    """A UNet as a function of latents, times and conditions."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(
        self, z: Float[Tensor, "b c h w"], time: Tensor, cond: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b c h w"]:
        """The network's prediction."""
        out: Tensor = self.unet(z, time, encoder_hidden_states=cond).sample
        return out
