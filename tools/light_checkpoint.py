"""A checkpoint of a training at an eighth of its size, to go on with on another machine.

A checkpoint of `counterlens.fit` holds weights, their average and two moments of Adam, in float32.
The light one holds the average in half precision; with it the training goes on. Of Adam's second
moment it holds the means of rows and columns, of which the moment is rebuilt as their outer
product; the first moment and the momentum of SGD begin at 0 again, which they forget in tens of
updates. So a training that goes on from a light checkpoint is not the same to the bit.

Paper: Shazeer and Stern 2018, Adafactor, section 3, for the factored second moment.
Differs: it is factored once, at the end, not throughout.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterlens.errors import InputError
from counterlens.runs import atomic

KIND = "light checkpoint 1"


def lighten(checkpoint: Path, file: Path) -> None:
    """Write a checkpoint of `counterlens.fit` as a light one."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    nets = state["averages"] or state["nets"]
    light = {
        "kind": KIND,
        "progress": {**state["progress"], "best_state": None, "best": float("-inf")},
        "nets": [{key: _half(value) for key, value in net.items()} for net in nets],
        "averaged": bool(state["averages"]),
        "optimizers": [_light(one) for one in state["optimizers"]],
    }
    with atomic(file) as part:
        torch.save(light, part)


def rebuild(file: Path, checkpoint: Path) -> None:
    """Write a light checkpoint as one that `counterlens.fit` goes on from."""
    light = torch.load(file, map_location="cpu", weights_only=True)
    if light.get("kind") != KIND:
        raise InputError(f"{file} is no light checkpoint.")
    nets = [{key: _full(value) for key, value in net.items()} for net in light["nets"]]
    state = {
        "progress": light["progress"],
        "nets": nets,
        "optimizers": [_rebuilt(one) for one in light["optimizers"]],
        "averages": nets if light["averaged"] else [],
    }
    with atomic(checkpoint) as part:
        torch.save(state, part)


def _light(optimizer: dict[str, Any]) -> dict[str, Any]:
    rows = {
        number: {"step": one["step"], "factors": factors(one["exp_avg_sq"]),
                 "shape": list(one["exp_avg_sq"].shape)}
        for number, one in optimizer["state"].items() if "exp_avg_sq" in one
    }  # fmt: skip
    return {"state": rows, "param_groups": optimizer["param_groups"]}


def _rebuilt(optimizer: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    for number, one in optimizer["state"].items():
        second = product(one["factors"]).reshape(one["shape"])
        first = torch.zeros_like(second)
        rows[number] = {"step": one["step"], "exp_avg": first, "exp_avg_sq": second}
    return {"state": rows, "param_groups": optimizer["param_groups"]}


def factors(second: Tensor) -> list[Tensor]:
    """Means of rows and of columns of a second moment as a matrix; of a vector, the vector."""
    if second.ndim < 2:
        return [second.float().clone()]
    table = second.float().flatten(1)
    return [table.mean(1), table.mean(0)]


def product(given: list[Tensor]) -> Tensor:
    """The outer product of means of rows and columns, over their common mean.

    As in Shazeer and Stern 2018 (4): V̂ = R Cᵀ / (1ᵀ R).

    >>> table = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    >>> torch.allclose(product(factors(table)), table)
    True
    """
    if len(given) == 1:
        return given[0]
    rows, columns = given
    return rows[:, None] * columns[None] / rows.mean().clamp_min(1e-30)


def _half(value: Tensor) -> Tensor:
    """Half precision where the values fit into it."""
    if not value.is_floating_point():
        return value.clone()
    half = value.half()
    return half if half.isfinite().all() else value.clone()


def _full(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value
