"""Disagreement through the whole workflow, on a tiny random generator: machinery, not pictures.

Oracles: the confidences of both classifiers on the PNG files asked anew, a stopped run against a
whole one, images made here against images made by workers, hand-made classifiers whose
disagreement is known.
"""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from counterlens import zoo
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.disagreement import JudgedClass, by_logarithms, disturbed, succeeded
from counterlens.generators.diffusion import model as latent
from counterlens.images import ImageSet, read, write_png
from counterlens.metrics.generation import kid_interval
from counterlens.scale import map_shards
from counterlens.types import Preprocess
from counterlens.workflows._shared.generation import generate as generating
from counterlens.workflows._shared.generation.generator import open_generator_for
from counterlens.workflows.disagree.numbers import real_numbers, verdict
from counterlens.workflows.disagree.real import RealAnswers
from counterlens.workflows.disagree.realism import realism
from counterlens.workflows.disagree.run import disagree, shared_classes
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
        first, second, generator=str(folder), count=2, sampling_steps=3, updates=4, out=out,
        device="cpu", quiet=True, classes=more.pop("classes", ["cat"]), **more,
    ).run  # fmt: skip


def test_found_images_pull_the_two_apart_and_are_measured_from_disk(folder, tmp_path):
    made = run(folder, tmp_path / "run", judge=[], score="difference")
    assert made.manifest["search"]["score"] == "difference"
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


def test_realism_is_the_kid_of_files_on_disk_and_needs_enough_images(folder, tmp_path):
    """KID asked anew with the metric itself; a judge that sees colour means."""
    rng = np.random.default_rng(0)
    real = (rng.integers(0, 256, (30, 16, 16, 3), dtype=np.uint8), np.zeros(30, int))
    images = ImageSet(
        "real", tuple(f"r{i}" for i in range(30)), real[1], ("cat", "dog"),
        lambda i: real[0][i],
    )  # fmt: skip
    judge = classifier("judge", 1)
    made = disagree(
        classifier("reds", 0), classifier("blues", 2), generator=str(folder), count=20,
        sampling_steps=1, updates=1, out=tmp_path / "run", device="cpu", quiet=True,
        classes=["cat"], judge=[judge], verify=images, require=["disagree.first.saturated<=1"],
    ).run  # fmt: skip
    number, start = (made.numbers[f"disagree.first.{key}"] for key in ("kid", "start_kid"))
    assert number.n == start.n == 20 and number.low <= number.value <= number.high
    rows = [row for row in made.table("disagreements") if row["way"] == "first"]
    x = torch.stack([pixels_of(made, row["image"]) for row in rows])
    assert made.table("gates")[0]["passed"]
    black = ((x == 0) | (x == 1)).flatten(1).double().mean(1)
    assert made.numbers["disagree.first.saturated"].value == pytest.approx(black.mean().item())
    theirs = torch.from_numpy(real[0]).permute(0, 3, 1, 2) / 255
    order = np.random.default_rng(0).permutation(20)
    others = np.random.default_rng(0).permutation(30)
    means = x[order].mean((2, 3)), theirs[others].mean((2, 3))
    assert number.value == pytest.approx(kid_interval(*means)[0], rel=1e-3)
    few = realism(made, judge, images, ["cat"], rows[:5])
    assert (
        few["disagree.first.kid"].value is None and "20 of each" in few["disagree.first.kid"].reason
    )


def pixels_of(made, name):
    return torch.from_numpy(read(made.folder / name)).permute(2, 0, 1) / 255


def test_a_replayed_network_makes_the_same_images(folder, tmp_path, monkeypatch):
    """Without a GPU a recording is a plain function: the images are those of the plain network."""
    with pytest.raises(InputError, match="graphs needs a CUDA device, the generator is on cpu"):
        run(folder, tmp_path / "refused", graphs=True)
    plain = run(folder, tmp_path / "plain")
    used = []
    real = generating.recorded
    monkeypatch.setattr(generating, "recorded", lambda *a, **k: used.append(k) or real(*a, **k))
    monkeypatch.setattr("counterlens.workflows.disagree.run.check_graphs", lambda *given: None)
    replayed = run(folder, tmp_path / "replayed", graphs=True)
    assert used and used[0]["keep"] == 1  # of three steps that fit
    for row, other in zip(
        plain.table("disagreements"), replayed.table("disagreements"), strict=True
    ):
        assert abs(row["p_up"] - other["p_up"]) < 0.02


def test_findings_end_on_real_photographs(folder, tmp_path):
    data = tmp_path / "data"
    for name, colour in (("cat", (200, 30, 30)), ("dog", (30, 30, 200))):
        (data / name).mkdir(parents=True)
        for i in range(3):
            pixels = torch.zeros(3, 16, 16, dtype=torch.float)
            pixels[:] = (torch.tensor(colour).float() / 255 + 0.01 * i).view(3, 1, 1)
            write_png(data / name / f"{i}.png", pixels)
    require = ["disagree.first.real<=0.5", "disagree.second.real<=0.5"]
    made = run(folder, tmp_path / "run", verify=str(data), require=require)
    (rate,) = [row for row in made.table("real") if row["way"] == "first"]
    assert rate["errors"] == 3 == rate["n"]  # red cats: the one sees them, the other does not
    other = next(row for row in made.table("real") if row["way"] == "second")
    assert other["errors"] == 0
    near = made.table("disagreements")[0]["nearest"]
    assert len(near) == 3 and (made.folder / near[0]["image"]).is_file()
    assert made.numbers["disagree.first.real_cat"].value == 1
    assert made.numbers["disagree.first.real"].n == 3  # of the classes asked for
    change = made.numbers["disagree.real_change"]
    assert change.value == -1 and change.low == pytest.approx(-1) and change.high < 0
    told = made.manifest["verdict"]
    assert told.startswith("blues after reds: worse. On 3 real images it breaks 100.0%")
    assert "most often cat (3 of 3)" in told and "-100.0 points" in told
    gates = {row["gate"]: row["passed"] for row in made.table("gates")}
    assert gates == {"disagree.first.real<=0.5": False, "disagree.second.real<=0.5": True}


def test_a_release_check_without_an_image_of_the_class_says_so():
    real = [RealAnswers("cat", 0, 0, 0, 0)]
    names = ("old", "new")
    found = real_numbers(real, names)
    assert found["disagree.first.real"].value is None
    assert verdict(found, real, names) == "new after old: undecided, no real image of the classes."
    real = [RealAnswers("cat", 50, 1, 1, 0), RealAnswers("dog", 40, 0, 8, 0)]
    better = verdict(real_numbers(real, names), real, names)
    assert "better. On 100 real images it breaks 1.0%" in better and "(1 of 52)" in better
    same = [RealAnswers("cat", 50, 2, 1, 0)]
    assert "no clear difference" in verdict(real_numbers(same, names), same, names)


def images_of(run) -> dict[str, bytes]:
    return {row["image"]: (run.folder / row["image"]).read_bytes()
            for row in run.table("disagreements")}  # fmt: skip


def test_shards_of_one_image_make_the_same_bytes_as_one_at_a_time(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(generating, "FEW", 1)
    here = run(folder, tmp_path / "here")
    places = []

    def spread(make, todo, **how):  # the workers' way, in this process
        places.append((len(todo), how["on"]))
        return map_shards(make, todo, on="here")

    monkeypatch.setattr(generating, "map_shards", spread)
    there = run(folder, tmp_path / "there", on="ray", ray_workers=2)
    assert places == [(2, "ray")] * 2
    assert images_of(here) == images_of(there)
    assert here.table("disagreements") == there.table("disagreements")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own, on import and at its end
def test_ray_makes_the_same_bytes_although_a_worker_is_killed(folder, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(generating, "FEW", 1)
    marks, killed = tmp_path / "marks", []
    marks.mkdir()
    first, second = classifier("reds", 0), classifier("blues", 2)
    asked = {"generator": str(folder), "count": 3, "sampling_steps": 3, "updates": 6,
             "device": "cpu", "quiet": True, "classes": ["cat"]}  # fmt: skip
    whole = disagree(first, second, out=tmp_path / "whole", **asked).run
    opened = open_generator_for

    def marked(*given, **more):  # goes to the workers by value
        (marks / str(os.getpid())).touch()
        return opened(*given, **more)

    out = tmp_path / "part"

    def kill() -> None:  # a worker, once an image is there
        while not killed:
            time.sleep(0.02)
            if (out / "state").is_dir() and any((out / "state").iterdir()):
                workers = [int(p.name) for p in marks.iterdir() if int(p.name) != os.getpid()]
                os.kill(workers[0], signal.SIGKILL)
                killed.append(workers[0])

    monkeypatch.setattr("counterlens.workflows.disagree.run.open_generator_for", marked)
    threading.Thread(target=kill, daemon=True).start()
    part = disagree(first, second, out=out, on="ray", ray_workers=2, **asked).run
    assert killed
    assert images_of(whole) == images_of(part)


def test_the_search_is_repeated_with_another_second_classifier(folder, tmp_path):
    made = run(folder, tmp_path / "run", persist=[classifier("greens", 1)])
    rows = made.table("persistence")
    assert len(rows) == 4 and {row["other"] for row in rows} == {"greens"}
    old = made.table("disagreements")
    for before, row in zip(old, rows, strict=True):
        assert (row["up"], row["down"]) in {("reds", "greens"), ("greens", "reds")}
        assert row["p_up"] - row["p_down"] > row["start_p_up"] - row["start_p_down"]
        assert row["found"] == before["image"] != row["image"]
        x = torch.from_numpy(read(made.folder / row["found"])).permute(2, 0, 1)[None] / 255
        said = classifier("x", 1)(x).softmax(1)[0, 0].item()
        assert said == pytest.approx(row["found_p"], abs=1e-5)
        sure, unsure = (before["p_up"], said) if row["way"] == "first" else (said, before["p_down"])
        assert row["carried"] == (sure >= 0.8 and unsure <= 0.2)
    share = made.numbers["persist.first-greens.carried"]
    assert share.n == 2
    assert share.value == sum(row["carried"] for row in rows[:2]) / 2
    assert (made.folder / "images" / "figure-persist-cat.png").is_file()
    assert "With another second classifier" in (made.folder / "report.html").read_text()


def test_a_stopped_run_goes_on_with_the_next_image(folder, tmp_path, monkeypatch):
    whole = run(folder, tmp_path / "whole")
    made, real = [], generating._generate

    def stopping(job, batch, stored):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(batch)
        real(job, batch, stored)

    monkeypatch.setattr(generating, "_generate", stopping)
    monkeypatch.setattr(generating, "FEW", 1)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "part")
    monkeypatch.setattr(generating, "_generate", real)
    part = run(folder, tmp_path / "part", resume=True)
    first, second = whole.table("disagreements"), part.table("disagreements")
    assert [row["image"] for row in first] == [row["image"] for row in second]
    for a, b in zip(first, second, strict=True):
        assert a["p_up"] == pytest.approx(b["p_up"], abs=0.02)  # other batches, one 8-bit level


def test_running_out_of_memory_goes_on_with_less(folder, tmp_path, monkeypatch):
    real, sizes = generating._generate, []

    def failing(job, batch, stored):
        sizes.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(job, batch, stored)

    monkeypatch.setattr(generating, "_generate", failing)
    assert run(folder, tmp_path / "run").done
    assert sizes[:2] == [2, 1]


def test_one_image_that_does_not_fit_is_made_block_by_block_and_is_the_same(
    folder, tmp_path, monkeypatch
):
    whole = run(folder, tmp_path / "whole")
    real, tried = generating._generate, []

    def failing(job, batch, stored):
        tried.append((len(batch), stored))
        if len(batch) > 1 or stored != "blocks":
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(job, batch, stored)

    monkeypatch.setattr(generating, "_generate", failing)
    tight = run(folder, tmp_path / "tight")
    assert tight.done and tried[1:3] == [(1, 0), (1, "blocks")]
    for a, b in zip(whole.table("disagreements"), tight.table("disagreements"), strict=True):
        assert a["image"] == b["image"] and a["p_up"] == pytest.approx(b["p_up"], abs=0.02)


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
        blind, blind, generator=str(folder), classes=["cat"], count=1, sampling_steps=2, updates=1,
        out=tmp_path / "run", device="cpu", quiet=True,
    ).run  # fmt: skip
    assert any("cannot draw cat" in row["note"] for row in made.table("notes"))


def test_without_a_generator_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(zoo, "generators", list)
    pair = classifier("a", 0), classifier("b", 2)
    with pytest.raises(InputError, match="generator=FOLDER"):
        disagree(*pair, classes=["cat"], out=tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="expected one or more"):
        disagree(*pair, out=tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="expected one of auto, difference"):
        disagree(*pair, classes=["cat"], score="best", out=tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="expected here, ray"):
        disagree(*pair, classes=["cat"], on="there", out=tmp_path / "run", quiet=True)
    for wrong, told in (
        ("rate=1", "expected KEY=VALUE with guidance"),
        ("cuts=many", "now 16"),
        ("updates=-1", "expected 0 or more"),
        ("schedule=x", "now 'cosine'"),
    ):
        with pytest.raises(InputError, match=told):
            disagree(*pair, classes=["cat"], changes=[wrong], out=tmp_path / "run", quiet=True)


def test_disturbances_change_little_and_stay_in_the_box(rng):
    x = torch.rand(2, 3, 32, 32, generator=rng)
    found = disturbed(x)
    assert list(found) == ["jpeg-75", "shift-2", "noise-0.05"]
    torch.testing.assert_close(found["shift-2"][..., 2:], x[..., :-2])
    assert all(one.min() >= 0 and one.max() <= 1 for one in found.values())


def test_logarithms_are_those_of_confidences_for_images_and_their_crops(rng):
    weight = torch.randn(3, 4, generator=rng)

    def table(x):
        return x.mean((2, 3)) @ weight

    columns = torch.tensor([1, 3])
    up, down = by_logarithms(JudgedClass(table, columns, 8), JudgedClass(table, columns.flip(0), 8))
    x = torch.rand(2, 3, 8, 8, generator=rng)
    p = table(x).softmax(1)
    torch.testing.assert_close(up.objective(x), p[[0, 1], [1, 3]].log())
    assert (up.weight, down.weight) == (1, 1)
    wanted = (1 - p[[0, 1], [3, 1]]).log()
    torch.testing.assert_close(down.objective(x), wanted)
    crops = down.on_crops(x[:, None].repeat(1, 5, 1, 1, 1))  # five crops of each
    torch.testing.assert_close(crops, wanted[:, None].expand(2, 5))
    in_parts = down.on_crops(x[:, None].repeat(1, 5, 1, 1, 1), part=3)
    assert torch.equal(in_parts, crops)
    certain = JudgedClass(lambda x: 1e3 * table(x), table(x).argmax(1), 8)
    sure = by_logarithms(certain, certain)[1]
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(sure.objective(leaf).sum(), leaf)
    assert grad.isfinite().all() and grad.abs().max() > 0  # a difference of confidences: 0


def test_success_needs_both():
    up, down = torch.tensor([0.9, 0.9, 0.5]), torch.tensor([0.1, 0.5, 0.1])
    assert succeeded(up, down).tolist() == [True, False, False]
