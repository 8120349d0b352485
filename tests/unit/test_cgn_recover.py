"""Collapsed digits in focus, and training that goes on until they are whole.

Oracles: the draws of a batch written out again; shares of digits computed by hand, with bounds of
the binomial; trainings that ran through, or that ended after the last regular epoch.
"""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from counterlens.errors import InputError
from counterlens.generators.cgn import NOISE, PLACES
from counterlens.runs import read_json
from counterlens.workflows import cgn_players as players
from counterlens.workflows import cgn_recover as recover
from counterlens.workflows import cgn_train
from counterlens.workflows.cgn_masks import Health
from counterlens.workflows.cgn_settings import defaults
from counterlens.workflows.cgn_train import train_cgn
from counterlens.workflows.digit_stack import Shuffled

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = ["width=4", "critic_width=8", "style=[0,0,0,0]", "reader_updates=2", "examined=2"]
TINY += ["batch=20", "attempts=1"]
B, S, COUNT = 50, 3, 5000
LOST = ("9", "", "17")  # of each network


def drawn(focus: float, step: int, lost: Sequence[str] = LOST) -> dict[str, Tensor]:
    settings = defaults("coloured", "cgn") | {"critic_width": 8, "focus": focus}
    x = torch.arange(COUNT).remainder(256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    generator = torch.Generator().manual_seed(step)
    order = Shuffled(COUNT, B, S, 0, x.device)
    told = (lambda epoch: lost if epoch else [""] * S) if focus else None
    return players.batches(x, digits(), settings, order, generator, told)(step)


def digits() -> Tensor:
    """Twice as many nines as others."""
    return torch.arange(COUNT).remainder(11).clamp_max(9)


def test_without_focus_and_without_lost_digits_the_draws_are_those_they_were():
    step = 107  # of the second epoch
    generator = torch.Generator().manual_seed(step)
    uniform = torch.rand(B, S, 2 * PLACES + 1, generator=generator)
    keep = torch.rand(6, B, S, 8, generator=generator) < 0.6
    wanted = {
        "rows": Shuffled(COUNT, B, S, 0, torch.device("cpu"))(step),
        "keep": keep,
        "u": torch.randn(B, S, NOISE, generator=generator),
        "y": (uniform[:, :, -1] * 10).long(),
        "places": uniform[:, :, :-1].reshape(B, S, 2, PLACES),
    }
    wanted["labels"] = digits()[wanted["rows"]]
    for found in (drawn(0.0, step), drawn(0.5, step, [""] * S)):
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
    found = drawn(0.5, step)  # the second network has lost nothing
    for key in ("rows", "y", "labels"):
        assert torch.equal(found[key][:, 1], wanted[key][:, 1])
        assert not torch.equal(found[key][:, 0], wanted[key][:, 0])
    assert all(torch.equal(found[key], wanted[key]) for key in ("u", "keep", "places"))
    assert torch.equal(drawn(0.5, 7)["rows"], drawn(0.0, 7)["rows"])  # nothing known yet


def test_lost_digits_come_as_often_as_asked_for_among_real_and_made():
    share, steps = 0.4, range(100, 200)  # one whole epoch
    batches = [drawn(share, step) for step in steps]
    rows, labels, made = (
        torch.cat([batch[key] for batch in batches]) for key in ("rows", "labels", "y")
    )
    assert torch.equal(labels, digits()[rows])
    shown = torch.cat([batch["x"] for batch in batches])[:, :, 0, 0, 0]
    torch.testing.assert_close(shown, rows.remainder(256) / 127.5 - 1)
    n = len(rows)
    for network, word in enumerate(LOST):
        for digit in range(10):
            for drawn_ones, usual in ((labels, (digits() == digit).float().mean()), (made, 0.1)):
                wanted = float(usual)
                if word:
                    wanted = (1 - share) * wanted + share * (str(digit) in word) / len(word)
                found = (drawn_ones[:, network] == digit).float().mean().item()
                bound = 4 * (wanted * (1 - wanted) / n) ** 0.5  # 60 looks: 0.4 % by chance
                assert abs(found - wanted) < bound, (network, digit)
    nines = rows[:, 0][labels[:, 0] == 9]
    assert len(nines.unique()) > 0.8 * (digits() == 9).sum()  # all of them are drawn from
    pairs = (labels[:, 0] == 9) & (made[:, 0] == 9)  # a real and a made picture go together
    usual = 0.6 * 0.1 * (digits() == 9).float().mean().item()
    assert abs(pairs.float().mean().item() - share - usual) < 4 * (0.25 / n) ** 0.5


def test_a_digit_that_the_data_lack_is_not_drawn():
    y = torch.arange(90) % 9
    draw = recover.focused(y, 0.9, lambda epoch: ["9", "89"], torch.Generator().manual_seed(0))
    rows, classes = torch.zeros(200, 2, dtype=torch.long), torch.ones(200, 2, dtype=torch.long)
    found, made = draw(1, rows, classes)
    assert (found[:, 0] == 0).all() and (made[:, 0] == 1).all()
    assert set(made[:, 1].tolist()) == {1, 8} and (y[found[:, 1]][made[:, 1] == 8] == 8).all()


class Judgements:
    """What an examination says each time, in place of looking at the masks of two networks."""

    def __init__(self, *words: tuple[str, str], stop_at: int = 0) -> None:
        self.words, self.calls, self.stop_at = words, 0, stop_at
        self.seeds: list[int] = []

    def __call__(self, net: object, reader: object, *, count: int, seed: int) -> Health:
        self.seeds.append(seed)
        word = self.words[min(self.calls, len(self.words) - 1)]
        self.calls += 1
        if self.calls == self.stop_at:
            signal.raise_signal(signal.SIGTERM)
        read = torch.tensor([[float(str(d) not in one) for d in range(10)] for one in word])
        return Health(read, torch.full_like(read, 0.2), torch.full_like(read, 0.2))


def weights(run: Path) -> list[bytes]:
    """Of both networks; without the count of updates, which a stack shares."""
    found = []
    for seed in (0, 4):
        state = load_file(run / f"seed-{seed}" / "model.safetensors")
        found.append(b"".join(v.numpy().tobytes() for _, v in sorted(state.items()) if v.ndim))
    return found


def test_a_training_that_is_stopped_and_continued_draws_the_same(
    tmp_path: Path, few_digits: str, monkeypatch: pytest.MonkeyPatch
):
    said = (("9", ""), ("1", "38"), ("", "3"), ("5", "5"))
    changes = [*TINY, "epochs=4", "focus=0.6"]

    def train(
        name: str, judgements: Judgements, *, focus: str = "", resume: bool = False
    ) -> object:
        monkeypatch.setattr(cgn_train, "examine", judgements)
        return train_cgn(
            "coloured", mnist=few_digits, seeds=(0, 4), changes=[*changes, *focus.split()],
            out=tmp_path / name, resume=resume, quiet=True,
        )  # fmt: skip

    run = train("through", Judgements(*said))
    rows = run.table("epochs_round_1")  # type: ignore[attr-defined]
    assert [row["focus"] for row in rows] == [["", ""], ["9", ""], ["1", "38"], ["", "3"]]
    with pytest.raises(InputError, match="repeat with --resume"):
        train("stopped", Judgements(*said, stop_at=2))
    train("stopped", Judgements(*said[2:]), resume=True)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "through")
    train("plain", Judgements(*said), focus="focus=0")
    assert weights(tmp_path / "plain")[0] != weights(tmp_path / "through")[0]
    with pytest.raises(InputError, match="repeat with --resume"):
        train("torn", Judgements(*said, stop_at=2))
    (tmp_path / "torn" / "state" / "round-0" / "collapsed-002.json").unlink()
    with pytest.raises(InputError, match=r"collapsed-002\.json is missing"):
        train("torn", Judgements(*said[2:]), resume=True)


def test_training_goes_on_until_every_network_was_whole_once(
    tmp_path: Path, few_digits: str, monkeypatch: pytest.MonkeyPatch
):
    said = (("", "9"), ("", "19"), ("3", "9"), ("3", ""), ("", ""))  # after epochs 1 to 4, the end

    def train(name: str, judgements: Judgements, *more: str, resume: bool = False) -> list[dict]:
        monkeypatch.setattr(cgn_train, "examine", judgements)
        run = train_cgn(
            "coloured", mnist=few_digits, seeds=(0, 4), changes=[*TINY, *more], out=tmp_path / name,
            resume=resume, quiet=True,
        )  # fmt: skip
        assert len(run.table("epochs_round_1")) == judgements.calls - ("extra=5" in more)
        return run.table("attempts")

    tries = train("extra", Judgements(*said), "epochs=2", "extra=5")
    assert [(row["extra"], row["intact"], row["collapsed"]) for row in tries] == [
        (0, 10, ""),
        (2, 10, ""),
    ]
    train("two", Judgements(*said), "epochs=2")
    train("four", Judgements(*said), "epochs=4")
    first, second = weights(tmp_path / "extra")
    assert first == weights(tmp_path / "two")[0] != weights(tmp_path / "four")[0]
    assert second == weights(tmp_path / "four")[1]  # of the fourth epoch, and it is the last
    with pytest.raises(InputError, match="repeat with --resume"):
        train("stopped", Judgements(*said, stop_at=3), "epochs=2", "extra=5")
    monkeypatch.setattr(cgn_train, "examine", Judgements(*said[3:]))
    changes = [*TINY, "epochs=2", "extra=5"]
    run = train_cgn(
        "coloured", mnist=few_digits, seeds=(0, 4), changes=changes, out=tmp_path / "stopped",
        resume=True, quiet=True,
    )  # fmt: skip
    assert weights(tmp_path / "stopped") == [first, second]
    assert [row["extra"] for row in run.table("attempts")] == [0, 2]


def test_a_network_that_stays_broken_uses_all_extra_epochs(
    tmp_path: Path, few_digits: str, monkeypatch: pytest.MonkeyPatch
):
    judgements = Judgements(("9", ""))
    monkeypatch.setattr(cgn_train, "examine", judgements)
    changes = [*TINY, "epochs=1", "extra=2", "focus=0.3"]
    run = train_cgn(
        "coloured", mnist=few_digits, seeds=(0, 4), changes=changes, out=tmp_path / "r", quiet=True
    )
    assert [(row["extra"], row["collapsed"]) for row in run.table("attempts")] == [
        (2, "9"),
        (0, ""),
    ]
    assert judgements.seeds == [0, 0, 0, 1]  # what counts is not the look it was stopped for
    assert run.numbers["cgn.masks.extra"].value == 2


@pytest.mark.parametrize(
    "change, kind, text",
    [
        ("focus=1", "cgn", "focus is 1, expected a share"),
        ("focus=-0.1", "cgn", "focus is -0.1"),
        ("extra=0.5", "cgn", "expected a number of epochs"),
        ("extra=-1", "cgn", "extra is -1"),
        ("focus=0.2", "gan", "a GAN has no masks"),
    ],
)
def test_what_cannot_be_focused_is_refused(change: str, kind: str, text: str):
    with pytest.raises(InputError, match=text):
        train_cgn("coloured", kind=kind, changes=[change])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["hold=1.5"], "hold is 1.5, expected the share"),
        (["hold=0.5", "extra=2"], "extra=2 came with hold=0.5"),
        (["level=2"], "level is 2, expected true or false"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, tmp_path):
    with pytest.raises(InputError, match=said):
        train_cgn("coloured", changes=changes, out=tmp_path / "run", quiet=True)


def test_the_learning_rate_of_both_players_falls_over_the_last_part(tmp_path, monkeypatch):
    seen: list[float] = []
    real = cgn_train.fit

    def watched(team, batches, **kept):
        for player in team:
            step = player.optimizer.step

            def noted(*given, step=step, optimizer=player.optimizer):
                seen.append(optimizer.param_groups[0]["lr"])
                return step(*given)

            monkeypatch.setattr(player.optimizer, "step", noted)
        return real(team, batches, **kept)

    monkeypatch.setattr(cgn_train, "fit", watched)
    monkeypatch.setattr(cgn_train, "LOST", 0)  # such a tiny one would end at half-time
    more = ["epochs=2", "hold=0.5", "lr=0.001"]
    train_cgn("coloured", changes=[*TINY, *more], out=tmp_path / "run", quiet=True)
    rates = torch.tensor(seen).view(-1, 2)  # generator, critic
    half, n = len(rates) // 2, len(rates)
    wanted = torch.tensor([0.001 * min(1.0, (n - i) / (n - half)) for i in range(n)])
    torch.testing.assert_close(rates, wanted[:, None].expand(-1, 2))


def test_a_levelled_critic_teaches_something_else_and_the_card_says_so(tmp_path):
    cards, weights = [], []
    for level in ("true", "false"):
        changes = [*TINY, "epochs=1", f"level={level}"]
        run = train_cgn("coloured", changes=changes, out=tmp_path / level, quiet=True)
        weights.append(load_file(run.folder / "seed-0" / "model.safetensors"))
        cards.append(read_json(run.folder / "seed-0" / "card.json")["recipe"]["level"])
    assert cards == [True, False]
    assert not torch.equal(*(one["shape.up1.conv.weight"] for one in weights))
