"""`slices:RUN#K`: the images of a slice of an audit, as a set for every command."""

from pathlib import Path

import pytest

import counterlens as cl
from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.images import write_png
from counterlens.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An audit of 24 real images; of the first twelve four are slice 1 and two slice 2."""
    sample = cl.open_set("sample:cifar10", limit=24)
    for i in range(24):
        pixels, label = sample[i]
        folder = tmp_path / "shots" / sample.classes[label]
        folder.mkdir(parents=True, exist_ok=True)
        write_png(folder / f"{i:02d}.png", pixels)
    images = cl.open_set(str(tmp_path / "shots"))
    run = Run.create(tmp_path / "run", "audit", {"data": str(tmp_path / "shots")})
    run.note(data_fingerprint={images.name: images.fingerprint})
    names = ["1: dark"] * 4 + ["2: small"] * 2 + [""] * 6
    run.write_table(
        "slice_images",
        [{"image": i, "slice": s, "half": "fit", "right": False}
         for i, s in zip(images.ids[:12], names, strict=True)],
    )  # fmt: skip
    return run


def test_a_slice_opens_with_the_ids_labels_and_pixels_of_the_audited_set(run: Run) -> None:
    whole = cl.open_set(run.manifest["settings"]["data"])
    one = cl.open_set(f"slices:{run.folder}#1")
    assert one.name == name_of(f"slices:{run.folder}#1") == "run-slice-1"
    assert list(one.ids) == list(whole.ids[:4]) and one.classes == whole.classes
    assert (one.labels == whole.labels[:4]).all()
    assert all((one.read(i) == whole.read(i)).all() for i in range(4))
    assert list(cl.open_set(f"slices:{run.folder}").ids) == list(whole.ids[:6])


def test_what_cannot_be_opened_is_one_line(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="slice is 3, and the confirmed slices are: 1: dark; 2:"):
        cl.open_set(f"slices:{run.folder}#3")
    with pytest.raises(InputError, match="no run"):
        cl.open_set(f"slices:{tmp_path / 'nowhere'}#1")
    other = Run.create(tmp_path / "other", "audit", {"data": "shots"})
    with pytest.raises(InputError, match=r"the run has no slices.*--slices"):
        cl.open_set(f"slices:{other.folder}#1")


def test_data_that_changed_since_the_audit_is_refused(run: Run) -> None:
    first = next(Path(run.manifest["settings"]["data"]).rglob("*.png"))
    first.write_bytes(first.read_bytes() + b" ")
    with pytest.raises(InputError, match=r"is not the data of .* or has changed since"):
        cl.open_set(f"slices:{run.folder}#1")


def test_a_slice_feeds_a_curation(run: Run, tmp_path: Path) -> None:
    """The pool is the slice alone."""
    mined = cl.curate.adversarial(
        f"slices:{run.folder}#1", filters="zoo:cifar10-plain-small", confidence=1.0, tags=0,
        bits=-1, cosine=0.0, out=tmp_path / "mined", quiet=True,
    )  # fmt: skip
    assert mined.table("funnel")[0]["kept"] == 4
