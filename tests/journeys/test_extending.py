"""The pages of docs/extending, followed: their code is run, and what they promise is tried.

Oracles: closed forms; a training without smoothing is the plain one, byte for byte.
"""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import counterlens as cl
from counterlens import losses, metrics
from counterlens.data import specs as set_specs
from counterlens.data import write_pack
from counterlens.losses import inner
from counterlens.metrics import numbers
from counterlens.models import specs
from counterlens.report import page, render
from counterlens.runs import Run
from counterlens.workflows.repair import remedies
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Examples, Head, Problem

PAGES = Path(__file__).parents[2] / "docs" / "extending"
pytestmark = pytest.mark.usefixtures("one_thread")


def module_of(name: str, place: str, patch: pytest.MonkeyPatch) -> types.ModuleType:
    """The first block of a page as the module that the page says it is."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    made = types.ModuleType(place)
    patch.setitem(sys.modules, place, made)
    exec(compile(block[1], f"{name}.md", "exec"), made.__dict__)
    return made


def line_of(name: str) -> str:
    """The one line of a page, its second block."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1].strip()


@pytest.fixture
def pack(tmp_path: Path) -> str:
    """Dark and bright pictures as two classes."""
    rng = np.random.default_rng(0)
    labels = [i % 2 for i in range(24)]
    pictures = [rng.integers(0, 120, (8, 8, 3)).astype(np.uint8) + 120 * k for k in labels]
    write_pack(tmp_path / "in.npz", pictures, labels, ["dark", "bright"])
    return f"pack:{tmp_path / 'in.npz'}"


TINY = ["size=8", "architecture.widths=[4, 4, 4, 4]", "epochs=1", "batch=10", "held_out=4",
        "warmup=0", "augment=crop-flip", "judge.every=1", "judge.steps=1"]  # fmt: skip


def test_add_a_loss(pack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module_of("add-a-loss", "counterlens.losses.smoothing", monkeypatch)
    assert line_of("add-a-loss") == 'LOSSES["smoothing"] = smoothing_terms'
    monkeypatch.setitem(losses.LOSSES, "smoothing", made.smoothing_terms)

    def weights(name: str, *changes: str) -> bytes:
        result = cl.train("cifar10-plain-small", pack, changes=[*TINY, *changes], device="cpu",
                          out=tmp_path / name, cache=tmp_path, quiet=True)  # fmt: skip
        assert result.done and result.table("epochs")[-1]["step"] == 2
        return (result.folder / "model" / "model.safetensors").read_bytes()

    plain = weights("plain")
    assert weights("none", "loss=smoothing", "loss_options.smoothing=0.0") == plain
    assert weights("much", "loss=smoothing", "loss_options.smoothing=0.5") != plain
    with pytest.raises(cl.InputError, match=r"has no option 'smothing'\. It has: smoothing"):
        weights("odd", "loss=smoothing", "loss_options.smothing=0.5")


def test_add_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module_of("add-a-metric", "counterlens.metrics.largest_gap", monkeypatch)
    line = line_of("add-a-metric")
    logits = torch.tensor([[2.0, 0.0]] * 4)
    judged = metrics.judge(logits, torch.tensor([0, 0, 0, 1]))
    out: dict[str, object] = {}
    exec(line, {"out": out, "judged": judged, "classes": 2, **vars(made)})
    number = out["calibration.largest_gap"]
    assert number.value == pytest.approx(torch.tensor(2.0).sigmoid().item() - 0.75)
    assert number.n == 4 and number.low is None
    # where the page says that the line belongs
    assert "judged = judge(" in Path(numbers.__file__).read_text(encoding="utf-8")


def test_add_an_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module_of("add-an-objective", "counterlens.brier", monkeypatch)
    net = cl.load("zoo:cifar10-plain-small", device="cpu")
    images = cl.open_set("sample:cifar10", limit=4)
    x = torch.stack([torch.from_numpy(images.read(i)) for i in range(4)]).permute(0, 3, 1, 2) / 255
    y = torch.from_numpy(images.labels)
    objective = made.brier(net, y)
    one_hot = torch.nn.functional.one_hot(y, 10)
    expected = (net(x).softmax(1) - one_hot).square().sum(1)
    torch.testing.assert_close(objective(x), expected)
    result = cl.pgd(objective, x, cl.Ball("l2", 0.5), steps=3)
    assert (result.scores > objective(x)).all()
    assert line_of("add-an-objective") == 'RAISES["brier"] = brier'
    monkeypatch.setitem(inner.RAISES, "brier", made.brier)
    attack = inner.Attack(cl.Ball("l2", 0.5), raises="brier")
    assert (objective(attack.near(net, x, y, 0)) > objective(x)).all()
    with pytest.raises(cl.InputError, match="raises is 'briar', expected one of"):
        inner.Attack(cl.Ball("l2", 0.5), raises="briar")


def test_add_a_data_source_and_a_model_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together: a classifier of brightness is right on all bands, and an audit says so."""
    module_of("add-a-data-source", "counterlens.data.sources.bands", monkeypatch)
    module_of("add-a-model-source", "counterlens.models.sources.darkness", monkeypatch)
    monkeypatch.setattr(set_specs, "SCHEMES", (*set_specs.SCHEMES, "bands"))
    monkeypatch.setitem(specs.SCHEMES, "darkness", "darkness:THRESHOLD")
    images = cl.open_set("bands:6")
    assert images.labels.tolist() == [0, 1, 0, 1, 0, 1] and images.read(1).mean() == 180
    with pytest.raises(cl.InputError, match="expected bands:COUNT"):
        cl.open_set("bands:many")
    with pytest.raises(cl.InputError, match="did you mean darkness"):
        cl.load("darknes:0.5")
    result = cl.audit("darkness:0.5", "bands:40", out=tmp_path / "run", device="cpu", quiet=True)
    assert result.numbers["accuracy.top1"].value == 1.0


def test_add_a_report_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module_of("add-a-report-page", "counterlens.report.pages.letters", monkeypatch)
    assert line_of("add-a-report-page") == 'PAGES["letters"] = letters'
    monkeypatch.setitem(page.PAGES, "letters", made)
    run = Run.create(tmp_path / "run", "letters", {})
    run.write_table("letters", [{"letter": "a", "count": 3}, {"letter": "b", "count": 1}])
    text = render(run).read_text(encoding="utf-8")
    assert "The most frequent letter is a." in text
    assert text.count('id="letters"') == 1  # not once more among the further tables


def test_add_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the nearest mean by distance; groups of unequal size weigh the same."""
    made = module_of("add-a-remedy", "counterlens.workflows.repair.centroids", monkeypatch)
    rng = np.random.default_rng(0)
    labels, values = np.repeat([0, 1], 60), np.tile([0, 0, 0, 0, 1], 24)
    x = rng.normal(size=(120, 3)) + labels[:, None] + 2.0 * values[:, None]
    fit = Examples(x, Grouped(labels, values, ("cat", "dog"), ("grass", "snow")))
    problem = Problem(Head(np.zeros((2, 3)), np.zeros(2)), fit, fit)
    means = np.stack([
        (x[(labels == k) & (values == 0)].mean(0) + x[(labels == k) & (values == 1)].mean(0)) / 2
        for k in (0, 1)
    ])  # fmt: skip
    nearest = np.linalg.norm(x[:, None] - means, axis=2).argmin(1)
    assert (made.centroids(problem).answers(x) == nearest).all()
    known: dict[str, remedies.Remedy] = {}
    exec(line_of("add-a-remedy"), {**vars(remedies), **vars(made), "REMEDIES": known})
    placebo = known["centroids"].placebo
    assert placebo is not None
    assert not np.allclose(placebo(problem).weight, means)
