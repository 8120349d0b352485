"""Attention → points → Segment Anything → mask, as `explain --mask sam:…` goes.

Oracles: stand-ins for the segmenter whose answer is known (a disc), frequencies of drawn points,
SciPy-tested softening. The SAM that is opened from a folder is tiny and has random weights: it
shows that the format is read, nothing about masks.
"""

from types import SimpleNamespace

import pytest
import torch

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import prepare as preparing
from counterlens.explanations.counterfactuals.masks import SHOWN, softened
from counterlens.explanations.counterfactuals.points import (
    PointSegmenter,
    draw_points,
    from_points,
)
from counterlens.explanations.counterfactuals.prepare import EditSettings, prepare
from counterlens.generators.diffusion import model as latent
from counterlens.generators.diffusion.optimise import ChainSettings
from counterlens.images import read, write_png
from counterlens.models.segmenter import load_segmenter
from diffusion_models import TINY, tiny_model

transformers = pytest.importorskip("transformers")
pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")
HERE = torch.device("cpu")


def disc(side, column, row, radius):
    place = torch.arange(side)
    away = (place[None] - column) ** 2 + (place[:, None] - row) ** 2
    return (away <= radius**2).float()[None]


def attention(side=64):
    """Soft attention that is high in a box left of the middle, weak right of it."""
    soft = torch.zeros(1, 1, side, side)
    soft[..., 10:30, 5:25] = 0.9
    soft[..., 40:60, 40:60] = 0.45
    soft[..., :8, :] = 0.3  # below the threshold
    return soft


def test_points_lie_where_attention_exceeds_the_threshold_and_are_never_the_same():
    soft = attention().repeat(200, 1, 1, 1)
    points = draw_points(soft, row_seeds(200, 0))
    assert points.shape == (200, 5, 2)
    column, row = points[..., 0], points[..., 1]
    assert (soft[0, 0][row, column] > SHOWN).all()
    for one in points.tolist():
        assert len({tuple(spot) for spot in one}) == 5
    left = (column < 30).float()
    first = left[:, 0].mean().item()  # in proportion to attention: 0.9 against 0.45, equal areas
    assert abs(first - 2 / 3) < 4 * (2 / 9 / 200) ** 0.5
    other = (left[:, 1] != left[:, 0]).float().mean().item()
    assert other > 0.55  # chance alone would have 4/9: the second keeps away from the first


def test_points_depend_on_their_own_seed_alone():
    soft = attention().repeat(3, 1, 1, 1)
    seeds = row_seeds(3, 7)
    assert torch.equal(draw_points(soft, seeds)[1:2], draw_points(soft[1:2], seeds[1:2]))


def test_a_single_place_is_drawn_again_and_no_attention_gives_its_highest():
    soft = torch.zeros(2, 1, 8, 8)
    soft[0, 0, 2, 5] = 1.0
    soft[1, 0, 6, 1] = 0.1
    points = draw_points(soft, row_seeds(2, 0))
    assert (points[0] == torch.tensor([5, 2])).all() and (points[1] == torch.tensor([1, 6])).all()


def test_the_mask_is_what_the_points_lie_on_softened_and_attention_where_it_fails():
    discs = {"left": disc(64, 15, 20, 9), "right": disc(64, 50, 50, 9)}

    def segment(x, points):
        made = []
        for one, spots in zip(x, points, strict=True):
            hits = {name: sum(float(d[0, row, column]) for column, row in spots.tolist())
                    for name, d in discs.items()}  # fmt: skip
            made.append(discs[max(hits, key=hits.get)] if one.max() > 0 else torch.zeros(1, 64, 64))
        return torch.stack(made)

    soft = attention()
    soft[..., 40:60, 40:60] = 0  # all attention on the left disc's box
    x = torch.ones(2, 3, 64, 64)
    x[1] = 0  # here the segmenter says nothing
    masks, _, failed = from_points(segment, x, soft.repeat(2, 1, 1, 1), row_seeds(2, 0))
    assert failed.tolist() == [False, True]
    torch.testing.assert_close(masks[:1], softened(discs["left"][None]))
    torch.testing.assert_close(masks[1:], softened(soft))
    assert masks[0, 0, 20, 15] > 0.9 and masks[0, 0, 50, 50] < 0.05


class Around:
    """A stand-in for SAM: marks a disc around the mean of the points, in the network's own size."""

    def __init__(self, kind="sam"):
        self.config, self.asked = SimpleNamespace(model_type=kind), []

    def to(self, device):
        return self

    eval = requires_grad_ = lambda self, *given: self

    def __call__(self, pixel_values, input_points, multimask_output, **more):
        self.asked.append({"multimask": multimask_output, **more})
        side = pixel_values.shape[-1]
        column, row = (input_points[0, 0].mean(0) * 256 / side).tolist()
        found = 2 * disc(256, column, row, 40) - 1
        return SimpleNamespace(pred_masks=found[None, None])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """SAM as a folder of transformers, tiny, with random weights."""
    where = tmp_path_factory.mktemp("sam")
    torch.manual_seed(0)
    vision = transformers.SamVisionConfig(
        hidden_size=16, output_channels=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=64, patch_size=16, window_size=2, global_attn_indexes=[0], num_pos_feats=8,
        mlp_dim=32,
    )  # fmt: skip
    prompt = transformers.SamPromptEncoderConfig(hidden_size=16, image_size=64, patch_size=16)
    decoder = transformers.SamMaskDecoderConfig(
        hidden_size=16, mlp_dim=32, num_attention_heads=2, iou_head_hidden_dim=16
    )
    config = transformers.SamConfig(
        vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder
    )
    transformers.SamModel(config).save_pretrained(where)
    size, pad = {"longest_edge": 64}, {"height": 64, "width": 64}
    maker = transformers.SamImageProcessor(size=size, pad_size=pad)
    transformers.SamProcessor(maker).save_pretrained(where)
    return where


def test_a_segmenter_is_opened_from_a_folder(folder, rng):
    segment = load_segmenter(str(folder), device=HERE)
    x = torch.rand(2, 3, 48, 48, generator=rng)
    points = torch.tensor([[[3, 40], [5, 30]], [[20, 20], [21, 21]]])
    found = segment(x, points)
    assert found.shape == (2, 1, 48, 48) and set(found.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(found[1:], segment(x[1:], points[1:]))


@pytest.mark.parametrize("kind", ["sam", "sam_hq"])
def test_points_reach_the_network_and_masks_come_back_in_the_pictures_places(
    folder, kind, monkeypatch
):
    """The processor is the real one: column and row must not be exchanged, nor sizes."""
    stand_in = Around(kind)
    kind_of = transformers.AutoModelForMaskGeneration
    monkeypatch.setattr(kind_of, "from_pretrained", lambda where: stand_in)
    segment = load_segmenter(str(folder), device=HERE)
    found = segment(torch.rand(1, 3, 96, 96), torch.tensor([[[20, 70], [24, 66]]]))
    want = disc(96, 22, 68, 40 * 96 / 256)
    both = ((found[0] > 0) & (want > 0)).sum() / ((found[0] > 0) | (want > 0)).sum()
    assert both > 0.9
    assert stand_in.asked[0].get("hq_token_only") == (True if kind == "sam_hq" else None)
    assert stand_in.asked[0]["multimask"] is False


def test_preparing_an_edit_shows_points_by_attention_and_takes_the_disc(monkeypatch, rng):
    model = tiny_model()
    soft = torch.zeros(1, 1, 16, 16)
    soft[..., 8:14, 2:7] = 0.8
    monkeypatch.setattr(preparing, "soft_map", lambda found, side: soft)
    seen = []

    def segment(x, points):
        seen.append(points)
        return disc(16, 4, 11, 3)[None]

    settings = EditSettings(chain=ChainSettings(steps=2), inner=1)
    given = {"settings": settings}
    x = torch.rand(1, 3, 16, 16, generator=rng)
    text = ["a photograph of a cat"]
    ready = prepare(
        model, x, text, ["cat"], masks=PointSegmenter(segment, torch.tensor([3])), **given
    )
    column, row = seen[0][0, :, 0], seen[0][0, :, 1]
    assert ((column >= 2) & (column < 7) & (row >= 8) & (row < 14)).all()
    torch.testing.assert_close(ready.masks, softened(disc(16, 4, 11, 3)[None]))
    assert ready.mask_source == ("segmenter",) and torch.equal(ready.points, seen[0])
    assert ready.rows([0, 0]).mask_source == ("segmenter", "segmenter")
    given_mask = prepare(model, x, text, ["cat"], masks=soft / 0.8, **given)
    assert given_mask.mask_source == ("given",) and given_mask.points is None


def test_explain_takes_sam_from_a_folder(folder, tmp_path, monkeypatch):
    """The whole command's way; the network's answer is a stand-in's, so that it is known."""
    from counterlens.classifier import Classifier
    from counterlens.types import Preprocess
    from counterlens.workflows.explain.run import explain

    kind_of = transformers.AutoModelForMaskGeneration
    real = kind_of.from_pretrained
    monkeypatch.setattr(kind_of, "from_pretrained", lambda where: Around())
    latent.save(tiny_model(), tmp_path / "tiny", card={"name": "tiny random"})
    net = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2)
    )
    with torch.no_grad():
        net[2].weight.copy_(torch.tensor([[8.0, 0, 0], [0, 0, 0]]))
        net[2].bias.copy_(torch.tensor([-4.0, 0]))
    side = TINY.side
    reds = Classifier(net, ("cat", "bridge"), preprocess=Preprocess((side, side)), name="reds")
    x = torch.full((3, 16, 16), 0.2)
    x[0] = 0.9
    write_png(tmp_path / "a.png", x)
    asked = {"target": ["bridge"], "method": "diffusion", "generator": str(tmp_path / "tiny"),
             "sampling_steps": 2, "updates": 0, "device": "cpu", "quiet": True}  # fmt: skip
    run = explain(
        reds.eval(), [str(tmp_path / "a.png")], mask=[f"sam:{folder}"], out=tmp_path / "run",
        **asked,
    ).run  # fmt: skip
    (row,) = run.table("uvce")
    assert row["mask_by"] == "segmenter" and len(row["points"]) == 5
    column, down = torch.tensor(row["points"]).float().mean(0).tolist()
    shown = torch.from_numpy(read(run.folder / row["mask"]))[..., 0] / 255
    want = softened(disc(16, column, down, 40 * 16 / 256)[None])[0, 0]
    assert (shown - want).abs().mean() < 0.1
    monkeypatch.setattr(kind_of, "from_pretrained", real)
    monkeypatch.setattr("counterlens.models.sources.hub._resolves", lambda address: False)
    for masks, words in (
        ([f"sam:{tmp_path / 'none'}"], "no segmenter .* --mask FILE"),
        ([f"sam:{folder}", "mask.png"], "expected it alone"),
        (["sam:nobody/no-such-segmenter"], "--mask sam:FOLDER"),
        ([f"sam:{tmp_path / 'tiny'}"], "no segmenter that can be opened"),
    ):
        with pytest.raises(InputError, match=words):
            explain(
                reds.eval(), [str(tmp_path / "a.png")], mask=masks, out=tmp_path / "no", **asked
            )
