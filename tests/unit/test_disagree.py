"""Disagreement through the whole workflow, on a tiny random generator: machinery, not pictures.

Oracles: the confidences of both classifiers on the PNG files asked anew, a stopped run against a
whole one, hand-made classifiers whose disagreement is known.
"""

import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.disagreement import disturbed, succeeded
from counterlens.generators import latent
from counterlens.images import read, write_png
from counterlens.types import Preprocess
from counterlens.workflows import generating
from counterlens.workflows.disagree import disagree, shared_classes
from diffusion_models import TINY, tiny_model

pytest.importorskip("diffusers")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator") / "tiny"
    latent.save(tiny_model(), folder, card={"name": "tiny random"})
    return folder


def classifier(name: str, channel: int, classes=("cat", "dog")) -> Classifier:
    """Sees a cat where one colour is strong."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(classes)))
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.zero_()
        net[2].weight[0, channel] = 8.0
        net[2].bias[0] = -4.0
    side = TINY.side
    built = Classifier(net, classes, preprocess=Preprocess((side, side)), name=name)
    return built.eval().requires_grad_(False)


def run(folder, out, **more):
    first, second = classifier("reds", 0), classifier("blues", 2)
    return disagree(
        first, second, generator=str(folder), count=2, steps=3, updates=4, out=out, device="cpu",
        quiet=True, classes=more.pop("classes", ["cat"]), **more,
    ).run  # fmt: skip


def test_found_images_pull_the_two_apart_and_are_measured_from_disk(folder, tmp_path):
    made = run(folder, tmp_path / "run", judge=[])
    assert made.done and (made.folder / "report.html").is_file()
    rows = made.table("disagreements")
    assert len(rows) == 4 and {row["way"] for row in rows} == {"first", "second"}
    for row in rows:
        assert row["p_up"] - row["p_down"] > row["start_p_up"] - row["start_p_down"]
        x = torch.from_numpy(read(made.folder / row["image"])).permute(2, 0, 1)[None] / 255
        net = classifier("x", 0 if row["way"] == "first" else 2)
        assert net(x).softmax(1)[0, 0].item() == pytest.approx(row["p_up"], abs=1e-5)
    pairs = [(rows[i], rows[i + 2]) for i in range(2)]
    for a, b in pairs:  # both ways start from the same image
        assert (made.folder / a["start"]).read_bytes() == (made.folder / b["start"]).read_bytes()
    number = made.numbers["disagree.first.p_up"]
    assert number.n == 2 and number.value == pytest.approx((rows[0]["p_up"] + rows[1]["p_up"]) / 2)
    assert made.table("drawable")[0]["n"] == 8


def test_findings_end_on_real_photographs(folder, tmp_path):
    data = tmp_path / "data"
    for name, colour in (("cat", (200, 30, 30)), ("dog", (30, 30, 200))):
        (data / name).mkdir(parents=True)
        for i in range(3):
            pixels = torch.zeros(3, 16, 16, dtype=torch.float)
            pixels[:] = (torch.tensor(colour).float() / 255 + 0.01 * i).view(3, 1, 1)
            write_png(data / name / f"{i}.png", pixels)
    made = run(folder, tmp_path / "run", verify=str(data))
    (rate,) = [row for row in made.table("real") if row["way"] == "first"]
    assert rate["errors"] == 3 == rate["n"]  # red cats: the one sees them, the other does not
    other = next(row for row in made.table("real") if row["way"] == "second")
    assert other["errors"] == 0
    near = made.table("disagreements")[0]["nearest"]
    assert len(near) == 3 and (made.folder / near[0]["image"]).is_file()
    assert made.numbers["disagree.first.real_cat"].value == 1


def test_a_stopped_run_goes_on_with_the_next_image(folder, tmp_path, monkeypatch):
    whole = run(folder, tmp_path / "whole")
    made, real = [], generating._make

    def stopping(run_, model, batch, *rest):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(batch)
        real(run_, model, batch, *rest)

    monkeypatch.setattr(generating, "_make", stopping)
    monkeypatch.setattr(generating, "MOST", 1)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "part")
    monkeypatch.setattr(generating, "_make", real)
    part = run(folder, tmp_path / "part", resume=True)
    first, second = whole.table("disagreements"), part.table("disagreements")
    assert [row["image"] for row in first] == [row["image"] for row in second]
    for a, b in zip(first, second, strict=True):
        assert a["p_up"] == pytest.approx(b["p_up"], abs=0.02)  # other batches, one 8-bit level


def test_running_out_of_memory_goes_on_with_less(folder, tmp_path, monkeypatch):
    real, sizes = generating._make, []

    def failing(run_, model, batch, *rest):
        sizes.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(run_, model, batch, *rest)

    monkeypatch.setattr(generating, "_make", failing)
    assert run(folder, tmp_path / "run").done
    assert sizes[:2] == [2, 1]


def test_different_class_lists_share_what_they_share():
    pair = (classifier("a", 0), classifier("b", 2, ("horse", "Cat", "ship")))
    chosen, notes = shared_classes(pair, ["all"])
    assert [one.name for one in chosen] == ["cat"] and chosen[0].places == (0, 1)
    assert "1 are shared" in notes[0]
    with pytest.raises(InputError, match=r"b has no class 'dog'\. Shared classes: cat"):
        shared_classes(pair, ["dog"])


def test_a_generator_that_cannot_draw_the_class_is_named(folder, tmp_path):
    blind = classifier("blind", 0)
    with torch.no_grad():
        blind.net[2].bias[0] = -100.0
    made = disagree(
        blind, blind, generator=str(folder), classes=["cat"], count=1, steps=2, updates=1,
        out=tmp_path / "run", device="cpu", quiet=True,
    ).run  # fmt: skip
    assert any("cannot draw cat" in row["note"] for row in made.table("notes"))


def test_without_a_generator_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(generating.zoo, "generators", list)
    pair = classifier("a", 0), classifier("b", 2)
    with pytest.raises(InputError, match="--generator FOLDER"):
        disagree(*pair, classes=["cat"], out=tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="expected one or more"):
        disagree(*pair, out=tmp_path / "run", quiet=True)


def test_disturbances_change_little_and_stay_in_the_box(rng):
    x = torch.rand(2, 3, 32, 32, generator=rng)
    found = disturbed(x)
    assert list(found) == ["jpeg-75", "shift-2", "noise-0.05"]
    torch.testing.assert_close(found["shift-2"][..., 2:], x[..., :-2])
    assert all(one.min() >= 0 and one.max() <= 1 for one in found.values())


def test_success_needs_both():
    up, down = torch.tensor([0.9, 0.9, 0.5]), torch.tensor([0.1, 0.5, 0.1])
    assert succeeded(up, down).tolist() == [True, False, False]
