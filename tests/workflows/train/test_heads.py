"""Three heads on one trunk: the network, its losses, its folder, its training, its audit.

Oracles: sums written out; a trunk that hands the pixels through, so that every logit is known;
images whose colour, place and ground are the factors.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import counterlens as cl
from counterlens.errors import InputError
from counterlens.losses.heads import heads_loss
from counterlens.models import load
from counterlens.models.nets.heads import (
    FACTORS,
    EveryHead,
    ThreeHeads,
    head_logits,
    one_head,
    with_three_heads,
)

pytestmark = pytest.mark.usefixtures("one_thread")
BASE = "zoo:cifar10-plain-small"
TOPS = ((220, 30, 30), (30, 220, 30), (30, 30, 220))
BOTTOMS = ((220, 220, 30), (30, 220, 220), (220, 30, 220))


def small() -> cl.Classifier:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    return cl.Classifier(net, 5, [0.5] * 3, [0.25] * 3, size=2)


def test_the_ensemble_is_the_mean_of_the_heads_logits(rng: torch.Generator) -> None:
    """Oracle: matrix products of the normalised pixels, written out."""
    model = with_three_heads(small(), ("a", "b", "c"))
    x = torch.rand(4, 3, 2, 2, generator=rng)
    z = (x.flatten(1) - 0.5) / 0.25
    net = model.net
    assert isinstance(net, ThreeHeads)
    by_hand = [z @ net.heads[name].weight.T + net.heads[name].bias for name in FACTORS]
    assert torch.allclose(model(x), sum(by_hand) / 3, atol=1e-6)
    assert torch.allclose(head_logits(model, x), torch.stack(by_hand), atol=1e-6)
    side_by_side = EveryHead(model)(x)
    assert torch.allclose(side_by_side, torch.cat(by_hand, 1), atol=1e-6)
    for name, wanted in zip(FACTORS, by_hand, strict=True):
        assert torch.allclose(one_head(model, name)(x), wanted, atol=1e-6)


def test_the_terms_against_sums_written_out(rng: torch.Generator) -> None:
    logits = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64)
    real, factors = torch.tensor([1, 3]), torch.tensor([[0, 1, 2], [3, 3, 0], [1, 2, 2]])

    def ce(z: Tensor, y: int) -> float:
        return float(z.exp().sum().log() - z[y])

    terms = heads_loss(logits, real, factors)
    mean = [sum(logits[h, i] for h in range(3)) / 3 for i in range(2)]
    assert float(terms["real"]) == pytest.approx((ce(mean[0], 1) + ce(mean[1], 3)) / 2)
    for h, name in enumerate(FACTORS):
        wanted = sum(ce(logits[h, 2 + i], int(factors[h, i])) for i in range(3)) / 3
        assert float(terms[name]) == pytest.approx(wanted)
    assert set(heads_loss(logits[:, :2], real, None)) == {"real"}
    assert set(heads_loss(logits[:, 2:], None, factors)) == set(FACTORS)


def write_set(folder: Path, count: int, seed: int) -> tuple[Path, Path]:
    """Originals, and a manifest of counterfactuals.

    The colour above is the shape, the one below the texture, stripes of the middle the background.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(count):
        k = i % 3
        own = picture(k, k, k, rng)
        cl_write(folder / "real" / f"c{k}" / f"{i}.png", own)
        t, b = rng.integers(3, size=2)
        cl_write(folder / "data" / f"{i}.png", picture(k, t, b, rng))
        lines.append(
            f'{{"path": "data/{i}.png", "label": "c{k}", "texture": "c{t}", "background": "c{b}"}}'
        )
    manifest = folder / "counterfactuals.jsonl"
    manifest.write_text("\n".join(lines) + "\n")
    return folder / "real", manifest


def picture(shape: int, texture: int, ground: int, rng: np.random.Generator) -> np.ndarray:
    image = np.zeros((32, 32, 3))
    image[:11] = TOPS[shape]
    image[21:] = BOTTOMS[texture]
    y, x = np.mgrid[:10, :32]
    stripes = (np.zeros_like(x), x // 2 % 2, y // 2 % 2)[ground]
    image[11:21] = 255 * stripes[..., None]
    return (image + rng.normal(0, 4, image.shape)).clip(0, 255).astype(np.uint8)


def cl_write(path: Path, pixels: np.ndarray) -> None:
    from counterlens.images import write_png

    write_png(path, pixels)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, cl.Result, Path]:
    root = tmp_path_factory.mktemp("heads")
    real, manifest = write_set(root, 90, 0)
    result = cl.cgn.train_heads(
        str(real), BASE, counterfactuals=str(manifest), side=32, epochs=60, lr=0.01,
        out=root / "run", quiet=True, device="cpu",
    )  # fmt: skip
    return root, result, manifest


def test_each_head_follows_its_own_factor(trained: tuple[Path, cl.Result, Path]) -> None:
    """The audit of counterfactuals shows it: answers of each head by each factor."""
    root, result, _ = trained
    _, fresh = write_set(root / "fresh", 150, 1)
    audited = cl.audit(
        str(result.folder), str(fresh), out=root / "audit", quiet=True, anyway=True, device="cpu"
    )
    numbers = audited.numbers
    for head in FACTORS:
        own = numbers[f"heads.{head}.{'accuracy' if head == 'shape' else head}"]
        others = [numbers[f"heads.{head}.{'accuracy' if f == 'shape' else f}"]
                  for f in FACTORS if f != head]  # fmt: skip
        assert own.n > 100 and own.low > max(one.high for one in others), head
    assert {row["head"] for row in audited.table("heads")} == {*FACTORS, "ensemble"}
    assert "Heads" in audited.report.read_text()


def test_the_folder_loads_as_ensemble_and_as_single_heads(
    trained: tuple[Path, cl.Result, Path], rng: torch.Generator
) -> None:
    _, result, _ = trained
    x = torch.rand(2, 3, 32, 32, generator=rng)
    ensemble = load(str(result.folder), device="cpu")
    heads = [load(f"{result.folder}/model#{name}", device="cpu")(x) for name in FACTORS]
    assert torch.allclose(ensemble(x), torch.stack(heads).mean(0), atol=1e-5)
    assert torch.allclose(ensemble(x), result.classifier(x), atol=1e-5)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no head 'colour'"):
        load(f"{result.folder}/model#colour", device="cpu")


def test_a_frozen_trunk_and_all_statistics_stay_as_they_were(
    trained: tuple[Path, cl.Result, Path],
) -> None:
    _, result, _ = trained
    base = load(BASE, device="cpu").net.state_dict()
    own = load(str(result.folder), device="cpu").net.state_dict()
    shared = {key: value for key, value in base.items() if f"trunk.{key}" in own}
    assert len(shared) >= len(base) - 2
    assert all(torch.equal(value, own[f"trunk.{key}"]) for key, value in shared.items())


@pytest.mark.slow
def test_a_trained_trunk_moves_and_keeps_its_statistics(tmp_path: Path) -> None:
    real, manifest = write_set(tmp_path, 24, 0)
    result = cl.cgn.train_heads(
        str(real), BASE, counterfactuals=str(manifest), side=32, epochs=1, batch=8,
        trunk="trained", out=tmp_path / "run", quiet=True, device="cpu",
    )  # fmt: skip
    base = load(BASE, device="cpu").net.state_dict()
    own = load(str(result.folder), device="cpu").net.state_dict()
    moved = {key: not torch.equal(value, own[f"trunk.{key}"])
             for key, value in base.items() if f"trunk.{key}" in own}  # fmt: skip
    assert any(moved.values())
    assert not any(flag for key, flag in moved.items() if "running" in key)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs counterfactuals"),
        ({"arm": "originals", "batch": 5000}, "at most the"),
        ({"arm": "neither"}, "expected one of both"),
        ({"counterfactuals": "REAL"}, "no column texture"),
        ({"arm": "originals", "side": 0}, "side is 0"),
    ],
)
def test_bad_input_gets_one_line(tmp_path: Path, options: dict[str, object], message: str) -> None:
    real, _ = write_set(tmp_path, 12, 0)
    given = {key: str(real) if value == "REAL" else value for key, value in options.items()}
    with pytest.raises(InputError, match=message):
        cl.cgn.train_heads(
            str(real), BASE, out=tmp_path / "run", quiet=True, device="cpu",
            **{"side": 32, **given},
        )  # fmt: skip
