"""Universal counterfactuals through the whole workflow, on a tiny random generator: machinery.

Oracles: confidences and distances asked anew on the PNG files, a stopped run against a whole one,
hand-made classifiers that answer by colour.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import memory as edit_memory
from counterlens.explanations.counterfactuals.memory import map_bytes, plan_edits
from counterlens.explanations.counterfactuals.prepare import UVCE, attention_maps
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.optimise import begin
from counterlens.images import read, write_png
from counterlens.models.salient import load_salient
from counterlens.types import Preprocess
from counterlens.workflows.explain import cases as explain_cases
from counterlens.workflows.explain import diffusion as workflow
from counterlens.workflows.explain.cases import forced, phrase
from counterlens.workflows.explain.run import explain
from diffusion_models import TINY, tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator") / "tiny"
    latent.save(tiny_model(), folder, card={"name": "tiny random"})
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Schedules and long inversions are tested where they live."""
    brief = replace(UVCE, inner=2, inject=(0.5,), blend=(0.0,))
    monkeypatch.setattr(explain_cases, "UVCE", brief)


def classifier(
    name="reds", channel=0, classes=("cat", "bridge"), side=TINY.side, bias=-4.0, **more
):
    """Sees the first class where one colour is strong."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(classes)))
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.zero_()
        net[2].weight[0, channel] = 8.0
        net[2].bias[0] = bias
    built = Classifier(net, classes, preprocess=Preprocess((side, side)), name=name, **more)
    return built.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two pictures that are red, so they are taken for cats."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = torch.Generator().manual_seed(0)
    for name in ("a", "b"):
        x = 0.2 * torch.rand(3, 16, 16, generator=generator)
        x[0] += 0.6
        write_png(folder / f"{name}.png", x)
    return folder


def run(folder, pictures, out, *, model=None, images=("a.png", "b.png"), **more):
    return explain(
        model or classifier(), [str(pictures / name) for name in images], method="diffusion",
        generator=str(folder), sampling_steps=more.pop("steps", 2),
        updates=more.pop("updates", 1), out=out, device="cpu", quiet=True, **more,
    ).run  # fmt: skip


def pixels(made, name):
    return torch.from_numpy(read(made.folder / name)).permute(2, 0, 1).float()[None] / 255


def test_everything_on_the_way_is_in_the_run_and_measured_from_disk(folder, pictures, tmp_path):
    blue = classifier("blues", 2, bias=-2.0)
    made = run(folder, pictures, tmp_path / "run", judge=[blue], target=["bridge"], steps=4)
    assert made.done and (made.folder / "images" / "preview.png").is_file()
    assert made.manifest["rounds"] == 1  # a small generator goes on, unless told otherwise
    rows = made.table("uvce")
    assert len(rows) == 4 and [row["guide"] for row in rows] == ["reds", "reds", "blues", "blues"]
    guides = {"reds": classifier(), "blues": blue}
    for row in rows:
        assert row["caption"] == "a photograph of a cat" and row["kind"] == "class"
        assert row["goal"] == "a photograph of a bridge"
        words = [one["word"] for one in row["attention"]]
        assert words == ["a", "photograph", "of", "a 2", "cat", "(end)"]
        files = [row[k] for k in ("original", "image", "start", "reconstruction", "mask")]
        assert all((made.folder / name).is_file() for name in files)
        assert all((made.folder / one["image"]).is_file() for one in row["attention"])
        x, z, p, mask = (pixels(made, row[k]) for k in ("original", "image", "start", "mask"))
        net = guides[row["guide"]]
        assert net(z).softmax(1)[0, 1].item() == pytest.approx(row["after"], abs=1e-5)
        assert net(p).softmax(1)[0, 1].item() == pytest.approx(row["prompt_only"], abs=1e-5)
        away = ((1 - mask[:, :1]) * (z - x).square()).sum().sqrt().item()
        assert away == pytest.approx(row["background"], rel=1e-4)
        (other,) = row["opinions"]
        judge = guides[other["judge"]]
        assert judge(z).softmax(1)[0, 1].item() == pytest.approx(other["after"], abs=1e-5)
        error = (pixels(made, row["reconstruction"]) - x).double().square().mean()
        assert -10 * error.log10().item() == pytest.approx(row["psnr"], abs=1e-3)
    first, second = made.table("guides")
    assert first["guide"] == "reds" and second["n"] == 2
    mean = np.mean([row["opinions"][0]["after"] for row in rows[:2]])
    assert first["blues"] == pytest.approx(mean)
    assert first["reds"] == pytest.approx(np.mean([row["after"] for row in rows[:2]]))
    number = made.numbers["uvce.reds.confidence"]
    assert number.n == 2 and number.value == pytest.approx(first["reds"])
    page = (made.folder / "report.html").read_text()
    assert all(words in page for words in ("Guides and judges", "reconstruction", "Attention"))


def test_weights_in_half_precision_and_changed_settings_reach_the_search(
    folder, pictures, tmp_path, monkeypatch
):
    """What the search was given is read where it is called."""
    seen = []
    real = workflow.uvce

    def looking(model, *given, settings, **more):
        seen.append((next(model.unet.parameters()).dtype, settings))
        return real(model, *given, settings=settings, **more)

    monkeypatch.setattr(workflow, "uvce", looking)
    changes = ["text_rate=0.3", "cuts=2", "edit.pixel_weight=7"]
    made = run(folder, pictures, tmp_path / "run", images=("a.png",), target=["bridge"],
               half=True, changes=changes, rounds=0)  # fmt: skip
    ((kind, settings),) = seen
    assert made.done and kind == torch.bfloat16
    assert settings.chain.text_rate == 0.3 and settings.chain.cuts == 2
    assert settings.pixel_weight == 7.0 and settings.chain.updates == 1
    assert made.manifest["settings"]["changes"] == changes
    with pytest.raises(InputError, match="expected KEY=VALUE with"):
        run(folder, pictures, tmp_path / "wrong", target=["bridge"], changes=["text_rat=1"])
    with pytest.raises(InputError, match="cannot be set, expected one of latent_weight"):
        run(folder, pictures, tmp_path / "wrong", target=["bridge"], changes=["edit.pixels=1"])


def test_a_stopped_run_goes_on_with_the_next_case(folder, pictures, tmp_path, monkeypatch):
    whole = run(folder, pictures, tmp_path / "whole", target=["bridge"])
    monkeypatch.setattr(edit_memory, "MOST", 1)
    real, seen = workflow._make, []

    def stopping(*given):
        if len(seen) == 1:
            raise KeyboardInterrupt
        seen.append(given)
        real(*given)

    monkeypatch.setattr(workflow, "_make", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(folder, pictures, tmp_path / "part", target=["bridge"])
    counted = []
    monkeypatch.setattr(workflow, "_make", lambda *given: (counted.append(1), real(*given)))
    part = run(folder, pictures, tmp_path / "part", target=["bridge"], resume=True)
    assert len(counted) == 1
    for a, b in zip(whole.table("uvce"), part.table("uvce"), strict=True):
        assert a["after"] == pytest.approx(b["after"], abs=0.02)


def test_running_out_of_memory_goes_on_with_less(folder, pictures, tmp_path, monkeypatch):
    real, sizes = workflow._make, []

    def failing(job, settings, cases, *rest):
        sizes.append(len(cases))
        if len(cases) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(job, settings, cases, *rest)

    monkeypatch.setattr(workflow, "_make", failing)
    made = run(folder, pictures, tmp_path / "run", target=["bridge"])
    assert sizes == [2, 1, 1] and len(made.table("uvce")) == 2


def test_a_mistaken_picture_is_turned_to_what_it_shows_without_other_words(folder, tmp_path):
    for i in range(2):
        write_png(tmp_path / "data" / "cat" / f"{i}.png", torch.full((3, 16, 16), 0.1 + 0.1 * i))
    write_png(tmp_path / "data" / "bridge" / "0.png", torch.full((3, 16, 16), 0.2))
    made = explain(
        classifier(), [f"{tmp_path / 'data'}#cat/0.png"], target=["true", "predicted"],
        method="diffusion",
        generator=str(folder), sampling_steps=4, updates=1, out=tmp_path / "run",
        device="cpu", quiet=True,
    ).run  # fmt: skip
    row, further = made.table("uvce")
    assert further["kind"] == "class" and further["goal"] == "a photograph of a bridge"
    assert row["kind"] == "error" and row["caption"] == row["goal"] == "a photograph of a cat"
    assert (row["inject"], row["blend"]) == (0.0, 0.3)
    assert made.numbers["uvce_error.reds.reached"].n == made.numbers["uvce.reds.reached"].n == 1


def test_a_users_caption_and_mask_are_used(folder, pictures, tmp_path):
    mask = torch.zeros(3, 16, 16)
    mask[:, 4:12, 4:12] = 1
    write_png(tmp_path / "mask.png", mask)
    made = run(
        folder, pictures, tmp_path / "run", images=["a.png"], target=["bridge"],
        caption=["a red cat, on a wheel"], mask=[str(tmp_path / "mask.png")],
    )  # fmt: skip
    (row,) = made.table("uvce")
    assert row["goal"] == "a red bridge, on a wheel"
    shown = pixels(made, row["mask"])
    assert shown[0, 0, 8, 8] > 0.9 and shown[0, 0, 0, 0] < 0.1


def test_a_segmenter_in_a_file_marks_what_stands_out(folder, pictures, tmp_path):
    """A network of one layer that says how red a pixel is, in the form of U²-Net."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", kind, [1, 3, 1, 1], [1.0, 0.0, 0.0])
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "red",
        [helper.make_tensor_value_info("x", kind, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", kind, [1, 1, 16, 16])], [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "red.onnx")
    x = torch.full((3, 16, 16), 0.2)
    x[0, :, 8:] = 0.9
    write_png(tmp_path / "half.png", x)
    made = run(folder, tmp_path, tmp_path / "run", images=["half.png"], target=["bridge"],
               mask=[str(tmp_path / "red.onnx")], updates=0)  # fmt: skip
    shown = pixels(made, made.table("uvce")[0]["mask"])[0, 0]
    assert shown[:, 11:].min() > 0.9 and shown[:, :5].max() < 0.1
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    with pytest.raises(InputError, match="cannot be opened as a segmenter"):
        load_salient(tmp_path / "bad.onnx")


def test_two_texts_of_a_zero_shot_classifier_are_attributes(folder, pictures, tmp_path):
    card = {"zero_shot": True, "templates": 1}
    texts = classifier("texts", 0, ("a red cat", "a white cat"), card=card)
    made = run(folder, pictures, tmp_path / "run", images=["a.png"], model=texts, updates=0)
    (row,) = made.table("uvce")
    assert row["kind"] == "attribute" and row["target"] == "a white cat"
    assert row["caption"] == "a photograph of a red cat"
    assert row["goal"] == "a photograph of a white cat"
    assert made.manifest["rounds"] == 0  # no update, no further search
    once = run(folder, pictures, tmp_path / "once", images=["a.png"], model=texts, rounds=1)
    told = run(folder, pictures, tmp_path / "told", images=["a.png"], model=texts, rounds=0)
    (first,), (second,) = once.table("uvce"), told.table("uvce")
    assert once.manifest["rounds"] == 1 and first["after"] == second["after"] < 0.8


def test_bad_input_is_one_clear_line(folder, pictures, tmp_path):
    def refused(words, **more):
        with pytest.raises(InputError, match=words):
            run(folder, pictures, tmp_path / "none", **{"target": ["bridge"], **more})
        assert not (tmp_path / "none").exists()

    refused("does not hold the words 'cat'", caption=["a photograph of a dog"])
    refused("3 captions for 2 pictures", caption=["a cat"] * 3)
    refused("cat is already the answer. Name another class", target=["cat"])
    refused("no mask nowhere.png", mask=["nowhere.png"])
    for name, value, words in (("empty", 0.0, "is empty"), ("full", 1.0, "is full")):
        write_png(tmp_path / f"{name}.png", torch.full((3, 16, 16), value))
        refused(words, mask=[str(tmp_path / f"{name}.png")])
    refused("guidance is 0.5", guidance=0.5)
    refused("rounds -1", rounds=-1)
    refused("cannot guide: it has no class 'bridge'", judge=[classifier("x", 1, ("cat", "dog"))])


def test_a_picture_of_odd_size_is_cut_to_the_generators(folder, tmp_path):
    write_png(
        tmp_path / "odd.png", torch.rand(3, 37, 53) * 0.2 + torch.tensor([0.7, 0, 0]).view(3, 1, 1)
    )
    made = run(folder, tmp_path, tmp_path / "run", images=["odd.png"], target=["bridge"],
               model=classifier(side=24))  # fmt: skip
    (row,) = made.table("uvce")
    assert read(made.folder / row["image"]).shape == (16, 16, 3)


def test_a_budget_bounds_the_cases_at_a_time():
    model = tiny_model()
    start = begin(model, ["a cat"], torch.tensor([1]), steps=UVCE.chain.steps)
    maps = attention_maps(model, start, UVCE).bytes
    assert maps <= map_bytes(model, UVCE) <= 2 * maps
    assert plan_edits(model, UVCE, 50, "100GB", [classifier()]) == (20, 50)
    kept, size = plan_edits(model, UVCE, 50, "20MB", [classifier()])
    assert kept < 20 and 1 <= size < 50


def test_phrases_and_captions_hold_the_class():
    assert phrase("a smiling face") == "smiling face" and phrase("n02123045 tabby, cat") == "tabby"
    assert forced("tabby cat on a sofa", "cat") == "a photograph of a tabby cat on a sofa"


def test_masks_are_cut_out_as_the_classifier_cuts_and_a_set_brings_its_own(tmp_path):
    """Half of each side is seen: a mask outside of it shows nothing, the central square all."""
    from types import SimpleNamespace

    from counterlens.data.sources.packed import write_pack
    from counterlens.workflows._shared.pictures import open_pictures

    net = classifier()
    net.preprocess = Preprocess((16, 16), crop=0.5)
    picture, mask = np.zeros((32, 32, 3), np.uint8), np.zeros((32, 32, 3), np.uint8)
    mask[8:16, 8:24] = 255  # the upper half of what is seen, and nothing else
    write_png(tmp_path / "mask.png", torch.from_numpy(mask).permute(2, 0, 1).float() / 255)
    write_png(tmp_path / "a.png", torch.from_numpy(picture).permute(2, 0, 1).float() / 255)
    write_pack(tmp_path / "set.npz", [picture], np.array([0]), ("cat",))
    arrays = dict(np.load(tmp_path / "set.npz"))
    encoded = np.frombuffer((tmp_path / "mask.png").read_bytes(), np.uint8)
    offsets = np.array([0, len(encoded)])
    np.savez(tmp_path / "set.npz", **arrays, mask_png=encoded, mask_offsets=offsets)

    def masks(given, of):
        editing = SimpleNamespace(masks=given, segment=None, model=SimpleNamespace(side=16))
        return explain_cases.read_masks(editing, net, open_pictures([of], net))

    whole = masks((), f"pack:{tmp_path / 'set.npz'}#0")
    assert whole[0, 0, :5].min() > 0.9 and whole[0, 0, 12:].max() < 0.1
    assert torch.equal(whole, masks((str(tmp_path / "mask.png"),), str(tmp_path / "a.png")))
    mask[:] = 255
    write_png(tmp_path / "full.png", torch.from_numpy(mask).permute(2, 0, 1).float() / 255)
    full = np.frombuffer((tmp_path / "full.png").read_bytes(), np.uint8)
    ends = np.array([0, len(full)])
    np.savez(tmp_path / "full.npz", **arrays, mask_png=full, mask_offsets=ends)
    assert masks((), f"pack:{tmp_path / 'full.npz'}#0") is None
    assert masks(("attention",), f"pack:{tmp_path / 'set.npz'}#0") is None
    assert masks((), str(tmp_path / "a.png")) is None


def test_classes_are_named_as_the_generator_was_taught():
    from types import SimpleNamespace

    from counterlens.workflows._shared.generation.vocabulary import unknown
    from counterlens.workflows._shared.pictures import Pictures

    card = {"classes": ["pug dog", "Siamese cat"], "recipe": {}}
    net = classifier(classes=("n02110958 pug, pug-dog", "siamese_cat", "great white shark"))
    pictures = Pictures(("a",), torch.zeros(1, 3, 8, 8), (0,))
    probs = torch.tensor([[1.0, 0.0, 0.0]])

    def words(caption, target):
        editing = SimpleNamespace(captions=(caption,), model=SimpleNamespace(card=card))
        (case,), _ = explain_cases.cases_of(editing, net, pictures, probs, [[target]], seed=0)
        return case.words, case.goal

    assert words("a photograph of a pug dog", 1) == (
        ("pug dog", "Siamese cat"), "a photograph of a Siamese cat"
    )  # fmt: skip
    assert words("a pug on a sofa", 1) == (("pug", "Siamese cat"), "a Siamese cat on a sofa")
    assert words("a pug", 2)[1] == "a great white shark"
    assert unknown(card, net.classes).startswith("the generator was not trained on great white sh")
    assert unknown(card, net.classes[:2]) == "" and unknown({}, net.classes) == ""
