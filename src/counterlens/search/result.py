"""What every search returns, and how the networks it calls are frozen meanwhile."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType

from jaxtyping import Float
from torch import Tensor, nn

from counterlens.types import Scores


@dataclass(frozen=True)
class SearchResult:
    """The best point of each row.

    Args:
        points: where the objective was highest.
        scores: the objective there.
        start: the objective at the clean image; never above `scores`.
    """

    points: Float[Tensor, "b c h w"]
    scores: Scores
    start: Scores


_DEEPEST, _WIDEST = 4, 100  # objects between a function and the network it calls, entries of one


def networks_of(predict: object) -> list[nn.Module]:
    """The networks behind a callable: itself, or those it closes over, is bound to or names.

    >>> net = nn.Linear(2, 2)
    >>> networks_of(lambda x: net(x).relu()) == [net] == networks_of(net)
    True
    """
    networks: list[nn.Module] = []
    seen: set[int] = set()

    def visit(value: object, depth: int) -> None:
        if id(value) in seen or depth > _DEEPEST:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            networks.append(value)
            return
        for part in _parts(value):
            visit(part, depth + 1)

    visit(predict, 0)
    return networks


def _parts(value: object) -> list[object]:
    """What an object refers to."""
    if isinstance(value, FunctionType):
        if str(value.__module__).split(".")[0] == "torch":
            return []
        around = inspect.getclosurevars(value)
        return [*around.nonlocals.values(), *around.globals.values(), *(value.__defaults__ or ())]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple):
        return list(value[:_WIDEST])
    if isinstance(value, dict):
        return list(value.values())[:_WIDEST]
    if isinstance(value, type | ModuleType | Tensor):
        return []
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


@contextmanager
def frozen(predict: object) -> Iterator[None]:
    """Evaluation mode and no weight gradients inside the block; both restored after it.

    A compiled network computes the gradients of all that requires one, so freezing the weights
    is what makes its input gradient cheap.

    Args:
        predict: a network, or a function that calls networks.
    """
    nets = networks_of(predict)
    modes = [(module, module.training) for net in nets for module in net.modules()]
    wanted = [weight for net in nets for weight in net.parameters() if weight.requires_grad]
    try:
        for net in nets:
            net.eval()
        for weight in wanted:
            weight.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for weight in wanted:
            weight.requires_grad_(True)
