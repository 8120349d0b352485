"""Each head of a classifier with heads of shape, texture and background.

One more pass over the images gives the logits of every head. Where the images say which texture and
background they were composed of, each head is compared with each factor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from counterlens import metrics
from counterlens.images import ImageSet
from counterlens.models.nets.heads import FACTORS, EveryHead, three_heads
from counterlens.predictions import predict
from counterlens.runs import Number
from counterlens.workflows.audit.labelled import cue_votes
from counterlens.workflows.audit.outputs import Outputs
from counterlens.workflows.audit.protocol import Protocol

ENSEMBLE = "ensemble"


def write_heads(
    outputs_of: Outputs,
    images: ImageSet,
    protocol: Protocol,
    reported: Int64[np.ndarray, "n"],
) -> None:
    """Accuracy of each head, its shape bias on cue conflicts, and which factor it follows."""
    run, classifier, settings = outputs_of.run, outputs_of.classifier, outputs_of.settings
    if three_heads(classifier) is None:
        return
    predictions = predict(
        EveryHead(classifier), images, batch=settings.batch or "auto",
        workers="auto" if settings.workers is None else settings.workers,
        progress=not settings.quiet, out=run.path("state", "heads.npy"),
    )  # fmt: skip
    rows = torch.from_numpy(reported)
    logits = torch.as_tensor(predictions.logits)[rows]
    outputs = logits.reshape(len(rows), len(FACTORS), -1).unbind(1)
    every: dict[str, Tensor] = dict(
        zip((*FACTORS, ENSEMBLE), (*outputs, torch.stack(outputs).mean(0)), strict=True)
    )
    numbers: dict[str, Number] = {}
    for name, logits in every.items():
        numbers |= _accuracy(name, logits, protocol, rows)
        numbers |= _bias(name, logits, images, protocol, rows)
        numbers |= _factors(name, logits, images, protocol, reported)
    run.add_numbers(numbers)
    run.write_table("heads", _table(every, numbers))


def _accuracy(name: str, logits: Tensor, protocol: Protocol, rows: Tensor) -> dict[str, Number]:
    labels = torch.from_numpy(protocol.labels)[rows]
    right = protocol.logits(logits).argmax(1) == labels
    return {f"heads.{name}.accuracy": metrics.share(right, f"{name}: {protocol.text}")}


def _bias(
    name: str, logits: Tensor, images: ImageSet, protocol: Protocol, rows: Tensor
) -> dict[str, Number]:
    votes = cue_votes(images, protocol, logits, rows)
    if votes is None:
        return {}
    return {f"heads.{name}.shape_bias": metrics.shape_number(votes, protocol=protocol.text)}


def _factors(
    name: str,
    logits: Tensor,
    images: ImageSet,
    protocol: Protocol,
    reported: Int64[np.ndarray, "n"],
) -> dict[str, Number]:
    """Share of the answers that name the class of the texture, and of the background."""
    out = {}
    for factor in FACTORS[1:]:
        column = images.extra.get(factor)
        if column is None or not set(map(str, column)) <= set(images.classes):
            continue
        number = {one: k for k, one in enumerate(images.classes)}
        theirs = np.array([number[str(one)] for one in column], dtype=np.int64)
        labels = torch.from_numpy(protocol.matching.relabel(theirs)[reported])
        follows = protocol.logits(logits).argmax(1) == labels
        out[f"heads.{name}.{factor}"] = metrics.share(
            follows, f"{name}: answers that are the class of the {factor}"
        )
    return out


def _table(every: Sequence[str] | Mapping[str, Any], numbers: Mapping[str, Number]) -> list[Any]:
    """A row for each head with all that was measured of it."""
    rows = []
    for name in every:
        row: dict[str, Any] = {"head": name}
        for key, number in numbers.items():
            _, own, what = key.split(".")
            if own == name:
                row |= {
                    what: number.value,
                    f"{what}_low": number.low,
                    f"{what}_high": number.high,
                    f"{what}_n": number.n,
                }
        rows.append(row)
    return rows
