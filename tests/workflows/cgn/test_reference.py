"""Checkpoints of the reference CGN code, imported.

Oracle: the reference's networks built here layer by layer from its published description, with
random weights (no published checkpoint is at hand), saved as it saves them (a state dict), and
run by PyTorch's own layers; tiling and cropping written out in `cgn_references`.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cgn_references import tiled_crop
from counterlens.data import open_set, write_pack
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.reference import from_reference
from counterlens.workflows.cgn.reference import import_cgn

pytestmark = pytest.mark.usefixtures("one_thread")


def upsampled(cin: int, cout: int) -> list[nn.Module]:
    conv = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
    return [nn.Upsample(scale_factor=2), conv, nn.BatchNorm2d(cout), nn.LeakyReLU(0.2)]


def norm(channels: int) -> nn.Module:
    return nn.InstanceNorm2d(channels, affine=False, track_running_stats=False)


class Reference(nn.Module):
    """label_emb, f_shape, f_text1, f_text2 in the order of the reference's layers."""

    def __init__(self, width: int = 8, latent: int = 32) -> None:
        super().__init__()
        start, grid = 2 * width, nn.Unflatten(1, (2 * width, 8, 8))
        self.label_emb = nn.Embedding(10, 10)
        self.f_shape = nn.Sequential(
            nn.Linear(latent + 10, start * 64), grid, norm(start), *upsampled(start, width),
            norm(width), *upsampled(width, 1), norm(1),
        )  # fmt: skip
        for name in ("f_text1", "f_text2"):
            layers = nn.Sequential(
                nn.Linear(latent + 10, start * 64), grid, *upsampled(start, start),
                *upsampled(start, width), nn.Conv2d(width, 3, 3, padding=1), nn.BatchNorm2d(3),
                nn.Tanh(),
            )  # fmt: skip
            self.add_module(name, layers)

    def forward(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inside = torch.cat([u, self.label_emb(y)], 1)
        mask = self.f_shape(inside).clamp(1e-4, 1 - 1e-4)
        return mask, self.f_text1(inside), self.f_text2(inside)


@pytest.fixture(scope="module")
def reference() -> Reference:
    torch.manual_seed(4)
    net = Reference()
    for layer in net.modules():  # as after training: statistics, gains and biases of any size
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.5)
            layer.running_var.uniform_(0.5, 2)
            nn.init.normal_(layer.weight, 1, 0.3)
            nn.init.normal_(layer.bias, 0, 0.3)
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias, 0, 1)
    return net.eval().requires_grad_(False)


def saved(net: Reference, folder: Path) -> str:
    folder.mkdir(parents=True)
    torch.save(net.state_dict(), folder / "ckp.pth")
    return str(folder / "ckp.pth")


def test_mask_object_background_and_image_equal_the_references(tmp_path: Path, reference):
    file = saved(reference, tmp_path / "cgn_double_colored_MNIST" / "weights")
    run = import_cgn([file], out=tmp_path / "run", quiet=True)
    net, card = cgn.load(run.folder / "seed-0")
    assert (card["set"], card["options"]["width"]) == ("double-coloured", 8)
    rng = torch.Generator().manual_seed(5)
    u, y = torch.randn(20, 32, generator=rng), torch.arange(20) % 10
    mask, front, behind = reference(u, y)
    by = torch.randint(0, 33, (20, 2, 2), generator=rng)
    places = torch.zeros(20, 1, 2, 16)
    places[:, 0, :, :2] = (by + 0.5) / 33
    front = torch.stack(
        [tiled_crop(x, *map(int, to)) for x, to in zip(front, by[:, 0], strict=True)]
    )
    behind = torch.stack(
        [tiled_crop(x, *map(int, to)) for x, to in zip(behind, by[:, 1], strict=True)]
    )
    made = net(u[:, None], y[:, None], places)
    wanted = (mask, front, behind, mask * front + (1 - mask) * behind)
    for ours, theirs in zip((*made, cgn.compose(*made)), wanted, strict=True):
        assert (ours[:, 0] - theirs).abs().max() <= 1e-5
    assert 0.05 < mask.mean() < 0.95 and front.std() > 0.1  # nothing saturated


def test_an_import_is_opened_by_the_other_commands(tmp_path: Path, reference):
    from counterlens.workflows.cgn.generate import generate
    from counterlens.workflows.cgn.sheets import show

    file = saved(reference, tmp_path / "own")
    run = import_cgn([file, file], dataset="wildlife", out=tmp_path / "run", quiet=True)
    assert run.done and (run.folder / "report.html").is_file()
    folder = str(run.folder / "seed-1")
    assert generate(folder, count=100, out=tmp_path / "made", device="cpu", quiet=True).done
    assert show(folder, sheets=1, out=tmp_path / "show", device="cpu", quiet=True).done


def test_classifiers_are_trained_on_an_imports_images(tmp_path: Path, reference, capsys):
    from counterlens.workflows.cgn.evaluate import evaluate

    file = saved(reference, tmp_path / "own")
    run = import_cgn([file], dataset="coloured", out=tmp_path / "run", quiet=True)
    packs = []
    for name, count in (("mnist-train", 60), ("mnist", 30)):
        digits = open_set(f"sample:{name}")
        pictures = [digits.read(i) for i in range(count)]
        write_pack(tmp_path / f"{name}.npz", pictures, digits.labels[:count], digits.classes)
        packs.append(f"pack:{tmp_path / name}.npz")
    found = evaluate(
        "coloured", cgns=[str(run.folder)], mnist=",".join(packs), count=100, epochs=1, seen=10,
        tsne=0, compared=0, out=tmp_path / "table", device="cpu",
    )  # fmt: skip
    assert found.done and [row["intact"] for row in found.table("classifiers")] == [None]
    assert {row["map"] for row in found.table("baselines")} == {"corner", "centre", "uniform"}
    assert "training data cannot be compared" in capsys.readouterr().err


def test_what_is_no_reference_checkpoint_is_refused_in_one_line(tmp_path: Path, reference):
    file = saved(reference, tmp_path / "own")
    with pytest.raises(InputError, match="dataset=NAME"):
        import_cgn([file])
    with pytest.raises(InputError, match="no set 'grey'"):
        import_cgn([file], dataset="grey")
    with pytest.raises(InputError, match=r"conv1.*label_emb, f_shape"):
        from_reference({"conv1.weight": torch.zeros(1)}, "other.pth")
    with pytest.raises(InputError, match="× 22 weights"):
        from_reference(Reference(latent=12).state_dict(), "small.pth")
    state = {k: v for k, v in reference.state_dict().items() if k != "f_text2.7.weight"}
    with pytest.raises(InputError, match=r"background\.up2\.conv\.weight"):
        from_reference(state, "cut.pth")
    torch.save(reference, tmp_path / "whole.pth")  # a pickled module would run code
    with pytest.raises(InputError, match=r"nothing was run. Save its state_dict\(\) alone\.$"):
        import_cgn([str(tmp_path / "whole.pth")], dataset="coloured")
