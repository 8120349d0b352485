"""Classifiers from objects: modules, functions and specs; audits and explanations of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import counterlens as cl
from counterlens import InputError
from counterlens.models.weights import weights_hash
from counterlens.report import render

CLASSES = ["cat", "dog", "owl"]
SPEC = "zoo:cifar10-plain-small"


def small(outputs: int = 3, channels: int = 3) -> nn.Sequential:
    """A small network with batch norm, so that eval mode matters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, outputs),
    )  # fmt: skip


@pytest.fixture(scope="module")
def shipped() -> cl.Classifier:
    """A real network; its parts are what a user holds."""
    return cl.load(SPEC, device="cpu")


@pytest.fixture(scope="module")
def photos() -> tuple[Tensor, Tensor]:
    images = cl.open_set("sample:cifar10", limit=80)
    x = np.stack([images[i][0] for i in range(len(images))])
    return torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(images.labels)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def test_size_and_a_count_of_classes_suffice() -> None:
    made = cl.Classifier(small(), 3, size=(16, 20), name="mine")
    assert made.preprocess.size == (16, 20)
    assert made.classes == ("0", "1", "2")
    assert made(torch.rand(2, 3, 16, 20)).shape == (2, 3)
    assert cl.Classifier(small(), CLASSES, size=16).name == "Sequential"
    assert cl.Classifier(small(channels=1), CLASSES, size=16).channels == 1
    assert cl.Classifier(small(), CLASSES, preprocess=cl.Preprocess((9, 9))).preprocess.size[0] == 9


def test_normalisation_is_applied_before_the_network() -> None:
    """Oracle: (x − mean) / std by hand."""
    net, x = small().eval(), torch.rand(2, 3, 8, 8)
    made = cl.Classifier(net, CLASSES, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], size=8)
    by_hand = torch.stack([(x[:, c] - m) / s for c, (m, s) in
                           enumerate(((0.1, 0.5), (0.2, 0.6), (0.3, 0.7)))], 1)  # fmt: skip
    torch.testing.assert_close(made(x), net(by_hand))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("convolution", [True, False])
def test_one_mean_and_std_count_for_all_channels(channels: int, convolution: bool) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 3))
    net = (small(channels=channels) if convolution else linear).eval()
    one = cl.Classifier(net, CLASSES, mean=0.5, std=0.25, size=8)
    assert one.mean.flatten().tolist() == [0.5] * channels
    assert one.std.flatten().tolist() == [0.25] * channels
    x = torch.rand(2, channels, 8, 8)
    torch.testing.assert_close(one(x), net((x - 0.5) / 0.25))


@pytest.mark.parametrize("flat", [False, True])
def test_one_logit_becomes_two_whose_difference_it_is(flat: bool) -> None:
    """Oracle: softmax of the two gives sigmoid of the one."""
    one = small(1).eval()
    net: Any = (lambda x: one(x)[:, 0]) if flat else one
    made = cl.Classifier(net, ["no", "yes"], size=8)
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(made(x).softmax(1)[:, 1], one(x)[:, 0].sigmoid())
    assert cl.Classifier(small(2), ["no", "yes"], size=8)(x).shape == (4, 2)


def test_a_network_in_training_is_left_as_it_was() -> None:
    net = small()
    made = cl.as_classifier(net, classes=CLASSES, size=8, device="cpu")
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    assert not any(m.training for m in made.modules())
    assert not any(p.requires_grad for p in made.parameters())
    assert "training mode" in made.card["notes"][0]
    assert weights_hash(made) == weights_hash(net)
    with torch.no_grad():
        net[5].bias += 1  # weights are shared: the next step of a training is seen
    assert torch.equal(made.net[5].bias, net[5].bias)  # type: ignore[index, union-attr]


def test_a_ready_classifier_is_taken_as_it_is(shipped: cl.Classifier) -> None:
    assert cl.as_classifier(shipped, device="cpu") is shipped
    assert cl.as_classifier(SPEC, device="cpu", name="mine").name == "mine"


def test_a_function_counts_as_a_network(shipped: cl.Classifier) -> None:
    """Oracle: the network the function calls."""
    x = torch.rand(2, 3, 32, 32)
    called = cl.as_classifier(
        lambda x: shipped(x), classes=shipped.classes, size=32, name="f", device="cpu"
    )
    assert torch.equal(called(x), shipped(x))
    method = cl.as_classifier(shipped.forward, classes=10, size=32, device="cpu")
    assert (method.name, len(list(method.parameters()))) == (
        "forward",
        len([*shipped.parameters()]),
    )


def test_a_timm_network_says_what_it_is() -> None:
    """Oracle: timm's own configuration of the model."""
    timm = pytest.importorskip("timm")
    net = timm.create_model("resnet10t", num_classes=1000)
    made = cl.as_classifier(net, device="cpu")
    config = timm.data.resolve_model_data_config(net)
    assert made.preprocess.size == config["input_size"][1:]
    assert made.mean.flatten().tolist() == pytest.approx(config["mean"])
    assert "goldfish" in made.classes[1]


def test_a_transformers_network_says_classes_and_size_but_not_normalisation() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], id2label=dict(enumerate(CLASSES))
    )
    net = transformers.ResNetForImageClassification(config)
    with pytest.raises(InputError, match=r"does not say its size and its mean"):
        cl.as_classifier(net, device="cpu")
    made = cl.as_classifier(net, mean=[0.5] * 3, std=[0.5] * 3, size=32, device="cpu")
    assert made.classes == tuple(CLASSES)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cl.as_classifier(small()), r"Sequential does not say its classes and its size.*"
         r"counterlens.Classifier\(net, classes=names, mean=…, std=…, size=224\)"),
        (lambda: cl.as_classifier(small(), classes=CLASSES), "does not say its size"),
        (lambda: cl.as_classifier(lambda x: x, size=8), "does not say its classes"),
        (lambda: cl.as_classifier(42), "the model is int, expected a spec"),
        (lambda: cl.as_classifier(nn.Linear), r"the class Linear, expected.*Make one: Linear\("),
        (lambda: cl.as_classifier(small().state_dict()), r"state dict needs its network"),
        (lambda: cl.as_classifier(small(), classes=4, size=8), "gives 3 logits, but 4 classes"),
        (lambda: cl.as_classifier(small(), classes=3, mean=[0.5], std=[0.5], size=8),
         r"cannot be run on images of shape \(2, 1, 8, 8\)"),
        (lambda: cl.Classifier(small(), CLASSES), "neither size nor preprocess"),
        (lambda: cl.Classifier(small(), CLASSES, size=8, preprocess=cl.Preprocess((8, 8))),
         "both size and preprocess"),
        (lambda: cl.Classifier(small(), "abc", size=8), "expected a list of names"),
        (lambda: cl.Classifier(small(1), ["one"], size=8), "Name both classes"),
        (lambda: cl.Classifier(small(), CLASSES, size=(1, 2, 3)), "expected 224 or"),  # type: ignore[arg-type]
        (lambda: cl.Classifier(nn.Sequential(small(1), nn.Sigmoid()), 2, size=8),
         "ends in a sigmoid"),
        (lambda: cl.Classifier(42, CLASSES, size=8), "the network is int"),  # type: ignore[arg-type]
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_missing_or_wrong_is_one_clear_line(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def numbers_of(run: cl.Run) -> dict[str, float | None]:
    return {key: number.value for key, number in run.numbers.items()}


def test_an_audit_of_objects_has_the_numbers_of_the_same_audit_by_specs(
    shipped: cl.Classifier,
) -> None:
    """Oracle: the audit by specs."""
    mine = cl.Classifier(
        shipped.net, shipped.classes, *(v.flatten().tolist() for v in (shipped.mean, shipped.std)),
        preprocess=shipped.preprocess, name="mine",
    )  # fmt: skip
    given = cl.open_set("sample:cifar10", limit=30)
    common: dict[str, Any] = {"ood": "noise:smooth", "limit": 30, "quiet": True}
    one = cl.audit(mine, given, out=Path("one"), **common)
    Path("my_model.py").write_text(
        "import counterlens\n"
        "def make():\n"
        f"    net = counterlens.load('{SPEC}')\n"
        "    net.name = 'street model'\n"
        "    return net\n"
    )
    two = cl.audit("my_model.py:make", "sample:cifar10", out=Path("two"), **common)
    assert numbers_of(one) == numbers_of(two)
    assert (one.manifest["model"], two.manifest["model"]) == ("mine", "street model")
    assert one.manifest["weights_hash"] == two.manifest["weights_hash"]
    assert one.manifest["settings"]["model"].startswith("mine=object:ResNet@")
    assert one.manifest["settings"]["data"] == f"cifar10=object:ImageSet@{given.fingerprint}"

    both = cl.compare(one, [two], out=Path("both"))
    assert both.manifest["model"] == "mine · street model"
    assert "mine" in render(one.run).read_text()
    with pytest.raises(InputError, match=r"the model was an object \(ResNet\).*cannot be loaded"):
        cl.explain("one", worst=2, quiet=True)


def test_a_network_can_be_audited_while_it_is_trained(photos: tuple[Tensor, Tensor]) -> None:
    x, y = photos[0] / 255, photos[1]
    net = small(10)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    net.classes, net.input_size = list(map(str, range(10))), 32  # type: ignore[assignment]
    steps = int(net[1].num_batches_tracked)  # type: ignore[arg-type]
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    run = cl.audit([net], loader, calibrate=(x, y), anyway=True, out=Path("a"), quiet=True)
    assert net.training
    assert run.manifest["model"] == "Sequential"
    assert int(net[1].num_batches_tracked) == steps  # type: ignore[arg-type]
    right = (net.eval()(x).argmax(1) == y).double().mean().item()
    assert run.numbers["accuracy.top1"].value == pytest.approx(right)
    nn.functional.cross_entropy(net(x), y).backward()  # gradients still flow


def test_explain_takes_images_of_any_kind(
    shipped: cl.Classifier, photos: tuple[Tensor, Tensor]
) -> None:
    """Oracle: all kinds hold the same pixels, so they are all explained alike."""
    x, label = photos[0][3], int(photos[1][3])
    pixels = x.permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save("three.png")
    spec = f"sample:cifar10#{cl.open_set('sample:cifar10', limit=80).ids[3]}"
    kinds = [spec, Image.fromarray(pixels), pixels, x / 255, (x, label), Path("three.png")]
    result = cl.explain(
        shipped, kinds, target="cat", radius=0.5, steps=2, out=Path("e"), quiet=True
    )
    rows = result.run.table("counterfactuals")
    assert len(rows) == len(kinds)
    assert len({round(row["after"], 4) for row in rows}) == 1
    assert [row["label"] for row in rows] == [
        rows[0]["label"],
        None,
        None,
        None,
        rows[0]["label"],
        None,
    ]


def test_calls_that_raised_type_errors_are_answered(shipped: cl.Classifier) -> None:
    """Each call of the review: it works, or it is refused in one line."""
    with pytest.raises(InputError, match="does not say its classes"):
        cl.audit(shipped.net, "sample:cifar10")
    with pytest.raises(InputError, match="has no class 'rabbit'"):
        cl.explain(shipped, np.zeros((32, 32, 3), np.uint8), target="rabbit")
    with pytest.raises(InputError, match="belongs to the model"):
        cl.explain(shipped, torch.randn(3, 32, 32), target="cat")
    with pytest.raises(InputError, match="data is int"):
        cl.audit(shipped, 3)
    with pytest.raises(InputError, match="expected a run folder or a Run"):
        cl.compare(1, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="two sets are named"):
        cl.audit(shipped, np.zeros((4, 8, 8, 3), np.uint8), ood=[np.zeros((4, 8, 8, 3), np.uint8)])
