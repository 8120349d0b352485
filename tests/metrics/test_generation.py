"""Measures of generated images, captions and their losses, against closed forms and plain loops."""

import math

import pytest
import torch

from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.losses.diffusion import autoencoding, denoising, gaussian_kl
from counterlens.metrics.generation import kid, kid_interval, nearest, psnr, recall
from counterlens.workflows.train.captioned import noised


def test_kid_is_the_unbiased_mmd_written_out(rng):
    a = torch.randn(5, 3, generator=rng, dtype=torch.float64)
    b = torch.randn(4, 3, generator=rng, dtype=torch.float64) + 1

    def k(x, y):
        return (float(x @ y) / 3 + 1) ** 3

    aa = sum(k(a[i], a[j]) for i in range(5) for j in range(5) if i != j) / 20
    bb = sum(k(b[i], b[j]) for i in range(4) for j in range(4) if i != j) / 12
    ab = sum(k(x, y) for x in a for y in b) / 20
    assert kid(a, b) == pytest.approx(aa + bb - 2 * ab, rel=1e-12)
    with pytest.raises(InputError, match="expected 2 or more"):
        kid(a[:1], b)


def test_kid_of_one_distribution_has_an_interval_around_zero(rng):
    a, b = torch.randn(2, 400, 8, generator=rng, dtype=torch.float64)
    value, low, high = kid_interval(a, b)
    assert low <= 0 <= high and low < value < high
    assert kid_interval(a, b + 1)[1] > 0


def test_recall_counts_what_is_in_reach():
    generated = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    real = torch.tensor([[0.5], [3.5], [100.0]])
    assert recall(generated, real, k=1) == pytest.approx(2 / 3)
    assert recall(generated, generated, k=1) == 1
    with pytest.raises(InputError, match="more than 4"):
        recall(generated, real, k=4)


def test_the_nearest_image_is_found_across_parts(rng):
    x, others = torch.rand(3, 1, 2, 2, generator=rng), torch.rand(10, 1, 2, 2, generator=rng)
    distance, which = nearest(x, others, part=3)
    for i in range(3):
        all_ = [(x[i] - o).norm().item() for o in others]
        assert which[i] == all_.index(min(all_)) and distance[i].item() == pytest.approx(min(all_))


def test_exactness_without_an_error_is_infinite():
    x = torch.rand(1, 3, 2, 2)
    assert psnr(x, x) == math.inf


def test_kl_is_that_of_torch_distributions(rng):
    mean, log_variance = torch.randn(2, 6, generator=rng)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    wanted = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
    torch.testing.assert_close(gaussian_kl(mean, log_variance), wanted)


def test_losses_are_mean_squared_errors(rng):
    x = torch.randn(2, 3, 4, 4, generator=rng)

    def copy_badly(x, noise):
        return x + 2, torch.zeros(2, 1), torch.zeros(2, 1)

    terms = autoencoding(copy_badly, {"x": x, "noise": x}, 0)
    assert terms["pixels"].item() == pytest.approx(4, rel=1e-5) and terms["kl"].item() == 0
    batch = {"z": x, "time": torch.zeros(2), "ids": torch.zeros(2), "target": x - 3}
    assert denoising(lambda z, t, i: z, batch, 0)["noise"].item() == pytest.approx(9, rel=1e-5)


def test_noised_latents_have_unit_variance(rng):
    clean, noise = torch.randn(2, 4, 4, 32, 32, generator=rng)
    for alpha in (0.9, 0.5, 0.01):
        mixed = noised(clean, noise, torch.full((4,), alpha))
        assert mixed.std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((255, 255, 255), "white"), ((0, 0, 0), "black"), ((128, 128, 128), "grey"),
        ((200, 20, 20), "red"), ((240, 140, 20), "orange"), ((110, 70, 30), "brown"),
        ((230, 220, 40), "yellow"), ((40, 160, 50), "green"), ((40, 80, 200), "blue"),
        ((140, 40, 200), "purple"), ((240, 90, 190), "pink"),
    ],
)  # fmt: skip
def test_colours_have_their_names(rgb, name):
    result = captions.name_colours(torch.tensor([rgb]) / 255)
    assert captions.COLOURS[int(result)] == name


def test_captions_say_what_was_measured():
    x = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    x[:, 0, 8:24, 8:24], x[:, 1:, 8:24, 8:24] = 200, 20
    result = captions.measure(x)
    texts = captions.captions(["n04285008 sports car"], result, variants=40)[0]
    assert texts[0] == "a photograph of a sports car"
    assert any("red sports car" in text for text in texts)
    assert any("on a plain white background" in text for text in texts)
    assert all("sports car" in text and "n0" not in text for text in texts)
    assert captions.captions(["n04285008 sports car"], result, variants=40)[0] == texts


def test_articles_follow_the_sound_of_the_first_letter():
    assert captions.prompt("airplane") == "a photograph of an airplane"
    assert captions.prompt("horse") == "a photograph of a horse"


def test_decibels_are_told_over_all_pixels_and_image_by_image():
    quality = pytest.importorskip("counterlens.workflows.train.diffusion_quality")

    class Off:  # a reconstruction that is off by 0.1 in one image and by 0.01 in the other
        device = torch.device("cpu")

        def encode(self, x):
            return x

        def decode(self, z):
            return z + torch.tensor([0.1, 0.01]).view(2, 1, 1, 1)

    result = quality.exactness(Off(), torch.full((2, 3, 4, 4), 51, dtype=torch.uint8))
    assert result["generator.psnr"].value == pytest.approx(-10 * math.log10((0.01 + 0.0001) / 2))
    assert result["generator.psnr_image"].value == pytest.approx((20 + 40) / 2, abs=1e-4)
    low, high = result["generator.psnr_image"].low, result["generator.psnr_image"].high
    assert 20 - 1e-4 <= low < 29 and 31 < high <= 40 + 1e-4
