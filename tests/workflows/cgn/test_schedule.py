"""What an update draws, the falling learning rate, the levelled critic, the settings.

Oracles: the draws of a batch and the rates of a schedule, written out again.
"""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from counterlens import zoo
from counterlens.errors import InputError
from counterlens.generators.cgn.model import NOISE, PLACES
from counterlens.runs import read_json
from counterlens.workflows._shared.settings import as_dict
from counterlens.workflows.cgn import networks
from counterlens.workflows.cgn import train as cgn_train
from counterlens.workflows.cgn.settings import PAPERS, SETS, defaults
from counterlens.workflows.cgn.stack import Shuffled
from counterlens.workflows.cgn.train import train_cgn

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = ["width=4", "critic_width=8", "style=[0,0,0,0]", "digit_classifier_updates=2", "examined=2"]
TINY += ["batch=20", "attempts=1"]


def test_an_update_draws_pictures_noise_and_classes_as_written_out():
    b, s, count, step = 50, 3, 5000, 107  # of the second epoch
    x = torch.arange(count).remainder(256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    y = torch.arange(count).remainder(11).clamp_max(9)
    settings = replace(defaults("coloured", "cgn"), critic_width=8)
    order, generator = Shuffled(count, b, s, 0, x.device), torch.Generator().manual_seed(step)
    found = networks.batches(x, y, settings, order, generator)(step)
    generator = torch.Generator().manual_seed(step)
    uniform = torch.rand(b, s, 2 * PLACES + 1, generator=generator)
    keep = torch.rand(6, b, s, 8, generator=generator) < 0.6
    rows = Shuffled(count, b, s, 0, x.device)(step)
    wanted = {
        "rows": rows,
        "labels": y[rows],
        "keep": keep,
        "u": torch.randn(b, s, NOISE, generator=generator),
        "y": (uniform[:, :, -1] * 10).long(),
        "places": uniform[:, :, :-1].reshape(b, s, 2, PLACES),
    }
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
    torch.testing.assert_close(found["x"][:, :, 0, 0, 0], rows.remainder(256) / 127.5 - 1)


@pytest.mark.parametrize("which", SETS)
def test_a_gan_and_the_papers_way_have_nothing_of_ours(which):
    """The papers' code: constant rate, last weights, a critic that sees pictures as they are."""
    ours, gan = defaults(which, "cgn"), defaults(which, "gan")
    assert ours.average == 0.999 and ours.edge == 1 and ours.border_start
    assert set(PAPERS) <= set(as_dict(ours))
    for key in ("average", "hold", "level", "attempts"):
        assert (
            getattr(gan, key)
            == PAPERS[key]
            == {"average": 0, "hold": 1, "level": 0, "attempts": 1}[key]
        )


@pytest.mark.parametrize("which", SETS)
def test_the_defaults_are_what_the_shipped_networks_were_trained_with(which):
    recipe = read_json(zoo.cgn(f"{which}-mnist-cgn") / "card.json")["recipe"]
    before = {"hold": 1.0, "level": False}  # what a card says that is older than the setting
    running = {"attempts", "stack", "graph", "form", "precision", "keep_grams"}
    running |= {"first_attempts", "digit_classifier_updates"}
    running |= {"minutes", "keep_every"}  # how it was computed, not what
    for key, value in as_dict(defaults(which, "cgn")).items():
        if key not in running:
            assert recipe.get(key, before.get(key)) == value, key


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["hold=1.5"], "hold is 1.5, expected the share"),
        (["level=2"], "--set sets level to 2, expected true or false"),
        (["epochs=many"], "--set sets epochs to 'many', expected a whole number"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, tmp_path):
    with pytest.raises(InputError, match=said):
        train_cgn("coloured", changes=changes, out=tmp_path / "run", quiet=True)


def test_the_learning_rate_of_both_networks_falls_over_the_last_part(
    tmp_path, few_digits, monkeypatch
):
    seen: list[float] = []
    real = cgn_train.fit

    def watched(team, batches, **kept):
        for network in team:
            step = network.optimizer.step

            def noted(*given, step=step, optimizer=network.optimizer):
                seen.append(optimizer.param_groups[0]["lr"])
                return step(*given)

            monkeypatch.setattr(network.optimizer, "step", noted)
        return real(team, batches, **kept)

    monkeypatch.setattr(cgn_train, "fit", watched)
    monkeypatch.setattr(cgn_train, "LOST", 0)  # such a tiny one would end at half-time
    more = ["epochs=2", "hold=0.5", "lr=0.001"]
    train_cgn(
        "coloured", mnist=few_digits, changes=[*TINY, *more], out=tmp_path / "run", quiet=True
    )
    rates = torch.tensor(seen).view(-1, 2)  # generator, critic
    half, n = len(rates) // 2, len(rates)
    wanted = torch.tensor([0.001 * min(1.0, (n - i) / (n - half)) for i in range(n)])
    torch.testing.assert_close(rates, wanted[:, None].expand(-1, 2))


def test_a_levelled_critic_teaches_something_else_and_the_card_says_so(tmp_path, few_digits):
    cards, weights = [], []
    for level in ("true", "false"):
        changes = [*TINY, "epochs=1", f"level={level}"]
        run = train_cgn(
            "coloured", mnist=few_digits, changes=changes, out=tmp_path / level, quiet=True
        )
        weights.append(load_file(run.folder / "seed-0" / "model.safetensors"))
        cards.append(read_json(run.folder / "seed-0" / "card.json")["recipe"]["level"])
    assert cards == [True, False]
    assert not torch.equal(*(one["shape.up1.conv.weight"] for one in weights))
