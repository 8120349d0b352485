"""Units drawn by a generator, against a network whose units are the mean colours of an image.

Oracle: means of pixels, numpy's correlation. The generator is tiny and random, and so is the
captioner (BLIP built from a configuration): machinery, not pictures, not words.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.images import read, write_png
from counterlens.models.captioner import load_captioner
from counterlens.runs import Run
from counterlens.types import Preprocess
from counterlens.workflows.neurons import diffusion as workflow
from counterlens.workflows.neurons.run import neurons
from counterlens.workflows.neurons.scan import cross, groups, scan
from diffusion_models import TINY, tiny_model

pytest.importorskip("diffusers")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def colours() -> Classifier:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():
        net[2].weight.copy_(torch.tensor([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]]))
    side = TINY.side
    found = Classifier(net, ("cat", "dog"), preprocess=Preprocess((side, side)), name="colours")
    return found.eval().requires_grad_(False)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    for name, colour in (("cat", (0.6, 0.2, 0.1)), ("dog", (0.1, 0.2, 0.5))):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            x = torch.tensor(colour).view(3, 1, 1).expand(3, 16, 16) + 0.1 * i
            write_png(folder / name / f"{i}.png", x.contiguous())
    return folder


def test_three_arms_of_a_unit_and_what_they_reach(colours, data, blip, tmp_path, monkeypatch):
    words = tmp_path / "words.txt"
    words.write_text("steel arch bridge\n\nwheel\n")
    short = replace(workflow.COUNTERFACTUAL, steps=3, updates=4, cuts=2)
    monkeypatch.setattr(workflow, "COUNTERFACTUAL", short)
    folder = tmp_path / "tiny"
    latent.save(tiny_model(), folder, card={"name": "tiny random"})
    run = neurons(
        colours, unit=[0], logit=["dog"], similar=2, method="diffusion", generator=str(folder),
        data=str(data), count=2, words=words, captioner=str(blip), out=tmp_path / "run",
        device="cpu", quiet=True,
    ).run  # fmt: skip
    assert {row["other"] for row in run.table("similar_units")} == {1, 2}
    rows = run.table("neurons")
    real = {row["unit"]: row for row in rows if row["how"] == "best real image"}
    assert real[0]["activation"] == pytest.approx(0.7, abs=0.003) and real[0]["word"] == "cat"
    assert real[2]["activation"] == pytest.approx(0.6, abs=0.003) and real[2]["word"] == "dog"
    made = [row for row in rows if row["how"] == "optimised" and row["kind"] == "logit"]
    assert len(made) == 2 and {row["name"] for row in made} == {"logit dog"}
    for row in made:  # blue less red, and the bias
        mean = (read(run.folder / row["image"]) / 255).mean((0, 1))
        logit = mean[2] - mean[0] + colours.net[2].bias[1].item()
        assert (
            row["activation"] == pytest.approx(logit, abs=1e-5) and row["activation"] > row["start"]
        )
    made = [row for row in rows if row["how"] == "optimised" and row["kind"] == "unit"]
    assert len(made) == 6
    for row in made:
        pixels = read(run.folder / row["image"]) / 255
        assert row["activation"] == pytest.approx(pixels[..., row["unit"]].mean(), abs=1e-5)
        assert row["activation"] > row["start"]
    cross = run.table("cross_activation")
    means = [r["activation"] for r in made if r["unit"] == 0]
    assert cross[0]["unit 0"] == pytest.approx(sum(means) / 2, abs=1e-5)
    assert run.numbers["neurons.beats_prompt"].n == 4 and run.done
    assert any(row.get("caption") is not None for row in rows if row["how"] == "best real image")
    assert {row["word"] for row in made} & {"steel arch bridge", "cat", "dog"}
    assert (run.folder / "report.html").is_file()


def test_what_does_not_fit_is_refused(colours, tmp_path):
    with pytest.raises(InputError, match="expected one of show, diffusion"):
        neurons(colours, unit=[0], method="magic", out=tmp_path / "a")
    with pytest.raises(InputError, match="count is 0"):
        neurons(colours, unit=[0], count=0, method="diffusion", out=tmp_path / "b")
    with pytest.raises(InputError, match="belongs to method='diffusion'"):
        neurons(colours, unit=[0], similar=2, out=tmp_path / "c")
    with pytest.raises(InputError, match="data=SPEC"):
        neurons(colours, unit=[0], method="diffusion", captioner="a/b", out=tmp_path / "d")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="holds no word"):
        neurons(colours, unit=[0], method="diffusion", words=tmp_path / "empty.txt")


def test_one_pass_finds_the_best_images_and_who_goes_together(colours, data):
    found = scan(colours, str(data), lambda line: None)
    real = np.stack([found.images.read(i).mean((0, 1)) / 255 for i in range(4)])
    last = colours.net[2]
    logits = real @ last.weight.numpy().T + last.bias.numpy()
    real = np.concatenate([real, logits], axis=1)
    np.testing.assert_allclose(found.values.numpy(), -np.sort(-real, axis=0), atol=1e-5)
    for unit in range(5):
        by_row = real[found.rows[:, unit].numpy(), unit]
        np.testing.assert_allclose(by_row, found.values[:, unit].numpy(), atol=1e-5)
    np.testing.assert_allclose(found.alike.numpy(), np.corrcoef(real.T), atol=2e-3)
    alike = groups(colours, found, [0], 2)
    order = sorted((1, 2), key=lambda k: -np.corrcoef(real.T)[0, k])
    assert [row["other"] for row in alike] == order
    assert groups(colours, None, [0], 1)[0]["other"] == 1  # weights: 0 and 2 are opposites
    with pytest.raises(InputError, match="expected at most 2"):
        groups(colours, found, [0], 3)


def test_purity_counts_rows_and_columns(tmp_path):
    run = Run.create(tmp_path / "run", "neurons", {})
    own = torch.tensor([[5.0, 0.0, 1.0], [6.0, 0.0, 2.0]])  # on images of unit 0, of unit 2
    numbers = cross(run, {0: "unit 0", 2: "unit 2"}, own)
    assert numbers["neurons.own_first"].value == 0.5  # unit 0 is higher on unit 2's images
    assert numbers["neurons.images_first"].value == 0.5  # and driven furthest by them
    assert (run.folder / "images" / "figure-cross.png").is_file()


@pytest.fixture(scope="module")
def blip(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("blip")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[DEC]", "[ENC]", "red", "car", "cat", "a"]
    (folder / "vocab.txt").write_text("\n".join(words))
    text = {"vocab_size": len(words), "hidden_size": 16, "encoder_hidden_size": 16,
            "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "bos_token_id": 4, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip
    torch.manual_seed(1)
    config = transformers.BlipConfig(text_config=text, vision_config=vision, projection_dim=16)
    transformers.BlipForConditionalGeneration(config).save_pretrained(folder)
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["[DEC]", "[ENC]"]})
    pictures = transformers.BlipImageProcessor(size={"height": 16, "width": 16})
    transformers.BlipProcessor(pictures, tokenizer).save_pretrained(folder)
    return folder


def test_a_captioner_gives_a_phrase_per_picture(blip):
    caption = load_captioner(str(blip), device=torch.device("cpu"))
    pictures = [np.full((20, 24, 3), value, np.uint8) for value in (10, 200)]
    found = caption(pictures)
    assert len(found) == 2 and all(isinstance(text, str) for text in found)
    assert {word for text in found for word in text.split()} <= {"red", "car", "cat", "a", "[unk]"}
    assert caption(pictures) == found


def test_a_captioner_that_cannot_be_had_names_what_to_do(tmp_path):
    device = torch.device("cpu")
    with pytest.raises(InputError, match="words=FILE"):
        load_captioner("owner/none-such-captioner", device=device)
    with pytest.raises(InputError, match="expected a hub id OWNER/MODEL or a folder"):
        load_captioner("./nowhere", device=device)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="no captioner that can be opened"):
        load_captioner(str(tmp_path), device=device)
