"""Protocols against literal loops: which answers count, for which labels."""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces import imagenet, imagenet_names, members
from counterlens.search.ensemble.store import fingerprint
from counterlens.search.fast.engine import home, open_engine
from counterlens.types import Preprocess
from counterlens.workflows.audit.protocol import Inside, Protocol, choose, judged_model


class Table(nn.Module):
    """Answers with stored rows, whatever it is shown."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Never called here."""
        raise AssertionError


def imagenet_model() -> Classifier:
    return Classifier(Table(), imagenet_names(), preprocess=Preprocess((8, 8)), name="model")


def picture(_: int) -> np.ndarray:
    return np.zeros((8, 8, 3), np.uint8)


def image_set(classes: tuple[str, ...], labels: list[int], space: str | None) -> ImageSet:
    ids = [str(i) for i in range(len(labels))]
    return ImageSet("set", ids, np.array(labels), classes, picture, space)


def test_the_200_way_protocol_answers_among_the_200_alone(rng: torch.Generator) -> None:
    wnids = tuple(members("imagenet-a"))
    protocol = choose(imagenet_model(), image_set(wnids, [0, 5, 199], "imagenet-a"))
    outputs = torch.randn(3, 1000, generator=rng)
    index = {synset.wnid: i for i, synset in enumerate(imagenet())}
    expected = torch.stack([outputs[:, index[wnid]] for wnid in sorted(wnids)], 1)
    order = [protocol.classes.index(wnid) for wnid in sorted(wnids)]
    assert torch.equal(protocol.logits(outputs)[:, order], expected)
    assert "200 of the model's 1000" in protocol.text


def test_an_answer_in_no_group_is_wrong_whatever_the_label(rng: torch.Generator) -> None:
    nine = tuple(members("imagenet-9"))
    groups = members("imagenet-9")
    labels = [i % 9 for i in range(400)]
    protocol = choose(imagenet_model(), image_set(nine, labels, "imagenet-9"))
    outputs = torch.randn(400, 1000, generator=rng)
    answers = protocol.logits(outputs).argmax(1)
    for row, label in enumerate(labels):
        right = int(outputs[row].argmax()) in groups[nine[label]]
        assert bool(answers[row] == protocol.labels[row]) == right
    flags = protocol.right_over_all(outputs, torch.from_numpy(protocol.labels))
    assert torch.equal(flags, answers == torch.from_numpy(protocol.labels))
    assert (answers == 9).any()  # "none of these" occurs


def test_the_sixteen_way_protocol_takes_the_highest_mean_probability(rng: torch.Generator) -> None:
    groups = members("cue-conflict")
    names = tuple(groups)
    protocol = choose(imagenet_model(), image_set(names, [0, 7, 15], "cue-conflict"))
    outputs = 3 * torch.randn(3, 1000, generator=rng)
    for row in range(3):
        p = torch.softmax(outputs[row].double(), 0)
        means = [float(sum(p[k] for k in groups[name]) / len(groups[name])) for name in names]
        found = protocol.logits(outputs)[row].exp()
        assert found.tolist() == pytest.approx(means, rel=1e-9)


def test_imagenet_o_is_told_apart_over_its_own_200_classes(rng: torch.Generator) -> None:
    model = imagenet_model()
    inside_200 = {i for group in members("imagenet-o").values() for i in group}
    labels = list(range(1000))
    protocol = choose(model, image_set(imagenet_names(), labels, None))
    outputs = torch.randn(1000, 1000, generator=rng)
    inside = Inside(protocol, outputs, torch.tensor(labels), 1.0)
    view = inside.against(image_set((), [-1], "imagenet-o"), model)
    assert view.logits.shape == (200, 200)
    kept = torch.tensor(sorted(inside_200))
    assert torch.equal(view.outputs, outputs[kept])
    true = view.logits.gather(1, view.labels[:, None])[:, 0]
    assert torch.equal(true, outputs[kept, kept])


def test_a_set_without_classes_is_refused() -> None:
    with pytest.raises(InputError, match="no classes"):
        choose(imagenet_model(), image_set((), [-1], None))


class Pixels(nn.Module):
    """1000 outputs that are a fixed linear function of the pixels."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(192, 1000, generator=rng))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight


SPACES = ("imagenet-a", "imagenet-9", "cue-conflict")


def pixel_model(space: str) -> tuple[Classifier, Protocol]:
    model = Classifier(Pixels(), imagenet_names(), preprocess=Preprocess((8, 8)), name="model")
    return model, choose(model, image_set(tuple(members(space)), [0, 1, 2], space))


@pytest.mark.parametrize("space", SPACES)
def test_the_attacked_model_gives_the_logits_of_the_protocol(
    space: str, rng: torch.Generator
) -> None:
    model, protocol = pixel_model(space)
    attacked = judged_model(model, protocol)
    x = torch.rand(5, 3, 8, 8, generator=rng)
    expected = protocol.logits(model(x)).float()
    assert torch.allclose(attacked(x), expected, atol=1e-4)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    (mine,) = torch.autograd.grad(attacked(ours).square().sum(), ours)
    (slow,) = torch.autograd.grad(protocol.logits(model(theirs)).square().sum(), theirs)
    assert torch.allclose(mine, slow.float(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("space", SPACES)
def test_the_attacked_model_lives_where_its_network_does(space: str) -> None:
    """The meta device stands for a GPU: whatever is left on the CPU, or waits for a value, fails.

    Attacks ask for the model's home before they send it images; a model without one would be
    given images of the CPU.
    """
    model, protocol = pixel_model(space)
    attacked = judged_model(model.to("meta"), protocol)
    assert home(attacked, torch.zeros(1, 3, 8, 8)).type == "meta"
    out = attacked(torch.zeros(2, 3, 8, 8, device="meta"))
    assert out.device.type == "meta" and out.shape == (2, len(protocol.classes))
    moved = judged_model(pixel_model(space)[0], protocol).to("meta")
    assert moved(torch.zeros(2, 3, 8, 8, device="meta")).device.type == "meta"


def test_the_attacked_model_is_frozen_copied_and_fingerprinted_with_its_protocol() -> None:
    model, protocol = pixel_model("imagenet-a")
    attacked = judged_model(model.train(), protocol)
    with open_engine(attacked, torch.full((2, 3, 8, 8), 0.5)) as engine:
        assert not model.training and not model.net.weight.requires_grad
        assert engine.fast_copy is not attacked
    assert model.training and model.net.weight.requires_grad
    other = judged_model(model, pixel_model("cue-conflict")[1])
    marks = {fingerprint({}, model=m) for m in (attacked, other, model)}
    assert len(marks) == 3
    model.net.weight.data[0, 0] += 1
    assert fingerprint({}, model=attacked) not in marks
