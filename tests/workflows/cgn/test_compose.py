"""Counterfactual photographs without a generator: files, labels, flags, bad input, resuming.

Oracles: the composition pixel by pixel; photographs whose object and background have one colour
each, so that every pixel of a counterfactual says where it comes from.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import counterlens as cl
from counterlens.errors import InputError, RunExists
from counterlens.images import read, write_png
from counterlens.runs.files import read_lines
from counterlens.workflows.cgn.compose import plan
from counterlens.workflows.cgn.photographs import mask_flags

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = ("disc", "bar", "cross")
OBJECTS = {"disc": (250, 20, 20), "bar": (20, 250, 20), "cross": (20, 20, 250)}
GROUNDS = {"disc": (120, 120, 20), "bar": (20, 120, 120), "cross": (120, 20, 120)}


def shape(name: str) -> np.ndarray:
    y, x = np.mgrid[:64, :64] - 32
    return {
        "disc": x**2 + y**2 < 400,
        "bar": (abs(x) < 10) & (abs(y) < 24),
        "cross": ((abs(x) < 9) | (abs(y) < 9)) & (abs(x) < 25) & (abs(y) < 25),
    }[name]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photographs")
    for name in CLASSES:
        for i in range(3):
            mask = shape(name)
            image = np.where(mask[..., None], OBJECTS[name], GROUNDS[name]).astype(np.uint8)
            write_png(root / "data" / name / f"{name}{i}.png", image)
            grey = np.repeat((mask * 255).astype(np.uint8)[..., None], 3, 2)
            write_png(root / "masks" / f"{name}{i}.png", grey)
    return root


def composed(root: Path, **options: object) -> cl.Result:
    masks = options.pop("mask", str(root / "masks"))
    given = {"count": 12, "size": 64, "quiet": True, "mask": masks, **options}
    return cl.cgn.compose(str(root / "data"), **given)


def test_every_pixel_comes_from_the_factor_that_its_row_names(
    photographs: Path, tmp_path: Path
) -> None:
    result = composed(photographs, out=tmp_path / "run")
    rows = [row for _, row in read_lines(result.folder / "counterfactuals.jsonl")]
    assert len(rows) == 12
    for row in rows:
        image, mask = read(result.folder / row["path"]).astype(int), shape(row["label"])
        for where, colour in (
            (mask, OBJECTS[row["texture"]]), (~mask, GROUNDS[row["background"]]),
        ):  # fmt: skip
            share = (abs(image[where] - colour).max(-1) < 40).mean()
            assert share > 0.8, row  # JPEG blurs the edge
        assert row["shape_id"].startswith(row["label"])
    assert result.numbers["compose.mask.area"].n == 9
    assert {row["label"] for row in rows} == set(CLASSES)


def test_the_manifest_opens_as_a_labelled_set_with_its_factors(
    photographs: Path, tmp_path: Path
) -> None:
    result = composed(photographs, out=tmp_path / "run")
    images = cl.open_set(str(result.folder / "counterfactuals.jsonl"))
    assert images.classes == tuple(sorted(CLASSES)) and len(images) == 12
    assert set(images.extra["texture"]) <= set(CLASSES)
    sheet = result.images("photographs")[0]
    assert sheet.size == (9 * 64 + 8 * 3, 3 * 64 + 2 * 3)
    assert (result.folder / "report.html").stat().st_size > 10_000


def test_a_resumed_run_writes_the_same_images(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterlens.workflows.cgn import compose as module

    monkeypatch.setattr(module, "BATCH", 5)
    whole = composed(photographs, out=tmp_path / "whole")
    real, calls = module.colour_overlap, []

    def killed(*given: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(module, "colour_overlap", killed)
    with pytest.raises(KeyboardInterrupt):
        composed(photographs, out=tmp_path / "torn")
    monkeypatch.setattr(module, "colour_overlap", real)
    with pytest.raises(RunExists):
        composed(photographs, out=tmp_path / "torn")
    resumed = composed(photographs, out=tmp_path / "torn", resume=True)
    for row in (row for _, row in read_lines(whole.folder / "counterfactuals.jsonl")):
        first, second = (one.folder / row["path"] for one in (whole, resumed))
        assert first.read_bytes() == second.read_bytes()


def test_classes_are_drawn_as_mix_says() -> None:
    labels = np.repeat(np.arange(4), 5)
    rows = np.arange(20)
    any_ = plan(labels, rows, 2000, seed=1)
    agree = (labels[any_.shape] == labels[any_.texture]).mean()
    assert 0.2 < agree < 0.3  # one in four by chance
    both = (labels[any_.texture] == labels[any_.background]).mean()
    assert 0.2 < both < 0.3
    other, same = (plan(labels, rows, 200, mix=mix) for mix in ("other", "same"))
    assert (labels[other.shape] != labels[other.background]).all()
    assert (labels[same.shape] == labels[same.texture]).all()
    own = plan(labels, rows, 50, texture="own")
    assert (own.shape == own.texture).all() and (own.shape != own.background).any()


def test_doubtful_masks_are_flagged() -> None:
    assert mask_flags(0.03, 0.2, 1.0) == ["small object", "unsure mask"]
    assert mask_flags(0.92, 0.0, 0.5) == ["fills the image", "texture holds background"]
    assert mask_flags(0.3, 0.0, 1.0) == []


@pytest.mark.parametrize(("value", "why"), [(0, "empty"), (255, "full")])
def test_masks_that_are_all_empty_or_full_are_refused(
    photographs: Path, tmp_path: Path, value: int, why: str
) -> None:
    for file in (photographs / "masks").glob("*.png"):
        write_png(tmp_path / "masks" / file.name, np.full((64, 64, 3), value, np.uint8))
    with pytest.raises(InputError, match=f"none of the 9 photographs.*{why}"):
        composed(photographs, mask=str(tmp_path / "masks"), out=tmp_path / "run")


def test_a_photograph_without_an_object_is_left_out_with_the_reason(
    photographs: Path, tmp_path: Path
) -> None:
    for file in (photographs / "masks").glob("*.png"):
        mask = read(file) * (0 if file.stem == "disc0" else 1)
        write_png(tmp_path / "masks" / file.name, mask)
    result = composed(photographs, mask=str(tmp_path / "masks"), out=tmp_path / "run")
    (row,) = result.table("excluded")
    assert row["id"].endswith("disc0.png") and "empty" in row["reason"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count is 0"),
        ({"texture": "own", "background": "own"}, "nothing would change"),
        ({"background": "inpaint"}, "belong together"),
        ({"inpainter": "nothing.onnx", "background": "inpaint"}, "no inpainter nothing.onnx"),
        ({"mask": "absent.onnx"}, "no segmenter absent.onnx"),
        ({"mask": ()}, "no masks of its own"),
        ({"mask": ("a", "b")}, "expected one source"),
        ({"background": "blur"}, "expected one of swap"),
    ],
)
def test_bad_options_get_one_line(
    photographs: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        composed(photographs, out=tmp_path / "run", **options)
    assert not (tmp_path / "run" / "data").exists()


def test_one_class_alone_is_refused_unless_the_classes_may_agree(
    photographs: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "disc").symlink_to(photographs / "data" / "disc")
    given = {"mask": str(photographs / "masks"), "count": 2, "size": 64, "quiet": True}
    with pytest.raises(InputError, match="of one class"):
        cl.cgn.compose(str(tmp_path / "data"), out=tmp_path / "one", **given)
    result = cl.cgn.compose(str(tmp_path / "data"), out=tmp_path / "same", mix="same", **given)
    assert result.done
