"""FILE.py:FACTORY: factories of every kind, good and bad, written to disk and loaded."""

import textwrap

import pytest
import torch

from counterlens.errors import InputError
from counterlens.models import load
from counterlens.types import Preprocess

HEADER = """
import torch
from torch import nn
from counterlens.classifier import Classifier
from counterlens.types import Preprocess

class Net(nn.Module):
    def __init__(self, outputs=3, channels=3, size=8):
        super().__init__()
        self.fc = nn.Linear(channels * size * size, outputs)
    def forward(self, x):
        return self.fc(x.flatten(1))

def sized(net, **facts):
    for name, value in facts.items():
        setattr(net, name, value)
    return net
"""


@pytest.fixture
def factory(tmp_path):
    """Write a factory's body to a file and give its spec."""

    def write(body: str, *, name: str = "build") -> str:
        file = tmp_path / "my model.py"
        file.write_text(f"{HEADER}\ndef build():\n{textwrap.indent(textwrap.dedent(body), '    ')}")
        return f"{file}:{name}"

    return write


def test_a_classifier_is_taken_as_it_is(factory):
    spec = factory(
        """
        return Classifier(Net(), ["a", "b", "c"], (0.1, 0.2, 0.3), (0.4, 0.5, 0.6),
                          preprocess=Preprocess((8, 8), 0.5), name="mine")
        """
    )
    classifier = load(spec, device="cpu")
    assert classifier.classes == ("a", "b", "c")
    assert classifier.preprocess == Preprocess((8, 8), 0.5)
    assert classifier.name == "mine"
    assert classifier.card["spec"] == spec


@pytest.mark.parametrize("size", ["8", "(8, 8)", "(3, 8, 8)", "[8, 8]"])
def test_a_module_sees_pixels_as_they_are(factory, size):
    classifier = load(factory(f"return sized(Net(), input_size={size})"), device="cpu")
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(classifier(x), classifier.net(x))
    assert classifier.preprocess == Preprocess((8, 8))
    assert classifier.classes == ("0", "1", "2")
    assert not classifier.training
    assert not any(p.requires_grad for p in classifier.parameters())


def test_a_grey_module_says_so_in_its_input_size(factory):
    classifier = load(
        factory("return sized(Net(channels=1), input_size=(1, 8, 8), classes=['x', 'y', 'z'])"),
        device="cpu",
    )
    assert classifier.channels == 1
    assert classifier.classes == ("x", "y", "z")
    assert classifier(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def test_a_module_may_carry_its_preprocessing(factory):
    body = "return sized(Net(), preprocess=Preprocess((8, 8), None, 'nearest'))"
    assert load(factory(body), device="cpu").preprocess == Preprocess((8, 8), None, "nearest")


def test_a_file_imports_its_neighbours_and_leaves_the_path_alone(tmp_path):
    import sys

    (tmp_path / "neighbour_of_a_model.py").write_text(HEADER)
    (tmp_path / "m.py").write_text(
        "from neighbour_of_a_model import Net, sized\nbuild = sized(Net(), input_size=8)\n"
    )
    before = list(sys.path)
    assert load(f"{tmp_path}/m.py:build", device="cpu").name == "build"  # a module, not a function
    assert sys.path == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return None", "returned NoneType, expected a Classifier or a torch module"),
        ("return [Net()]", "returned list"),
        ("return Net", "returned type"),
        ("return Net()", "does not say its input size. Set module.input_size = 224"),
        ("return sized(Net(), input_size='big')", "says 'big' for its input size"),
        ("return sized(Net(), input_size=(2, 8, 8))", r"says \(2, 8, 8\) for its input size"),
        ("return sized(Net(), input_size=16)", r"refuses images of shape \(2, 3, 16, 16\)"),
        ("return sized(Net(outputs=1), input_size=8, classes=['a'])", "1 names, but.* 2 logits"),
        ("return sized(Net(), input_size=8, classes=['a'])", "1 names, but the module returns 3"),
        ("return sized(Net(), input_size=8, classes='abc')", "expected a list of names"),
        ("return sized(nn.Flatten(0), input_size=8)", "has shape"),
        ("x = 1\nraise ValueError('no\\nweights')", "failed at line 21: ValueError: no"),
        ("return 1 +", "cannot be imported at line 20: SyntaxError"),
    ],
)
def test_a_bad_factory_is_refused_in_one_line(factory, body, says):
    with pytest.raises(InputError, match=says) as refused:
        load(factory(body), device="cpu")
    assert "\n" not in str(refused.value)


def test_a_missing_factory_and_a_missing_file_are_refused_by_name(factory, tmp_path):
    spec = factory("return Net()", name="biuld")
    with pytest.raises(InputError, match=r"no 'biuld' \(did you mean build\?\)"):
        load(spec)
    with pytest.raises(InputError, match=r"the file .*none.py does not exist"):
        load(f"{tmp_path}/none.py:build")


def test_a_file_that_fails_on_import_is_blamed_with_its_line(tmp_path):
    (tmp_path / "m.py").write_text("import math\n\nmath.sqrt(-1)\n")
    with pytest.raises(InputError, match="cannot be imported at line 3: ValueError"):
        load(f"{tmp_path}/m.py:build")


def test_the_probe_leaves_the_module_as_it_was(factory):
    body = """
    net = sized(nn.Sequential(nn.Conv2d(3, 3, 8), nn.BatchNorm2d(3), nn.Flatten()), input_size=8)
    return net
    """
    classifier = load(factory(body), device="cpu")
    assert classifier.net[1].num_batches_tracked == 0
