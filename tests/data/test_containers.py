"""WebDataset shards, DICOM files and TIFF stacks: real files, pixels by formulas."""

import io
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import counterlens as cl
from counterlens.data import open_set
from counterlens.errors import InputError, MissingExtra
from counterlens.images import png_bytes, prepared
from counterlens.types import Preprocess

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (6, 12, 10, 3), dtype=np.uint8)


def shard(path: Path, rows: list[int], labels: list[str], ending: str) -> None:
    with tarfile.open(path, "w") as file:
        for row, label in zip(rows, labels, strict=True):
            for name, data in ((f"{row:04}.png", png_bytes(PICTURES[row])),
                               (f"{row:04}.{ending}", label.encode())):  # fmt: skip
                info = tarfile.TarInfo(f"part/{name}")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(
    ("ending", "labels", "classes"),
    [
        ("cls", ["0", "1", "0", "1", "1", "0"], ("0", "1")),
        ("txt", ["cat", "dog", "cat", "dog", "dog", "cat"], ("cat", "dog")),
        ("json", [f'{{"label": {k}}}' for k in (0, 1, 0, 1, 1, 0)], ("0", "1")),
    ],
)
def test_shards_are_one_set_read_in_place(tmp_path, ending, labels, classes):
    shard(tmp_path / "s-000.tar", [0, 1, 2], labels[:3], ending)
    shard(tmp_path / "s-001.tar", [3, 4, 5], labels[3:], ending)
    for spec in (f"wds:{tmp_path}", f"wds:{tmp_path}/s-{{000..001}}.tar"):
        images = open_set(spec)
        assert images.classes == classes
        assert images.labels.tolist() == [0, 1, 0, 1, 1, 0]
        assert images.ids[4] == "s-001.tar/part/0004"
        assert all(np.array_equal(images.read(i), PICTURES[i]) for i in range(6))
    again = pickle.loads(pickle.dumps(images.read))  # worker processes
    assert np.array_equal(again(5), PICTURES[5])
    small = Preprocess((8, 8))
    assert prepared(images.read, 2, small).shape == (3, 8, 8)
    assert len(open_set(f"wds:{tmp_path}", limit=4)) == 4


def test_shards_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"nothing of the kind")
    with tarfile.open(tmp_path / "z.tar.gz", "w:gz"):
        pass
    for spec, words in (
        (f"wds:{tmp_path / 'x.tar'}", "no whole uncompressed tar"),
        (f"wds:{tmp_path / 'z.tar.gz'}", "must not be compressed"),
        (f"wds:{tmp_path / 'none.tar'}", "does not exist"),
        (str(tmp_path / "x.tar"), "type wds:"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            open_set(spec)
        assert "\n" not in str(caught.value)


def dicom(path: Path, values: np.ndarray, **facts: object) -> Path:
    """A file that pydicom itself writes."""
    pydicom = pytest.importorskip("pydicom", reason="needs counterlens[formats]")
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    stored = pydicom.Dataset()
    stored.file_meta = meta
    stored.SOPClassUID = meta.MediaStorageSOPClassUID
    stored.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    stored.Rows, stored.Columns = values.shape[-2:]
    stored.SamplesPerPixel, stored.PhotometricInterpretation = 1, "MONOCHROME2"
    stored.BitsAllocated, stored.BitsStored, stored.HighBit = 16, 12, 11
    stored.PixelRepresentation = 0
    if values.ndim == 3:
        stored.NumberOfFrames = len(values)
    stored.PixelData = values.astype("<u2").tobytes()
    for name, value in facts.items():
        setattr(stored, name, value)
    stored.save_as(path, enforce_file_format=True)
    return path


GREY = np.arange(0, 4096, 64, dtype=np.uint16).reshape(8, 8)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, GREY / 4095),
        ({"PhotometricInterpretation": "MONOCHROME1"}, 1 - GREY / 4095),
        (  # the window of DICOM PS3.3 C.11.2.1.2: from centre − ½ − (w − 1)/2 over w − 1
            {"WindowCenter": 1000, "WindowWidth": 500},
            np.clip((GREY - 999.5) / 499 + 0.5, 0, 1),
        ),
        ({"RescaleSlope": 2, "RescaleIntercept": -1000}, GREY / 4095),
    ],
    ids=["whole range", "turned round", "window", "rescaled"],
)
def test_grey_values_of_dicom_are_those_a_viewer_shows(tmp_path, facts, expected):
    (tmp_path / "a").mkdir()
    path = dicom(tmp_path / "a" / "1.dcm", GREY, **facts)
    images = open_set(str(tmp_path))
    assert images.classes == ("a",)
    pixels = images.read(0)
    assert pixels.shape == (8, 8, 3)
    assert np.abs(pixels[..., 0] - 255 * expected).max() <= 0.51
    assert path.suffix == ".dcm"


def test_frames_of_dicom_and_pages_of_tiff_are_a_set(tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="needs counterlens[formats]")
    frames = np.stack([GREY, GREY[::-1]])
    opened = open_set(f"stack:{dicom(tmp_path / 'v.dcm', frames)}")
    assert len(opened) == 2
    assert np.array_equal(opened.read(1), opened.read(0)[::-1])

    pages = RNG.integers(0, 65536, (5, 9, 7), dtype=np.uint16)
    with tifffile.TiffWriter(tmp_path / "t.tif") as file:
        for page in pages:
            file.write(page, contiguous=False)
    (tmp_path / "t.tif.labels.txt").write_text("ill\nwell\n\nwell\nill\n")
    images = open_set(f"stack:{tmp_path / 't.tif'}")
    assert images.classes == ("ill", "well")
    assert images.labels.tolist() == [0, 1, -1, 1, 0]
    for i, page in enumerate(pages):
        assert np.array_equal(images.read(i)[..., 0], (page / 65535 * 255).round())
    assert images.name == "t"
    with pytest.raises(InputError, match=r"2 lines, but t\.tif has 5 pages"):
        (tmp_path / "t.tif.labels.txt").write_text("ill\nwell\n")
        open_set(f"stack:{tmp_path / 't.tif'}")


def test_without_their_extra_one_line_names_it(tmp_path, monkeypatch):
    path = dicom(tmp_path / "1.dcm", GREY)
    Image.new("L", (4, 4)).save(tmp_path / "t.tif")
    for library, spec in (("pydicom", str(path.parent)), ("tifffile", f"stack:{tmp_path}/t.tif")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingExtra, match=r"pip install 'counterlens\[formats\]'") as caught:
            cl.open_set(spec).read(0)
        assert "\n" not in str(caught.value)
        assert library in str(caught.value)


def test_a_damaged_dicom_file_is_named_in_one_line(tmp_path):
    pytest.importorskip("pydicom", reason="needs counterlens[formats]")
    (tmp_path / "1.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\0" * 40)
    with pytest.raises(InputError, match=r"1.dcm cannot be read as DICOM") as caught:
        open_set(str(tmp_path)).read(0)
    assert "\n" not in str(caught.value)
