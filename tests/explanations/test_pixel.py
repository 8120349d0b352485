"""Pixel counterfactuals against closed forms of a linear classifier, and files re-read from disk.

For two classes with logits ±w·x the best point of an l2 ball is x + r w/|w|, of an l∞ ball
x + r sign(w), as long as the box does not interfere.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from counterlens import images
from counterlens.ball import NORMS, Ball, row_seeds
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.evidence import (
    EVIDENCE,
    NOISE,
    SHORT,
    opinion,
    verdicts,
)
from counterlens.explanations.counterfactuals.pixel import (
    confidences,
    counterfactuals,
    default_radii,
    quantise,
)
from counterlens.explanations.counterfactuals.similar_classes import by_head, by_wordnet
from counterlens.explanations.counterfactuals.targets import class_index, targets_of
from counterlens.types import Preprocess

SIDE = 8
EXPONENT = {"l1": 1, "l1.5": 1.5, "l2": 2, "linf": np.inf}


class Linear(nn.Module):
    """Logits −w·x and w·x, from the middle grey."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = ((x - 0.5) * self.weights).flatten(1).sum(1)
        return torch.stack([-score, score], 1)


def linear(rng: torch.Generator, temperature: float = 1.0) -> Classifier:
    net = Linear(0.1 * torch.randn(3, SIDE, SIDE, generator=rng))
    card = {"temperature": temperature}
    return Classifier(net, ["no", "yes"], preprocess=Preprocess((SIDE, SIDE)), card=card).eval()


def small(seed: int, classes: int = 4) -> Classifier:
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(8 * SIDE**2 // 4, classes)
    )
    for weight in net.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) * 0.3
    names = ["ant", "bee", "cat", "dog"][:classes]
    return Classifier(net, names, preprocess=Preprocess((SIDE, SIDE)), name=f"small-{seed}").eval()


def grey(rows: int = 1) -> torch.Tensor:
    return torch.full((rows, 3, SIDE, SIDE), 128 / 255)


def random_images(rows: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (rows, 3, SIDE, SIDE), generator=rng) / 255


def test_l2_and_linf_counterfactuals_are_the_closed_form_optimum_up_to_rounding(rng):
    model = linear(rng)
    w = model.net.weights.detach()
    for norm, best in (("l2", w / w.norm()), ("linf", w.sign())):
        radius = {"l2": 0.8, "linf": 10 / 255}[norm]
        result = counterfactuals(model, grey(), [[1]], norm=norm, radii=[radius], steps=60)
        gap = (result.points - (grey() + radius * best)).abs().max().item()
        assert gap <= 1.5 / 255, norm
        assert result.reached.all() and (result.after > result.before).all()


def test_confidences_are_those_after_the_temperature_of_the_card():
    cold, warm = (linear(torch.Generator().manual_seed(0), t) for t in (1.0, 2.0))
    x = grey()
    logits = cold(x)
    torch.testing.assert_close(confidences(warm, x), (logits / 2).softmax(1).detach())
    result = counterfactuals(warm, x, [[1]], radii=[0.5], steps=10)
    again = (warm(result.points) / 2).softmax(1)[0, 1].detach()
    torch.testing.assert_close(result.after[0], again)


@pytest.mark.parametrize("norm", NORMS)
def test_a_png_read_from_disk_obeys_ball_and_box_exactly(norm, rng, tmp_path):
    model, x = small(0), random_images(3, rng)
    result = counterfactuals(model, x, [[0, 1]] * 3, norm=norm, steps=4)
    start = (x * 255).round().long()
    for k in range(len(result)):
        images.write_png(tmp_path / "z.png", result.points[k])
        seen = images.read(tmp_path / "z.png").astype(np.int64).transpose(2, 0, 1)
        change = (seen - start[result.image[k]].numpy()).astype(np.float64).ravel() / 255
        length = float(np.linalg.norm(change, EXPONENT[norm]))
        assert length <= result.radius[k].item()
        assert length == pytest.approx(result.distance[k].item(), abs=1e-12)
        logits = model(torch.from_numpy(seen)[None].float() / 255)
        assert logits.softmax(1)[0, result.target[k]].item() == pytest.approx(
            result.after[k].item(), abs=1e-6
        )


@given(st.sampled_from(NORMS), st.floats(1e-4, 6), st.integers(0, 2**31 - 1), st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_quantising_stays_inside_and_moves_no_value_by_more_than_one_step(norm, radius, seed, fill):
    rng = torch.Generator().manual_seed(seed)
    x = random_images(2, rng)
    ball = Ball(norm, radius)
    z = ball.project(x + fill * (ball.random_point(x, row_seeds(2, seed)) - x), x)
    q = quantise(z, x, norm, torch.full((2,), radius, dtype=torch.float64))
    levels = (q.double() * 255).round()
    assert (q.double() * 255 - levels).abs().max() < 1e-4
    assert levels.min() >= 0 and levels.max() <= 255
    change = (levels - (x.double() * 255).round()).flatten(1).numpy() / 255
    for row in change:
        assert np.linalg.norm(row, EXPONENT[norm]) <= radius
    assert (q - z).abs().max() <= 1.0001 / 255


def test_quantising_loses_little_of_the_budget(rng):
    x = random_images(4, rng).mul(0.2).add(0.4).mul(255).round() / 255
    z = Ball("l2", 1.0).random_point(x, row_seeds(4, 0))
    q = quantise(z, x, "l2", torch.ones(4, dtype=torch.float64))
    assert Ball("l2", 1.0).distance(q, x).min() > 0.99


def test_only_8_bit_images_are_quantised(rng):
    x = torch.rand(1, 3, SIDE, SIDE, generator=rng)
    with pytest.raises(InputError, match="no 8-bit image"):
        quantise(x, x, "l2", torch.ones(1))


def test_a_batch_gives_the_same_pictures_as_one_image_at_a_time(rng):
    model, x = small(1).double(), random_images(3, rng).double()
    joint = counterfactuals(model, x, [[0, 2]] * 3, radii=[0.3, 0.9], steps=25)
    alone = [
        counterfactuals(model, x[i : i + 1], [[t]], radii=[r], steps=25, batch=1)
        for i in range(3)
        for t in (0, 2)
        for r in (0.3, 0.9)
    ]
    for k, one in enumerate(alone):
        assert torch.equal(one.points[0], joint.points[k])
        assert one.after[0].item() == pytest.approx(joint.after[k].item(), abs=1e-9)


def test_rows_are_images_times_targets_times_radii_in_that_order(rng):
    result = counterfactuals(
        small(0), random_images(2, rng), [[0], [1, 2]], radii=[0.1, 0.2], steps=2
    )
    assert result.image.tolist() == [0, 0, 1, 1, 1, 1]
    assert result.target.tolist() == [0, 0, 1, 1, 2, 2]
    assert result.radius.tolist() == [0.1, 0.2] * 3


def test_the_model_is_left_as_it_was(rng):
    model = small(0).train()
    counterfactuals(model, random_images(1, rng), [[1]], radii=[0.5], steps=3)
    assert model.training
    assert all(w.requires_grad and w.grad is None for w in model.parameters())


def test_a_target_that_is_the_answer_makes_the_model_surer(rng):
    model, x = small(0), random_images(1, rng)
    answer = int(model(x).argmax())
    result = counterfactuals(model, x, [[answer]], radii=[1.0], steps=20)
    assert result.after.item() > result.before.item()


def test_default_radii_are_the_papers_and_grow_with_the_size():
    assert default_radii("l2", (32, 32)) == (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    assert default_radii("l2", (224, 224)) == pytest.approx((3.5, 7, 10.5, 14, 17.5, 21))
    assert default_radii("linf", (224, 224)) == default_radii("linf", (32, 32))
    assert default_radii("l1", (64, 64)) == pytest.approx(
        [4 * r for r in default_radii("l1", (32, 32))]
    )


@pytest.mark.parametrize(
    ("targets", "radii", "words"),
    [([[9]], [1.0], "targets spans"), ([[]], [1.0], "one each"), ([[0]], [], "no radius"),
     ([[0]], [-1.0], "radius is")],
)  # fmt: skip
def test_bad_asks_are_refused(targets, radii, words):
    with pytest.raises(InputError, match=words):
        counterfactuals(small(0), grey(), targets, radii=radii, steps=2)


def test_classes_are_found_by_name_number_and_nearest_spelling():
    classes = ["airplane", "automobile", "bird", "cat"]
    assert class_index(classes, "Cats") == 3
    assert class_index(classes, "plane") == 0
    assert class_index(classes, "2") == 2
    with pytest.raises(InputError, match="automobile"):
        class_index(classes, "automobeel")
    with pytest.raises(InputError, match="0 … 3"):
        class_index(classes, "17")


def test_words_name_targets_per_image():
    probs = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6]])
    classes = ["a", "b", "c", "d"]

    def ask(*words, labels=(2, 3)):
        return targets_of(words, classes, probs, labels=labels, ids=("x", "y"))

    assert ask("predicted", "near", "true") == [[0, 1, 2], [3, 2]]
    assert ask("all") == [[0, 1, 2, 3]] * 2
    drawn = ask("random")
    assert drawn == ask("random") and all(
        t not in (probs[i].argmax(), (2, 3)[i]) for i, (t,) in enumerate(drawn)
    )
    with pytest.raises(InputError, match="known label"):
        ask("true", labels=(2, -1))
    with pytest.raises(InputError, match="no target"):
        ask()


def test_kin_is_found_in_the_last_layer_and_in_wordnet():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 3))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0.1, 5.0, 0]]))
    names = ("tench", "Chihuahua", "Japanese spaniel")
    model = Classifier(net, names, preprocess=Preprocess((1, 1)))
    assert by_head(model) == (2, 2, 1) and by_wordnet(model) == (1, 2, 1)
    probs = torch.tensor([[0.7, 0.2, 0.1]])
    result = targets_of(
        ["near:head"],
        names,
        probs,
        labels=[-1],
        ids=["x"],
        similar_classes={"near:head": by_head(model)},
    )
    assert result == [[2]]
    with pytest.raises(InputError, match="outside ImageNet"):
        by_wordnet(Classifier(net, ("x", "y", "z"), preprocess=Preprocess((1, 1))))


def test_verdicts_follow_the_rule(rng):
    model, x = small(0), random_images(3, rng)
    result = counterfactuals(model, x, [[1]] * 3, radii=[1e-3, 3.0], steps=20)
    itself = opinion(model, model.classes, x, result)
    words = verdicts(result, [itself])
    assert all(
        word == (EVIDENCE if reached else SHORT)
        for word, reached in zip(words, result.reached.tolist(), strict=True)
    )
    assert SHORT in words or result.reached.all()
    stubborn = small(3)
    stubborn.net[3].bias.data += torch.tensor([1000.0, 0, 0, 0])
    against = verdicts(result, [opinion(stubborn, model.classes, x, result)])
    assert {w for w, r in zip(against, result.reached.tolist(), strict=True) if r} == {NOISE}
    rough = verdicts(result, [])
    assert {w for w, r in zip(rough, result.reached.tolist(), strict=True) if r} == {NOISE}


def test_a_judge_without_the_class_is_refused_by_name(rng):
    model, x = small(0), random_images(1, rng)
    result = counterfactuals(model, x, [[3]], radii=[0.5], steps=2)
    judge = small(5, classes=2)
    with pytest.raises(InputError, match="small-5 cannot judge: it has no class 'dog'"):
        opinion(judge, model.classes, x, result)


def test_a_judge_of_another_size_sees_the_whole_frame(rng):
    model, x = small(0), random_images(2, rng)
    result = counterfactuals(model, x, [[1]] * 2, radii=[0.5], steps=2)
    seen = []

    class Watch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return torch.zeros(len(x), 4)

    frame = Preprocess((2 * SIDE, 2 * SIDE), crop=0.5)
    judge = Classifier(Watch(), model.classes, preprocess=frame)
    seen.clear()  # the constructor counts the network's outputs
    opinion(judge, model.classes, x, result)
    assert seen[0].shape[2:] == (2 * SIDE, 2 * SIDE)
    small_again = torch.nn.functional.avg_pool2d(seen[0], 2)
    assert (small_again - x).abs().mean() < 0.1  # bicubic overshoots, but nothing was cut off
