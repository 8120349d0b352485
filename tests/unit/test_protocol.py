"""Protocols against literal loops: which answers count, for which labels."""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces import imagenet, imagenet_names, members
from counterlens.types import Preprocess
from counterlens.workflows.protocol import Inside, choose


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
