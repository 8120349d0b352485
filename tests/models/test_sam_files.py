"""Segment Anything 2 as exported files: what goes in and comes out, on a network drawn by hand.

The stand-in gives back the normalised channels as its three masks and the first point, in pixels of
its own side, as their predicted overlap. The real files are 150 MB and were tried by hand.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens.data.sets import array_set
from counterlens.errors import InputError
from counterlens.models.sam_files import ExportedSam, exported
from counterlens.models.segmenter import centre, load_segmenter
from counterlens.workflows._shared.masks import masks_by

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SIDE = 16
HERE = torch.device("cpu")


def save(file: Path, nodes: list[object], given: dict[str, list[int]], out: list[str]) -> None:
    kind = onnx.TensorProto.FLOAT
    info = onnx.helper.make_tensor_value_info
    constants = [
        onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)
        for name, values in (("zero", [0]), ("one", [1]), ("two", [2]))
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", [info(name, kind, shape) for name, shape in given.items()],
        [info(name, kind, None) for name in out], constants,
    )  # fmt: skip
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, node = tmp_path_factory.mktemp("sam"), onnx.helper.make_node
    image = {"image": [1, 3, SIDE, SIDE]}
    save(
        made / "tiny_encoder.onnx",
        [node("Identity", ["image"], ["image_embed"])], image, ["image_embed"],
    )  # fmt: skip
    given = {
        "image_embed": [1, 3, SIDE, SIDE], "point_coords": [1, 5, 2], "point_labels": [1, 5],
        "mask_input": [1, 1, 4, 4], "has_mask_input": [1],
    }  # fmt: skip
    nodes = [
        node("Identity", ["image_embed"], ["masks"]),
        node("Slice", ["point_coords", "zero", "one", "one"], ["first"]),
        node("Squeeze", ["first", "one"], ["pair"]),
        node("Slice", ["pair", "zero", "one", "one"], ["column"]),
        node("Sub", ["column", "column"], ["nothing"]),
        node("Concat", ["pair", "nothing"], ["iou_predictions"], axis=1),
    ]
    save(made / "tiny_decoder.onnx", nodes, given, ["masks", "iou_predictions"])
    return made


def test_the_mask_of_the_highest_overlap_at_scaled_points(folder: Path) -> None:
    network = load_segmenter(str(folder), device=HERE)
    assert isinstance(network, ExportedSam) and network.side == SIDE
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    points = torch.tensor([[[1, 6]] * 5, [[6, 1]] * 5])  # the row is the larger, then the column
    masks = network(x, points)
    size = (SIDE, SIDE)
    large = torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True)
    for k, (channel, mean) in enumerate(((1, 0.456), (0, 0.485))):
        logits = (large[k, channel] - mean) / 0.2
        small = torch.nn.functional.interpolate(logits[None, None], (8, 8), mode="bilinear")
        assert torch.equal(masks[k, 0], (small[0, 0] > 0).float())


def test_masks_of_a_set_come_from_the_middle(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    images = array_set("some", pixels, [0, 0, 0], ("a",))
    read = masks_by(f"sam:{folder}", "", images)
    x = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).float() / 255
    points = centre(x)
    assert points.shape == (3, 5, 2) and points[0, 0].tolist() == [15, 10]
    assert sorted(points[0].tolist()) == [[12, 10], [15, 8], [15, 10], [15, 12], [18, 10]]
    expected = load_segmenter(str(folder), device=HERE)(x, points)
    assert all((read(i) == expected[i, 0].bool().numpy()).all() for i in range(3))


def test_files_that_are_no_segmenter_are_refused(folder: Path, tmp_path: Path) -> None:
    assert exported(tmp_path) is None
    for name in ("an_encoder.onnx", "a_decoder.onnx"):
        (tmp_path / name).write_bytes((folder / "tiny_encoder.onnx").read_bytes())
    with pytest.raises(InputError, match="holds no Segment Anything 2: it lacks has_mask_input"):
        load_segmenter(str(tmp_path), device=HERE)
    (tmp_path / "a_decoder.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be opened as a segmenter"):
        load_segmenter(str(tmp_path), device=HERE)
