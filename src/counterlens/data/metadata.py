"""Take the metadata out of an encoded picture: EXIF, GPS, XMP, IPTC, comments, hidden previews.

JPEG, PNG, WebP and GIF are cut without touching the compressed pixels. What decides how
pixels look stays: colour profile, gamma, transparency, animation, and the orientation, as only tag
of a new EXIF block where it is not the usual one. Other formats (TIFF, JPEG 2000, AVIF, PPM, BMP)
and files that do not follow their format are written as PNG of the same 8-bit pixels.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from counterlens.errors import InputError
from counterlens.images import decode, orientation, png_bytes

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNKS = frozenset(
    b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB iCCP cICP sBIT bKGD acTL fcTL fdAT".split()
)
_WEBP_CHUNKS = frozenset((b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP", b"ANIM", b"ANMF"))
_EXIF_FLAG, _XMP_FLAG = 0x08, 0x04
_GIF_ANIMATION = (b"NETSCAPE2.0", b"ANIMEXTS1.0")


def without_metadata(data: bytes) -> bytes:
    """The same picture without metadata; its decoded pixels are checked to be the same."""
    pixels = decode(data)
    try:
        cut = _cut(data, orientation(data))
        if np.array_equal(decode(cut), pixels):
            return cut
    except (InputError, ValueError, IndexError, struct.error):
        pass  # not as its format wants it, though Pillow reads it
    return png_bytes(pixels)


def suffix_of(data: bytes) -> str:
    """The usual ending for an encoded picture, recognised by its first bytes; empty where unknown.

    >>> suffix_of(png_bytes(np.zeros((1, 1, 3), np.uint8)))
    '.png'
    """
    known = (
        (b"\xff\xd8\xff", ".jpg"),
        (b"\x89PNG", ".png"),
        (b"GIF8", ".gif"),
        (b"BM", ".bmp"),
        (b"II*\0", ".tif"),
        (b"MM\0*", ".tif"),
    )
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    return next((ending for start, ending in known if data.startswith(start)), "")


def _cut(data: bytes, turned: int) -> bytes:
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data, turned)
    if data.startswith(_PNG):
        return _png(data, turned)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data, turned)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return _gif(data)
    raise ValueError("a format that is not cut")


def _orientation_block(turned: int) -> bytes:
    """An EXIF block, big-endian TIFF, whose only tag is the orientation."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, turned, 0, 0)


def _jpeg(data: bytes, turned: int) -> bytes:
    """All segments but metadata; what follows the end of the picture goes too."""
    out = [b"\xff\xd8"]
    if turned != 1:
        block = b"Exif\0\0" + _orientation_block(turned)
        out.append(b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block)
    for marker, segment in _jpeg_segments(data):
        if not _jpeg_metadata(marker, segment):
            out.append(segment)
    return b"".join(out)


def _jpeg_metadata(marker: int, segment: bytes) -> bool:
    """Application segments and comments, but for JFIF, colour profile and Adobe's colour code."""
    body = segment[4:]
    if marker == 0xE0:
        return not body.startswith(b"JFIF\0")
    if marker == 0xE2:
        return not body.startswith(b"ICC_PROFILE\0")
    if marker == 0xEE:
        return not body.startswith(b"Adobe")
    return 0xE1 <= marker <= 0xEF or marker == 0xFE


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and bytes of each segment after the first; a scan goes with its header."""
    at = 2
    while True:
        while data[at + 1] == 0xFF:  # fill bytes before a marker
            at += 1
        if data[at] != 0xFF:
            raise ValueError("no marker where one must be")
        marker = data[at + 1]
        if marker == 0xD9:
            yield marker, data[at : at + 2]
            return
        end = at + 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
        if marker == 0xDA:
            end = _scan_end(data, end)
        yield marker, data[at:end]
        at = end


def _scan_end(data: bytes, at: int) -> int:
    """Where the compressed pixels end: at a marker that is no restart and no stuffed byte."""
    while True:
        at = data.index(b"\xff", at)
        following = data[at + 1]
        if following == 0xFF:
            at += 1
        elif following == 0 or 0xD0 <= following <= 0xD7:
            at += 2
        else:
            return at


def _png(data: bytes, turned: int) -> bytes:
    out, at = [_PNG], len(_PNG)
    while True:
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind in _PNG_CHUNKS:
            out.append(data[at : at + 12 + length])
        if kind == b"IHDR" and turned != 1:
            block = b"eXIf" + _orientation_block(turned)
            out.append(struct.pack(">I", len(block) - 4) + block)
            out.append(struct.pack(">I", zlib.crc32(block)))
        if kind == b"IEND":
            return b"".join(out)
        at += 12 + length


def _webp(data: bytes, turned: int) -> bytes:
    chunks, at = [], 12
    end = 8 + struct.unpack("<I", data[4:8])[0]
    while at + 8 <= end:
        kind, length = struct.unpack("<4sI", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
        if kind == b"VP8X":
            flags = body[0] & ~(_EXIF_FLAG | _XMP_FLAG) | (_EXIF_FLAG if turned != 1 else 0)
            body = bytes([flags]) + body[1:]
        if kind in _WEBP_CHUNKS:
            chunks.append((kind, body))
    if turned != 1:
        chunks.append((b"EXIF", _orientation_block(turned)))
    packed = b"".join(
        kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)
        for kind, body in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(packed)) + b"WEBP" + packed


def _gif(data: bytes) -> bytes:
    """All blocks but comments and applications other than the one for repeated play."""
    at = 13 + _colours(data[10])
    out = [data[:at]]
    while data[at] != 0x3B:
        start = at
        if data[at] == 0x2C:
            at = _blocks_end(data, at + 11 + _colours(data[at + 9]))
            out.append(data[start:at])
        elif data[at] == 0x21:
            at = _blocks_end(data, at + 2)
            kind, name = data[start + 1], data[start + 3 : start + 14]
            if kind == 0xF9 or (kind == 0xFF and name in _GIF_ANIMATION):
                out.append(data[start:at])
        else:
            raise ValueError("no block where one must be")
    return b"".join([*out, b";"])


def _colours(packed: int) -> int:
    """Bytes of the colour table that a packed field announces."""
    return 3 * 2 ** (1 + (packed & 7)) if packed & 0x80 else 0


def _blocks_end(data: bytes, at: int) -> int:
    while data[at]:
        at += 1 + data[at]
    return at + 1
