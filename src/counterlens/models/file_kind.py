"""What a file of a model holds, read without torch and without running anything in it."""

import io
import pickletools
import zipfile
from pathlib import Path

_MOST = 64 * 2**20
_PICKLES = 4
"""Older files begin with three small pickles: a number, a version, facts about the machine."""
_CONTAINERS = ("collections", "torch._utils", "torch", "numpy", "_codecs", "__builtin__")
"""Where the classes of a plain file of tensors are from."""


def file_kind(path: Path) -> str:
    """ "ONNX", "TorchScript", "torch.export", "module" (a whole pickled network), or "weights"."""
    if path.suffix.lower() == ".onnx":
        return "ONNX"
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return _pickled(file.read(_MOST))
        with zipfile.ZipFile(path) as stored:
            names = {name.rpartition("/")[2]: name for name in stored.namelist()}
            if "archive_format" in names or "serialized_exported_program.json" in names:
                return "torch.export"
            if "constants.pkl" in names:
                return "TorchScript"
            if "data.pkl" not in names:
                return "weights"
            with stored.open(names["data.pkl"]) as file:
                return _pickled(file.read(_MOST))
    except (OSError, zipfile.BadZipFile):
        return "weights"


def _pickled(data: bytes) -> str:
    """Whether a pickle names classes other than tensors and containers; it is not run."""
    stream, texts = io.BytesIO(data), [""]
    try:
        for _ in range(_PICKLES):
            for code, value, _ in pickletools.genops(stream):
                if isinstance(value, str):
                    texts.append(value)
                if code.name == "GLOBAL" and _foreign(str(value).split(" ")[0]):
                    return "module"
                if code.name == "STACK_GLOBAL" and _foreign(texts[-2]):
                    return "module"
    except (ValueError, UnicodeDecodeError):  # no pickle, or cut short: reading it says so
        pass
    return "weights"


def _foreign(module: str) -> bool:
    return module not in _CONTAINERS and not module.startswith(("numpy.", "torch.serialization"))
