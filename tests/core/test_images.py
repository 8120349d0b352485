"""Pictures: Pillow's own conversions and the evaluation transforms of timm and torchvision."""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from counterlens import images
from counterlens.errors import InputError
from counterlens.types import Preprocess


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random pixels with both fine and coarse structure."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 200, (height // 8 + 1, width // 8 + 1, 3)), np.ones((8, 8, 1)))
    return (coarse[:height, :width] + rng.integers(0, 56, (height, width, 3))).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **settings: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **settings)
    return out.getvalue()


SHAPES = [(300, 400), (401, 283), (224, 224), (32, 32), (33, 500), (257, 256), (1, 7)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize(("size", "crop"), [(224, 0.875), (240, 0.882), (32, 1.0), (64, 1.15)])
def test_prepare_gives_the_pixels_of_timms_evaluation_transform(shape, interpolation, size, crop):
    pixels = photo(*shape)
    theirs = create_transform(
        (3, size, size), crop_pct=crop, interpolation=interpolation, normalize=False
    )(Image.fromarray(pixels))
    ours = images.prepare(pixels, Preprocess((size, size), crop, interpolation))
    assert ours.dtype == np.uint8 and np.array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (232, 224), (384, 384), (342, 299)])
def test_prepare_gives_the_pixels_of_torchvisions_presets(shape, resize, crop):
    pixels = photo(*shape)
    preset = ImageClassification(
        crop_size=crop, resize_size=resize, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )
    ours = images.prepare(pixels, Preprocess((crop, crop), crop / resize, "bilinear"))
    theirs = (preset(Image.fromarray(pixels)) * 255).round().to(torch.uint8).numpy()
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("shape", SHAPES)
def test_squashing_and_oblong_inputs_match_timm(shape):
    pixels = photo(*shape)
    squash = create_transform(
        (3, 64, 48), crop_pct=1.0, crop_mode="squash", interpolation="bicubic", normalize=False
    )
    ours = images.prepare(pixels, Preprocess((64, 48), None, "bicubic"))
    assert np.array_equal(ours, squash(Image.fromarray(pixels)).numpy())
    squash = create_transform(
        (3, 64, 64), crop_pct=0.9, crop_mode="squash", interpolation="bicubic", normalize=False
    )
    ours = images.prepare(pixels, Preprocess((64, 64), 0.9, "bicubic", squash=True))
    assert np.array_equal(ours, squash(Image.fromarray(pixels)).numpy())
    oblong = create_transform((3, 64, 48), crop_pct=0.9, normalize=False, interpolation="bilinear")
    ours = images.prepare(pixels, Preprocess((64, 48), 0.9, "bilinear"))
    assert np.array_equal(ours, oblong(Image.fromarray(pixels)).numpy())


@pytest.mark.parametrize("crop", [1.0, None])
def test_a_picture_that_fits_is_passed_on_untouched(crop):
    pixels = photo(32, 32)
    ours = images.prepare(pixels, Preprocess((32, 32), crop))
    assert np.array_equal(ours, pixels.transpose(2, 0, 1))
    assert ours.flags.c_contiguous and ours.flags.writeable
    cut = Preprocess((28, 28), 0.875)
    assert images.fitting_size(cut) == (32, 32)
    assert np.array_equal(images.prepare(pixels, cut), pixels[2:30, 2:30].transpose(2, 0, 1))


def test_a_grey_model_gets_torchvisions_grey():
    pixels = photo(40, 50)
    grey = v2.Compose([v2.Grayscale(), v2.Resize(28, antialias=True), v2.CenterCrop(28)])
    theirs = np.asarray(grey(Image.fromarray(pixels)))[None]
    ours = images.prepare(pixels, Preprocess((28, 28), 1.0, "bilinear"), channels=1)
    assert np.array_equal(ours, theirs)
    fitting = np.repeat(photo(28, 28)[..., :1], 3, axis=2)
    ours = images.prepare(fitting, Preprocess((28, 28)), channels=1)
    assert ours.flags.writeable and np.array_equal(ours[0], fitting[..., 0])


def test_resize_sizes_equal_timms_for_every_published_model():
    import math

    from timm.models import list_pretrained
    from timm.models._registry import get_pretrained_cfg

    settings = {
        (side, cfg.crop_pct)
        for cfg in map(get_pretrained_cfg, list_pretrained())
        for side in cfg.input_size[1:]
    }
    assert len(settings) > 50
    for side, crop in settings:
        assert images.fitting_size(Preprocess((side, side), crop))[0] == math.floor(side / crop)
    for side in range(64, 400, 7):  # and a crop that was computed from two whole sizes is undone
        for whole in range(side, 500):
            assert images.fitting_size(Preprocess((side, side), side / whole)) == (whole, whole)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "CMYK", "YCbCr"])
def test_decoding_equals_pillows_rgb_for_opaque_modes(mode):
    image = Image.fromarray(photo(20, 30)).convert(mode)
    data = encoded(image, "TIFF" if mode in ("1", "YCbCr") else "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(images.decode(data), expected)


def test_transparency_lies_over_white():
    pixels = np.dstack([photo(4, 6), np.zeros((4, 6), np.uint8)])
    pixels[:, 3:, 3] = 255
    seen = images.decode(encoded(Image.fromarray(pixels), "PNG"))
    assert (seen[:, :3] == 255).all() and np.array_equal(seen[:, 3:], pixels[:, 3:, :3])
    pixels[..., :3], pixels[..., 3] = 0, 51  # black at a fifth
    assert (images.decode(encoded(Image.fromarray(pixels), "PNG")) == 204).all()
    grey = Image.fromarray(np.zeros((2, 2, 2), np.uint8), "LA")
    assert (images.decode(encoded(grey, "PNG")) == 255).all()


def test_palettes_are_resolved_with_and_without_a_transparent_entry():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert images.decode(encoded(image, "PNG")).tolist() == [
        [[10, 20, 30], [40, 50, 60], [10, 20, 30]]
    ]
    data = encoded(image, "PNG", transparency=1)
    assert images.decode(data).tolist() == [[[10, 20, 30], [255, 255, 255], [10, 20, 30]]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_65535(kind):
    values = np.array([[0, 128, 129, 0x80FF, 65535]], np.uint16)
    seen = images.decode(encoded(Image.fromarray(values), kind))
    assert seen[0, :, 0].tolist() == [0, 0, 1, 0x80, 255]  # v / 257, rounded
    data = b"P5 5 1 65535 " + values.astype(">u2").tobytes()
    assert np.array_equal(images.decode(data), seen)


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert images.decode(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_shows_the_picture_as_taken(orientation):
    upright = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
    # what the camera stored, by the EXIF table: row 0 is the visual top, right, bottom, left …
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    assert np.array_equal(images.decode(data), upright)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_a_truncated_picture_is_refused_by_name(kind, tmp_path):
    data = encoded(Image.fromarray(photo(64, 64)), kind)
    for share in (0.0, 0.01, 0.3, 0.7):
        file = tmp_path / f"cut-{share}.bin"
        file.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(InputError, match=f"cut-{share}") as caught:
            images.read(file)
        assert "\n" not in str(caught.value)


def test_what_is_no_picture_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"notes\.jpg is no whole picture \(format not known\)"):
        images.decode(b"not a picture", name="notes.jpg")
    with pytest.raises(InputError, match=r"gone\.png"):
        images.read(tmp_path / "gone.png")
    with pytest.raises(InputError, match="32-bit"):
        images.decode(encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))
    with pytest.raises(InputError, match="no whole picture"):  # would start another program
        images.decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")


@pytest.mark.parametrize("side", [8200, 14000])
def test_decompression_bombs_are_refused_before_they_are_unpacked(side):
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(InputError, match=r"bomb\.png .*pixels"):
        images.decode(bomb, name="bomb.png")


def test_a_thread_of_a_picture_is_refused_before_it_is_blown_up():
    with pytest.raises(InputError, match="too oblong"):
        images.prepare(np.zeros((1, 9000, 3), np.uint8), Preprocess((224, 224)))


def test_wrong_channel_counts_are_refused():
    with pytest.raises(InputError, match="5 colour channels"):
        images.prepare(photo(8, 8), Preprocess((8, 8)), channels=5)
    with pytest.raises(InputError, match=r"shape \(8, 8, 4\)"):
        images.prepare(np.zeros((8, 8, 4), np.uint8), Preprocess((8, 8)))
    with pytest.raises(InputError, match="crop is 0"):
        images.prepare(photo(8, 8), Preprocess((8, 8), 0))


def test_png_and_webp_are_lossless(tmp_path):
    pixels = photo(17, 9)
    assert np.array_equal(images.decode(images.png_bytes(pixels)), pixels)
    assert np.array_equal(images.decode(images.webp_bytes(pixels)), pixels)
    images.write_png(
        tmp_path / "new" / "a.png", torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255
    )
    assert np.array_equal(images.read(tmp_path / "new" / "a.png"), pixels)
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["a.png"]


def test_floats_outside_the_unit_range_are_not_written(tmp_path):
    for bad in (np.full((3, 2, 2), 1.5), np.full((3, 2, 2), np.nan)):
        with pytest.raises(InputError, match="expected channels"):
            images.write_png(tmp_path / "a.png", bad)
    assert not list(tmp_path.iterdir())


def test_tiles_lie_row_by_row_and_refuse_mixed_sizes():
    cells = [np.full((1, 1, 3), value, np.uint8) for value in (1, 2, 3)]
    sheet = images.tile(cells, columns=2, gap=1, background=9)
    assert sheet[..., 0].tolist() == [[1, 9, 2], [9, 9, 9], [3, 9, 9]]
    with pytest.raises(InputError, match="one size"):
        images.tile([np.zeros((1, 1, 3), np.uint8), np.zeros((2, 1, 3), np.uint8)])
    with pytest.raises(InputError, match="one size"):
        images.tile([])


def test_records_pickle():
    base = images.ImageSet("a", ["x"], np.array([0]), ("k",), photo_of)
    again = pickle.loads(pickle.dumps(base))
    assert len(again) == 1 and np.array_equal(again.read(0), photo(2, 2))


def photo_of(i: int) -> np.ndarray:
    return photo(2, 2, i)
