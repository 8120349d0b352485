"""Noise pictures: inputs that show nothing, on which a sound classifier is not sure.

Paper: Augustin, Meinke, Hein 2020, arXiv:2003.09461, and Hein et al. 2019, arXiv:1812.05720
    (uniform, smooth); Hendrycks et al. 2019, arXiv:1812.04606 (gaussian, bernoulli, blobs).
Differs: values are rounded to 8 bits; gaussian and blobs have the widths and the threshold of
    their authors' code, which the paper leaves open. Smooth noise is made from images of the
    in-distribution with their pixels permuted: `noise:smooth@SPEC` names them, and an audit
    makes `noise:smooth` from the images that it audits (`from_images`). As in the reference code
    one Gaussian filter of scalar width runs over height, width *and channels*, so colours mix as
    well; blobs were made in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter

from counterlens.data.sets import fingerprint, sample_rows, subset
from counterlens.data.specs import check_noise
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels, prepare
from counterlens.types import Preprocess

_Noise = Float[np.ndarray, "c h w"]
COUNT = 1000
SMOOTH = "smooth"


def uniform(shape: tuple[int, int, int], rng: np.random.Generator) -> _Noise:
    """Every value alike and independent.

    Equation: ratio2020 §A.3   x ~ U[0, 1]
    """
    # 256 equal bins, so that all 8-bit values are equally likely after rounding
    return rng.integers(0, 256, shape) / 255


def gaussian(shape: tuple[int, int, int], rng: np.random.Generator) -> _Noise:
    """Normal values around grey, clipped.

    Equation: oe2019 test sets   x ~ clip(N(0.5, 0.25²), 0, 1)
    """
    return np.clip(rng.normal(0.5, 0.25, shape), 0, 1)


def bernoulli(shape: tuple[int, int, int], rng: np.random.Generator) -> _Noise:
    """Every value fully off or fully on, with equal chance.

    Equation: oe2019 test sets   x ~ Bernoulli(1/2)
    """
    return rng.integers(0, 2, shape).astype(np.float64)


def blobs(shape: tuple[int, int, int], rng: np.random.Generator) -> _Noise:
    """Bright blobs on black: blurred random bits, cut off below three quarters.

    Equation: oe2019 test sets   b ~ Bernoulli(0.7);  v = G_1.5 ∗ b;  x = v·1[v ≥ 0.75]
    """
    bits = rng.binomial(1, 0.7, shape).astype(np.float64)
    blurred: _Noise = gaussian_filter(bits, 1.5, mode="nearest")
    return np.where(blurred < 0.75, 0.0, blurred)


def smooth(base: _Noise, rng: np.random.Generator) -> _Noise:
    """A picture's pixels in random order, blurred, its contrast raised.

    Equation: ratio2020 §A.3   x = sigmoid(γ·(G_σ ∗ π(base) − 1/2)),  σ ~ U[1, 2.5],  γ ~ U[5, 30]

    Args:
        base: the picture; one permutation of positions is shared by its channels.
        rng: draws the permutation, then σ, then γ.
    """
    channels, height, width = base.shape
    order = rng.permutation(height * width)
    shuffled = base.reshape(channels, -1)[:, order].reshape(base.shape)
    # a scalar width blurs the channel axis too: so does the reference, and its numbers rest on it
    blurred: _Noise = gaussian_filter(shuffled, rng.uniform(1, 2.5), mode="reflect")
    contrast = rng.uniform(5, 30)
    lifted: _Noise = 1 / (1 + np.exp(-contrast * (blurred - 0.5)))
    return lifted


PLAIN: dict[str, Callable[[tuple[int, int, int], np.random.Generator], _Noise]] = {
    "uniform": uniform,
    "gaussian": gaussian,
    "bernoulli": bernoulli,
    "blobs": blobs,
}


@dataclass(frozen=True)
class ReadNoise:
    """Noise picture i, drawn anew at each call from seed and i."""

    kind: str
    size: tuple[int, int]
    channels: int
    seed: int
    base: ImageSet | None

    def __call__(self, i: int) -> Pixels:
        rng = np.random.default_rng([self.seed, i])
        shape = (self.channels, *self.size)
        if self.base is None:
            planes = PLAIN[self.kind](shape, rng)
        else:
            picture = prepare(self.base.read(i), Preprocess(self.size), channels=self.channels)
            planes = smooth(picture / 255, rng)
        pixels = (planes * 255).round().astype(np.uint8).transpose(1, 2, 0)
        return np.ascontiguousarray(np.broadcast_to(pixels, (*self.size, 3)))


def open_noise(
    text: str,
    *,
    name: str,
    count: int | None,
    seed: int,
    size: tuple[int, int],
    channels: int,
    base: ImageSet | None = None,
) -> ImageSet:
    """`KIND`, or `smooth@SPEC` made from the images of another set, at most 1000 of them.

    Args:
        base: with `smooth`: that set itself, in place of a spec.
    """
    kind, _, spec = text.partition("@")
    check_noise(text)
    if kind == SMOOTH and not spec and base is None:
        raise InputError(
            "noise:smooth is made from images: expected noise:smooth@SPEC, "
            "e.g. noise:smooth@sample:cifar10 (an audit takes the audited ones)."
        )
    if spec:
        from counterlens.data.open import open_set  # which opens noise in its turn

        base = open_set(spec)
    if base is not None:
        base = subset(base, sample_rows(len(base), count or COUNT, seed))
    total = len(base) if base else count or COUNT
    facts = f"noise 1 {kind} {size} {channels} {seed} {total} {base.fingerprint if base else ''}"
    return ImageSet(
        name=name,
        ids=[f"noise-{kind}/{i}" for i in range(total)],
        labels=np.full(total, -1, dtype=np.int64),
        classes=(),
        read=ReadNoise(kind, size, channels, seed, base),
        fingerprint=fingerprint([facts]),
        notes=("made by code" + (f" from images of {base.name}, permuted" if base else ""),),
    )
