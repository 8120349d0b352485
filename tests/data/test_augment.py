"""Augmentation of batches against the imaging library, one picture at a time.

Oracle: Pillow's own operations called as the code behind AutoAugment calls them, and plain loops
for crop and Cutout. Equality is exact: pixel values are whole numbers.
"""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from counterlens.data import autoaugment as A  # noqa: N812
from counterlens.data.augment import POLICIES, augment, resized_crop
from counterlens.data.batches import Draws, crop, cutout
from counterlens.errors import InputError

FILL = (125, 122, 113)


def pictures(count: int = 24) -> np.ndarray:
    """Noise, smooth ramps, flat colours and two-valued pictures."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    ramp = np.arange(32)
    for i in range(0, count, 3):
        scale, shift = rng.uniform(0.2, 3.5, 3), rng.uniform(0, 140, 3)
        smooth = (ramp[:, None, None] + ramp[None, :, None]) * scale + shift
        images[i] = np.clip(smooth, 0, 255).astype(np.uint8)
    images[1], images[2], images[4] = 7, 255 * (ramp[:, None, None] > 15), 0
    images[5, :, :, 1] = 90
    return images


def reference(name: str, image: Image.Image, m: float) -> Image.Image:
    w, h = image.size
    affine = Image.Transform.AFFINE
    match name:
        case "shear_y":
            matrix = (1, 0, 0, m, 1, 0)
            return image.transform(
                image.size, affine, matrix, Image.Resampling.BICUBIC, fillcolor=FILL
            )
        case "translate_x":
            return image.transform(image.size, affine, (1, 0, m * w, 0, 1, 0), fillcolor=FILL)
        case "translate_y":
            return image.transform(image.size, affine, (1, 0, 0, 0, 1, m * h), fillcolor=FILL)
        case "rotate":
            turned = image.convert("RGBA").rotate(m)
            grey = Image.new("RGBA", turned.size, (128,) * 4)
            return Image.composite(turned, grey, turned).convert("RGB")
        case "posterize":
            return ImageOps.posterize(image, int(m))
        case "solarize":
            return ImageOps.solarize(image, m)
        case "color" | "contrast" | "sharpness" | "brightness":
            return getattr(ImageEnhance, name.capitalize())(image).enhance(1 + m)
    return getattr(ImageOps, name)(image)


@pytest.mark.parametrize("name", A.OPERATIONS)
def test_every_operation_gives_the_pixels_of_the_imaging_library(name):
    images = pictures()
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    for level in (0, 1, 3, 5, 7, 9):
        for sign in (1, -1) if name in A._SIGNED else (1,):
            m = sign * A.magnitude(name, level)
            sizes = torch.full((len(x),), m, dtype=torch.float64)
            result = A.OPERATIONS[name](x, sizes, FILL).permute(0, 2, 3, 1).numpy()
            wanted = [np.asarray(reference(name, Image.fromarray(i), m)) for i in images]
            np.testing.assert_array_equal(result, np.stack(wanted), err_msg=f"{name} {level}")


def test_each_image_gets_the_operations_drawn_for_it():
    images = pictures(60)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    draws = Draws.make(11, len(x), x, torch.Generator().manual_seed(3))
    result = A.autoaugment(x, draws, 3, FILL).permute(0, 2, 3, 1).numpy()
    changed = 0
    for i, image in enumerate(images):
        picture = Image.fromarray(image)
        policy = A.CIFAR10_POLICY[int(draws.uniform[3, i] * 25)]
        for stage, (name, chance, level) in enumerate(policy):
            if draws.uniform[4 + 2 * stage, i] < chance:
                minus = name in A._SIGNED and draws.uniform[5 + 2 * stage, i] < 0.5
                m = A.magnitude(name, level) * (-1 if minus else 1)
                picture = reference(name, picture, m)
                changed += 1
        np.testing.assert_array_equal(result[i], np.asarray(picture), err_msg=f"image {i}")
    assert changed > 40


def test_the_whole_batch_path_of_a_gpu_gives_the_same_as_the_row_path(monkeypatch):
    x = torch.from_numpy(pictures()).permute(0, 3, 1, 2).float()
    draws = Draws.make(11, len(x), x, torch.Generator().manual_seed(5))
    rows = A.autoaugment(x, draws, 3, FILL)
    monkeypatch.setattr(A, "_by_rows", lambda _: False)
    assert torch.equal(A.autoaugment(x, draws, 3, FILL), rows)


def test_crop_and_cutout_against_plain_loops(rng):
    x = torch.randint(256, (5, 3, 8, 8), generator=rng).float()
    dy, dx = torch.tensor([0, 1, 4, 7, 8]), torch.tensor([8, 0, 4, 3, 1])
    result = crop(x, dy, dx, 4, FILL)
    hole = cutout(x, torch.tensor([0, 3, 7, 4, 2]), torch.tensor([0, 7, 3, 4, 5]), 4, FILL)
    for b in range(5):
        cy, cx = (0, 3, 7, 4, 2)[b], (0, 7, 3, 4, 5)[b]
        for i in range(8):
            for j in range(8):
                si, sj = i + int(dy[b]) - 4, j + int(dx[b]) - 4
                inside = 0 <= si < 8 and 0 <= sj < 8
                wanted = x[b, :, si, sj] if inside else torch.tensor(FILL).float()
                assert torch.equal(result[b, :, i, j], wanted)
                cut = cy - 2 <= i < cy + 2 and cx - 2 <= j < cx + 2
                wanted = torch.tensor(FILL).float() if cut else x[b, :, i, j]
                assert torch.equal(hole[b, :, i, j], wanted)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_repeatable_and_gives_images(name):
    x = torch.randint(256, (40, 3, 32, 32), generator=torch.Generator().manual_seed(1)).byte()
    first, second = (augment(name, x, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second) and first.dtype == torch.float32
    assert first.min() >= 0 and first.max() <= 1
    other = augment(name, x, torch.Generator().manual_seed(8))
    assert torch.equal(first, other) == (name == "none")


def test_digits_are_never_mirrored():
    x = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    x[:, :, 16, 2:6] = 255  # a mark on the left half stays there: crops shift by 4 at most
    z = augment("svhn", x, torch.Generator().manual_seed(0))
    assert (z[:, :, :, 16:] == 1).sum() == 0
    assert (augment("crop-flip", x, torch.Generator().manual_seed(0))[:, :, :, 16:] == 1).any()


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(InputError, match="augmentation is 'imagenet21k', expected one of cifar"):
        augment("imagenet21k", torch.zeros(1, 3, 8, 8, dtype=torch.uint8), None)


def test_crops_of_photographs_are_of_the_size_and_the_identity_where_nothing_is_drawn(rng):
    x = torch.randint(0, 256, (4, 3, 24, 24), generator=rng, dtype=torch.uint8)
    for name in ("photographs", "photographs-light"):
        z = augment(name, x, rng, size=16)
        assert z.shape == (4, 3, 16, 16) and z.min() >= 0 and z.max() <= 1
        assert not torch.equal(z, augment(name, x, rng, size=16))
    whole = Draws(torch.ones(5, 4))
    whole.uniform[1] = 0.5  # aspect 1
    cut = resized_crop(x.float() / 255, whole, 24, least=0.64)
    torch.testing.assert_close(cut, x.float() / 255, rtol=0, atol=1e-4)


@pytest.mark.parametrize("least", [0.25, 0.64])
def test_a_crop_has_its_share_of_the_area(least):
    """A ramp shows where the crop begins and ends: its slope is the crop's width."""
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64)
    draws = Draws(torch.tensor([[0.0], [0.5], [0.5], [0.5], [0.9]]))
    cut = resized_crop(ramp, draws, 64, least=least)
    slope = (cut[0, 0, 0, -8] - cut[0, 0, 0, 8]) / (ramp[0, 0, 0, -8] - ramp[0, 0, 0, 8])
    assert slope.item() == pytest.approx(least**0.5, rel=1e-3)
