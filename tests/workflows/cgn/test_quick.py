"""What makes the training of CGNs quicker, and must change nothing.

Oracles: real pictures sent through VGG-16 each time; critics that see real and made pictures apart.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from counterlens import zoo
from counterlens.errors import InputError
from counterlens.generators.cgn import critics
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN
from counterlens.losses.cgn import Game
from counterlens.models.nets.vgg import VGG16
from counterlens.workflows.cgn import networks
from counterlens.workflows.cgn.settings import defaults
from counterlens.workflows.cgn.stack import Shuffled

pytestmark = pytest.mark.usefixtures("one_thread")


def narrow_vgg(rng: torch.Generator) -> VGG16:
    widths = (3, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5)
    weights = [torch.randn(b, a, 3, 3, generator=rng) / 3 for a, b in itertools.pairwise(widths)]
    return VGG16(weights, [torch.zeros(len(w)) for w in weights])


def slopes(terms: dict[str, Tensor], net: nn.Module) -> list[Tensor]:
    total = torch.stack(list(terms.values())).sum()
    return list(torch.autograd.grad(total, list(net.parameters())))


def drawn(kind: str, which: str, rng: torch.Generator) -> tuple[dict[str, object], Tensor, dict]:
    settings = replace(defaults(which, kind), width=4, critic_width=8, form="matmul")
    x = torch.randint(256, (40, 3, 32, 32), generator=rng).to(torch.uint8)
    order = Shuffled(40, 8, 2, 0, x.device)
    batch = networks.batches(x, torch.arange(40) % 10, settings, order, rng)(0)
    return settings, x, batch


def test_kept_gram_matrices_are_those_of_the_batch(rng):
    settings, x, batch = drawn("cgn", "coloured", rng)
    features = narrow_vgg(rng)
    assert networks.known_grams(x, settings, features) is None  # by itself only on a GPU
    known = networks.known_grams(x, replace(settings, keep_grams=True), features)
    net, critic = networks.nets("cgn", settings, (0, 1), x)
    found = []
    for kept in (None, known):
        game = Game(critic, features, settings.style, 0.1, 1.0, known=kept)
        found.append(slopes(game.generator_terms(net, batch, 0), net))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_a_critic_sees_real_and_made_pictures_as_if_apart(kind, rng):
    critic = critics.build(kind, 2, 8)
    x, made = (torch.randn(4, 2, 3, 32, 32, generator=rng) for _ in range(2))
    y, labels = (torch.randint(10, (4, 2), generator=rng) for _ in range(2))
    keep = torch.rand(6, 4, 2, 8, generator=rng) < 0.6
    game = Game(critic, None, (0.0,) * 4, 0.1, 1.0, generated=made)
    real, fake = game.scores(critic, {"x": x, "y": y, "labels": labels, "keep": keep})
    torch.testing.assert_close(real, critic(x, labels, keep[2:4]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(fake, critic(made, y, keep[4:6]), rtol=1e-4, atol=1e-6)


def test_shipped_networks_are_loaded_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "_CGNS", tmp_path)
    card = {"name": "coloured-mnist-cgn", "kind": "cgn", "set": "coloured", "options": {"width": 4}}
    card["recipe"] = {"compile": True}  # a setting of earlier trainings, which is no more
    net = CGN(1, width=4).eval()
    cgn.save(tmp_path / "coloured-mnist-cgn", net, card)
    made, found = cgn.load("zoo:coloured-mnist-cgn")
    assert found["name"] in [one["name"] for one in zoo.cards()] and isinstance(made, CGN)
    torch.testing.assert_close(made.classes.weight, net.classes.weight, rtol=1e-3, atol=1e-3)
    assert "coloured-mnist-cgn" not in zoo.generators()  # those make pictures from text
    with pytest.raises(InputError, match="did you mean zoo:coloured-mnist-cgn"):
        cgn.load("zoo:coloured-mnist-cg")
