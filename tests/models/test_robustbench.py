"""RobustBench and robustness-library files: literal forward passes read off the published
architectures, over random weights under the published names, are the oracle."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torchvision import models

from counterlens.errors import InputError, MissingExtra
from counterlens.label_spaces import CIFAR10, CIFAR100
from counterlens.models import load
from counterlens.models.nets import resnets as nets
from counterlens.models.nets.robust import PreActResNet18

State = dict[str, torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small only lose by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _conv(state: State, name: str, cin: int, cout: int, size: int = 3) -> None:
    state[f"{name}.weight"] = torch.randn(cout, cin, size, size) * 0.2


def _norm(state: State, name: str, width: int) -> None:
    state[f"{name}.weight"] = torch.rand(width) + 0.5
    state[f"{name}.bias"] = torch.randn(width) * 0.1
    state[f"{name}.running_mean"] = torch.randn(width) * 0.1
    state[f"{name}.running_var"] = torch.rand(width) + 0.5
    state[f"{name}.num_batches_tracked"] = torch.tensor(7)


def _bn(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    scale, shift = state[f"{name}.weight"], state[f"{name}.bias"]
    mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    mean, var, scale, shift = (v.view(1, -1, 1, 1) for v in (mean, var, scale, shift))
    return (x - mean) / (var + 1e-5).sqrt() * scale + shift


def _wide(classes: int) -> State:
    """A wide ResNet of depth 10 and width 2 under TRADES's names."""
    state: State = {}
    _conv(state, "conv1", 3, 16)
    for stage, (cin, cout) in enumerate([(16, 32), (32, 64), (64, 128)], 1):
        at = f"block{stage}.layer.0"
        _norm(state, f"{at}.bn1", cin)
        _conv(state, f"{at}.conv1", cin, cout)
        _norm(state, f"{at}.bn2", cout)
        _conv(state, f"{at}.conv2", cout, cout)
        _conv(state, f"{at}.convShortcut", cin, cout, 1)
    _norm(state, "bn1", 128)
    state["fc.weight"], state["fc.bias"] = torch.randn(classes, 128) * 0.1, torch.randn(classes)
    return state


def _wide_forward(state: State, x: torch.Tensor) -> torch.Tensor:
    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        at, stride = f"block{stage}.layer.0", 1 if stage == 1 else 2
        y = _bn(state, f"{at}.bn1", x).relu()
        out = F.conv2d(y, state[f"{at}.conv1.weight"], stride=stride, padding=1)
        out = F.conv2d(_bn(state, f"{at}.bn2", out).relu(), state[f"{at}.conv2.weight"], padding=1)
        x = out + F.conv2d(y, state[f"{at}.convShortcut.weight"], stride=stride)
    x = F.avg_pool2d(_bn(state, "bn1", x).relu(), 8).flatten(1)
    return x @ state["fc.weight"].T + state["fc.bias"]


def _same(classes: int) -> State:
    """A wide ResNet of depth 10 and width 2 under the names of Gowal et al."""
    names = {"conv1": "init_conv", "bn1": "batchnorm", "fc": "logits"}
    inner = {"bn1": "batchnorm_0", "conv1": "conv_0", "bn2": "batchnorm_1", "conv2": "conv_1"}
    state: State = {}
    for key, value in _wide(classes).items():
        if key.startswith("block"):
            stage, _, _, part, what = key.removeprefix("block").split(".")
            part = inner.get(part, "shortcut")
            state[f"layer.{int(stage) - 1}.block.0.{part}.{what}"] = value
        else:
            layer, what = key.split(".")
            state[f"{names[layer]}.{what}"] = value
    return state


def _same_forward(state: State, x: torch.Tensor) -> torch.Tensor:
    x = F.conv2d(x, state["init_conv.weight"], padding=1)
    for stage in (0, 1, 2):
        at = f"layer.{stage}.block.0"
        y = F.silu(_bn(state, f"{at}.batchnorm_0", x))
        stride, pad = (1, (1, 1, 1, 1)) if stage == 0 else (2, (0, 1, 0, 1))
        out = F.conv2d(F.pad(y, pad), state[f"{at}.conv_0.weight"], stride=stride)
        out = F.silu(_bn(state, f"{at}.batchnorm_1", out))
        out = F.conv2d(out, state[f"{at}.conv_1.weight"], padding=1)
        x = out + F.conv2d(y, state[f"{at}.shortcut.weight"], stride=stride)
    x = F.avg_pool2d(F.silu(_bn(state, "batchnorm", x)), 8).flatten(1)
    return x @ state["logits.weight"].T + state["logits.bias"]


def _preact(late: bool) -> State:
    """Random weights of a PreActResNet-18; late = norm before the last layer."""
    state: State = {}
    _conv(state, "conv1", 3, 64)
    cin = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            _norm(state, f"{at}.bn1", cin)
            state[f"{at}.conv1.weight"] = torch.randn(width, cin, 3, 3) * 0.02
            _norm(state, f"{at}.bn2", width)
            state[f"{at}.conv2.weight"] = torch.randn(width, width, 3, 3) * 0.02
            if block == 0 and stage > 1:
                state[f"{at}.shortcut.0.weight"] = torch.randn(width, cin, 1, 1) * 0.05
            cin = width
    if late:
        _norm(state, "bn", 512)
    state["linear.weight"], state["linear.bias"] = torch.randn(10, 512) * 0.05, torch.randn(10)
    return state


def _preact_forward(state: State, x: torch.Tensor, late: bool) -> torch.Tensor:
    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = _bn(state, f"{at}.bn1", x).relu()
            kept = x
            if f"{at}.shortcut.0.weight" in state:
                kept = F.conv2d(y if late else x, state[f"{at}.shortcut.0.weight"], stride=stride)
            out = F.conv2d(y, state[f"{at}.conv1.weight"], stride=stride, padding=1)
            out = _bn(state, f"{at}.bn2", out).relu()
            x = F.conv2d(out, state[f"{at}.conv2.weight"], padding=1) + kept
    if late:
        x = _bn(state, "bn", x).relu()
    return F.avg_pool2d(x, 4).flatten(1) @ state["linear.weight"].T + state["linear.bias"]


def _colours(x: torch.Tensor, mean, std) -> torch.Tensor:
    return (x - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)


@pytest.fixture
def x():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def stored(tmp_path):
    """Write what torch.save takes; give the path."""

    def write(content: object) -> str:
        torch.save(content, tmp_path / "w.pt")
        return str(tmp_path / "w.pt")

    torch.manual_seed(0)
    return write


def test_a_wide_resnet_under_its_entry_gets_the_entrys_colours(stored, x):
    state = _wide(10)
    file = stored({"state_dict": {f"module.{k}": v for k, v in state.items()}})
    classifier = load(f"robustbench:Rice2020Overfitting@{file}", device="cpu")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    expected = _wide_forward(state, _colours(x, mean, std))
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-4)
    assert classifier.classes == CIFAR10
    assert classifier.preprocess.size == (32, 32)
    assert classifier.card["architecture_read"] == "wrn-10-2"


def test_entries_without_normalisation_and_leftover_blocks(stored, x):
    state = _wide(10)
    left = {k.replace("block1", "sub_block1"): v for k, v in state.items() if "block1" in k}
    classifier = load(f"robustbench:Carmon2019Unlabeled@{stored({**state, **left})}", device="cpu")
    torch.testing.assert_close(classifier(x), _wide_forward(state, x), rtol=1e-4, atol=1e-4)


def test_colours_in_the_file_win_over_those_of_the_entry(stored, x):
    state, mean, std = _wide(100), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    buffers = {
        "mu": torch.tensor(mean).view(1, 3, 1, 1),
        "sigma": torch.tensor(std).view(1, 3, 1, 1),
    }
    classifier = load(
        f"robustbench:Rice2020Overfitting@{stored({**state, **buffers})}", device="cpu"
    )
    expected = _wide_forward(state, _colours(x, mean, std))
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-4)
    assert classifier.classes == CIFAR100


def test_wide_resnets_with_tensorflows_padding(stored, x):
    state = _same(10)
    classifier = load(f"robustbench:Wang2023Better_WRN-28-10@{stored(state)}", device="cpu")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    expected = _same_forward(state, _colours(x, mean, std))
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("late", [False, True])
def test_both_readings_of_the_preactivated_resnet(stored, x, late):
    state = _preact(late)
    classifier = load(f"robustbench:preactresnet-18@{stored(state)}", device="cpu")
    expected = _preact_forward(state, x, late)
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-4)
    assert "no normalisation" in classifier.card["notes"][0]
    assert isinstance(classifier.net, PreActResNet18)


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_a_robustness_library_file_gives_network_and_colours(stored, x, kind):
    net = nets.build({"kind": kind}, 10).eval()
    mean, std = torch.tensor([0.49, 0.48, 0.44]), torch.tensor([0.2, 0.19, 0.21])
    wrapped = {
        **{f"module.model.{k}": v for k, v in net.state_dict().items()},
        **{f"module.attacker.model.{k}": v for k, v in net.state_dict().items()},
        "module.normalizer.new_mean": mean.view(3, 1, 1),
        "module.normalizer.new_std": std.view(3, 1, 1),
        "module.attacker.normalize.new_mean": mean.view(3, 1, 1),
        "module.attacker.normalize.new_std": std.view(3, 1, 1),
    }
    file = stored({"model": wrapped, "epoch": 150, "optimizer": {"state": {}}})
    classifier = load(f"robustbench:{kind}@{file}", device="cpu")
    expected = net(_colours(x, mean.tolist(), std.tolist()))
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-5)


def test_an_imagenet_resnet_gets_imagenets_colours_and_size(stored):
    net = models.resnet18().eval()
    state = {f"model.{k}": v for k, v in net.state_dict().items()}
    classifier = load(f"robustbench:Salman2020Do_R18@{stored(state)}", device="cpu")
    x = torch.rand(1, 3, 224, 224)
    expected = net(_colours(x, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-4)
    assert classifier.preprocess.size == (224, 224)
    assert len(classifier.classes) == 1000


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrn-28-10", r"holds a wrn-10-2, not a wrn-28-10. Type robustbench:wrn-10-2@"),
        ("resnet-18", "holds a wrn-10-2"),
        ("Rice2020Overfiting", r"did you mean Rice2020Overfitting\?"),
        ("Ding2020MMA", "does not say how colours are normalised"),
    ],
)
def test_a_name_that_contradicts_the_file_or_is_unknown_is_refused(stored, name, says):
    with pytest.raises(InputError, match=says):
        load(f"robustbench:{name}@{stored(_wide(10))}")


def test_files_that_do_not_fit_are_refused(stored):
    state = _wide(10)
    del state["block3.layer.0.conv2.weight"]
    with pytest.raises(InputError, match=r"1 missing \(blocks.2.conv2.weight\)"):
        load(f"robustbench:wrn@{stored(state)}")
    with pytest.raises(InputError, match="none of the architectures known here"):
        load(f"robustbench:wrn@{stored({'a': torch.zeros(1)})}")
    with pytest.raises(InputError, match="1 class, expected at least 2"):
        load(f"robustbench:wrn@{stored(_wide(1))}")
    with pytest.raises(InputError, match="there is no file 'nothing'"):
        load("robustbench:wrn@nothing")


def test_objects_pickled_by_the_robustness_library_need_trust(stored):
    class Args:
        """Stands for the settings such files carry."""

    globals()["Args"] = Args
    Args.__qualname__ = "Args"
    file = stored({"model": _wide(10), "args": Args()})
    with pytest.raises(InputError, match="say trust_remote_code=True"):
        load(f"robustbench:wrn@{file}")
    trusted = load(f"robustbench:wrn@{file}", device="cpu", trust_remote_code=True)
    assert trusted.classes == CIFAR10


def test_without_a_file_the_package_is_asked(monkeypatch):
    """The package is a stand-in: the published one cannot be installed beside this one."""
    asked = {}

    def load_model(**question):
        asked.update(question)
        if question["model_name"] == "Nothing":
            raise KeyError("Nothing")
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))

    utils = ModuleType("robustbench.utils")
    utils.load_model = load_model
    monkeypatch.setitem(sys.modules, "robustbench", ModuleType("robustbench"))
    monkeypatch.setitem(sys.modules, "robustbench.utils", utils)
    classifier = load("robustbench:cifar10/L2/Standard", device="cpu")
    assert asked == {"model_name": "Standard", "dataset": "cifar10", "threat_model": "L2"}
    assert classifier.classes == CIFAR10
    load("robustbench:Standard", device="cpu")
    assert asked["threat_model"] == "Linf"
    with pytest.raises(InputError, match="cannot give Nothing for cifar10, Linf"):
        load("robustbench:Nothing")


def test_without_file_and_package_the_file_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "robustbench", None)
    with pytest.raises(MissingExtra, match="give the file: robustbench:Standard@FILE"):
        load("robustbench:Standard")
