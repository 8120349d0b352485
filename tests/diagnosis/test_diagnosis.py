"""The doctor against networks whose truth is known by construction.

Oracles: a small network whose batch norms were set from photographs normalised in a declared way;
a network that reads the mean colour, or the brightness, in closed form; torch's KL divergence for
the gap of stored statistics; permutations made by hand for the class order.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.diagnosis import CHECKS, Finding, examine, refuse_if_failed
from counterlens.diagnosis.gradients import gradients
from counterlens.diagnosis.labels import class_order, reassigned, relatedness
from counterlens.diagnosis.outputs import information, kind_of
from counterlens.diagnosis.pixels import pixels
from counterlens.diagnosis.probes import patchwork, photographs
from counterlens.diagnosis.statistics import Layer, fresh, gap
from counterlens.errors import DoctorRefused
from counterlens.images import ImageSet
from counterlens.models import load
from counterlens.runs import Run
from counterlens.types import Preprocess
from counterlens.workflows.audit.doctor import doctor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = tuple(f"class {letter}" for letter in "abcdefghij")
SMALL = Preprocess((32, 32), None)


class Around(nn.Module):
    def __init__(
        self,
        net: nn.Module,
        before: Callable[[Tensor], Tensor] = lambda u: u,
        after: Callable[[Tensor], Tensor] = lambda z: z,
    ) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, u: Tensor) -> Tensor:
        return self.after(self.net(self.before(u)))


def small_net(seed: int = 0, *, channels: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(channels, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24, momentum=None)),
        *(nn.ReLU(), nn.Conv2d(24, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24, momentum=None)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, len(NAMES))),
    )


def wrap(net: nn.Module, mean=MEAN, std=STD, classes=NAMES) -> Classifier:  # type: ignore[no-untyped-def]
    return Classifier(net, classes, mean, std, preprocess=SMALL).eval()


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Random filters, but batch norms that remember photographs under ImageNet's normalisation."""
    net = small_net()
    net[-1].weight.data *= 20  # answers that depend on the image
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    with torch.no_grad():
        net.train()((photographs()[:500] - mean) / std)
    return net.eval()


def colours(seed: int = 0, count: int = 60) -> ImageSet:
    """Noisy pictures, mostly red, green or blue, labelled so."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    pictures = rng.integers(60, 120, (count, 32, 32, 3))
    pictures[np.arange(count), :, :, labels] += 80
    stored = pictures.astype(np.uint8)
    ids = tuple(map(str, range(count)))
    return ImageSet("colours", ids, labels, ("red", "green", "blue"), lambda i: stored[i])


class MeanColour(nn.Module):
    def forward(self, u: Tensor) -> Tensor:
        return 20 * u.mean((2, 3))


class Brightness(nn.Module):
    """Dark or bright, for pixels in −1 … 1."""

    def forward(self, u: Tensor) -> Tensor:
        z = 10 * u.mean((1, 2, 3))
        return torch.stack([-z, z], 1)


def status(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.status for finding in findings}


def failed(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.status == "fail"]


def found(findings: list[Finding], check: str) -> Finding:
    return next(finding for finding in findings if finding.check == check)


def test_a_healthy_network_passes_every_check_it_can_pass(trained: nn.Module):
    findings = examine(wrap(trained))
    assert [finding.check for finding in findings] == list(CHECKS)
    assert not [f for f in findings if f.status in ("fail", "warn")]
    assert found(findings, "normalisation").status == "ok"


def test_every_failure_and_warning_says_what_to_type(trained: nn.Module):
    for net in (trained, Around(trained, after=lambda z: z.softmax(1)), small_net().train()):
        for finding in examine(Classifier(net, NAMES, preprocess=SMALL)):
            assert finding.found.endswith(".")
            assert bool(finding.fix) == (finding.status in ("fail", "warn"))


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (lambda n: wrap(n, (0.0,) * 3, (1.0,) * 3), "normalisation", "missing"),
        (lambda n: wrap(n, (0.5,) * 3, (0.5,) * 3), "normalisation", "wrong mean and std"),
        (
            lambda n: wrap(Around(n, lambda u: (u - wrap(n).mean) / wrap(n).std)),
            "normalisation",
            "double",
        ),
        (lambda n: wrap(n, [m / 255 for m in MEAN], [s / 255 for s in STD]), "pixel range", ""),
        (
            lambda n: wrap(
                Around(n, lambda u: (u / 255 - wrap(n).mean) / wrap(n).std), (0.0,) * 3, (1.0,) * 3
            ),
            "pixel range",
            "0 … 255",
        ),
    ],
)
def test_stored_statistics_alone_name_the_fault_and_warn(trained: nn.Module, make, check, words):  # type: ignore[no-untyped-def]
    """No label was given: a right model of unusual images would look the same."""
    findings = examine(make(copy.deepcopy(trained)))
    assert not failed(findings)
    told = found(findings, check)
    assert told.status == "warn" and words in told.found and "needs labels" in told.found


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (lambda n: wrap(Around(n, after=lambda z: z.softmax(1))), "logits", "probabilities"),
        (lambda n: wrap(Around(n, after=lambda z: 100 * z.softmax(1))), "logits", "sum to 100"),
        (lambda n: wrap(Around(n, after=torch.sigmoid)), "logits", "sigmoid"),
        (lambda n: wrap(n, classes=NAMES[:-1]), "class count", "9 names"),
        (lambda n: wrap(Around(n, lambda u: u + 0.05 * torch.randn_like(u))), "randomness", ""),
        (lambda n: wrap(Around(n, after=lambda z: z.log())), "finite outputs", "NaN"),
        (lambda n: wrap(Around(n, after=lambda z: z[0])), "forward", "shape"),
        (lambda n: wrap(n).train(), "training mode", "BatchNorm2d"),
    ],
)
def test_names_the_fault(trained: nn.Module, make, check: str, words: str):  # type: ignore[no-untyped-def]
    findings = examine(make(copy.deepcopy(trained)))
    assert check in failed(findings)
    assert words in found(findings, check).found


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda u: (u * 64).round() / 64, "zero"), (lambda u: u.detach(), "no gradient")],
)
def test_missing_gradients_are_told_and_refuse_nothing(trained: nn.Module, change, words: str):  # type: ignore[no-untyped-def]
    """No prediction depends on them."""
    findings = examine(wrap(Around(copy.deepcopy(trained), change)))
    told = found(findings, "gradients")
    assert told.status == "warn" and words in told.found and "need none" in told.found
    assert not failed(findings)


def test_blue_before_red_is_seen_in_the_stored_statistics(trained: nn.Module):
    c = wrap(trained)
    turned = Around(trained, lambda u: ((u * c.std + c.mean).flip(1) - c.mean) / c.std)
    assert found(examine(wrap(turned)), "channel order").status == "warn"
    assert found(examine(c), "channel order").status == "ok"


def test_blue_before_red_is_seen_in_the_labels_where_nothing_is_stored():
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "classes": ("red", "green", "blue")}
    assert not failed(examine(wrap(MeanColour(), **plain), colours()))
    turned = examine(wrap(Around(MeanColour(), lambda u: u.flip(1)), **plain), colours())
    # without stored statistics a turn of the colours and a turn of the names look the same
    assert {"channel order", "class order"} <= set(failed(turned))


def test_missing_normalisation_is_seen_in_the_labels_where_nothing_is_stored():
    rng = np.random.default_rng(0)
    level = rng.integers(20, 230, 80)
    stored = (level[:, None, None, None] + rng.integers(-15, 15, (80, 32, 32, 3))).astype(np.uint8)
    labels = (level > 127).astype(np.int64)
    ids = tuple(map(str, range(80)))
    images = ImageSet("levels", ids, labels, ("dark", "bright"), lambda i: stored[i])
    right = wrap(Brightness(), (0.5,) * 3, (0.5,) * 3, ("dark", "bright"))
    wrong = wrap(Brightness(), (0.0,) * 3, (1.0,) * 3, ("dark", "bright"))
    assert not failed(examine(right, images))
    finding = found(examine(wrong, images), "normalisation")
    assert (finding.status, finding.sure) == ("fail", "high")
    assert "normalisation is missing" in finding.found


def test_names_in_another_order_are_found_with_labels_and_spelt_out():
    net = wrap(MeanColour(), (0.0,) * 3, (1.0,) * 3, ("green", "blue", "red"))
    finding = found(examine(net, colours()), "class order")
    assert (finding.status, finding.sure) == ("fail", "high")
    assert "output 0 is red" in finding.fix or "output 2 is blue" in finding.fix


class Blueish(nn.Module):
    """Right on red, green and blue; its batch norm remembers photographs with the colours turned.

    As of a network trained on sea and sky: red first, and right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=None, affine=False)
        self.norm.train()(photographs()[:500].flip(1))
        self.mean_colour = MeanColour()

    def forward(self, u: Tensor) -> Tensor:
        self.norm(u)
        out: Tensor = self.mean_colour(u)
        return out


@pytest.mark.parametrize("labelled", [0, 2, 5, 20, 80])
def test_a_right_network_of_unusual_colours_never_fails(labelled: int):
    """Its stored statistics prefer blue first by far; with enough labels the labels clear it."""
    images = colours()
    some = np.where(np.arange(len(images)) < labelled, images.labels, -1)
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "classes": ("red", "green", "blue")}
    given = replace(images, labels=some) if labelled else None
    findings = examine(wrap(Blueish(), **plain), given)
    assert not failed(findings)
    told = found(findings, "channel order")
    if labelled == 0:
        assert told.status == "warn" and "needs labels" in told.found


def test_the_seeded_faults_of_a_shipped_model_fail_by_its_labels():
    """With the labels of 200 images: what stored statistics and labels both say is a failure."""
    c = load("zoo:cifar10-plain-small", device="cpu")
    images = open_set("sample:cifar10", limit=200)
    mean, std = c.mean, c.std

    def again(net: nn.Module, mean=mean, std=std) -> Classifier:  # type: ignore[no-untyped-def]
        flat = (t.flatten().tolist() for t in (mean, std))
        return Classifier(net, c.classes, *flat, preprocess=c.preprocess).eval()

    faults = {
        "channel order": again(Around(c.net, lambda u: ((u * std + mean).flip(1) - mean) / std)),
        "normalisation": again(c.net, torch.zeros_like(mean), torch.ones_like(std)),
        "pixel range": again(c.net, mean / 255, std / 255),
    }
    assert not failed(examine(c, images))
    for check, wrong in faults.items():
        assert check in failed(examine(wrong, images)), check


def test_labels_of_images_mined_for_errors_are_no_evidence():
    """A frozen set holds what its filters get wrong: there every renaming meets more labels."""
    images = colours()
    mined = replace(images, labels=(images.labels + 1) % 3, space="subset")
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "classes": ("red", "green", "blue")}
    findings = examine(wrap(MeanColour(), **plain), mined)
    assert not failed(findings)
    assert "selected because models get them wrong" in found(findings, "accuracy").found
    assert failed(examine(wrap(MeanColour(), **plain), replace(mined, space=None)))


def test_untrained_networks_never_fail():
    for seed in range(6):
        norm = nn.GroupNorm(4, 24) if seed % 2 else nn.BatchNorm2d(24)
        net = small_net(seed)
        net[1] = norm
        findings = examine(wrap(net), colours() if seed % 3 == 0 else None, seed=seed)
        assert not failed(findings)
    assert fresh(small_net())


def test_leaves_the_classifier_as_it_was(trained: nn.Module):
    classifier = wrap(copy.deepcopy(trained)).train()
    classifier.net[1].eval()
    before = copy.deepcopy(classifier.state_dict())
    flags = [part.training for part in classifier.modules()]
    examine(classifier)
    for name, value in classifier.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert flags == [part.training for part in classifier.modules()]
    assert all(p.grad is None for p in classifier.parameters())


def test_batch_statistics_at_test_time_fail():
    net = small_net()
    net[1] = nn.BatchNorm2d(24, track_running_stats=False)
    findings = examine(wrap(net))
    assert status(findings)["batch independence"] == "fail"
    assert status(findings)["randomness"] == "ok"


def test_a_network_that_cannot_be_run_fails_once_and_skips_the_rest():
    findings = examine(wrap(nn.Conv2d(1, 2, 3)))
    assert failed(findings) == ["forward"]
    assert status(findings)["gradients"] == "skipped"
    assert [finding.check for finding in findings] == list(CHECKS)


def test_grey_networks_and_handfuls_of_pictures_are_not_accused(trained: nn.Module):
    grey = Classifier(small_net(channels=1), NAMES, (0.5,), (0.5,), preprocess=SMALL).eval()
    assert not failed(examine(grey))
    few = colours(count=3)
    findings = examine(wrap(trained), replace(few, labels=np.full(3, -1), classes=()))
    assert not failed(findings)


def test_data_the_model_does_not_know_is_a_warning_that_names_a_class(trained: nn.Module):
    finding = found(examine(wrap(trained), colours()), "class count")
    assert finding.status == "warn"
    assert "red" in finding.found


class Exaggerated(torch.autograd.Function):
    """The identity, with a gradient five times too large."""

    @staticmethod
    def forward(ctx, u):  # type: ignore[no-untyped-def]
        return u.clone()

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        return 5 * g


def test_gradients_that_do_not_belong_to_the_function_are_a_warning(rng: torch.Generator):
    x = torch.rand(4, 3, 8, 8, generator=rng)
    w = torch.randn(5, 192, generator=rng)
    assert gradients(lambda z: z.flatten(1) @ w.T, x).status == "ok"
    assert gradients(lambda z: Exaggerated.apply(z).flatten(1) @ w.T, x).status == "warn"


def test_infinite_gradients_are_a_warning(rng: torch.Generator):
    x = torch.zeros(2, 3, 4, 4)
    w = torch.randn(5, 48, generator=rng)
    assert gradients(lambda z: z.flatten(1).sqrt() @ w.T, x).status == "warn"


def test_the_gap_is_the_symmetric_divergence_of_torch(rng: torch.Generator):
    m, v, mu, s = torch.rand(4, 7, generator=rng, dtype=torch.float64) + 0.1
    layer = Layer(m[None], (v + m**2)[None], mu, s, 0.0)
    p, q = Normal(m, v.sqrt()), Normal(mu, s.sqrt())
    both = kl_divergence(p, q) + kl_divergence(q, p)
    assert gap([layer]) == pytest.approx(torch.log1p(both).mean().item(), rel=1e-12)
    same = Layer(m[None], (v + m**2)[None], m, v, 0.0)
    assert gap([same]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda z: z, "logits"),
        (lambda z: z.softmax(1), "probabilities"),
        (lambda z: 100 * z.softmax(1), "probabilities"),
        (lambda z: z.log_softmax(1), "log-probabilities"),
        (torch.sigmoid, "independent probabilities"),
        (lambda z: z.abs() + 2, "logits"),
    ],
)
def test_outputs_are_told_apart_by_their_sums(make, kind: str, rng: torch.Generator):  # type: ignore[no-untyped-def]
    z = 3 * torch.randn(16, 5, generator=rng)
    assert kind_of(make(z)) == kind


def test_log_probabilities_are_harmless_and_pass(trained: nn.Module):
    findings = examine(wrap(Around(trained, after=lambda z: z.log_softmax(1))))
    assert found(findings, "logits").status == "ok"
    assert not failed(findings)


def test_information_is_zero_for_one_answer_and_log_k_for_sure_even_answers():
    same = torch.log_softmax(torch.tensor([[2.0, 0.0]]).repeat(6, 1), 1)
    assert information(same) == pytest.approx(0, abs=1e-9)
    sure = (1e3 * torch.eye(4).repeat(3, 1)).log_softmax(1)
    assert information(sure) == pytest.approx(np.log(4))


def test_half_of_the_answers_rename_the_other_half(rng: torch.Generator):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 6, 240)
    order = generator.permutation(6)
    assert reassigned(order[labels], labels, 6).all()
    guesses = generator.integers(0, 6, 240)
    assert reassigned(guesses, labels, 6).mean() < 0.3


@pytest.mark.parametrize(
    ("shift", "words"), [(1, "one later"), (-1, "one earlier"), (0, "are classified right")]
)
def test_usual_orders_are_named(shift: int, words: str):
    labels = np.random.default_rng(0).integers(0, 50, 120)
    finding = class_order(
        (labels + shift) % 50, labels, [f"k{i}" for i in range(50)], np.zeros((2, 50))
    )
    assert words in finding.found
    assert finding.status == ("fail" if shift else "ok")


def test_a_folder_of_a_right_models_mistakes_does_not_fail_the_class_order():
    """All wrong, four in ten by taking neighbours for each other: the names are still right."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 120)
    elsewhere = (labels + generator.integers(2, 9, 120)) % 10
    answers = np.where(generator.random(120) < 0.4, labels ^ 1, elsewhere)
    answers = np.where(answers == labels, (labels + 5) % 10, answers)
    finding = class_order(answers, labels, NAMES, np.zeros((2, 10)))
    assert finding.status != "fail"


def test_chance_answers_do_not_fail_the_class_order():
    for seed in range(40):
        generator = np.random.default_rng(seed)
        labels, answers = generator.integers(0, 10, (2, 60))
        finding = class_order(answers, labels, NAMES, np.zeros((2, 10)))
        assert finding.status != "fail"


def test_names_that_share_a_word_betray_a_wrong_order_without_any_label():
    generator = np.random.default_rng(0)
    kinds = [f"{w} {noun}" for noun in ("shark", "owl", "terrier", "car") for w in "abcdefgh"]
    common = generator.normal(size=(40, 4)).repeat(8, axis=1)
    logits = common + generator.normal(size=(40, 32))
    none = np.zeros(0, dtype=np.int64)
    assert relatedness(kinds, logits)[1] == 4 * 28
    assert class_order(none, none, kinds, logits).status == "ok"
    order = generator.permutation(32)
    assert class_order(none, none, [kinds[i] for i in order], logits).status == "warn"
    alphabet = class_order(none, none, sorted(kinds), logits)
    assert alphabet.status == "warn"


@pytest.mark.parametrize(
    ("pictures", "expected"),
    [
        ([np.full((4, 4, 3), v, np.uint8) for v in (0, 1)], "fail"),
        ([np.zeros((4, 4, 3), np.uint8)], "warn"),
        ([np.random.default_rng(0).random((4, 4, 3))], "fail"),
        ([np.random.default_rng(i).integers(0, 9, (4, 4, 3), np.uint8) for i in range(4)], "warn"),
        ([np.full((4, 4, 3), 200, np.uint8)] * 4, "warn"),
        ([np.random.default_rng(i).integers(0, 256, (4, 4, 3), np.uint8) for i in (1, 2)], "ok"),
        ([], "skipped"),
    ],
)
def test_pictures_must_be_bytes(pictures: list[np.ndarray], expected: str):
    assert pixels(pictures).status == expected


def test_pictures_divided_too_early_fail_through_the_front_door(trained: nn.Module):
    dark = colours()
    early = replace(dark, read=lambda i: (dark.read(i) / 255).round().astype(np.uint8))
    assert failed(examine(wrap(trained), early)) == ["data pixels"]


def test_patchworks_are_seeded_photographs_of_any_size():
    for size in ((32, 32), (28, 40), (100, 64)):
        classifier = Classifier(small_net(), NAMES, MEAN, STD, preprocess=Preprocess(size, None))
        x = patchwork(classifier, 6, seed=1)
        assert x.shape == (6, 3, *size)
        assert x.min() >= 0
        assert x.max() <= 1
        assert torch.equal(x, patchwork(classifier, 6, seed=1))
        assert x.std() > 0.15


def test_refusal_is_one_line_that_names_checks_and_the_way_on():
    bad = Finding("logits", "fail", "rows sum to 1.", "high", "Remove the softmax.")
    with pytest.raises(DoctorRefused, match=r"logits.*Remove the softmax.*anyway=True") as caught:
        refuse_if_failed([Finding("forward", "ok", "fine."), bad])
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    refuse_if_failed([Finding("forward", "warn", "hm.", "low", "Look.")])


def test_the_workflow_keeps_what_was_found(tmp_path: Path):
    factory = tmp_path / "mine.py"
    factory.write_text(
        "from torch import nn\n"
        "from counterlens.classifier import Classifier\n"
        "from counterlens.types import Preprocess\n"
        "def make():\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 5), nn.Softmax(1))\n"
        "    return Classifier(net, list('abcde'), preprocess=Preprocess((32, 32), None))\n"
    )
    run = doctor(f"{factory}:make", out=tmp_path / "run", device="cpu")
    rows = Run.open(run.folder).table("doctor")
    assert [row["check"] for row in rows] == list(CHECKS)
    assert [row["check"] for row in rows if row["status"] == "fail"] == ["logits"]
    assert run.run.done
    assert run.numbers["doctor.fail"].value == 1
    assert (run.folder / "report.html").is_file()
