"""The small network that the CGN papers classify digits with.

Paper: Sauer and Geiger 2021 (cgn2021), MNIST code.
Differs: logits in place of log-softmax. A stack trains several at once.
"""

from jaxtyping import Float
from torch import Tensor, nn

from counterlens.generators.cgn.stacked import StackConv, StackLinear

LAST_CONV = "layers.8"
WIDTH = 64


class DigitNet(nn.Module):
    """Four convolutions on 32-pixel pictures; the pooling of 7 drops the last row and column."""

    def __init__(self, classes: int = 10, *, stack: int = 1) -> None:
        super().__init__()
        s = stack
        self.stack, self.classes = stack, classes
        self.layers = nn.Sequential(
            nn.BatchNorm2d(3 * s),
            StackConv(3 * s, 32 * s, 5, padding=2, groups=s),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            StackConv(32 * s, 32 * s, 3, padding=1, groups=s),
            nn.ReLU(),
            StackConv(32 * s, WIDTH * s, 3, 2, 1, groups=s),
            nn.ReLU(),
            StackConv(WIDTH * s, WIDTH * s, 3, padding=1, groups=s),
            nn.ReLU(),
            nn.AvgPool2d(7),
        )
        self.linear: nn.Module = (
            nn.Linear(WIDTH, classes) if stack == 1 else StackLinear(stack, WIDTH, classes)
        )

    def forward(self, x: Float[Tensor, "b channels 32 32"]) -> Tensor:
        """Logits: b × classes, or b × stack × classes for pictures of 3 · stack channels."""
        pooled = self.layers(x).flatten(1)
        if self.stack > 1:
            pooled = pooled.view(len(x), self.stack, WIDTH)
        logits: Tensor = self.linear(pooled)
        return logits
