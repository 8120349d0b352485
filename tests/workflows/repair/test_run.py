"""The whole of repair on small pictures whose colour is the class and the shortcut."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import counterlens
from counterlens.cli import app
from counterlens.data.sets import array_set
from counterlens.errors import CounterlensError, InputError
from counterlens.images import ImageSet, write_png
from counterlens.runs import Run
from counterlens.workflows._shared.result import Result
from counterlens.workflows.repair import features, run
from counterlens.workflows.repair.options import RepairOptions
from counterlens.workflows.repair.remedies import REMEDIES
from counterlens.workflows.repair.run import repair

MODEL = """
import torch
from torch import nn
from counterlens import Classifier

class Means(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.fc = nn.Linear(3, 2, bias=bias)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor(weight))
            if bias:
                self.fc.bias.zero_()

    def forward(self, x):
        return self.fc(x.mean((2, 3)) - 0.5)

def shortcut():  # it looks at blue, the shortcut, far more than at red, the class
    return Classifier(Means([[-1.0, 0, -4.0], [1.0, 0, 4.0]], False), ["cat", "dog"], size=16)

def honest():
    return Classifier(Means([[-5.0, 0, 0], [5.0, 0, 0]], True), ["cat", "dog"], size=16)

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x.mean((2, 3))) + self.b(x.amax((2, 3)))

def two_heads():
    return Classifier(Sum(), ["cat", "dog"], size=16)
"""


def pictures(n: int, seed: int, *, agree: float = 0.7) -> ImageSet:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    z = np.where(rng.random(n) < agree, y, 1 - y)
    x = rng.integers(60, 190, (n, 16, 16, 3))
    x[..., 0] += (40 * (2 * y - 1) + rng.normal(0, 20, n)).astype(int)[:, None, None]
    x[..., 2] += (40 * (2 * z - 1))[:, None, None]
    made = array_set(f"set{seed}", x.clip(0, 255).astype(np.uint8), y, ("cat", "dog"))
    return replace(made, extra={"place": np.array(["snow", "sand"])[z], "kind": y, "one": y * 0})


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COUNTERLENS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "nets.py").write_text(MODEL)
    return f"{tmp_path / 'nets.py'}:"


@pytest.fixture(scope="module")
def sets() -> tuple[ImageSet, ImageSet]:
    return pictures(500, 1, agree=0.96), pictures(700, 2)


def mend(model: str, sets: tuple[ImageSet, ImageSet], out: Path, **options: object) -> Result:
    given = {"groups_from": "column:place", "device": "cpu", "quiet": True} | options
    return repair(model, fix=sets[0], check=sets[1], out=out, **given)


def answers_of(folder: Path, images: ImageSet) -> np.ndarray:
    new = counterlens.load(f"repaired:{folder}", device="cpu")
    planes = np.stack([images.read(i) for i in range(len(images))]).transpose(0, 3, 1, 2)
    with torch.no_grad():
        return new(torch.from_numpy(planes.copy()).float() / 255).argmax(1).numpy()


def test_a_shortcut_is_repaired_and_the_folder_loads(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    result = mend(
        model + "shortcut", sets, tmp_path / "run", remedies=("erase,group-weights", "spufix")
    )
    (verdict,) = result.table("verdict")
    assert verdict["verdict"] == "better", verdict
    assert result.numbers["repair.worst_group_change"].low > 0
    rows = {row["name"]: row for row in result.table("tried")}
    assert {"as it is", "plain refit", "erase", "erase, shuffled groups", "spufix"} <= set(rows)
    assert [row["picked"] for row in rows.values()].count(True) == 1
    assert {row["placebo"] for row in result.table("placebos")} >= {"plain refit"}
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert verdict["why"] in page
    (whole,) = (row for row in result.table("receipt") if row["kind"] == "all")
    assert (answers_of(result.folder, sets[1]) == sets[1].labels).mean() == pytest.approx(
        whole["after"]
    )
    assert whole["after"] > whole["before"] + 0.1
    flips = result.table("flips")
    assert len(flips) == whole["gained"] + whole["lost"]
    assert {row["group"] for row in result.table("gallery")} <= {"now right", "now wrong"}


def test_features_are_computed_once(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend(model + "shortcut", sets, tmp_path / "a", remedies="erase")

    def refused(*_: object) -> None:
        raise AssertionError("a forward pass")

    monkeypatch.setattr(features, "forward", refused)
    mend(model + "shortcut", sets, tmp_path / "b", remedies="erase")
    again = mend(model + "honest", sets, tmp_path / "c", remedies="prior")  # another head
    assert again.table("verdict")


def test_a_clipped_head_loads_as_well(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    result = mend(model + "shortcut", sets, tmp_path / "run", remedies="spufix")
    (row,) = (row for row in result.table("receipt") if row["kind"] == "all")
    if result.table("verdict")[0]["remedy"] == "spufix":
        answers = answers_of(result.folder, sets[1])
        assert (answers == sets[1].labels).mean() == pytest.approx(row["after"])
        with pytest.raises(InputError, match="not the output of its last linear layer"):
            mend(f"repaired:{result.folder}", sets, tmp_path / "again")
    else:
        assert row["after"] == row["before"]


def test_other_base_weights_are_refused(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    mend(model + "shortcut", sets, tmp_path / "run", remedies="group-weights")
    card = tmp_path / "run" / "repaired.json"
    stored = json.loads(card.read_text())
    card.write_text(json.dumps(stored | {"base": model + "honest"}))
    with pytest.raises(InputError, match="bring back the old weights"):
        counterlens.load(f"repaired:{tmp_path / 'run'}", device="cpu")
    with pytest.raises(InputError, match=r"holds no repaired\.json"):
        counterlens.load(f"repaired:{tmp_path}", device="cpu")


def test_a_model_without_the_shortcut_is_not_shown_to_gain(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    result = mend(model + "honest", sets, tmp_path / "run")
    assert result.table("verdict")[0]["verdict"] == "not shown"
    names = {row["name"] for row in result.table("tried")}
    assert set(REMEDIES) - names == {"temperature", "pairs"}  # what can run is the default


def test_no_change_is_picked_where_nothing_helps(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    result = mend(model + "shortcut", sets, tmp_path / "run", remedies="temperature")
    (verdict,) = result.table("verdict")
    assert verdict["remedy"] == "as it is" and "nothing was changed" in verdict["why"]
    assert not (result.folder / "repaired.json").exists()


def test_a_plan_counts_and_fits_nothing(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    result = mend(model + "shortcut", sets, tmp_path / "r", plan=True, pairs="box:0,0,0.5,0.5")
    assert sum(row["check"] for row in result.table("sizes")) == 700
    assert sum(row["fit"] + row["choose"] for row in result.table("sizes")) == 500
    assert 0 < result.numbers["repair.smallest_shown"].value < 1
    assert result.numbers["repair.seconds"].value > 0
    reasons = {row["remedy"]: row["why_not"] for row in result.table("plan") if row["why_not"]}
    assert set(reasons) == {"dfr"} and "dfr needs 20 images" in reasons["dfr"]
    assert not result.table("verdict") and not (result.folder / "head.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups_from": "column:plaec"}, "did you mean place"),
        ({"groups_from": "place"}, "column:place"),
        ({"groups_from": "colum:place"}, "Did you mean column"),
        ({"groups_from": "column:kind"}, "names the class itself"),
        ({"groups_from": "column:one"}, "1 different values"),
        ({"remedies": "erase,dfrr"}, "Did you mean dfr"),
        ({"remedies": "pairs"}, "no edit is given"),
        ({"pairs": "box:0,0,2,1"}, "outside the picture"),
        ({"pairs": "column:place"}, "different labels"),
        ({"want": "groups.best"}, "expected one of"),
        ({"name": "two_heads"}, "no features"),
        ({"groups_from": "masks:own"}, "no masks of its own"),
    ],
)
def test_what_cannot_work_is_refused(
    model: str, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    given = {"remedies": "erase", "name": "shortcut"} | change
    name = given.pop("name")
    with pytest.raises(CounterlensError, match=message):
        mend(f"{model}{name}", (pictures(40, 5), pictures(40, 6)), tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_check_images_among_the_fix_images_are_refused(model: str, tmp_path: Path) -> None:
    fix, check = pictures(40, 5), pictures(40, 6)

    def with_copy(shade: int) -> ImageSet:
        pixels = np.stack([check.read(i) for i in range(39)] + [fix.read(3) // shade * shade])
        made = array_set("check", pixels.astype(np.uint8), check.labels, ("cat", "dog"))
        return replace(made, extra=check.extra)

    for shade, words in ((1, "is set5|is "), (4, "nearly ")):
        with pytest.raises(InputError, match=f"1 of the check images are among.*{words}"):
            mend(model + "shortcut", (fix, with_copy(shade)), tmp_path / "run")


def test_dfr_alone_is_refused_where_groups_are_small_and_a_row_beside_others(
    model: str, tmp_path: Path
) -> None:
    small = pictures(60, 5, agree=0.5), pictures(40, 6, agree=0.5)  # several of each group
    with pytest.raises(InputError, match="dfr needs 20 images of each group"):
        mend(model + "shortcut", small, tmp_path / "run", remedies="dfr")
    result = mend(model + "shortcut", small, tmp_path / "run", remedies="dfr,group-weights")
    (row,) = (row for row in result.table("tried") if row["name"] == "dfr")
    assert "dfr needs 20 images" in row["refused"]


def test_pairs_run_where_there_is_no_minority(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    """The shortcut is blue everywhere; swapping the whole left half turns half of it."""
    fix = pictures(260, 7, agree=1.0)
    result = mend(
        model + "shortcut", (fix, sets[1]), tmp_path / "run",
        remedies="dfr,erase,pairs", pairs="box:0,0,1,0.5",
    )  # fmt: skip
    rows = {row["name"]: row for row in result.table("tried")}
    assert "no minority to balance" in rows["dfr"]["refused"]
    assert "pairs, unrelated edits" in rows and rows["pairs"]["seconds"] > 0
    assert {row["choose"] for row in result.table("sizes")} >= {0}


def written(name: str, images: ImageSet, folder: Path) -> None:
    """The set as files with a manifest."""
    lines = ["path,label,place"]
    for i in range(len(images)):
        write_png(folder / f"{name}{i}.png", images.read(i))
        label, place = images.classes[images.labels[i]], images.extra["place"][i]
        lines.append(f"{name}{i}.png,{label},{place}")
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_a_repair_that_does_harm_elsewhere_is_worse(model: str, tmp_path: Path) -> None:
    """The fix images praise the shortcut, the check images turn it round."""
    sets = pictures(200, 8, agree=0.98), pictures(200, 9, agree=0.02)
    result = mend(model + "honest", sets, tmp_path / "run", remedies="refit", want="accuracy.top1")
    (verdict,) = result.table("verdict")
    assert verdict["verdict"] == "worse" and verdict["why"].startswith("Worse: accuracy.top1")
    assert "more data did it" not in verdict["why"]
    assert any(row["worse"] for row in result.table("receipt"))


@pytest.mark.parametrize(("verdict", "code"), [("better", 0), ("not shown", 4), ("worse", 1)])
def test_the_command_exits_by_its_verdict(
    tmp_path: Path, verdict: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow is replaced by one that gives this verdict."""

    def fake(model: str, options: RepairOptions) -> Result:
        done = Run.create(tmp_path / "run", "repair", {})
        done.write_table("verdict", [{"verdict": verdict, "why": f"It is {verdict}."}])
        done.finish()
        return Result(done)

    monkeypatch.setattr(run, "repair", fake)
    line = ["repair", "zoo:cifar10-plain-small", "--fix", "sample:cifar10"]
    line += ["--check", "sample:cifar10", "--groups", "none"]
    result = CliRunner().invoke(app, line, catch_exceptions=False)
    assert result.exit_code == code and f"It is {verdict}." in result.output


def test_the_command_reads_manifests_and_prints_a_plan(model: str, tmp_path: Path) -> None:
    written("fix", pictures(50, 1), tmp_path)
    written("check", pictures(40, 2), tmp_path)
    line = ["repair", model + "shortcut", "--groups", "column:place", "--device", "cpu"]
    line += ["--fix", str(tmp_path / "fix.csv"), "--check", str(tmp_path / "check.csv")]
    line += ["--with", "erase,dfr", "--plan", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, line, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "cat, sand: fit" in result.output and "dfr needs 20 images" in result.output
    with pytest.raises(InputError, match="Did you mean dfr"):
        CliRunner().invoke(app, [*line, "--with", "dffr"], catch_exceptions=False)
