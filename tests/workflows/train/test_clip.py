"""A small image–text pair: its loss against a plain loop, its folder as a classifier.

Sizes are tiny and pictures are the shipped sample's; nothing is said about quality.
"""

import pytest
import torch

from counterlens import zoo
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.losses.contrastive import contrastive, matching
from counterlens.models import load
from counterlens.workflows.train.clip import train_clip

pytest.importorskip("diffusers")
TINY = [
    "held_out=20", "shares=[1.0]", "variants=2", "merges=60", "per_epoch=3", "steps=6", "batch=16",
    "warmup=1", "sizes.width=16", "sizes.layers=1", "sizes.text=16", "sizes.text_layers=1",
    "sizes.heads=2", "sizes.patch=8",
]  # fmt: skip


def test_the_loss_is_the_symmetric_cross_entropy_written_out(rng):
    image, text = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64)
    scale = torch.tensor(1.0, dtype=torch.float64)
    same = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
    a = image / image.norm(dim=1, keepdim=True)
    b = text / text.norm(dim=1, keepdim=True)
    logits = scale.exp() * a @ b.T
    wanted = 0.0
    for table in (logits, logits.T):
        for i in range(3):
            friends = [j for j in range(3) if same[i, j]]
            logs = [table[i, j] - table[i].logsumexp(0) for j in friends]
            wanted -= sum(logs) / len(friends) / 3 / 2
    torch.testing.assert_close(matching(image, text, same, scale), wanted)


def test_equal_texts_are_friends(rng):
    x = torch.randn(2, 4, generator=rng)

    def net(image, ids):
        return x, x, torch.tensor(0.0)

    alike = contrastive(net, {"x": x, "ids": torch.tensor([[1, 2], [1, 2]])}, 0)["match"]
    apart = contrastive(net, {"x": x, "ids": torch.tensor([[1, 2], [1, 3]])}, 0)["match"]
    assert alike.item() != pytest.approx(apart.item())


def test_a_trained_folder_is_a_zero_shot_classifier(tmp_path, monkeypatch):
    run = train_clip(
        ["sample:cifar10"], test="sample:cifar10", changes=TINY, out=tmp_path / "run",
        device="cpu", quiet=True, cache=tmp_path / "cache",
    )  # fmt: skip
    assert run.done and run.numbers["held_out.zero_shot"].n == 20
    folder = run.folder / "model"
    ours = load(f"clip:{folder}", device="cpu")
    images = open_set("sample:cifar10")
    seen = torch.stack([torch.from_numpy(images.read(i)) for i in range(len(images))])
    said = ours(seen.permute(0, 3, 1, 2).float() / 255).argmax(1)
    right = (said == torch.as_tensor(images.labels)).float().mean().item()
    told = run.numbers["test.zero_shot"]
    assert told.n == len(images) and told.value == pytest.approx(right)
    assert ours.card["numbers"]["test.zero_shot"]["value"] == told.value
    assert ours.classes[0] == "airplane" and len(ours.classes) == 10
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert ours(x).shape == (2, 10)
    two = load(f"clip:{folder}#=a red car|a blue car", device="cpu")
    assert two(x).shape == (2, 2) and two(x).abs().max() <= 1
    with pytest.raises(InputError, match="is no image–text pair"):
        load(f"clip:{tmp_path}", device="cpu")
    assert two.card["zero_shot"] and two.card["templates"] == 1
    monkeypatch.setattr(zoo, "_PAIRS", run.folder)
    assert zoo.pairs() == ["model"]
    shipped = load("zoo:model#=a red car|a blue car", device="cpu")
    assert torch.equal(shipped(x), two(x)) and len(load("zoo:model", device="cpu").classes) == 10
    with pytest.raises(InputError, match="zoo:model"):
        load("zoo:modle", device="cpu")
