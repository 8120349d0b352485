"""Public data sets that come as arrays: CIFAR, SVHN, MNIST and their relatives."""

import functools
import gzip
import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.data.layout import Missing, below
from counterlens.data.sets import array_set
from counterlens.data.sources.packed import load_npz
from counterlens.errors import InputError
from counterlens.images import ImageSet, Pixels
from counterlens.label_spaces import CIFAR10, CIFAR100

DIGITS = tuple("0123456789")
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
HARMLESS = {  # all that the pickles of CIFAR call
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


class PlainUnpickler(pickle.Unpickler):
    """Loads dictionaries, lists and arrays; refuses anything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Only what arrays are made of."""
        if (module, name) in HARMLESS:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it calls {module}.{name}")


def cifar10(root: Path, part: str) -> ImageSet:
    """The python version of CIFAR-10."""
    folder = below(root, "cifar-10-batches-py", ".")
    names = ["test_batch"] if part == "test" else [f"data_batch_{i}" for i in range(1, 6)]
    return _cifar(f"cifar10-{part}", folder, names, "labels", CIFAR10)


def cifar100(root: Path, part: str) -> ImageSet:
    """The python version of CIFAR-100, with its hundred fine labels."""
    folder = below(root, "cifar-100-python", ".")
    return _cifar(f"cifar100-{part}", folder, [part], "fine_labels", CIFAR100)


def _cifar(
    name: str, folder: Path, names: list[str], key: str, classes: tuple[str, ...]
) -> ImageSet:
    batches = [_unpickled(below(folder, name)) for name in names]
    try:
        pixels = np.concatenate([batch["data"] for batch in batches])
        labels = np.concatenate([batch[key] for batch in batches])
        pixels = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    except (KeyError, ValueError, TypeError):
        raise InputError(
            f"{folder / names[0]} is no CIFAR batch, expected data and {key}."
        ) from None
    return array_set(name, np.ascontiguousarray(pixels), labels, classes, where=str(folder))


def _unpickled(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = PlainUnpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise almost anything
        raise InputError(f"{path} cannot be loaded safely: {error}.") from None
    return raw if isinstance(raw, dict) else {}


def svhn(root: Path, part: str) -> ImageSet:
    """SVHN format 2, cropped digits."""
    from scipy.io import loadmat

    path = below(root, f"{part}_32x32.mat")
    try:
        raw = loadmat(path)
        pixels, labels = raw["X"].transpose(3, 0, 1, 2), raw["y"].reshape(-1)
    except Exception as error:  # scipy's reader raises almost anything on a damaged file
        raise InputError(f"{path} is not a whole SVHN file ({error}).") from None
    digits = labels % 10  # the file writes zero as 10
    return array_set("svhn", np.ascontiguousarray(pixels), digits, DIGITS, where=str(path))


def mnist(root: Path, part: str) -> ImageSet:
    """MNIST: idx files, gzipped or not, or Keras' mnist.npz."""
    return _idx(root, "MNIST", part, DIGITS)


def fashion_mnist(root: Path, part: str) -> ImageSet:
    """Fashion-MNIST: idx files, gzipped or not."""
    return _idx(root, "FashionMNIST", part, FASHION)


def _idx(root: Path, folder: str, part: str, classes: tuple[str, ...]) -> ImageSet:
    archive = root if root.suffix == ".npz" else root / f"{folder.lower()}.npz"
    if archive.is_file():
        arrays = load_npz(archive)
        if f"x_{part}" not in arrays or f"y_{part}" not in arrays:
            raise InputError(f"{archive} has no x_{part} and y_{part}.")
        pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    else:
        place = below(root, f"{folder}/raw", "raw", ".")
        stem = "t10k" if part == "test" else "train"
        pixels = _read_idx(place, f"{stem}-images-idx3-ubyte", 3)
        labels = _read_idx(place, f"{stem}-labels-idx1-ubyte", 1)
    return array_set(folder.lower(), pixels, labels, classes, where=str(root))


def _read_idx(folder: Path, name: str, axes: int) -> np.ndarray:
    path = below(folder, name, f"{name}.gz")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a whole gzip file ({error}).") from None
    shape = np.frombuffer(data, ">i4", axes, 4).tolist() if len(data) >= 4 + 4 * axes else [0]
    start = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) != start + np.prod(shape):
        raise InputError(f"{path} is not a whole idx file of {axes} axes.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def cifar10_1(root: Path, part: str) -> ImageSet:
    """CIFAR-10.1: new test images for CIFAR-10; v6 has 2,000, v4 2,021."""
    place = below(root, "datasets", ".")
    pixels = _read_npy(below(place, f"cifar10.1_{part}_data.npy"))
    labels = _read_npy(below(place, f"cifar10.1_{part}_labels.npy"))
    return array_set("cifar10.1", pixels, labels, CIFAR10, where=str(root))


def cifar10_c(root: Path, part: str) -> ImageSet:
    """CIFAR-10-C: `fog/3` is one corruption at one severity, `fog` all five."""
    return _corrupted(below(root, "CIFAR-10-C", "."), part, CIFAR10)


def cifar100_c(root: Path, part: str) -> ImageSet:
    """CIFAR-100-C, laid out as CIFAR-10-C."""
    return _corrupted(below(root, "CIFAR-100-C", "."), part, CIFAR100)


def _corrupted(folder: Path, part: str, classes: tuple[str, ...]) -> ImageSet:
    corruption, _, severity = part.partition("/")
    corruptions = sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")
    if not corruptions:
        raise Missing(folder / "fog.npy")
    if corruption not in corruptions or severity not in ("", "1", "2", "3", "4", "5"):
        raise InputError(
            f"{folder} has no corruption {part or '(none named)'}, expected CORRUPTION or "
            f"CORRUPTION/1 … CORRUPTION/5 of {', '.join(corruptions)}."
        )
    path = folder / f"{corruption}.npy"
    pixels = _read_npy(path, mapped=True)
    labels = _read_npy(below(folder, "labels.npy"))
    each = len(pixels) // 5
    strength = np.repeat(np.arange(1, 6), each)
    opened = array_set("corrupted", pixels, labels, classes, where=str(path))
    first = each * (int(severity) - 1) if severity else 0
    rows = slice(first, first + each) if severity else slice(0, len(pixels))
    return replace(
        opened,
        ids=[f"{corruption}-{strength[i]}/{i % each}" for i in range(rows.start, rows.stop)],
        labels=opened.labels[rows],
        read=ReadNpy(path, first),
        extra={"severity": strength[rows]},
        fingerprint=f"{opened.fingerprint}-{severity or 'all'}",
    )


@dataclass(frozen=True)
class ReadNpy:
    """Picture i of a mapped .npy file, counted from `first`; pickles as the path."""

    path: Path
    first: int

    def __call__(self, i: int) -> Pixels:
        return np.array(_mapped(self.path)[self.first + i])


@functools.lru_cache(maxsize=32)
def _mapped(path: Path) -> np.ndarray:
    return _read_npy(path, mapped=True)


def _read_npy(path: Path, *, mapped: bool = False) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a whole .npy file ({error}).") from None
    return array
