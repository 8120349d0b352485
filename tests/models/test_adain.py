"""AdaIN against its formula by hand, and the networks as their authors wrote them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterlens.errors import InputError
from counterlens.models.nets import adain

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTHS = {64: 4, 128: 6, 256: 8, 512: 10}


def authors(*, encoder: bool) -> nn.Sequential:
    """The layers as the PyTorch version of the authors' networks lists them, but narrow."""

    def block(a: int, b: int, *, relu: bool = True) -> list[nn.Module]:
        conv = nn.Conv2d(WIDTHS.get(a, a), WIDTHS.get(b, b), 3)
        return [nn.ReflectionPad2d((1, 1, 1, 1)), conv, *([nn.ReLU()] if relu else [])]

    if encoder:
        pool = nn.MaxPool2d((2, 2), (2, 2), (0, 0), ceil_mode=True)
        parts = [nn.Conv2d(3, 3, (1, 1)), *block(3, 64), *block(64, 64), pool, *block(64, 128)]
        parts += [*block(128, 128), pool, *block(128, 256), *block(256, 256), *block(256, 256)]
        return nn.Sequential(*parts, *block(256, 256), pool, *block(256, 512))
    up = nn.Upsample(scale_factor=2, mode="nearest")
    parts = [*block(512, 256), up, *block(256, 256), *block(256, 256), *block(256, 256)]
    parts += [*block(256, 128), up, *block(128, 128), *block(128, 64), up, *block(64, 64)]
    return nn.Sequential(*parts, *block(64, 3, relu=False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("adain")
    torch.save(authors(encoder=True).state_dict(), made / "vgg_normalised.pth")
    torch.save(authors(encoder=False).state_dict(), made / "decoder.pth")
    return made


def test_the_networks_are_the_authors(folder: Path) -> None:
    ours, encoder, decoder = adain.load(folder), authors(encoder=True), authors(encoder=False)
    encoder.load_state_dict(torch.load(folder / "vgg_normalised.pth", weights_only=True))
    decoder.load_state_dict(torch.load(folder / "decoder.pth", weights_only=True))
    x, s = torch.rand(2, 3, 40, 33), torch.rand(2, 3, 24, 64)
    with torch.no_grad():
        content, style = encoder(x), encoder(s)
        both = zip(content, style, strict=True)
        rows = [[by_hand(c, t) for c, t in zip(a, b, strict=True)] for a, b in both]
        literal = decoder(torch.from_numpy(np.array(rows)).float()).clamp(0, 1)[..., :40, :33]
    torch.testing.assert_close(ours(x, s), literal, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        ours(x, s, strength=0.0), decoder(content).clamp(0, 1)[..., :40, :33]
    )


def by_hand(content: torch.Tensor, style: torch.Tensor) -> np.ndarray:
    """One channel, formula (8)."""
    x, y = content.double().numpy().ravel(), style.double().numpy().ravel()
    spread = [np.sqrt(((one - one.mean()) ** 2).sum() / (len(one) - 1) + 1e-5) for one in (x, y)]
    moved: np.ndarray = spread[1] * (x - x.mean()) / spread[0] + y.mean()
    return moved.reshape(content.shape)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.5, 20))
def test_the_result_has_the_moments_of_the_style(seed: int, scale: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(1, 3, 9, 7, generator=rng), scale * torch.randn(1, 3, 5, 6, generator=rng)
    out = adain.adain(x, y)
    torch.testing.assert_close(out.mean((2, 3)), y.mean((2, 3)), atol=1e-3 * scale, rtol=1e-3)
    torch.testing.assert_close(out.std((2, 3)), y.std((2, 3)), atol=1e-3 * scale, rtol=1e-3)
    torch.testing.assert_close(adain.adain(x, x), x, atol=1e-4, rtol=1e-4)


def test_small_and_large_pictures_keep_their_size(folder: Path) -> None:
    network = adain.load(folder)
    assert network(torch.rand(1, 3, 9, 12), torch.rand(1, 3, 700, 20)).shape == (1, 3, 9, 12)
    assert adain.bounded(torch.rand(1, 3, 1024, 256)).shape == (1, 3, 512, 128)


def test_folders_without_the_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights for stylised pictures"):
        adain.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="lacks the weights"):
        adain.load(tmp_path)
    (tmp_path / "decoder.pth").write_bytes(b"junk")
    (tmp_path / "vgg_normalised.pth").write_bytes((folder / "decoder.pth").read_bytes())
    with pytest.raises(InputError, match="holds no such weights"):
        adain.load(tmp_path)
    (tmp_path / "decoder.pth").write_bytes((folder / "decoder.pth").read_bytes())
    with pytest.raises(InputError, match="too few"):
        adain.load(tmp_path)
