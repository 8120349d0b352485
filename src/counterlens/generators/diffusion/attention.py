"""Cross-attention of a UNet: record its maps, or replace them.

Only the half of a batch with the prompt is recorded or changed; the null text's half is the
network's own. What happens is a function of the step's number alone, so a step that is computed
again in a backward pass does the same again.

Paper: Hertz et al. 2023 (p2p2023), section 3; Augustin et al. 2024 (digin2024), appendix D.
Differs: where maps are put in, the network's own are not computed; each image of a batch may have
       its own number of such steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.words import Mixing
from counterlens.types import Flags

Map = Float[Tensor, "b a p n"]
"""Attention after the softmax: image, head, place, token."""
AroundStep = Callable[[int], AbstractContextManager[None]]
"""What surrounds the network at a step of a chain."""


@dataclass(frozen=True)
class Maps:
    """Cross-attention of a chain's first steps: for each step, layer by layer.

    Args:
        steps: layers by name; as many steps as were recorded.
    """

    steps: tuple[Mapping[str, Map], ...]

    def rows(self, places: Sequence[int]) -> "Maps":
        """Those of some images."""
        chosen = list(places)
        return Maps(
            tuple({name: one[chosen] for name, one in layers.items()} for layers in self.steps)
        )

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(one.nbytes for layers in self.steps for one in layers.values())


class Watch:
    """Collects the maps of a chain's first steps; give it to `ddim` as `around`.

    Args:
        images: in the batch.
        steps: how many steps to collect.
        store: where to keep them; None leaves them where they are.
    """

    def __init__(
        self,
        model: LatentDiffusion,
        images: int,
        steps: int,
        store: torch.device | None = None,
    ) -> None:
        self.model, self.images, self.store = model, images, store
        self.seen: list[dict[str, Map]] = [{} for _ in range(steps)]

    def __call__(self, step: int) -> AbstractContextManager[None]:
        if step >= len(self.seen):
            return nullcontext()
        layers = self.seen[step]

        def make(name: str) -> "_Seen":
            return _Seen(name, layers, self.images, self.store)

        return _changed(self.model, make)

    @property
    def maps(self) -> Maps:
        """What was collected."""
        return Maps(tuple(self.seen))


def inject(model: LatentDiffusion, maps: Maps, mix: Mixing, counts: Sequence[int]) -> AroundStep:
    """Put maps in place of the network's own in the first steps; give it to `ddim` as `around`.

    Equation: p2p2023 (6)   M_t^target ← M_t^source W   while t is among the first steps

    Args:
        mix: from the tokens of the source prompt to those of the target.
        counts: for each image in how many steps.
    """
    least, most = min(counts), max(counts)
    if most > len(maps.steps):
        raise ValueError(f"maps of {len(maps.steps)} steps, {most} expected")

    def around(step: int) -> AbstractContextManager[None]:
        if step >= most:
            return nullcontext()
        layers = maps.steps[step]
        here = None
        if step >= least:
            here = torch.tensor([step < count for count in counts], device=model.device)
        return _changed(model, lambda name: _Put(layers[name], mix, here))

    return around


class _Seen:
    """Attention that notes its maps of the last `images` rows."""

    def __init__(
        self, name: str, layers: dict[str, Map], images: int, store: torch.device | None
    ) -> None:
        self.name, self.layers, self.images, self.store = name, layers, images, store

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, **more: Any
    ) -> Tensor:
        query, key, value = _projected(attn, hidden_states, encoder_hidden_states)
        probs = _softmax(attn, query, key)
        self.layers[self.name] = probs[-self.images :].detach().to(self.store)
        return _out(attn, probs.to(value.dtype) @ value)


class _Put:
    """Attention with injected maps for the last rows of a batch."""

    def __init__(self, maps: Map, mix: Mixing, here: Flags | None) -> None:
        self.maps, self.mix, self.here = maps, mix, here

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, **more: Any
    ) -> Tensor:
        query, key, value = _projected(attn, hidden_states, encoder_hidden_states)
        free = len(hidden_states) - len(self.maps)
        injected = mixed(self.maps.to(value.device), self.mix).to(value.dtype) @ value[free:]
        own = self.here is not None
        if free or own:
            rows = slice(None) if own else slice(free)
            own_output = torch.nn.functional.scaled_dot_product_attention(
                query[rows], key[rows], value[rows], scale=attn.scale
            )
            if self.here is not None:
                injected = torch.where(self.here.view(-1, 1, 1, 1), injected, own_output[free:])
            injected = torch.cat([own_output[:free], injected])
        return _out(attn, injected)


def mixed(maps: Map, mix: Mixing) -> Map:
    """Maps for another prompt; groups of heads may have matrices of their own."""
    heads, groups = maps.shape[1], mix.shape[1]
    weight = mix.to(maps.dtype).repeat_interleave(heads // groups, dim=1)
    return maps @ weight


@contextmanager
def _changed(model: LatentDiffusion, make: Callable[[str], Any]) -> Iterator[None]:
    """Other processors in all cross-attention layers, and the old ones back afterwards."""
    before = []
    for name, layer in cross_layers(model).items():
        before.append((layer, layer.processor))
        layer.processor = make(name)
    try:
        yield
    finally:
        for layer, processor in before:
            layer.processor = processor


def cross_layers(model: LatentDiffusion) -> dict[str, Any]:
    """The layers that attend to the text, by name."""
    return {
        name: layer for name, layer in model.unet.named_modules()
        if name.endswith("attn2") and hasattr(layer, "processor")
    }  # fmt: skip


def _projected(attn: Any, hidden: Tensor, encoder: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each image × head × place × width."""
    rows = [attn.to_q(hidden), attn.to_k(encoder), attn.to_v(encoder)]
    q, k, v = (one.unflatten(2, (attn.heads, -1)).transpose(1, 2) for one in rows)
    return q, k, v


def _softmax(attn: Any, query: Tensor, key: Tensor) -> Map:
    """Attention in float32.

    Equation: attention2017 (1)   softmax(Q Kᵀ / √d)
    """
    scores: Tensor = query.float() @ key.float().transpose(-1, -2) * attn.scale
    return scores.softmax(-1)


def _out(attn: Any, heads: Float[Tensor, "b a p d"]) -> Float[Tensor, "b p e"]:
    joined = heads.transpose(1, 2).flatten(2)
    projected: Tensor = attn.to_out[1](attn.to_out[0](joined))
    return projected / float(attn.rescale_output_factor)
