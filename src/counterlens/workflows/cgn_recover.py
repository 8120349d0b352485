"""Collapsed digits come more often (`focus`), and training goes on until they are whole (`extra`).

What the masks were like after an epoch lies in the folder of the round's state, so that a training
that is continued draws what it would have drawn, and keeps what it would have kept.

Differs: neither cgn2021 nor cgnstudy2022 does it. Real pictures and classes of made ones are drawn
       together, so that the critic meets both equally often: what it can learn about a picture,
       given the class, stays as it was. So do the pairs of the style loss, but for those of the
       digits in focus, whose real picture then has their own class.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from counterlens.errors import InputError
from counterlens.generators.cgn import CGN, CLASSES
from counterlens.generators.stacked import stacked, unstacked
from counterlens.runs import atomic, read_json, write_json

Rows = Int[Tensor, "b s"]


def digits_of(intact: Bool[Tensor, "s 10"]) -> list[str]:
    """The collapsed digits of each network, as one word.

    >>> digits_of(torch.tensor([[True] * 10, [False] + [True] * 8 + [False]]))
    ['', '09']
    """
    return ["".join(str(d) for d in range(CLASSES) if not row[d]) for row in intact.tolist()]


def note(folder: Path, epoch: int, intact: Bool[Tensor, "s 10"]) -> None:
    """Remember what was collapsed after so many epochs."""
    write_json(_notes(folder, epoch), digits_of(intact))


def noted(folder: Path, epoch: int, stack: int) -> list[str]:
    """The collapsed digits of each network after so many epochs; none before the first."""
    if epoch == 0:
        return [""] * stack
    if not _notes(folder, epoch).is_file():
        raise InputError(
            f"{_notes(folder, epoch)} is missing, which says what to draw after epoch {epoch}. "
            "Start anew with another --out."
        )
    found: list[str] = read_json(_notes(folder, epoch))
    return found


def _notes(folder: Path, epoch: int) -> Path:
    return folder / f"collapsed-{epoch:03d}.json"


def focused(
    y: Int[Tensor, "n"],
    share: float,
    collapsed: Callable[[int], Sequence[str]],
    generator: torch.Generator,
) -> Callable[[int, Rows, Rows], tuple[Rows, Rows]]:
    """Replaces a share of a batch by collapsed digits: rows of real pictures, and classes to make.

    A pair that is replaced gets one digit, equally often each of those that its network has lost;
    the real picture is any one of it. A network that has lost none keeps what was drawn.

    Args:
        y: classes of the real pictures.
        collapsed: the digits of each network after so many epochs.
    """
    order, sizes = y.argsort(stable=True), y.bincount(minlength=CLASSES)
    first = sizes.cumsum(0) - sizes

    @lru_cache(maxsize=1)
    def lost(epoch: int) -> tuple[Int[Tensor, "10 s"], Int[Tensor, "s"]]:
        """The digits, those of each network first, and how many they are."""
        table = [[str(d) in word for d in range(CLASSES)] for word in collapsed(epoch)]
        bad = torch.tensor(table, device=y.device) & (sizes > 0)
        return bad.int().argsort(dim=1, descending=True, stable=True).T, bad.sum(1)

    def draw(epoch: int, rows: Rows, classes: Rows) -> tuple[Rows, Rows]:
        digits, count = lost(epoch)
        chance, which, place = torch.rand(3, *rows.shape, device=y.device, generator=generator)
        digit = digits.gather(0, (which * count).long().minimum(count - 1).clamp_min(0))
        within = (place * sizes[digit]).long().minimum(sizes[digit] - 1)
        taken = (chance < share) & (count > 0)
        row = order[(first[digit] + within).clamp(0, len(y) - 1)]
        return torch.where(taken, row, rows), torch.where(taken, digit, classes)

    return draw


def keep_whole(folder: Path, net: CGN, intact: Bool[Tensor, "s 10"], epoch: int) -> None:
    """Keep each network as it is when none of its digits is collapsed for the first time."""
    states = None
    for i in intact.all(1).nonzero().flatten().tolist():
        if not _whole(folder, i).is_file():
            states = states or unstacked(net.state_dict(), net.stack)
            with atomic(_whole(folder, i)) as part:
                torch.save({"epoch": epoch, "state": _own(states[i])}, part)


def all_whole(folder: Path, stack: int) -> bool:
    """Whether every network has been kept."""
    return all(_whole(folder, i).is_file() for i in range(stack))


def put_back(folder: Path, net: CGN) -> dict[int, int]:
    """Give each network that was kept its weights of that moment; after which epoch it was."""
    states, epochs = unstacked(net.state_dict(), net.stack), {}
    for i in range(net.stack):
        if _whole(folder, i).is_file():
            found = torch.load(_whole(folder, i), weights_only=True)
            states[i], epochs[i] = found["state"], int(found["epoch"])
    device = next(net.parameters()).device
    net.load_state_dict(stacked([{k: v.to(device) for k, v in one.items()} for one in states]))
    return epochs


def _whole(folder: Path, i: int) -> Path:
    return folder / f"whole-{i}.pt"


def _own(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: a part of a stack would be stored with all of it."""
    return {key: value.detach().cpu().clone() for key, value in state.items()}
