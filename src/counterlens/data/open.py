"""open_set: one word in, one set of pictures out."""

from importlib import import_module
from pathlib import Path

from counterlens.data.sets import sample_rows, subset
from counterlens.data.sources.folders import open_folder
from counterlens.data.sources.frozen import filters_of, is_frozen, open_frozen
from counterlens.data.sources.packed import open_packs
from counterlens.data.sources.samples import open_sample
from counterlens.data.specs import FORMS, check_set, split
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.progress import within


def open_set(
    spec: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    size: tuple[int, int] = (32, 32),
    channels: int = 3,
) -> ImageSet:
    """Open a set of pictures by its spec; nothing is decoded yet.

    Args:
        spec: one of the forms in the package's docstring, optionally as NAME=SPEC.
        limit: at most so many pictures, drawn without replacement by `seed`; for noise, how many.
        seed: of the draw and of noise.
        size: height and width of pictures made by code (noise, textures): the size that the
            classifier sees without resampling, `images.fitting_size(classifier.preprocess)`.
        channels: 1 makes noise grey, for classifiers of grey pictures.

    >>> import counterlens as cl
    >>> images = cl.open_set("sample:cifar10", limit=20)
    >>> len(images), images[0][0].shape
    (20, (32, 32, 3))
    """
    check_set(spec)
    name, scheme, rest = split(spec)
    if scheme == "noise":
        from counterlens.data.sources.noise import open_noise

        return open_noise(rest, name=name, count=limit, seed=seed, size=size, channels=channels)
    if scheme == "corrupted":
        from counterlens.data.sources.corrupted import open_corrupted

        return open_corrupted(rest, name=name, limit=limit, seed=seed, size=size, channels=channels)
    with within(f"opening {spec}"):
        opened = _open(scheme, rest, name, size, channels)
    return subset(opened, sample_rows(len(opened), limit, seed))


def from_images(spec: str, data: str) -> str:
    """`noise:smooth` made from the images of `data`; any other spec as it is.

    >>> from_images("noise:smooth", "sample:cifar10"), from_images("noise:uniform", "photos/")
    ('smooth=noise:smooth@sample:cifar10', 'noise:uniform')
    """
    name, scheme, rest = split(spec)
    return f"{name}=noise:smooth@{data}" if (scheme, rest) == ("noise", "smooth") else spec


def mined_with(spec: str) -> dict[str, str]:
    """Hash of the weights and spec of each filter, where the set is a frozen one."""
    _, scheme, rest = split(spec)
    path = Path(rest)
    return filters_of(path) if scheme == "path" and path.is_dir() and is_frozen(path) else {}


def _open(scheme: str, rest: str, name: str, size: tuple[int, int], channels: int) -> ImageSet:
    if scheme == "object":  # what stands for it in the manifest of a run
        raise InputError(
            f"{name} was an object ({rest.partition('@')[0]}) in the memory of the program that "
            f"made the run, so it cannot be opened again. Expected {FORMS}."
        )
    if scheme == "pack":
        return open_packs(rest, name=name)
    if scheme == "sample":
        return open_sample(rest, name=name, size=size)
    if scheme == "wds":
        from counterlens.data.sources.shards import open_shards

        return open_shards(rest, name=name)
    if scheme == "stack":
        from counterlens.data.sources.stacks import open_stack

        return open_stack(rest, name=name)
    if scheme == "slices":
        from counterlens.data.sources.slices import open_slices

        return open_slices(rest, name=name, size=size, channels=channels)
    if scheme == "hf":
        from counterlens.data.sources.hub import open_hub

        return open_hub(rest, name=name)
    if scheme == "path":
        return _open_path(Path(rest), name)
    source = import_module(f"counterlens.data.sources.{scheme}")
    opened: ImageSet = getattr(source, f"open_{scheme}")(rest, name=name)
    return opened


def _open_path(path: Path, name: str) -> ImageSet:
    if path.is_dir() and is_frozen(path):
        return open_frozen(path, name=name)
    if path.is_dir():
        return open_folder(path, name=name)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        from counterlens.data.sources.manifests import open_manifest

        return open_manifest(path, name=name)
    raise InputError(f"{path} is a file, expected {FORMS}.")
