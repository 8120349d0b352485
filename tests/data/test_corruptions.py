"""Common corruptions against closed forms and literal loops."""

import colorsys
import io
import math

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from counterlens.data.corruptions import (
    COMMON,
    NAMES,
    SEVERITIES,
    blur,
    constants,
    corrupt,
    digital,
    noise,
    parse_corruptions,
    weather,
)
from counterlens.data.corruptions.spatter import canny, equalised
from counterlens.errors import InputError
from counterlens.images import Pixels


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    """A smooth coloured image with some texture."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[:height, :width]
    waves = [np.sin(xs / (3 + k) + k) + np.cos(ys / (4 + k)) for k in range(3)]
    values = 128 + 45 * np.stack(waves, -1) + rng.normal(0, 8, (height, width, 3))
    return values.clip(0, 255).astype(np.uint8)


def finished(values: np.ndarray) -> Pixels:
    """The authors' cut to 8 bits."""
    return (np.clip(values, 0, 1) * 255 + 1e-6).astype(np.uint8)


@pytest.mark.parametrize("shape", [(32, 32), (72, 96)])
@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_runs_at_every_severity_and_changes_the_image(
    name: str, shape: tuple[int, int]
) -> None:
    clean = picture(*shape)
    kept = clean.copy()
    for severity in range(1, 6):
        changed = corrupt(clean, name, severity, seed="a")
        assert changed.dtype == np.uint8
        assert changed.shape == clean.shape
        assert (changed != clean).any()
        assert (changed == corrupt(clean, name, severity, seed="a")).all()
    assert (clean == kept).all()


@pytest.mark.parametrize("shape", [(32, 32), (72, 72)])
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "speckle_noise",
        "contrast",
        "brightness",
        "pixelate",
        "jpeg_compression",
        "gaussian_blur",
    ],
)
def test_severity_five_is_further_from_the_image_than_severity_one(
    name: str, shape: tuple[int, int]
) -> None:
    clean = picture(*shape).astype(float)
    gaps = [
        np.abs(corrupt(clean.astype(np.uint8), name, severity) - clean).mean()
        for severity in (1, 5)
    ]
    assert gaps[1] > gaps[0]


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_a_severity_outside_one_to_five_is_refused(severity: int) -> None:
    with pytest.raises(InputError, match=f"no severity {severity}, expected 1, 2, 3, 4 or 5"):
        corrupt(picture(16, 16), "fog", severity)


def test_an_unknown_name_is_refused_with_close_matches() -> None:
    with pytest.raises(InputError, match="did you mean gaussian_noise") as caught:
        corrupt(picture(16, 16), "gausian_noise", 1)
    assert "\n" not in str(caught.value)


def test_a_tiny_image_is_refused() -> None:
    with pytest.raises(InputError, match="7 × 16 pixels cannot be corrupted"):
        corrupt(picture(7, 16), "fog", 1)


def test_constants_change_with_the_size_of_the_image() -> None:
    assert constants("gaussian_noise", 5, 64, 64) == (0.1,)
    assert constants("gaussian_noise", 5, 64, 65) == (0.38,)
    assert constants("elastic_transform", 2, 224, 224) == pytest.approx((488, 19.52, 48.8))
    assert constants("elastic_transform", 2, 32, 32) == pytest.approx((1.6, 6.4, 2.24))


def test_contrast_shrinks_each_channel_to_its_mean() -> None:
    clean = picture(32, 32)
    expected = np.empty((32, 32, 3))
    for c in range(3):
        mean = sum(int(v) for v in clean[..., c].ravel()) / 1024 / 255
        for y in range(32):
            for x in range(32):
                expected[y, x, c] = (clean[y, x, c] / 255 - mean) * 0.4 + mean
    assert (corrupt(clean, "contrast", 3) == finished(expected)).all()


@pytest.mark.parametrize(("name", "severity"), [("brightness", 3), ("saturate", 4)])
def test_brightness_and_saturate_agree_with_colorsys(name: str, severity: int) -> None:
    clean = np.random.default_rng(3).integers(0, 256, (24, 24, 3)).astype(np.uint8)
    clean[0, :8] = [[0, 0, 0], [255, 255, 255], [9, 9, 9], [255, 0, 0]] * 2
    expected = np.empty(clean.shape)
    for place in np.ndindex(24, 24):
        h, s, v = colorsys.rgb_to_hsv(*(clean[place] / 255))
        if name == "brightness":
            v = min(v + 0.15, 1)
        else:
            s = min(s * 2 + 0.1, 1)
        expected[place] = colorsys.hsv_to_rgb(h, s, v)
    assert np.abs(corrupt(clean, name, severity) / 255 - finished(expected) / 255).max() <= 1 / 255
    function = weather.brightness if name == "brightness" else digital.saturate
    row = constants(name, severity, 24, 24)
    assert np.allclose(function(clean / 255, np.random.default_rng(0), *row), expected, atol=1e-9)


def test_pixelate_of_a_half_gives_means_of_blocks() -> None:
    clean = picture(128, 96)
    blocks = clean.reshape(64, 2, 48, 2, 3).mean((1, 3))
    expected = blocks.repeat(2, 0).repeat(2, 1)
    made = corrupt(clean, "pixelate", 2)
    assert np.abs(made - expected).max() <= 1  # Pillow rounds after each of two passes
    assert (made == made[::2, ::2].repeat(2, 0).repeat(2, 1)).all()


def test_jpeg_is_a_round_trip_through_pillow() -> None:
    clean = picture(32, 32)
    for severity, quality in enumerate((80, 65, 58, 50, 40), 1):
        file = io.BytesIO()
        Image.fromarray(clean).save(file, "JPEG", quality=quality)
        assert (corrupt(clean, "jpeg_compression", severity) == np.array(Image.open(file))).all()


@pytest.mark.parametrize(
    ("side", "counts"), [(32, (7, 12, 16, 21, 26)), (224, (12, 16, 11, 13, 11))]
)
def test_zoom_blur_averages_the_authors_number_of_zooms(side: int, counts: tuple[int, ...]) -> None:
    rows = [constants("zoom_blur", severity, side, side) for severity in range(1, 6)]
    assert tuple(len(blur.zooms(*row)) for row in rows) == counts


def test_zoom_blur_is_the_mean_of_image_and_zooms() -> None:
    clean = picture(32, 32)
    total = clean / 255
    for percent in range(7):
        factor = 1 + percent / 100
        part = math.ceil(32 / factor)
        top = (32 - part) // 2
        large = ndimage.zoom(
            clean[top : top + part, top : top + part] / 255, (factor, factor, 1), order=1
        )
        trim = (large.shape[0] - 32) // 2
        total = total + large[trim : trim + 32, trim : trim + 32]
    made = corrupt(clean, "zoom_blur", 1).astype(int)
    assert np.abs(made - finished(total / 8).astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("gaussian_noise", 0.4, 0.08),
        ("shot_noise", 0.4, math.sqrt(0.4 / 100)),
        ("speckle_noise", 0.4, 0.4 * 0.12),
    ],
)
def test_noise_has_the_moments_of_its_law(name: str, mean: float, deviation: float) -> None:
    flat = np.full((64, 64, 3), 102, dtype=np.uint8)  # 0.4
    values = corrupt(flat, name, 3, seed="m") / 255 + 0.5 / 255 * (name != "shot_noise")
    assert values.mean() == pytest.approx(mean, abs=5 * deviation / math.sqrt(values.size) + 0.002)
    assert values.std() == pytest.approx(deviation, rel=0.04)


def test_shot_noise_gives_whole_counts() -> None:
    made = noise.shot_noise(picture(32, 32) / 255, np.random.default_rng(0), 50) * 50
    assert np.allclose(made, made.round())
    assert made.max() > 1


def test_impulse_noise_hits_the_share_of_values_half_with_salt() -> None:
    flat = np.full((64, 64, 3), 100, dtype=np.uint8)
    made = corrupt(flat, "impulse_noise", 5)
    assert set(np.unique(made)) == {0, 100, 255}
    assert (made != 100).mean() == pytest.approx(0.07, abs=0.012)
    assert (made == 255).sum() / (made != 100).sum() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("sigma", "delta", "rounds"), [(0.4, 1, 2), (0.7, 2, 1)])
def test_glass_blur_is_the_literal_loop_of_copies(sigma: float, delta: int, rounds: int) -> None:
    clean = picture(20, 26) / 255
    made = blur.glass_blur(clean, np.random.default_rng(5), sigma, delta, rounds)
    draws = np.random.default_rng(5)
    x = (ndimage.gaussian_filter(clean, (sigma, sigma, 0), mode="nearest") * 255 + 1e-6).astype(
        np.uint8
    )
    for _ in range(rounds):
        for h in range(20 - delta, delta, -1):
            for w in range(26 - delta, delta, -1):
                dx, dy = draws.integers(-delta, delta, 2)
                # the authors' line: views on the right, so only the first assignment matters
                x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
    expected = ndimage.gaussian_filter(x / 255, (sigma, sigma, 0), mode="nearest")
    assert np.allclose(made, expected)


def test_defocus_kernel_is_a_disk_of_sum_one() -> None:
    kernel = blur.disk(3, 0.1)
    inside = [(y, x) for y in range(-3, 4) for x in range(-3, 4) if y * y + x * x <= 9]
    assert kernel.sum() == pytest.approx(1)
    assert all(kernel[8 + y, 8 + x] == pytest.approx(1 / len(inside)) for y, x in inside)
    assert len(blur.disk(10, 0.5)) == 21
    point = np.zeros((41, 41, 1))
    point[20, 20] = 1
    spread = blur.defocus_blur(point, np.random.default_rng(0), 10, 0.5)
    assert np.allclose(spread[10:31, 10:31, 0], blur.disk(10, 0.5))


@pytest.mark.parametrize("angle", [0, 30, -90])
def test_streaks_are_a_one_sided_gaussian_along_a_line(angle: float) -> None:
    clean = picture(12, 14) / 255
    weights = [math.exp(-i * i / 8) for i in range(7)]
    expected = np.zeros(clean.shape)
    for y, x in np.ndindex(12, 14):
        for i, weight in enumerate(weights):
            across = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
            down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
            place = (min(max(y + down, 0), 11), min(max(x + across, 0), 13))
            expected[y, x] += weight / sum(weights) * clean[place]
    assert np.allclose(blur.streaks(clean, 3, 2, angle), expected)


def test_fog_adds_a_map_and_keeps_the_brightest_value() -> None:
    clean = picture(24, 32) / 255
    made = weather.fog(clean, np.random.default_rng(1), 0.75, 2.5)
    cloud = weather.diamond_square(32, 2.5, np.random.default_rng(1))
    top = clean.max()
    for y, x, c in np.ndindex(24, 32, 3):
        expected = (clean[y, x, c] + 0.75 * cloud[y, x]) * top / (top + 0.75)
        assert made[y, x, c] == pytest.approx(expected)
    assert made.max() <= top


def test_diamond_square_is_the_literal_loop() -> None:
    side, decay = 8, 2.0
    rng = np.random.default_rng(2)
    grid, step, a = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        cells = range(0, side, step)
        for oy, ox, near in (
            (half, half, ((-1, -1), (-1, 1), (1, -1), (1, 1))),
            (0, half, ((0, -1), (0, 1), (-1, 0), (1, 0))),
            (half, 0, ((0, -1), (0, 1), (-1, 0), (1, 0))),
        ):
            draws = a * rng.uniform(-a, a, (len(cells), len(cells)))
            for i, y in enumerate(cells):
                for j, x in enumerate(cells):
                    around = [
                        grid[(y + oy + dy * half) % side, (x + ox + dx * half) % side]
                        for dy, dx in near
                    ]
                    grid[y + oy, x + ox] = sum(around) / 4 + draws[i, j]
        step, a = half, a / decay
    expected = (grid - grid.min()) / (grid.max() - grid.min())
    assert np.allclose(weather.diamond_square(side, decay, np.random.default_rng(2)), expected)


def test_frost_is_a_mix_with_a_crop_of_one_of_five_textures() -> None:
    black = np.zeros((64, 64, 3), dtype=np.uint8)
    made = [weather.frost(black / 255, np.random.default_rng(k), 0.6, 0.75) for k in range(3)]
    assert all(0 < m.mean() < 0.75 and m.max() <= 0.75 for m in made)
    grey = weather.frost(black + 0.5, np.random.default_rng(0), 0.6, 0.75)
    assert np.allclose(grey - made[0], 0.3)
    textures = [weather.frost_texture(k, 64) for k in range(5)]
    assert all((textures[i] != textures[j]).any() for i in range(5) for j in range(i))


def test_snow_whitens_and_its_flakes_are_symmetric() -> None:
    black = np.zeros((32, 32, 3))
    made = weather.snow(black, np.random.default_rng(0), *constants("snow", 3, 32, 32))
    assert made.min() >= 0.1 * 0.5 - 1e-9  # 0.9·0 + 0.1·max(0, 0.5)
    assert np.allclose(made, np.rot90(made, 2))


def test_elastic_without_amounts_is_the_identity_and_moves_points_as_drawn() -> None:
    clean = picture(30, 36) / 255
    still = digital.elastic_transform(clean, np.random.default_rng(0), 0, 0, 0)
    assert np.allclose(still, clean)
    xs, ys = digital.affine_sources((30, 36), np.random.default_rng(4), 2.0)
    shift = np.random.default_rng(4).uniform(-2, 2, (3, 2))
    points = np.array([[28, 25], [28, 5], [8, 5]])
    for point, (mx, my) in zip(points, points + shift, strict=True):
        back = [ndimage.map_coordinates(m, [[my], [mx]], order=1)[0] for m in (xs, ys)]
        assert back == pytest.approx(list(point), abs=1e-6)


def test_canny_marks_the_outline_of_a_square_and_not_a_faint_one() -> None:
    levels = np.zeros((20, 20))
    levels[5:15, 5:15] = 200
    edges = canny(levels, 50, 150)
    ys, xs = np.nonzero(edges)
    assert edges.any()
    assert all(
        min(abs(y - 4.5), abs(y - 14.5), abs(x - 4.5), abs(x - 14.5)) < 1
        for y, x in zip(ys, xs, strict=True)
    )
    assert not edges[8:12, 8:12].any()
    assert not canny(levels / 20, 50, 150).any()  # 4·10 is below the lower threshold


def test_equalised_levels_run_from_0_to_255() -> None:
    levels = np.array([[3.0, 3, 4], [4, 9, 9]])
    assert equalised(levels).tolist() == [[0, 0, 128], [128, 255, 255]]  # 2·255/4 = 127.5, even
    assert (equalised(np.full((2, 2), 7.0)) == 7).all()


def test_shifts_of_practice_change_what_they_say() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    assert (corrupt(x, "colour_order", 1) == x[..., ::-1]).all()
    orders = {corrupt(x, "colour_order", s).tobytes() for s in SEVERITIES}
    assert len(orders) == 5 and x.tobytes() not in orders
    for severity, share in zip(SEVERITIES, (0.05, 0.1, 0.2, 0.3, 0.4), strict=True):
        hidden = (corrupt(x, "occlusion", severity) != x).any(2).mean()
        assert abs(hidden - share) < 0.03
    banner = corrupt(x, "overlay", 3)
    assert (banner[:-6] == x[:-6]).all() and not (banner[-6:] == x[-6:]).all()
    half = np.array(Image.fromarray(x).resize((25, 20), Image.Resampling.LANCZOS))
    back = np.array(Image.fromarray(half).resize((50, 40), Image.Resampling.LANCZOS))
    assert np.abs(corrupt(x, "resize_filter", 5).astype(int) - back).max() <= 1


def test_groups_and_names_are_read_in_a_fixed_order() -> None:
    assert parse_corruptions("common") == tuple(COMMON)
    assert parse_corruptions("fog,practice,gaussian-noise")[:2] == ("gaussian_noise", "fog")
    assert parse_corruptions("all") == NAMES
    with pytest.raises(InputError, match="did you mean fog"):
        parse_corruptions("common,fogg")
    with pytest.raises(InputError, match="expected common, extra, practice, all"):
        parse_corruptions(" , ")
