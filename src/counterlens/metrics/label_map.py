"""From a model's classes to the classes of a protocol: some of them, or groups of them.

Paper: Hendrycks et al. 2021 (200 of 1000 classes); Geirhos et al. 2019 (16 groups, mean
    probability); Xiao et al. 2021 (9 groups, arg-max then map).
Differs: nothing.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterlens.errors import InputError
from counterlens.types import Labels, Logits, Probs


def restrict(logits: Logits, columns: Sequence[int]) -> Float[Tensor, "b s"]:
    """Keep these classes only, in this order: arg-max and softmax then run over them alone.

    Equation: nae2021 §5   the 200-way protocol: sub-set the logits first, then arg-max and softmax

    >>> restrict(torch.tensor([[9.0, 1.0, 2.0]]), [1, 2]).softmax(1).argmax(1).item()
    1
    """
    wanted = torch.as_tensor(np.asarray(columns, dtype=np.int64), device=logits.device)
    k = logits.shape[1]
    if len(wanted) < 2 or wanted.min() < 0 or wanted.max() >= k:
        raise InputError(
            f"{len(wanted)} classes to keep, expected 2 or more indices in 0 … {k - 1}."
        )
    if len(set(wanted.tolist())) != len(wanted):
        raise InputError("the classes to keep name one class twice.")
    return logits[:, wanted]


def group_means(probs: Probs, groups: Sequence[Sequence[int]]) -> Float[Tensor, "b g"]:
    """Mean probability over each group of classes. Rows no longer sum to one.

    Equation: geirhos2019 §A   p(group) = 1/|group| · Σ_{k in group} p_k

    >>> group_means(torch.tensor([[0.5, 0.1, 0.4]]), [[0, 1], [2]]).tolist()
    [[0.30000001192092896, 0.4000000059604645]]
    """
    if not groups or any(not len(group) for group in groups):
        raise InputError("every group needs at least one class.")
    k = probs.shape[1]
    weights = torch.zeros(k, len(groups), dtype=probs.dtype, device=probs.device)
    for g, group in enumerate(groups):
        members = torch.as_tensor(np.asarray(group, dtype=np.int64), device=probs.device)
        if members.min() < 0 or members.max() >= k:
            raise InputError(f"group {g} names a class outside 0 … {k - 1}.")
        weights[members, g] = 1 / len(members)
    return probs @ weights


def coarse_answers(answer: Labels, mapping: Sequence[int]) -> Labels:
    """Map answers class by class; −1 stands for a class that belongs to no group.

    >>> coarse_answers(torch.tensor([2, 0]), [0, 0, -1]).tolist()
    [-1, 0]
    """
    table = torch.as_tensor(np.asarray(mapping, dtype=np.int64))
    if len(answer) and int(answer.max()) >= len(table):
        raise InputError(f"an answer is class {int(answer.max())}, the map has {len(table)}.")
    return table[answer.cpu().long()]
