"""Pictures on disk and in memory; the only file that knows Pillow.

Differs: torchvision's folder loader ignores EXIF rotation and drops alpha. Here a picture is
what a viewer shows: rotated as its EXIF says, first frame of an animation, transparency over
white. Without EXIF rotation and alpha the pixels are those of `Image.open(f).convert("RGB")`.
"""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64, Shaped, UInt8
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from counterlens.dicom import dicom_pixels, is_dicom
from counterlens.errors import InputError, first_line
from counterlens.runs import atomic, file_bytes
from counterlens.types import Interpolation, Preprocess

Pixels = UInt8[np.ndarray, "_ _ _"]
"""Height × width × channels; axes have no letters since pictures of one call differ in size."""

Planes = UInt8[np.ndarray, "_ _ _"]
"""Channels × height × width, as a network wants them."""

AnyImage = Pixels | UInt8[np.ndarray, "_ _"] | Float[np.ndarray, "_ _ _"] | Float[Tensor, "_ _ _"]
"""What can be written: uint8 is height × width [× channels], float c × h × w in [0, 1]."""

PillowImage = Image.Image
SUFFIXES = frozenset(
    f".{ending}"
    for kinds in (
        ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"),
        ("ppm", "pgm", "pbm", "pnm", "jp2", "avif", "dcm", "dicom"),
    )
    for ending in kinds
)
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
MAX_PIXELS = 1 << 26
"""Larger pictures are refused: 67 million pixels are 200 MB as RGB."""

ORIENTATION = 0x0112  # EXIF tags
_ARTIST, _COPYRIGHT = 0x013B, 0x8298
_DETAILS = 0x8769  # where EXIF keeps exposure, focal length, …

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}


@dataclass(frozen=True)
class ImageSet:
    """Pictures with ids and labels; pixels are read only on request.

    Args:
        name: the short name used in keys and reports.
        ids: one stable id per picture, unique within the set.
        labels: index into `classes`; −1 where unknown.
        classes: class names of the set; empty for sets without classes.
        read: picture i as uint8 RGB, height × width × 3. Must pickle, for worker processes.
        space: declared label space or protocol of a known set ("imagenet-a", "cue-conflict", …).
        extra: more per-picture facts, e.g. texture labels.
        fingerprint: hash of ids, labels and contents or their metadata.
        notes: what the report should state, e.g. files that were left out.
    """

    name: str
    ids: Sequence[str]
    labels: Int64[np.ndarray, "n"]
    classes: tuple[str, ...]
    read: Callable[[int], Pixels]
    space: str | None = None
    extra: Mapping[str, Shaped[np.ndarray, "n ..."]] = field(default_factory=dict)
    fingerprint: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> tuple[Pixels, int]:
        """Picture i and its label, as a torch Dataset gives them."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"{self.name} has no image {i}: it has {len(self)}.")
        return self.read(i % len(self)), int(self.labels[i])


def read(path: str | Path) -> Pixels:
    """Read a picture file as uint8 RGB; a file that is no whole picture is refused by name."""
    return decode(file_bytes(path, what="picture"), name=str(path))


def decode(data: bytes, *, name: str = "picture") -> Pixels:
    """Decode an encoded picture as uint8 RGB, height × width × 3.

    EXIF rotation is applied, transparency lies over white, an animation gives its first frame,
    grey of 16 bits is scaled by 255 / 65535, CMYK is converted as Pillow does it.
    """
    return np.array(decode_pillow(data, name))  # a copy: Pillow's own buffer is read-only


def read_prepared(path: str | Path, preprocess: Preprocess, *, channels: int = 3) -> Planes:
    """`prepare(read(path), …)` without the way through an array of the whole picture."""
    return decode_prepared(
        file_bytes(path, what="picture"), preprocess, channels=channels, name=str(path)
    )


def decode_prepared(
    data: bytes, preprocess: Preprocess, *, channels: int = 3, name: str = "picture"
) -> Planes:
    """`prepare(decode(data), …)` without the way through an array of the whole picture."""
    return _prepare(decode_pillow(data, name), preprocess, channels)


def prepared(
    read: Callable[[int], Pixels], i: int, preprocess: Preprocess, *, channels: int = 3
) -> Planes:
    """Picture i of a set as a classifier's input, by the set's own short cut where it has one."""
    direct = getattr(read, "prepared", None)
    if direct is None:
        return prepare(read(i), preprocess, channels=channels)
    planes: Planes = direct(i, preprocess, channels)
    return planes


def decode_pillow(data: bytes, name: str) -> PillowImage:
    """Decode an encoded picture as a Pillow image in RGB."""
    if is_dicom(data):
        return Image.fromarray(dicom_pixels(data, name))
    try:
        with warnings.catch_warnings():
            # Pillow warns of odd metadata, which changes no pixel, and of bombs, checked below
            warnings.simplefilter("ignore")
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
            if image.width * image.height > MAX_PIXELS:
                raise InputError(
                    f"{name} has {image.width} × {image.height} pixels, expected at most "
                    f"{MAX_PIXELS:,} in all. Resize it first."
                )
            image.load()
            return _upright(image, name)
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise InputError(f"{name} has more than {MAX_PIXELS:,} pixels. Resize it first.") from None
    except Exception as error:  # broken files make Pillow's readers raise almost anything
        what = "is empty" if not data else f"is no whole picture ({_message(error)})"
        raise InputError(
            f"{name} {what}. Expected JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, JPEG 2000 or AVIF; "
            "replace or delete the file."
        ) from None


def from_pillow(image: object, *, name: str = "the image") -> Pixels | None:
    """The pixels of a Pillow image as `decode` gives them; None for any other object."""
    return np.array(_upright(image, name)) if isinstance(image, Image.Image) else None


def is_pillow(value: object) -> bool:
    """Whether an object is a Pillow image."""
    return isinstance(value, Image.Image)


def _upright(image: Image.Image, name: str) -> Image.Image:
    wide = image.format in ("PNG", "PPM")  # whose mode I means 16 bits
    if image.getexif().get(ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    return _rgb(image, name, wide)


def prepare(pixels: Pixels, preprocess: Preprocess, *, channels: int = 3) -> Planes:
    """Turn a picture of any size into a classifier's input, uint8 channels × height × width.

    The same pixels as timm's and torchvision's evaluation transforms: shorter side resized to
    size / crop, centre cut out; or squashed, where crop is None or `squash` says so. A picture
    that already fits is passed on untouched.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise InputError(
            f"got a picture of shape {pixels.shape}, expected (height, width, 3): uint8 RGB."
        )
    if channels == 3 and resized(pixels.shape[:2], preprocess) == pixels.shape[:2]:
        cut = _centre(pixels, *preprocess.size)
        return np.array(cut.transpose(2, 0, 1), order="C")
    return _prepare(Image.fromarray(pixels), preprocess, channels)


def _prepare(image: Image.Image, preprocess: Preprocess, channels: int) -> Planes:
    if channels not in (1, 3):
        raise InputError(f"got a model of {channels} colour channels, expected 1 or 3.")
    rows, columns = resized((image.height, image.width), preprocess)
    if rows * columns > MAX_PIXELS:
        raise InputError(
            f"a picture of {image.height} × {image.width} pixels is too oblong to be "
            f"resized to {rows} × {columns}. Crop it first."
        )
    if channels == 1:
        image = image.convert("L")
    if (rows, columns) != (image.height, image.width):
        image = image.resize((columns, rows), RESAMPLING[preprocess.interpolation])
    height, width = preprocess.size
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    if top >= 0 and left >= 0:  # cutting before the array is made copies less
        image = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(image).reshape(image.height, image.width, channels)
    cut = _centre(pixels, height, width)
    return np.array(cut.transpose(2, 0, 1), order="C")


def ten_crops(
    pixels: Pixels, preprocess: Preprocess, *, channels: int = 3
) -> UInt8[np.ndarray, "10 c h w"]:
    """Centre and four corners of a picture and their mirror images, the centre first.

    Equation: nae2021 §3   crops of the resized picture: centre, 4 corners, each also flipped

    A classifier that sees the whole picture leaves nothing to cut: there the picture is enlarged
    by 1 / 0.875 first.
    """
    height, width = preprocess.size
    whole = preprocess.crop is None or preprocess.crop >= 1
    cut = replace(
        preprocess,
        crop=0.875 if whole else preprocess.crop,
        squash=preprocess.squash or preprocess.crop is None,
    )
    rows, columns = resized(pixels.shape[:2], cut)
    if rows * columns > MAX_PIXELS:
        raise InputError(
            f"a picture of {pixels.shape[0]} × {pixels.shape[1]} pixels is too oblong to be "
            f"resized to {rows} × {columns}. Crop it first."
        )
    image = Image.fromarray(pixels)
    if channels == 1:
        image = image.convert("L")
    if (rows, columns) != (image.height, image.width):
        image = image.resize((columns, rows), RESAMPLING[preprocess.interpolation])
    planes = np.asarray(image).reshape(rows, columns, channels).transpose(2, 0, 1)
    down, right = rows - height, columns - width
    corners = ((round(down / 2), round(right / 2)), (0, 0), (0, right), (down, 0), (down, right))
    crops = np.stack([planes[:, t : t + height, s : s + width] for t, s in corners])
    return np.ascontiguousarray(np.concatenate([crops, crops[..., ::-1]]))


def resized(shape: tuple[int, ...], preprocess: Preprocess) -> tuple[int, int]:
    """Height and width to which a picture is resized before its centre is cut out.

    >>> resized((300, 400), Preprocess(size=(224, 224), crop=0.875))
    (256, 341)
    """
    height, width = shape
    if preprocess.crop is None:
        return preprocess.size
    rows, columns = fitting_size(preprocess)
    if preprocess.squash:
        return rows, columns
    if rows == columns:  # torchvision's rule: the longer side is rounded down
        if height <= width:
            return rows, int(rows * width / height)
        return int(rows * height / width), rows
    ratio = min(height / rows, width / columns)  # timm's rule where the input is not square
    return round(height / ratio), round(width / ratio)


def fitting_size(preprocess: Preprocess) -> tuple[int, int]:
    """Height and width of pictures that a classifier sees without any resampling.

    >>> fitting_size(Preprocess(size=(224, 224), crop=0.875))
    (256, 256)
    """
    if preprocess.crop is None:
        return preprocess.size
    if not 0 < preprocess.crop <= 2:
        raise InputError(f"crop is {preprocess.crop}, expected a share such as 0.875, or None.")
    # 224 / (224 / 232) may be a hair below 232: forgive the last bits, then round down as timm does
    height, width = (math.floor(side / preprocess.crop * (1 + 1e-12)) for side in preprocess.size)
    return height, width


def resize(pixels: Pixels, size: tuple[int, int], interpolation: Interpolation) -> Pixels:
    """Resize to height × width, antialiased, aspect not preserved."""
    if pixels.shape[:2] == size:
        return pixels
    image = Image.fromarray(pixels).resize((size[1], size[0]), RESAMPLING[interpolation])
    return np.array(image)


def to_pixels(image: AnyImage) -> Pixels:
    """The 8-bit pixels of an image; floats c × h × w in [0, 1] are rounded.

    >>> to_pixels(np.full((1, 1, 2), 0.5)).tolist()
    [[[128], [128]]]
    """
    array = image.detach().cpu().float().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 2 else array
    low, high = float(array.min()), float(array.max())
    if array.ndim != 3 or not -1e-6 <= low <= high <= 1 + 1e-6:  # written so that NaN fails too
        raise InputError(
            f"got an image of shape {array.shape} spanning [{low:.3g}, {high:.3g}], expected "
            "channels × height × width in [0, 1]."
        )
    return (array * 255).round().clip(0, 255).astype(np.uint8).transpose(1, 2, 0)


def png_bytes(image: AnyImage) -> bytes:
    """Encode as PNG; takes what `to_pixels` takes."""
    return _encode(to_pixels(image), "PNG", optimize=True)


def thumbnail(pixels: Pixels, side: int) -> bytes:
    """A JPEG of the picture whose longer side is at most `side`."""
    scale = side / max(pixels.shape[:2])
    if scale < 1:
        height, width = (max(1, round(length * scale)) for length in pixels.shape[:2])
        pixels = resize(pixels, (height, width), "lanczos")
    return _encode(pixels, "JPEG", quality=88)


def jpeg_bytes(image: AnyImage, *, quality: int) -> bytes:
    """Encode as JPEG; takes what `to_pixels` takes."""
    return _encode(to_pixels(image), "JPEG", quality=quality)


def webp_bytes(image: AnyImage) -> bytes:
    """Encode as lossless WebP, the form of packed sets; takes what `to_pixels` takes."""
    return _encode(to_pixels(image), "WEBP", lossless=True, quality=80, method=4)


def credits(data: bytes) -> dict[str, str]:
    """Author and copyright notice that the EXIF of an encoded picture names; empty for none."""
    tags = _exif(data)
    named = {"author": tags.get(_ARTIST, ""), "copyright": tags.get(_COPYRIGHT, "")}
    return {key: str(text).replace("\0", " ").strip() for key, text in named.items()}


def orientation(data: bytes) -> int:
    """The EXIF orientation of an encoded picture: 1 where it is shown as it is stored."""
    value = _exif(data).get(ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def exif_texts(data: bytes) -> dict[str, str]:
    """The EXIF fields of an encoded picture by their names, as text; empty where it has none."""
    tags = {**_exif(data), **_exif(data, _DETAILS)}
    named = {ExifTags.TAGS.get(tag): value for tag, value in tags.items()}
    return {
        name: str(value).replace("\0", " ").strip()
        for name, value in named.items()
        if name and not isinstance(value, bytes)
    }


def _exif(data: bytes, part: int | None = None) -> Mapping[int, object]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exif = Image.open(io.BytesIO(data), formats=FORMATS).getexif()
            return dict(exif if part is None else exif.get_ifd(part))
    except Exception:  # broken metadata makes Pillow's readers raise almost anything
        return {}


def write_png(path: str | Path, image: AnyImage) -> None:
    """Write a whole PNG file or nothing; takes what `to_pixels` takes."""
    data = png_bytes(image)
    with atomic(Path(path)) as part:
        part.write_bytes(data)


def tile(
    images: Sequence[AnyImage],
    *,
    columns: int | None = None,
    gap: int = 2,
    background: int = 255,
) -> Pixels:
    """Put images of one size side by side, row after row.

    >>> tile([np.zeros((2, 3, 3), np.uint8)] * 3, columns=2, gap=1).shape
    (5, 7, 3)
    """
    cells = [to_pixels(image) for image in images]
    if not cells or {cell.shape[:2] for cell in cells} != {cells[0].shape[:2]}:
        shapes = sorted({cell.shape for cell in cells})
        raise InputError(f"got images of shapes {shapes}, expected one or more of one size.")
    columns = min(len(cells), columns or math.ceil(math.sqrt(len(cells))))
    rows = math.ceil(len(cells) / columns)
    height, width = cells[0].shape[:2]
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, 3)
    sheet = np.full(shape, background, np.uint8)
    for i, cell in enumerate(cells):
        top, left = (i // columns) * (height + gap), (i % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = cell
    return sheet


def _centre(pixels: Pixels, height: int, width: int) -> Pixels:
    rows, columns = max(height - pixels.shape[0], 0), max(width - pixels.shape[1], 0)
    if rows or columns:  # a crop above 1 leaves a black frame, as torchvision's CenterCrop does
        frame = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0))
        pixels = np.pad(pixels, frame)
    top = round((pixels.shape[0] - height) / 2)
    left = round((pixels.shape[1] - width) / 2)
    return pixels[top : top + height, left : left + width]


def _rgb(image: Image.Image, name: str, wide: bool) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and wide):
        share = np.asarray(image).astype(np.float64) / 65535
        return Image.fromarray((share * 255).round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise InputError(
            f"{name} holds 32-bit numbers without a known range, expected 8 or 16 bits. "
            "Save it as PNG."
        )
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        white = Image.new("RGBA", seen.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, seen).convert("RGB")
    return image.convert("RGB")


def _encode(pixels: Pixels, kind: str, **settings: bool | int) -> bytes:
    if pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, kind, **settings)
    return out.getvalue()


def _message(error: Exception) -> str:
    text = first_line(error, 80)
    return "format not known" if text.startswith("cannot identify") else text
