"""The quality table against what can be read off the PNG files and plain loops.

Oracles: distances, flips and agreement computed again with NumPy from the images on disk; the gap
of two methods is the difference of their numbers; a literal bootstrap-free mean over pictures.
Generator and classifiers are tiny and random: machinery is tested, not quality.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from counterlens import images
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import dvce
from counterlens.generators.diffusion import model as latent
from counterlens.runs import Run
from counterlens.types import Preprocess
from counterlens.workflows._shared.metering import metered
from counterlens.workflows.quality import run as workflow
from counterlens.workflows.quality.measures import mean_number
from counterlens.workflows.quality.options import ARMS
from counterlens.workflows.quality.run import evaluate, searches, study_pairs
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("cat", "dog", "ship", "frog")


def classifier(seed: int, name: str) -> Classifier:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(96, 4),
    )  # fmt: skip
    with torch.no_grad():
        net[-1].weight *= 20
    made = Classifier(net, NAMES, preprocess=Preprocess((16, 16)), name=name)
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def nets():
    return {name: classifier(i, name) for i, name in enumerate(("plain", "robust", "one", "two"))}


@pytest.fixture(scope="module")
def data(tmp_path_factory, nets) -> str:
    """A folder of random images, most of them labelled as the plain classifier answers."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for i in range(150):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        x = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
        said = int(nets["plain"](x).argmax()) if i % 10 else int(rng.integers(4))
        for one in (NAMES[said if i < 60 else i % 4],):
            (folder / one).mkdir(exist_ok=True)
            images.write_png(folder / one / f"{i:03d}.png", pixels)
    return str(folder)


@pytest.fixture(scope="module")
def generator(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("generator") / "tiny"
    latent.save(tiny_model(), folder, card={"name": "tiny random"})
    return str(folder)


@pytest.fixture(scope="module")
def short():
    """Few steps everywhere, and one thread: this outlives the fixture of single tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    patch.setattr(dvce, "PAPER", dvce.DvceSettings(steps=8, start=3, cuts=2))
    chain = replace(workflow.UVCE.chain, steps=2, cuts=2)
    few = replace(workflow.UVCE, chain=chain, inner=1, inject=(0.5,), blend=(0.5,))
    patch.setattr(workflow, "UVCE", few)
    yield
    patch.undo()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(nets, data, generator, short, tmp_path_factory) -> Run:
    return evaluate(
        nets["plain"], [data], judge=[nets["one"], nets["two"]], robust=nets["robust"], targets=2,
        generator=generator, updates=1, steps=3, limit=14, batch=32,
        out=tmp_path_factory.mktemp("r") / "run", device="cpu", quiet=True,
    ).run  # fmt: skip


def pixels(run: Run, name: str) -> np.ndarray:
    return images.read(run.folder / name).astype(np.float64) / 255


def asked(net: Classifier, z: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(z).permute(2, 0, 1)[None].float()
    return net(x).softmax(1)[0].numpy()


def test_every_method_is_asked_the_same_and_only_right_answers_are_turned(run, nets):
    rows = run.table("quality")
    asked_ = {arm: [(r["id"], r["target"]) for r in rows if r["method"] == arm] for arm in ARMS}
    assert all(asked_[arm] == asked_["pixel"] for arm in ARMS)
    assert len(set(asked_["pixel"])) == len(asked_["pixel"])
    for row in rows:
        assert row["predicted"] == row["label"] != row["target"]
        said = asked(nets["plain"], pixels(run, row["original"]))
        assert NAMES[said.argmax()] == row["predicted"]
    per_picture = [sum(i == name for i, _ in asked_["pixel"]) for name, _ in asked_["pixel"]]
    assert set(per_picture) == {2}


def test_rows_are_what_the_files_on_disk_say(run, nets):
    for row in run.table("quality"):
        x, z = pixels(run, row["original"]), pixels(run, row["image"])
        mask = pixels(run, row["mask"]).mean(2, keepdims=True)
        guide = nets["robust" if row["method"] == "pixel-robust" else "plain"]
        k = NAMES.index(row["target"])
        said = asked(guide, z)
        assert row["guide"] == guide.name
        assert row["flipped"] == float(said.argmax() == k)
        assert row["confidence"] == pytest.approx(said[k], abs=1e-4)
        assert row["l2"] == pytest.approx(np.linalg.norm((z - x).ravel()), abs=1e-4)
        inside = np.sqrt((mask * (z - x) ** 2).sum())
        assert row["l2_inside"] == pytest.approx(inside, abs=0.05)  # the mask lies there in 8 bits
        assert row["l2_inside"] ** 2 + row["l2_outside"] ** 2 == pytest.approx(
            row["l2"] ** 2, abs=1e-3
        )
        assert row["changed"] == pytest.approx((np.abs(z - x) > 16.5 / 255).any(2).mean(), abs=1e-6)
        votes = [asked(nets[name], z).argmax() == k for name in ("one", "two")]
        assert row["agreed"] == float(all(votes))
        assert row["answers"]["one"] == NAMES[asked(nets["one"], z).argmax()]
        if row["method"].startswith("pixel"):
            assert row["l2"] <= 1.0 + 1e-6  # half of the 2 that 32 pixels get


def test_numbers_are_means_of_the_rows_and_gaps_their_differences(run):
    rows, numbers = run.table("quality"), run.numbers
    for arm in ARMS:
        part = [row for row in rows if row["method"] == arm]
        for name in ("flipped", "sure", "confidence", "agreed", "l2", "l2_outside", "changed"):
            number = numbers[f"quality.{arm}.{name}"]
            assert number.value == pytest.approx(np.mean([row[name] for row in part]), abs=1e-5)
            assert number.n == len(part)
            assert number.low <= number.value <= number.high
            gap = numbers.get(f"quality_gap.diffusion-less-{arm}.{name}")
            if arm != "diffusion":
                mine = numbers[f"quality.diffusion.{name}"].value
                assert gap.value == pytest.approx(mine - number.value, abs=1e-5)
    assert numbers["quality.dvce.denoiser_passes"].value == 3
    assert numbers["quality.dvce.classifier_passes"].value == 3 * 2 * 2  # steps, crops, two nets
    pixel = numbers["quality.pixel.classifier_passes"].value
    assert pixel == 1 + 4 + 2  # start, three steps and their start, before and after
    assert (
        numbers["quality.prompt-to-prompt.seconds"].value
        < numbers["quality.diffusion.seconds"].value
    )


def test_realism_compares_with_images_that_are_not_explained(run, nets, data):
    from counterlens.data import open_set
    from counterlens.metrics.generation import kid_blocks
    from counterlens.workflows._shared.features import features_of
    from counterlens.workflows.quality.real import open_real

    rows = [row for row in run.table("quality") if row["method"] == "pixel"]
    target = torch.tensor([NAMES.index(row["target"]) for row in rows])
    taken = {row["id"] for row in rows}
    real = open_real(data, nets["plain"], nets["one"], target=target, taken=list(taken))
    whole = open_set(data)
    free = [i for i in range(len(whole)) if whole.ids[i] not in taken]
    assert len(real.labels) == len(free)
    assert torch.bincount(target, minlength=4).ge(len(real.reference) // 4).any()
    z = torch.stack(
        [torch.from_numpy(pixels(run, row["image"])).permute(2, 0, 1).float() for row in rows]
    )
    features = features_of(nets["one"], z)
    blocks = kid_blocks(features, real.reference)
    assert run.numbers["quality.pixel.kid"].value == pytest.approx(blocks.mean().item(), abs=1e-4)
    k = NAMES.index(rows[0]["target"])
    near = min(
        np.linalg.norm((whole.read(i).astype(float) / 255 - pixels(run, rows[0]["image"])).ravel())
        for i in free
        if whole.classes[whole.labels[i]] == NAMES[k]
    )
    assert rows[0]["nearest_l2"] == pytest.approx(near, abs=1e-3)


def test_the_page_shows_methods_failures_and_pairs(run):
    page = (run.folder / "report.html").read_text()
    assert "How good the counterfactuals are" in page and "Paired differences" in page
    assert all(f">{arm}" in page for arm in ARMS)
    assert 'src="http' not in page


def test_pictures_are_inverted_once_for_all_their_targets_and_many_at_a_time(
    nets, data, generator, short, tmp_path, monkeypatch
):
    from counterlens.workflows.quality import methods as evaluate_arms

    real, asked = evaluate_arms.prepare, []

    def counted(model, x, *words, **more):
        asked.append(len(x))
        return real(model, x, *words, **more)

    monkeypatch.setattr(evaluate_arms, "prepare", counted)
    asked_ = {"arm": ["prompt-to-prompt"], "judge": [nets["one"]], "targets": 2, "limit": 8,
              "generator": generator, "device": "cpu", "quiet": True}  # fmt: skip
    few = evaluate(nets["plain"], [data], batch=4, out=tmp_path / "few", **asked_).run
    rows = few.table("quality")
    pictures = len({row["id"] for row in rows})
    assert len(rows) == 2 * pictures  # two batches to each inversion of four pictures
    assert sum(asked) == pictures and len(asked) == -(-pictures // 4)
    passes = few.numbers["quality.prompt-to-prompt.denoiser_passes"].value
    whole = evaluate(nets["plain"], [data], batch=64, out=tmp_path / "whole", **asked_).run
    assert whole.numbers["quality.prompt-to-prompt.denoiser_passes"].value == passes
    apart = [a["l2"] - b["l2"] for a, b in zip(rows, whole.table("quality"), strict=True)]
    assert max(map(abs, apart)) < 1e-2


def test_a_stopped_run_goes_on_and_ends_the_same(
    run, nets, data, generator, short, tmp_path, monkeypatch
):
    from counterlens.workflows.quality import methods as evaluate_arms

    asked_ = {
        "judge": [nets["one"], nets["two"]], "robust": nets["robust"], "targets": 2,
        "generator": generator, "updates": 1, "steps": 3, "limit": 14, "batch": 32,
        "out": tmp_path / "again", "device": "cpu", "quiet": True,
    }  # fmt: skip
    real = evaluate_arms.dvce_arm

    def stopped(*words, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_arms, "dvce_arm", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(nets["plain"], [data], **asked_)
    assert Run(tmp_path / "again").numbers["quality.diffusion.flipped"].n  # kept as they come
    monkeypatch.setattr(evaluate_arms, "dvce_arm", real)
    monkeypatch.setattr(evaluate_arms, "uvce_arm", stopped)  # is not asked again
    again = evaluate(nets["plain"], [data], resume=True, **asked_).run
    drop = ("seconds",)
    first, second = (
        {k: n.value for k, n in r.numbers.items() if not k.endswith(drop)} for r in (run, again)
    )
    assert first == second
    assert run.table("study") == again.table("study")


def test_where_memory_is_short_batches_get_smaller_and_nothing_is_lost(
    nets, data, tmp_path, monkeypatch
):
    from counterlens.workflows.quality import methods as evaluate_arms

    real, sizes = evaluate_arms.pixel_arm, []

    def tight(bench, guide, name):
        sizes.append(len(bench.image))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("no room")
        return real(bench, guide, name)

    asked_ = {"arm": ["pixel"], "steps": 2, "limit": 9, "device": "cpu", "quiet": True}
    whole = evaluate(nets["plain"], [data], out=tmp_path / "whole", **asked_).run
    monkeypatch.setattr(evaluate_arms, "pixel_arm", tight)
    tried = evaluate(nets["plain"], [data], out=tmp_path / "tight", **asked_).run
    assert max(sizes) > 3 and sizes[-1] <= 3
    rows = [run.table("quality") for run in (whole, tried)]
    assert [row["id"] for row in rows[0]] == [row["id"] for row in rows[1]]
    assert [row["l2"] for row in rows[0]] == pytest.approx([row["l2"] for row in rows[1]], abs=1e-3)


def test_pairs_are_sure_ones_and_sides_are_drawn():
    rows = [
        {"method": arm, "id": str(i), "target": "cat", "confidence": c, "original": "o",
         "image": f"{arm}{i}"}
        for arm, low in (("dvce", 0.7), ("diffusion", 0.75))
        for i, c in enumerate(np.linspace(low, 1, 200))
    ]  # fmt: skip
    pairs = study_pairs(rows, ["pixel", "dvce", "diffusion"], count=30, seed=1)
    assert len(pairs) == 30 and len({pair["id"] for pair in pairs}) == 30
    sure = {(row["method"], row["id"]): row["confidence"] for row in rows}
    for pair in pairs:
        assert {pair["left_method"], pair["right_method"]} == {"dvce", "diffusion"}
        assert min(sure[arm, pair["id"]] for arm in ("dvce", "diffusion")) >= 0.8
        assert pair["left"] == pair["left_method"] + pair["id"]
    assert 5 < sum(pair["left_method"] == "dvce" for pair in pairs) < 25
    assert study_pairs(rows, ["diffusion"]) == []


def test_several_targets_of_one_picture_are_not_independent_evidence(rng):
    image = torch.arange(40).repeat_interleave(9)
    each = (torch.rand(40, generator=rng) < 0.5).float()
    same = each.repeat_interleave(9)  # nine equal answers per picture
    together = mean_number(same, image, (0.0, 1.0), "p", share=True)
    alone = mean_number(each, torch.arange(40), (0.0, 1.0), "p")
    assert together.n == 360 and together.value == pytest.approx(each.mean().item())
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high))
    broken = same.clone()
    broken[:9] = torch.nan
    assert mean_number(broken, image, (0.0, 1.0), "p").n == 351


def test_settings_of_both_searches_can_be_changed_by_name():
    guided, edit = searches(["dvce.towards=0.2", "edit.rate=0.5", "text_rate=0.05", "updates=3"])
    assert guided.towards == 0.2 and guided.near == dvce.PAPER.near
    assert edit.rate == 0.5 and (edit.chain.text_rate, edit.chain.updates) == (0.05, 3)


def test_passes_are_counted_row_by_row():
    net = nn.Linear(2, 2)
    with metered({"net": net}) as meter:
        net(torch.zeros(5, 2))
        net(torch.zeros(3, 2))
    net(torch.zeros(100, 2))
    assert meter.rows == {"net": 8} and meter.seconds > 0


@pytest.mark.parametrize(
    ("asked_", "told"),
    [
        ({"arm": ["magic"]}, "arm is 'magic', expected one of"),
        ({"arm": ["pixel-robust"]}, "--robust MODEL"),
        ({"targets": 0}, "targets 0"),
        ({"norm": "l3"}, "norm is 'l3'"),
        ({"arm": ["pixel"], "changes": ["dvce.magic=1"]}, "cannot be set, expected one of steps"),
        ({"arm": ["pixel"], "changes": ["edit.inner=many"]}, "'inner=many' cannot be set"),
        ({"arm": ["pixel"], "changes": ["magic=1"]}, "changes has 'magic=1'"),
        ({"lpips": "absent.ckpt", "arm": ["pixel"]}, "not at absent.ckpt"),
        ({"arm": ["pixel"], "real": "noise:uniform", "judge": 1}, "expected 40"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(asked_, told, nets, data, tmp_path):
    if asked_.get("judge"):
        asked_ = {**asked_, "judge": [nets["one"]]}
    with pytest.raises(InputError, match=told):
        evaluate(nets["plain"], [data], out=tmp_path / "run", device="cpu", quiet=True, **asked_)
    assert not (tmp_path / "run" / "DONE").exists()


def test_without_a_judge_or_generator_the_rest_is_measured_and_said(nets, data, tmp_path):
    made = evaluate(
        nets["plain"], [data], arm=["pixel"], steps=2, limit=5, out=tmp_path / "run", device="cpu",
        quiet=True,
    ).run  # fmt: skip
    notes = [row["note"] for row in made.table("notes")]
    assert any("--with" in note for note in notes)
    assert "quality.pixel.agreed" not in made.numbers
    assert made.numbers["quality.pixel.flipped"].protocol.endswith("Wilson interval")
    assert Path(made.folder / "report.html").is_file()
