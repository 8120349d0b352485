"""The audit of a multi-label model, from a table with several labels per image to the report.

The network is written by hand: label k is the mean of colour channel k less one half, so the truth
of every image is known in closed form.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import counterlens as cl
from counterlens.data import open_set
from counterlens.data.targets import targets_of
from counterlens.errors import InputError
from counterlens.workflows.compare.run import compare

LABELS = ("red", "green", "blue")


class Channels(nn.Module):
    """Logit k is the mean of channel k, from −4 to 4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 8 * (x.mean((2, 3)) - 0.5)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures of one colour; a tenth of the labels is turned round."""
    root, rng = tmp_path_factory.mktemp("several"), np.random.default_rng(0)
    lines = ["path,labels"]
    for i in range(40):
        shown = rng.random(3) < 0.5
        pixels = np.where(shown, 220, 30) + rng.integers(-20, 20, (16, 16, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{i}.png")
        given = shown ^ (rng.random(3) < 0.1)
        lines.append(f"{i}.png,{'|'.join(n for n, one in zip(LABELS, given, strict=True) if one)}")
    (root / "several.csv").write_text("\n".join(lines))
    return root / "several.csv"


def model(**facts: object) -> cl.Classifier:
    return cl.Classifier(Channels(), LABELS, size=16, name="channels", multilabel=True, **facts)


def test_a_table_of_several_labels_opens_as_a_matrix(table: Path) -> None:
    images = open_set(str(table))
    assert images.classes == ("blue", "green", "red")
    rows = [line.partition(",")[2] for line in table.read_text().splitlines()[1:]]
    expected = [[name in row.split("|") for name in images.classes] for row in rows]
    assert np.array_equal(targets_of(images), expected)
    assert (images.labels == -1).all()
    part = open_set(str(table), limit=10)
    assert targets_of(part).shape == (10, 3)
    lines = [{"path": str(table.parent / "0.png"), "labels": ["red", "blue"]}]
    (table.parent / "l.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert targets_of(open_set(str(table.parent / "l.jsonl"))).tolist() == [[1, 1]]


def test_the_audit_measures_each_label(table: Path, tmp_path: Path) -> None:
    result = cl.audit(
        model(), str(table), out=tmp_path / "run", quiet=True, device="cpu",
        require=["label.red.auroc>=0.5", "multilabel.accuracy>=0.999"],
    )  # fmt: skip
    images = open_set(str(table))
    truth = targets_of(images)[:, images.classes.index("red")] == 1
    p = np.array([images.read(i)[..., 0].mean() / 255 for i in range(len(images))])
    number = result.numbers["label.red.accuracy"]
    assert number.value == pytest.approx(((p > 0.5) == truth).mean())
    assert number.n == 40
    assert [row["passed"] for row in result.table("gates")] == [True, False]
    page = result.report.read_text()
    assert "Label by label" in page
    assert "accuracy.top1" not in page
    findings = {row["check"]: row for row in result.table("doctor")}
    assert findings["accuracy"]["status"] == "skipped"
    assert "of one label at a time" in findings["uses"]["found"]
    assert not [row for row in findings.values() if row["status"] == "fail"]


def test_two_audits_are_compared_label_by_label(table: Path, tmp_path: Path) -> None:
    runs = []
    for k, scale in enumerate((1.0, 0.5)):
        net = nn.Sequential(Channels(), Scaled(scale))
        both = cl.Classifier(net, LABELS, size=16, name=f"m{k}", multilabel=True)
        runs.append(cl.audit(both, str(table), out=tmp_path / str(k), quiet=True, device="cpu"))
    both = compare(*runs, out=tmp_path / "both", quiet=True)
    assert {row["key"] for row in both.table("summary")} >= {"multilabel.auroc", "multilabel.ece"}


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_one_label_is_a_model_of_two_classes_for_everything_else(
    table: Path, tmp_path: Path
) -> None:
    one, images = cl.one_label(model(), "green"), cl.one_label(open_set(str(table)), "green")
    assert one.classes == images.classes == ("not green", "green")
    x = torch.rand(5, 3, 16, 16)
    assert torch.allclose(one(x).diff(dim=1)[:, 0], model()(x)[:, 1], atol=1e-6)
    result = cl.audit(
        one, images, attack="linf:0.02", attack_version="fast", attack_points=8,
        out=tmp_path / "one", quiet=True, device="cpu",
    )  # fmt: skip
    assert result.numbers["accuracy.top1"].value > 0.7
    assert result.numbers["robust.linf-0.02.accuracy"].n == 8


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda t: cl.audit(model(), t, attack="l2:0.5", quiet=True), "attack asks for one answer"),
        (lambda t: cl.audit(model(), "sample:cifar10", quiet=True), "has one class per image"),
        (
            lambda t: cl.audit("zoo:cifar10-plain-small", t, quiet=True),
            "gives each image any number of labels, but",
        ),
        (lambda t: cl.explain(model(), np.zeros((16, 16, 3), np.uint8), target="red"), "one_label"),
        (
            lambda t: cl.audit(model(), t, require="label.violet.auroc>=0.5", quiet=True),
            "does not measure label.violet.auroc",
        ),
        (lambda t: cl.one_label(model(), "violet"), "has no label 'violet'"),
    ],
    ids=range(6),
)
def test_what_asks_for_one_answer_is_refused_in_one_line(
    work: object, words: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words) as caught:
        work(str(table))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_arrays_with_a_matrix_of_labels_open() -> None:
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    images = cl.as_image_set((pixels, np.array([[1, 1], [0, 0], [0, -1]])), classes=["a", "b"])
    assert targets_of(images).tolist() == [[1, 1], [0, 0], [0, -1]]
    with pytest.raises(InputError, match="argmax"):
        cl.as_image_set((pixels, np.eye(3)))


def test_a_maite_data_set_opens_by_what_it_has() -> None:
    class Theirs:
        def __init__(self) -> None:
            self.metadata = {"id": "theirs", "index2label": {0: "cat", 1: "dog"}}

        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray, dict[str, object]]:
            target = np.eye(2)[i % 2]
            return np.full((3, 8, 8), i, np.uint8), target, {"id": i}

    images = cl.as_image_set(Theirs())
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 1, 0]
