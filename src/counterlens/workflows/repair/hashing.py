"""What an image is known by."""

import hashlib

import numpy as np
from jaxtyping import UInt8


def content_hash(pixels: UInt8[np.ndarray, "_ _ _"]) -> str:
    """SHA-256 of pixels and their shape."""
    plain = np.ascontiguousarray(pixels)
    return hashlib.sha256(f"{plain.shape}".encode() + plain.tobytes()).hexdigest()
