"""The shipped generator is refused for classifiers it does not fit, before it is loaded."""

import re

import pytest
import torch
from torch import nn

from counterlens import zoo
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.generators.diffusion import model as latent
from counterlens.models import load
from counterlens.types import Preprocess
from counterlens.workflows._shared.generation.generator import best_shipped, open_generator_for
from counterlens.workflows.disagree.run import disagree
from counterlens.workflows.explain.run import explain
from counterlens.workflows.neurons.run import neurons

pytestmark = pytest.mark.skipif(not zoo.generators(), reason="no generator is shipped here")


def classifier(side: int, classes: tuple[str, ...]) -> Classifier:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(classes)))
    return Classifier(net, classes, preprocess=Preprocess((side, side)), name="mine").eval()


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the generator ends the test."""

    def load_anyway(*args: object, **kwargs: object) -> None:
        pytest.fail("the generator was loaded")

    monkeypatch.setattr(latent, "load", load_anyway)


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("command", ["diffusion", "dvce", "disagree", "neurons"])
@pytest.mark.parametrize(
    ("side", "classes", "words", "facts"),
    [
        (400, ("cat", "dog"), "mine sees 400 pixels", "tench, .* 57 classes in all at 128 pixels"),
        (32, ("healthy", "sick"), "none of the classes of mine", "airplane, .* at 32 pixels"),
    ],
)
def test_a_generator_that_does_not_fit_is_refused(command, side, classes, words, facts, tmp_path):  # type: ignore[no-untyped-def]
    net, out = classifier(side, classes), tmp_path / "run"
    image = ["sample:cifar10#0"]
    with pytest.raises(InputError, match=words) as refused:
        if command == "disagree":
            disagree(net, net, classes=[classes[0]], out=out, device="cpu", quiet=True)
        elif command == "neurons":
            neurons(net, unit=[0], method="diffusion", out=out, device="cpu", quiet=True)
        else:
            explain(net, image, target=[classes[1]], method=command, out=out, device="cpu")
    told = str(refused.value)
    assert re.search(facts, told) and "generator=FOLDER" in told
    assert "\n" not in told and not out.exists()


@pytest.mark.parametrize(
    "classes", [("cat", "dog"), ("sports car", "pickup"), ("n02690373 airplane, plane", "x")]
)
@pytest.mark.parametrize("side", [28, 32, 60])
def test_a_size_near_its_own_and_one_class_of_its_own_fit(side, classes):  # type: ignore[no-untyped-def]
    assert best_shipped([classifier(side, classes)]) == ("cifar10-diffusion", "")


def test_a_shipped_classifier_fits_and_a_named_generator_is_taken(monkeypatch):  # type: ignore[no-untyped-def]
    assert not best_shipped([load("zoo:cifar10-plain-small", device="cpu")])[1]
    monkeypatch.setattr(latent, "load", lambda spec, **_: (spec, torch.float32))
    opened = open_generator_for([classifier(224, ("a", "b"))], "folder", half=False)
    assert opened == ("folder", torch.float32)


@pytest.mark.skipif("photos-diffusion" not in zoo.generators(), reason="it is not installed here")
@pytest.mark.parametrize("classes", [("cat", "dog"), ("n02099601 golden retriever", "x")])
def test_a_classifier_of_photographs_gets_the_generator_of_photographs(classes):  # type: ignore[no-untyped-def]
    for side in (96, 224, 299):
        assert best_shipped([classifier(side, classes)]) == ("photos-diffusion", "")
