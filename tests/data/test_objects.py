"""Sets of images from objects: each kind gives the pixels, labels and names it was made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data as torch_data
from torchvision import datasets, transforms

from counterlens import InputError, as_image_set, open_set
from counterlens.images import ImageSet

N = 12
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 6, 5, 3), dtype=np.uint8)
LABELS = [i % 3 for i in range(N)]
NAMES = ["ant", "bee", "cow"]


def planes(pixels: np.ndarray = PIXELS) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def check(result: ImageSet, labels: list[int] | None = None) -> None:
    assert [result.read(i).tolist() for i in range(len(result))] == PIXELS.tolist()
    assert result.labels.tolist() == (LABELS if labels is None else labels)
    assert len(set(result.ids)) == N


class Items(torch_data.Dataset[Any]):
    """A data set that tells nothing but its items."""

    def __init__(self, images: Any = PIXELS, labels: Any = LABELS) -> None:
        self.images, self.marks, self.reads = images, labels, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        self.reads += 1
        return self.images[i], self.marks[i]


class Stored(Items):
    """One that keeps its labels beside, as torchvision's do."""

    classes = NAMES

    def __init__(self) -> None:
        super().__init__()
        self.targets = LABELS


@pytest.mark.parametrize(
    "source",
    [
        (PIXELS, LABELS),
        (PIXELS, np.array(LABELS)),
        (planes(), torch.tensor(LABELS)),
        (planes().float() / 255, LABELS),
        (planes().to(torch.float64).numpy() / 255, LABELS),
        Items(),
        Items([Image.fromarray(one) for one in PIXELS]),
        Items(planes(), torch.tensor(LABELS)),
        list(zip(PIXELS, LABELS, strict=True)),
        ([Image.fromarray(one) for one in PIXELS], LABELS),
        torch_data.TensorDataset(planes().float() / 255, torch.tensor(LABELS)),
        torch_data.DataLoader(Items(planes()), batch_size=5, shuffle=True),
        torch_data.ConcatDataset(
            [torch_data.Subset(Items(), range(7)), torch_data.Subset(Items(), range(7, N))]
        ),
        [{"image": one, "label": k} for one, k in zip(PIXELS, LABELS, strict=True)],
    ],
    ids=lambda source: type(source).__name__,
)
def test_every_kind_of_object_gives_its_own_pixels_and_labels(source: object) -> None:
    """Oracle: the arrays the objects were made of."""
    check(as_image_set(source))
    assert as_image_set(source).classes == ("0", "1", "2")
    assert as_image_set(source, classes=NAMES).classes == tuple(NAMES)


@pytest.mark.parametrize("source", [PIXELS, planes(), [*PIXELS], [*planes()]])
def test_images_alone_have_no_labels(source: object) -> None:
    check(as_image_set(source), [-1] * N)
    assert as_image_set(source).classes == ()


def test_grey_wide_and_transparent_images_are_scaled() -> None:
    """Oracle: the rule of each kind, written out."""
    grey = np.arange(0, 240, 20, dtype=np.uint8).reshape(3, 4)
    wide = grey.astype(np.uint16) * 257 + 100
    clear = np.dstack([PIXELS[0], np.zeros((6, 5), np.uint8)])
    expected = np.repeat(grey[..., None], 3, axis=2).tolist()
    for one in (grey, wide, Image.fromarray(grey), torch.from_numpy(grey)[None], grey / 255):
        assert as_image_set([one]).read(0).tolist() == expected
    assert as_image_set(clear).read(0).min() == 255
    batch = np.stack([grey] * 5)
    assert as_image_set((batch, [0] * 5)).read(4).tolist() == expected
    assert as_image_set(Image.fromarray(wide)).read(0).tolist() == expected


def test_a_folder_data_set_keeps_names_and_paths_and_equals_the_folder(tmp_path: Path) -> None:
    """Oracle: `open_set` of the same folder."""
    for name in NAMES:
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(PIXELS[i]).save(tmp_path / "pets" / name / f"{i}.png")
    folder = open_set(str(tmp_path / "pets"))
    for transform in (None, transforms.ToTensor(), transforms.PILToTensor()):
        dataset = datasets.ImageFolder(str(tmp_path / "pets"), transform=transform)
        result = as_image_set(dataset)
        assert (result.name, result.classes) == (folder.name, folder.classes)
        assert list(result.ids) == list(folder.ids)
        assert result.labels.tolist() == folder.labels.tolist()
        assert all((result.read(i) == folder.read(i)).all() for i in range(len(result)))
    some = as_image_set(torch_data.Subset(dataset, [5, 1]))
    assert list(some.ids) == [folder.ids[5], folder.ids[1]]
    assert some.classes == tuple(NAMES)
    assert as_image_set(tmp_path / "pets").fingerprint == folder.fingerprint
    files = sorted((tmp_path / "pets").rglob("*.png"))
    assert len(as_image_set(files)) == 12
    assert as_image_set(str(files[0])).read(0).tolist() == PIXELS[0].tolist()


def test_stored_labels_save_reading_the_images() -> None:
    source = Stored()
    result = as_image_set(torch_data.Subset(source, range(N)))
    assert result.classes == tuple(NAMES)
    many = Stored()
    many.images = np.concatenate([PIXELS] * 50)
    many.marks = many.targets = LABELS * 50
    assert as_image_set(many).labels.tolist() == LABELS * 50
    assert many.reads < 100


def test_stored_labels_that_are_not_those_given_out_are_not_used() -> None:
    """A target_transform changes what an item says, not what `.targets` holds."""
    source = Stored()
    source.marks = [2 - k for k in LABELS]
    assert as_image_set(source).labels.tolist() == [2 - k for k in LABELS]


def test_a_limit_draws_the_same_rows_of_every_kind() -> None:
    kinds = [(PIXELS, LABELS), Items(), Stored(), as_image_set((PIXELS, LABELS))]
    drawn = [as_image_set(one, limit=5, seed=3) for one in kinds]
    assert len({str(one.labels.tolist()) for one in drawn}) == 1
    assert len({one.read(4).tobytes() for one in drawn}) == 1
    assert (
        as_image_set("sample:cifar10", limit=5, seed=3).ids
        == open_set("sample:cifar10", limit=5, seed=3).ids
    )


def test_what_can_be_read_once_is_read_into_memory() -> None:
    class Stream(torch_data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(zip(planes(), LABELS, strict=True))

    check(as_image_set(Stream()))
    check(as_image_set(torch_data.DataLoader(Stream(), batch_size=5)))
    check(as_image_set(zip(PIXELS, LABELS, strict=True)))
    some = as_image_set(Stream(), limit=4)
    assert len(some) == 4
    assert some.notes == ("the first 4 images; there are more",)


def test_a_loader_of_a_part_reads_that_part() -> None:
    sampler = torch_data.SubsetRandomSampler([7, 2])
    result = as_image_set(torch_data.DataLoader(Items(), sampler=sampler))
    assert [one.tolist() for one in map(result.read, (0, 1))] == PIXELS[[2, 7]].tolist()
    drawn = torch_data.WeightedRandomSampler([1.0] * N, 5)
    with pytest.raises(InputError, match=r"WeightedRandomSampler.*Give the data set itself"):
        as_image_set(torch_data.DataLoader(Items(), sampler=drawn))


def test_fingerprints_tell_contents_labels_and_names_apart() -> None:
    other = PIXELS.copy()
    other[0, 0, 0, 0] ^= 1
    for kind in (lambda x, y: (x, y), Items):
        first = as_image_set(kind(PIXELS, LABELS)).fingerprint
        assert first == as_image_set(kind(PIXELS.copy(), list(LABELS))).fingerprint
        assert first != as_image_set(kind(other, LABELS)).fingerprint
        assert first != as_image_set(kind(PIXELS, LABELS[::-1])).fingerprint


def test_labels_may_be_names() -> None:
    result = as_image_set((PIXELS, [NAMES[k] for k in LABELS]))
    assert result.classes == tuple(NAMES)
    assert result.labels.tolist() == LABELS
    one = as_image_set((Image.fromarray(PIXELS[0]), "bee"), classes=NAMES)
    assert one.labels.tolist() == [1]


class ClassLabel:
    """The feature of a Hugging Face dataset, known by the name of its type."""

    names = NAMES


class Images:
    """Its feature of images; the type is called Image."""


Images.__name__ = "Image"


class Table:
    """Stands in for `datasets.Dataset`, which is not installed here: the same few members."""

    features = {"pic": Images(), "kind": ClassLabel()}  # noqa: RUF012
    column_names = ("pic", "kind")
    shape = (N, 2)  # rows × columns, as the library has it

    def __len__(self) -> int:
        return N

    def __getitem__(self, key: int | str) -> Any:
        if key == "kind":
            return LABELS
        assert isinstance(key, int)
        return {"pic": Image.fromarray(PIXELS[key]), "kind": LABELS[key]}


def test_a_hugging_face_dataset_is_read_by_its_features() -> None:
    result = as_image_set(Table(), name="pets")
    check(result)
    assert (result.name, result.classes) == ("pets", tuple(NAMES))
    with pytest.raises(InputError, match=r"keys train, test.*data\['train'\]"):
        as_image_set({"train": Table(), "test": Table()})


class Fading(Items):
    """Random augmentation: no two readings are the same."""

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        self.reads += 1
        return (PIXELS[i] // 2 + self.reads % 100).astype(np.uint8), LABELS[i]


NORMALISED = transforms.Normalize((0.5,) * 3, (0.25,) * 3)(planes().float() / 255)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (42, "data is int, expected a spec.*torch Dataset or DataLoader"),
        (
            (NORMALISED, LABELS),
            r"spans \[-2, 2\], expected float in \[0, 1\].*belongs to the model",
        ),
        (Items(NORMALISED), r"image 0 of items spans.*belongs to the model"),
        ((PIXELS.astype(np.float32), LABELS), "Divide by 255"),
        ((PIXELS.astype(np.int64), LABELS), r"int64 pixels from 0 to 255.*astype\('uint8'\)"),
        ((PIXELS, LABELS[:5]), "12 pictures but 5 labels|12 images but 5 labels"),
        ((PIXELS, np.eye(3)[LABELS]), "of one-hot labels give"),
        (Items(PIXELS, np.eye(3)[LABELS]), "one-hot labels give"),
        (Items(PIXELS, [0.5] * N), "expected one class number or name"),
        (np.zeros((4, 7, 7, 7), np.uint8), r"shape \(7, 7, 7\), expected 1, 3 or 4 channels"),
        (Fading(), "differs from one reading to the next.*evaluation transform"),
        ([], "holds no images"),
        ([object()], "image 0 of images is object, expected a Pillow image"),
        (Items(PIXELS[:3]), None),
    ],
    ids=range(14),
)
def test_what_does_not_fit_is_one_clear_line(source: object, says: str | None) -> None:
    if says is None:  # labels beyond the class names
        with pytest.raises(InputError, match=r"labels 0 … 2, expected 0 … 1"):
            as_image_set(source, classes=["a", "b"])
        return
    with pytest.raises(InputError, match=says) as error:
        as_image_set(source)
    assert "\n" not in str(error.value)


def test_an_item_that_fails_is_named() -> None:
    class Broken(Items):
        def __getitem__(self, i: int) -> tuple[Any, Any]:
            raise KeyError("no such file")

    with pytest.raises(InputError, match=r"broken: reading image 0 failed.*KeyError"):
        as_image_set(Broken())


def test_a_set_can_be_indexed_as_a_torch_data_set() -> None:
    result = as_image_set((PIXELS, LABELS))
    pixels, label = result[-1]
    assert (pixels.tolist(), label) == (PIXELS[-1].tolist(), LABELS[-1])
    assert len(list(result)) == N  # type: ignore[call-overload]
    with pytest.raises(IndexError, match="has no image 12"):
        result[12]
