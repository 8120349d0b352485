"""What every search returns, and the state of mind in which it calls a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from counterlens.types import Scores


@dataclass(frozen=True)
class Found:
    """The best point met for each row.

    Args:
        points: where the objective was highest.
        scores: the objective there.
        start: the objective at the clean image; never above `scores`.
    """

    points: Float[Tensor, "b c h w"]
    scores: Scores
    start: Scores


@contextmanager
def frozen(net: nn.Module) -> Iterator[None]:
    """Evaluation mode and no weight gradients inside the block; both restored after it.

    A compiled network computes the gradients of all that requires one, so freezing the weights
    is what makes its input gradient cheap.
    """
    modes = [(module, module.training) for module in net.modules()]
    wanted = [weight for weight in net.parameters() if weight.requires_grad]
    try:
        net.eval()
        for weight in wanted:
            weight.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for weight in wanted:
            weight.requires_grad_(True)
