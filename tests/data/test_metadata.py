"""Metadata is cut out of pictures without touching a pixel; the oracle is Pillow."""

import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from counterlens.data.metadata import suffix_of, without_metadata
from counterlens.images import credits, decode, orientation

GPS = 0x8825
SECRET = b"52 deg 31 min north"


def picture(mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(0)
    base = np.kron(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8), np.ones((4, 4, 1), np.uint8))
    return Image.fromarray(base).convert(mode)


def exif(turned: int = 1) -> Image.Exif:
    tags = Image.Exif()
    tags[0x013B], tags[0x8298], tags[0x010E] = "Ann Artist", "(c) Ann", SECRET.decode()
    tags[0x0112] = turned
    tags.get_ifd(GPS)[1] = "N"
    tags.get_ifd(GPS)[2] = (52.0, 31.0, 0.0)
    return tags


def encode(kind: str, mode: str = "RGB", turned: int = 1, **settings: Any) -> bytes:
    out = io.BytesIO()
    picture(mode).save(out, kind, exif=exif(turned), **settings)
    return out.getvalue()


def texts() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Location", SECRET.decode())
    info.add_itxt("XML:com.adobe.xmp", SECRET.decode())
    return info


def gif() -> bytes:
    out = io.BytesIO()
    frames = [picture("P"), picture("P").rotate(180)]
    frames[0].save(
        out, "GIF", save_all=True, append_images=frames[1:], comment=SECRET, loop=0, duration=40
    )
    return out.getvalue()


def xmp_segment() -> bytes:
    body = b"http://ns.adobe.com/xap/1.0/\0" + SECRET
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def samples() -> Iterator[tuple[str, bytes]]:
    profile = b"a colour profile"
    jpeg = encode("JPEG", comment=SECRET, icc_profile=profile)
    yield (
        "baseline JPEG with XMP and a film behind it",
        (jpeg[:2] + xmp_segment() + jpeg[2:] + b"ftypmp4" + SECRET),
    )
    yield "progressive JPEG", encode("JPEG", progressive=True, quality=70)
    yield "JPEG with restarts", encode("JPEG", restart_marker_rows=1)
    yield "CMYK JPEG", encode("JPEG", "CMYK")
    yield "grey JPEG", encode("JPEG", "L")
    yield "PNG", encode("PNG", "RGBA", pnginfo=texts(), icc_profile=profile)
    yield "PNG with a palette", encode("PNG", "P", pnginfo=texts(), transparency=3)
    yield "lossy WebP", encode("WEBP", xmp=SECRET, icc_profile=profile)
    yield "lossless WebP", encode("WEBP", "RGBA", lossless=True, xmp=SECRET)
    yield "GIF", gif()


SAMPLES = dict(samples())


@pytest.mark.parametrize("name", SAMPLES)
def test_pixels_and_bytes_of_pixels_stay_and_metadata_goes(name: str) -> None:
    data = SAMPLES[name]
    cut = without_metadata(data)
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(cut)) as after:
        assert (after.format, after.mode, after.size) == (before.format, before.mode, before.size)
        assert getattr(after, "n_frames", 1) == getattr(before, "n_frames", 1)
        assert after.info.get("icc_profile") == before.info.get("icc_profile")
        assert after.tobytes() == before.tobytes()
        assert not dict(after.getexif()) and not after.getexif().get_ifd(GPS)
    assert SECRET not in cut and b"Ann" not in cut and len(cut) < len(data)
    assert np.array_equal(decode(cut), decode(data))
    assert without_metadata(cut) == cut


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("turned", [3, 6])
def test_a_turned_photograph_stays_turned_and_keeps_that_tag_alone(kind: str, turned: int) -> None:
    data = encode(kind, turned=turned)
    cut = without_metadata(data)
    assert orientation(cut) == turned
    with Image.open(io.BytesIO(cut)) as after:
        assert dict(after.getexif()) == {0x0112: turned}
        assert after.format == kind
    assert np.array_equal(decode(cut), decode(data))


@pytest.mark.parametrize("kind", ["TIFF", "AVIF"])
def test_other_formats_become_png_of_the_same_pixels(kind: str) -> None:
    try:
        data = encode(kind)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow writes no {kind}")
    cut = without_metadata(data)
    assert suffix_of(cut) == ".png"
    assert np.array_equal(decode(cut), decode(data))


def test_a_jpeg_that_does_not_follow_its_format_is_written_anew() -> None:
    """Pillow passes over bytes between segments; where they end is not known for certain."""
    data = encode("JPEG", quality=95)
    odd = data[:20] + b"\0\0" + data[20:]
    cut = without_metadata(odd)
    assert suffix_of(cut) == ".png" and np.array_equal(decode(cut), decode(odd))
    assert SECRET not in cut


def test_author_and_copyright_are_read_before_they_are_cut() -> None:
    data = encode("JPEG")
    assert credits(data) == {"author": "Ann Artist", "copyright": "(c) Ann"}
    assert credits(without_metadata(data)) == credits(b"no picture") == {
        "author": "", "copyright": "",
    }  # fmt: skip
