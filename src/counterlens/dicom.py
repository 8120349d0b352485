"""DICOM files and TIFF stacks as 8-bit pixels; the only file that knows pydicom and tifffile.

Grey values of a DICOM file go through its modality and its windowing tables, as a viewer shows
them; without a window the whole range of its bits is used. MONOCHROME1 is turned round. A TIFF page
of 16 bits is scaled by 255 / 65535.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.errors import CounterlensError, InputError, MissingExtra, first_line

MARK = b"DICM"
OFFSET = 128
"""Where a DICOM file says that it is one."""
_HOW = "Install it: pip install 'counterlens[formats]'."


def is_dicom(data: bytes) -> bool:
    """Whether the bytes of a file are DICOM.

    >>> is_dicom(b"x" * 128 + b"DICM"), is_dicom(b"GIF89a")
    (True, False)
    """
    return data[OFFSET : OFFSET + len(MARK)] == MARK


def dicom_pixels(data: bytes, name: str, *, frame: int = 0) -> np.ndarray:
    """One frame of a DICOM file as uint8 RGB, height × width × 3."""
    return np.asarray(dicom_frames(data, name)[frame])


def dicom_frames(data: bytes, name: str) -> np.ndarray:
    """All frames of a DICOM file as uint8 RGB, n × height × width × 3."""
    try:
        import pydicom
        from pydicom.pixels import apply_modality_lut, apply_voi_lut
    except ImportError:
        raise MissingExtra(f"{name} is DICOM and needs pydicom. {_HOW}") from None
    try:
        stored = pydicom.dcmread(io.BytesIO(data))
        values = stored.pixel_array
        colour = int(stored.get("SamplesPerPixel", 1)) == 3
        if not colour:
            values = apply_voi_lut(apply_modality_lut(values, stored), stored)
    except CounterlensError:
        raise
    except Exception as error:  # readers of foreign files raise almost anything
        raise InputError(
            f"{name} cannot be read as DICOM ({type(error).__name__}: {first_line(error, 90)}). "
            "Compressed pixels may need a decoder of pydicom: pip install pylibjpeg."
        ) from None
    many = int(stored.get("NumberOfFrames", 1) or 1) > 1
    frames = values if many else values[None]
    if colour:
        wide = frames.dtype != np.uint8
        eight = _scaled(frames, 0, np.iinfo(frames.dtype).max) if wide else frames
        return np.ascontiguousarray(eight[..., :3])
    low, high = _range(stored)
    grey = _scaled(frames, low, high)
    if stored.get("PhotometricInterpretation") == "MONOCHROME1":
        grey = 255 - grey
    return np.repeat(grey[..., None], 3, axis=3)


def _range(stored: Any) -> tuple[float, float]:
    """What black and white are: the window's ends, else the range of the stored bits."""
    slope, shift = float(stored.get("RescaleSlope", 1)), float(stored.get("RescaleIntercept", 0))
    bits, signed = int(stored.BitsStored), int(stored.get("PixelRepresentation", 0))
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    low, high = sorted(slope * end + shift for end in ends)
    if stored.get("WindowCenter") is None and stored.get("VOILUTSequence") is None:
        return low, high
    if stored.get("VOILUTSequence") is not None:  # the table's own range
        table = stored.VOILUTSequence[0].LUTDescriptor
        return 0.0, float(2 ** int(table[2]) - 1)
    return low, high  # pydicom maps the window onto the range of the stored bits


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    share = (values.astype(np.float64) - low) / max(high - low, 1e-12)
    return (share * 255).round().clip(0, 255).astype(np.uint8)


def tiff_pages(path: Path) -> int:
    """How many pages of one kind a TIFF file has."""
    with _tiff(path) as file:
        return len(file.pages)


def tiff_page(path: Path, page: int) -> np.ndarray:
    """One page of a TIFF file, as it is stored."""
    with _tiff(path) as file:
        try:
            return np.asarray(file.pages[page].asarray())
        except Exception as error:  # damaged or compressed in a way that needs a codec
            raise InputError(
                f"page {page} of {path} cannot be read ({first_line(error, 90)}). Save it without "
                "compression, or install imagecodecs."
            ) from None


def _tiff(path: Path) -> Any:
    try:
        import tifffile
    except ImportError:
        raise MissingExtra(f"{path} needs tifffile. {_HOW}") from None
    try:
        return tifffile.TiffFile(path)
    except (tifffile.TiffFileError, OSError) as error:
        raise InputError(f"{path} is no whole TIFF file ({first_line(error, 90)}).") from None
