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
def model(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(MODEL)
    return f"{tmp_path / 'nets.py'}:"


@pytest.fixture(scope="module")
def sets() -> tuple[ImageSet, ImageSet]:
    return pictures(260, 1), pictures(300, 2)


def test_a_shortcut_is_repaired_and_the_folder_loads(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    run = repair(model + "shortcut", *sets, groups="place", out=tmp_path / "run", device="cpu")
    (verdict,) = run.table("verdict")
    assert verdict["verdict"] == "better", verdict
    assert run.numbers["repair.worst_group_change"].low > 0
    assert {row["remedy"] for row in run.table("tried")} == {
        *("none", "temperature", "prior", "erase", "weights", "dfr")
    }
    assert sum(row["picked"] for row in run.table("tried")) == 1
    assert any(row["placebo"] == "plain refit" for row in run.table("placebos"))
    assert verdict["why"] in (run.folder / "report.html").read_text(encoding="utf-8")

    new = counterlens.load(f"repaired:{run.folder}", device="cpu")
    planes = np.stack([sets[1].read(i) for i in range(300)]).transpose(0, 3, 1, 2)
    with torch.no_grad():
        answers = new(torch.from_numpy(planes.copy()).float() / 255).argmax(1).numpy()
    (whole,) = (row for row in run.table("receipt") if row["kind"] == "all")
    assert (answers == sets[1].labels).mean() == pytest.approx(whole["after"])
    assert whole["after"] > whole["before"] + 0.1


def test_other_base_weights_are_refused(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    repair(
        *(model + "shortcut", *sets),
        groups="place",
        remedies=["erase"],
        out=tmp_path / "run",
        device="cpu",
    )
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
    run = repair(model + "honest", *sets, groups="place", out=tmp_path / "run", device="cpu")
    assert run.table("verdict")[0]["verdict"] == "not shown"


def test_a_plan_counts_and_fits_nothing(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    run = repair(
        *(model + "shortcut", *sets), groups="place", plan=True, out=tmp_path / "r", device="cpu"
    )
    assert sum(row["check"] for row in run.table("sizes")) == 300
    assert sum(row["fit"] + row["choose"] for row in run.table("sizes")) == 260
    assert 0 < run.numbers["repair.smallest_shown"].value < 1
    assert not run.table("verdict") and not (run.folder / "head.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": "plaec"}, "did you mean place"),
        ({"groups": "kind"}, "names the class itself"),
        ({"groups": "one"}, "1 different values"),
        ({"remedies": ["dfrr"]}, "expected some of"),
        ({"want": "groups.best"}, "--want"),
        ({"name": "two_heads"}, "no features"),
    ],
)
def test_what_cannot_work_is_refused(
    model: str, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    given = {"groups": "place", "remedies": ["erase"], "name": "shortcut"} | change
    name = given.pop("name")
    fix, check = pictures(40, 5), pictures(40, 6)
    with pytest.raises(CounterlensError, match=message):
        repair(f"{model}{name}", fix, check, out=tmp_path / "run", device="cpu", **given)


def test_check_images_among_the_fix_images_are_refused(model: str, tmp_path: Path) -> None:
    fix, check = pictures(40, 5), pictures(40, 6)

    def with_copy(shade: int) -> ImageSet:
        pixels = np.stack([check.read(i) for i in range(39)] + [fix.read(3) // shade * shade])
        made = array_set("check", pixels.astype(np.uint8), check.labels, ("cat", "dog"))
        return replace(made, extra=check.extra)

    for shade, words in ((1, "is set5|is "), (4, "nearly ")):
        with pytest.raises(InputError, match=f"1 of the --check images are among.*{words}"):
            repair(
                *(model + "shortcut", fix, with_copy(shade)),
                groups="place",
                out=tmp_path / "run",
                device="cpu",
            )


def test_dfr_is_refused_where_groups_are_small(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dfr needs 20 images of each group"):
        repair(
            *(model + "shortcut", pictures(60, 5), pictures(40, 6)),
            groups="place",
            out=tmp_path / "run",
            device="cpu",
        )


def test_the_command_exits_by_its_verdict(
    model: str, sets: tuple[ImageSet, ImageSet], tmp_path: Path
) -> None:
    for name, images in zip(("fix", "check"), sets, strict=True):
        lines = ["path,label,place"]
        for i in range(len(images)):
            write_png(tmp_path / f"{name}{i}.png", images.read(i))
            label, place = images.classes[images.labels[i]], images.extra["place"][i]
            lines.append(f"{name}{i}.png,{label},{place}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    rows = (tmp_path / "fix.csv").read_text().splitlines()
    dogs = [row for row in rows if ",dog," in row]
    few = [row for row in rows if row not in dogs] + dogs[::8]
    (tmp_path / "few_dogs.csv").write_text("\n".join(few) + "\n")
    line = ["repair", "--fix", str(tmp_path / "fix.csv"), "--check", str(tmp_path / "check.csv")]
    line += ["--groups", "place", "--device", "cpu", "--quiet"]
    for k, (extra, code) in enumerate(
        (
            ([model + "shortcut", "--remedies", "weights"], 0),
            ([model + "shortcut", "--remedies", "temperature", "--json"], 4),
            ([model + "honest", "--remedies", "prior", "--plan"], 0),
            (
                [
                    *(model + "honest", "--remedies", "prior", "--want", "accuracy.top1"),
                    *("--fix", str(tmp_path / "few_dogs.csv")),
                ],
                1,
            ),
        )
    ):
        out = ["--out", str(tmp_path / f"run{k}")]
        result = CliRunner().invoke(app, line + extra + out, catch_exceptions=False)
        assert result.exit_code == code, result.output
