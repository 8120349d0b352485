"""Slow, literal readings of the metrics: plain Python loops off the page, no tensors."""

import math
from itertools import pairwise, permutations

import torch


def softmax(row: list[float], heat: float = 1.0) -> list[float]:
    top = max(row)
    powers = [math.exp((z - top) / heat) for z in row]
    return [p / math.fsum(powers) for p in powers]


def top(row: list[float]) -> tuple[float, int]:
    best = max(row)
    return best, row.index(best)


def ece(probs: list[list[float]], labels: list[int], bins: int, start: float) -> float:
    total = 0.0
    width = (1 - start) / bins
    for m in range(bins):
        low, high = start + m * width, start + (m + 1) * width
        inside = []
        for row, y in zip(probs, labels, strict=True):
            conf, answer = top(row)
            first = m == 0 and conf <= low
            last = m == bins - 1 and conf > low
            if first or last or low < conf <= high:
                inside.append((conf, answer == y))
        if inside:
            conf = math.fsum(c for c, _ in inside) / len(inside)
            acc = sum(r for _, r in inside) / len(inside)
            total += len(inside) / len(labels) * abs(acc - conf)
    return total


def rms(probs: list[list[float]], labels: list[int], size: int, last: bool) -> float:
    pairs = sorted((top(row)[0], top(row)[1] == y) for row, y in zip(probs, labels, strict=True))
    count = max(1, len(pairs) // size)
    total = 0.0
    for b in range(count):
        end = len(pairs) if b == count - 1 else (b + 1) * size
        part = pairs[b * size : end]
        gap = math.fsum(c for c, _ in part) / len(part) - sum(r for _, r in part) / len(part)
        if last or b < count - 1:
            total += len(part) / len(pairs) * gap**2
    return math.sqrt(total)


def aurra(scores: list[float], right: list[bool]) -> float:
    """For distinct scores."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    curve = [sum(right[i] for i in order[:m]) / m for m in range(1, len(order) + 1)]
    return math.fsum(curve) / len(curve)


def aurra_expected(scores: list[float], right: list[bool]) -> float:
    """Mean over every order of the images that sorts the scores; only for a handful of images."""
    values = []
    for order in permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            curve = [sum(right[i] for i in order[:m]) / m for m in range(1, len(order) + 1)]
            values.append(math.fsum(curve) / len(curve))
    return math.fsum(values) / len(values)


def auroc(inside: list[float], outside: list[float]) -> float:
    wins = sum((a > b) + 0.5 * (a == b) for a in inside for b in outside)
    return wins / (len(inside) * len(outside))


def fpr95(inside: list[float], outside: list[float]) -> float:
    for threshold in sorted(set(inside), reverse=True):
        if 20 * sum(a >= threshold for a in inside) >= 19 * len(inside):
            return sum(b >= threshold for b in outside) / len(outside)
    raise AssertionError("the lowest threshold keeps everything")


def edge_cases() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Logits and labels where metrics break: saturated, tied, one class missing, one image."""
    rng = torch.Generator().manual_seed(3)
    random = torch.randn(257, 7, generator=rng, dtype=torch.float64) * 3
    labels = torch.randint(0, 7, (257,), generator=rng)
    saturated = random.clone()
    saturated[:40, 2] = 1000.0
    tied = random.round()
    return {
        "random": (random, labels),
        "confidence exactly 1": (saturated, labels),
        "ties": (tied, labels),
        "all the same": (torch.zeros(30, 4, dtype=torch.float64), torch.arange(30) % 4),
        "one class missing": (random, labels.clamp(max=5)),
        "one class only": (random, torch.zeros(257, dtype=torch.int64)),
        "two classes": (random[:, :2], labels % 2),
        "one image, right": (torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.tensor([0])),
        "one image, wrong": (torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.tensor([1])),
    }
