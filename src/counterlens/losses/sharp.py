"""The loss of an autoencoder of photographs: exact, alike in features, and sharp.

Squared error alone blurs what it cannot place. Absolute error, the distance of LPIPS and a critic
of patches together keep fur, leaves and letters. The critic enters late, once the rest is settled.

Paper: Rombach et al. 2022 (ldm2022), section 3.1 and appendix G; Esser et al. 2021 (vqgan2021) for
       perceptual and patch losses together; Zhang et al. 2018 (lpips2018); Miyato et al. 2018
       (spectralnorm2018) for the hinge.
Differs: fixed weights in place of vqgan2021's ratio of gradients, so that an update is one graph.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from counterlens.losses.cgn import frozen_weights
from counterlens.losses.diffusion import gaussian_kl
from counterlens.models.nets.lpips import Lpips
from counterlens.types import Batch


@dataclass
class Sharpness:
    """What the autoencoder and the critic of one training share.

    Args:
        critic: the network that learns second.
        lpips: the perceptual distance; None leaves its term out.
        perceptual, adversarial, kl: weights of the terms; the KL is summed over an image.
        begins: the update with which the critic enters.
        decoded: the last reconstructions, from which the critic then learns.
    """

    critic: nn.Module
    lpips: Lpips | None
    perceptual: float = 0.6
    adversarial: float = 0.06
    kl: float = 2.5e-7
    begins: int = 0
    decoded: Tensor | None = field(default=None)

    def phase(self, step: int) -> bool:
        """Whether the critic takes part; a captured graph is recorded anew when it enters."""
        return step >= self.begins

    def autoencoder_terms(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """What the autoencoder minimises.

        Equation: vqgan2021 (6)   |x − x̂| + λ_p LPIPS(x, x̂) − λ_a D(x̂) + λ_k KL
        """
        x = batch["x"]
        decoded, mean, log_variance = net(x, batch["noise"])
        terms = {
            "pixels": (decoded - x).abs().mean(),
            "kl": self.kl * gaussian_kl(mean, log_variance).flatten(1).sum(1).mean(),
        }
        if self.lpips is not None:
            distance = self.lpips(decoded / 2 + 0.5, x / 2 + 0.5)
            terms["perceptual"] = self.perceptual * distance.mean()
        terms["fool"] = torch.zeros_like(terms["pixels"])  # the same terms in every update
        if self.phase(step):
            with frozen_weights(self.critic):
                terms["fool"] = -self.adversarial * self.critic(decoded).mean()
        self._store(decoded)
        return terms

    def critic_terms(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """What the critic minimises, on the last reconstructions."""
        assert self.decoded is not None, "the autoencoder learns first"
        if not self.phase(step):  # it exists for the loop, but learns nothing yet
            nothing = 0 * torch.stack([weight.sum() for weight in net.parameters()]).sum()
            return {"real": nothing, "fake": nothing}
        real, fake = hinge(net(batch["x"]), net(self.decoded))
        return {"real": real, "fake": fake}

    def _store(self, decoded: Tensor) -> None:
        """In place: a captured graph writes to the same memory each time."""
        if self.decoded is None or self.decoded.shape != decoded.shape:
            self.decoded = torch.empty_like(decoded, requires_grad=False).detach()
        with torch.no_grad():
            self.decoded.copy_(decoded)


def hinge(
    real: Float[Tensor, "*any"], fake: Float[Tensor, "*any"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """A critic's loss on real and on generated patches.

    Equation: spectralnorm2018 (16)   mean max(0, 1 − D(x)) + mean max(0, 1 + D(x̂))

    >>> [part.item() for part in hinge(torch.tensor([2.0, 0.0]), torch.tensor([-3.0, 1.0]))]
    [0.5, 1.0]
    """
    return functional.relu(1 - real).mean(), functional.relu(1 + fake).mean()
