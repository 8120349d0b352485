"""Blocks of a network recomputed in the backward pass: only the input of each one is stored.

Paper: Chen et al. 2016 (checkpointing2016); digin2024 computes every block of its UNet again.
Differs: what surrounds the network in a step, such as other attention, surrounds a block again
       when it is computed again, so that the gradient is exact with it, too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from torch import nn
from torch.utils.checkpoint import checkpoint

StoredSteps = int | Literal["blocks"] | None
"""Steps of a chain, counted from the end, whose activations are stored for the backward pass.

None stores all. All others are recomputed; with "blocks" all are, block by block.
"""
Around = Callable[[], AbstractContextManager[None]]


@contextmanager
def blocks_again(net: nn.Module, around: Around = nullcontext) -> Iterator[None]:
    """Inside, the blocks of a network store their inputs and are recomputed.

    Args:
        net: of diffusers: a UNet, or an autoencoder.
        around: what surrounds the network now, and will have to when a block is computed again.
    """
    before = [(block, vars(block).get("forward")) for block in blocks(net)]
    for block, _ in before:
        block.forward = _again(block.forward, around)
    try:
        yield
    finally:
        for block, own in before:
            if own is None:
                del block.forward
            else:
                block.forward = own


def blocks(net: nn.Module) -> list[nn.Module]:
    """Residual blocks, attention and resampling of every level."""
    return [
        block
        for level in net.modules()
        if hasattr(level, "resnets")
        for kind in ("resnets", "attentions", "downsamplers", "upsamplers")
        for block in getattr(level, kind, None) or ()
        if isinstance(block, nn.Module)
    ]


def _again(forward: Callable[..., Any], around: Around) -> Callable[..., Any]:
    def recomputed(*given: Any, **more: Any) -> Any:
        # nothing random happens inside, so no random state needs to be saved
        return checkpoint(
            forward, *given, use_reentrant=False, preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), _Anew(around)), **more,
        )  # fmt: skip

    return recomputed


class _Anew:
    """What surrounds the network, entered as often as a block is computed again."""

    def __init__(self, around: Around) -> None:
        self.around = around

    def __enter__(self) -> None:
        self.now = self.around()
        self.now.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.now.__exit__(*error)
