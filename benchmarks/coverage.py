"""How often the 95 % intervals of an audit hold the truth, for every kind of number it emits.

Worlds with known truth: calibrated logits u ~ N(0, s²) for 10 classes, labels drawn from
softmax(u), measured logits z = T · u. So accuracy, calibration, ranking and the right temperature
of the population are known from a large sample with the labels averaged out.

Result: n = 1000, 1000 repeats. Accuracy, calibration and selective answering in four worlds, OOD
detection and bias in one: 42 of 43 coverages lie in 93.2-96.8 %. The 43rd, top-5 accuracy where the
truth is 0.9994, is 97.8 %: so near to 1 the count of misses is 0, 1 or 2, and the exact binomial
coverage of Wilson's interval is 98.1 %. Differences between two models on the same images, as
`counterlens compare` gives them (accuracy, log-likelihood, AUROC; four worlds): 94.1-96.0 %. Fitted
temperatures, by ECE and by likelihood, four worlds: 94.3-95.8 %.
Run: .venv/bin/python benchmarks/coverage.py --repeats 1000
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from counterlens.metrics import (
    background_number,
    classification_numbers,
    cue_votes,
    ood_numbers,
    shape_number,
    temperature_number,
)
from counterlens.metrics.answers import answers
from counterlens.metrics.calibration import count_bins, ece_of, rms_of, width_bins
from counterlens.metrics.ood import aupr, auroc, fpr95
from counterlens.metrics.temperature import by_ece, by_nll
from counterlens.runs import LogitSet, Number
from counterlens.workflows.compare.pairs import paired_rows

K = 10
MANY = 400_000
UNKNOWN = 0.5  # unknown images have logits of a spread so much smaller
WORLDS = {  # spread of the calibrated logits, factor of the measured ones
    "overconfident": (3.0, 1.6),
    "calibrated": (3.0, 1.0),
    "slightly over": (3.0, 1.1),
    "accurate": (8.0, 0.8),
}
Rng = np.random.Generator


def logits(rng: Rng, n: int, spread: float, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Calibrated and measured logits."""
    u = torch.from_numpy(rng.normal(size=(n, K)) * spread)
    return u, u * factor


def labels(rng: Rng, u: torch.Tensor) -> torch.Tensor:
    """Labels drawn from softmax(u), by the Gumbel trick."""
    return (u + torch.from_numpy(rng.gumbel(size=u.shape))).argmax(1)


def classification_truth(rng: Rng, n: int, spread: float, factor: float) -> dict[str, float]:
    """The value over the population, with the labels averaged out."""
    u, z = logits(rng, MANY, spread, factor)
    truth, said = u.softmax(1), answers(z)
    hit = truth.gather(1, said.answer[:, None])[:, 0]
    q = z.softmax(1)
    equal = count_bins(said.confidence, hit, size=MANY // (n // 100))
    curve = hit[said.score.argsort(descending=True)].cumsum(0) / torch.arange(1, MANY + 1)
    return {
        "accuracy.top1": hit.mean().item(),
        "accuracy.top5": truth.gather(1, z.topk(5).indices).sum(1).mean().item(),
        "calibration.ece": ece_of(width_bins(said.confidence, hit, bins=15, start=1 / K)),
        "calibration.ece_common": ece_of(width_bins(said.confidence, hit, bins=15)),
        "calibration.rms": rms_of(equal),
        "calibration.rms_paper": rms_of(equal, last=False),
        "calibration.nll": -(truth * z.log_softmax(1)).sum(1).mean().item(),
        "calibration.brier": (1 - 2 * (truth * q).sum(1) + (q * q).sum(1)).mean().item(),
        "selective.aurra": curve.mean().item(),
    }


def classification(rng: Rng, n: int, spread: float, factor: float, seed: int) -> dict[str, Number]:
    u, z = logits(rng, n, spread, factor)
    return classification_numbers(z, labels(rng, u), seed=seed)


def ood_truth(rng: Rng, n: int, spread: float, factor: float) -> dict[str, float]:
    a = answers(logits(rng, MANY, spread, factor)[1])
    b = answers(logits(rng, MANY, spread / 2, factor)[1])
    return {
        "ood.far.auroc": auroc(a.score, b.score),
        "ood.far.aupr": aupr(a.score, b.score, ratio=0.5),
        "ood.far.fpr95": fpr95(a.score, b.score),
        "ood.far.mmc": b.confidence.mean().item(),
    }


def ood(rng: Rng, n: int, spread: float, factor: float, seed: int) -> dict[str, Number]:
    a = logits(rng, n, spread, factor)[1]
    b = logits(rng, n // 2, spread / 2, factor)[1]
    return ood_numbers(a, b, name="far", seed=seed)


def temperature_truth(rng: Rng, n: int, spread: float, factor: float) -> dict[str, float]:
    u, z = logits(rng, 100_000, spread, factor)
    y = labels(rng, u)
    return {"calibration.temperature": by_ece(z, y), "calibration.temperature (nll)": by_nll(z, y)}


def temperature(rng: Rng, n: int, spread: float, factor: float, seed: int) -> dict[str, Number]:
    u, z = logits(rng, n, spread, factor)
    y = labels(rng, u)
    return {
        "calibration.temperature": temperature_number(z, y, source="these", seed=seed),
        "calibration.temperature (nll)": temperature_number(z, y, source="these", method="nll"),
    }


def cues(rng: Rng, n: int, spread: float) -> dict[str, Number]:
    shape, texture = torch.from_numpy(rng.integers(0, K, (2, n)))
    z = torch.from_numpy(rng.normal(size=(n, K)) * spread)
    z[torch.arange(n), shape] += 2.0
    z[torch.arange(n), texture] += 3.0
    same = torch.from_numpy(rng.random(n)) < 0.9
    keep = torch.from_numpy(rng.random(n)) < 0.85
    votes = cue_votes(z, shape, texture, [[k] for k in range(K)])
    ids = [str(i) for i in range(n)]
    return {
        "bias.shape": shape_number(votes),
        "bias.background_gap": background_number(same, same & keep, ids=(ids, ids)),
        "bias.background_gap (unpaired)": background_number(
            same, torch.from_numpy(rng.random(n)) < 0.9 * 0.85
        ),
    }


def bias_truth(rng: Rng, n: int, spread: float, factor: float) -> dict[str, float]:
    gap = 0.9 - 0.9 * 0.85
    found = cues(rng, 10 * MANY, spread)["bias.shape"].value
    assert found is not None
    return {
        "bias.shape": found,
        "bias.background_gap": gap,
        "bias.background_gap (unpaired)": gap,
    }


def bias(rng: Rng, n: int, spread: float, factor: float, seed: int) -> dict[str, Number]:
    return cues(rng, n, spread)


def two_models(rng: Rng, n: int, spread: float, factor: float) -> tuple[torch.Tensor, ...]:
    """Calibrated logits, those of the first model, and those of a noisier second one."""
    u, z = logits(rng, n, spread, factor)
    return u, z, factor * (u + torch.from_numpy(rng.normal(size=u.shape)) * 0.7)


def paired_truth(rng: Rng, n: int, spread: float, factor: float) -> dict[str, float]:
    u, first, second = two_models(rng, MANY, spread, factor)
    truth, out = u.softmax(1), []
    for z in (first, second):
        hit = truth.gather(1, z.argmax(1)[:, None])[:, 0]
        likelihood = -(truth * z.log_softmax(1)).sum(1).mean().item()
        out.append({"accuracy.top1": hit.mean().item(), "calibration.nll": likelihood})
    known, unknown = ((first, second), two_models(rng, MANY, UNKNOWN * spread, factor)[1:])
    for side, inside, outside in zip(out, known, unknown, strict=True):
        side["ood.unknown.auroc"] = auroc(answers(inside).score, answers(outside).score)
    return {f"{key} (difference)": out[0][key] - out[1][key] for key in out[0]}


def paired(rng: Rng, n: int, spread: float, factor: float, seed: int) -> dict[str, Number]:
    """What `counterlens compare` says of two models on the same images."""
    u, *known = two_models(rng, n, spread, factor)
    y = labels(rng, u).numpy()
    _, *unknown = two_models(rng, n, UNKNOWN * spread, factor)
    ids, none = tuple(map(str, range(n))), np.full(n, -1)
    kept = {
        name: {
            "known": LogitSet("known", "in", inside.numpy(), y, ids),
            "unknown": LogitSet("unknown", "ood", outside.numpy(), none, ids),
        }
        for name, inside, outside in zip("ab", known, unknown, strict=True)
    }
    return {
        f"{row['key']} (difference)": Number(
            row["difference"], row["n"], row["low"], row["high"], row["protocol"]
        )
        for row in paired_rows(kept)
    }


PARTS: dict[str, tuple[Callable[..., dict[str, float]], Callable[..., dict[str, Number]]]] = {
    "classification": (classification_truth, classification),
    "ood": (ood_truth, ood),
    "bias": (bias_truth, bias),
    "temperature": (temperature_truth, temperature),
    "paired": (paired_truth, paired),
}


def measure(part: str, world: str, n: int, repeats: int, seed: int) -> Iterator[dict[str, object]]:
    """Rows of coverage: share of intervals that hold the truth, and on which side they miss."""
    rng = np.random.default_rng([seed, n, list(PARTS).index(part), list(WORLDS).index(world)])
    truth_of, numbers_of = PARTS[part]
    truth = truth_of(rng, n, *WORLDS[world])
    ends: dict[str, list[tuple[float, float, float]]] = {key: [] for key in truth}
    for repeat in range(repeats):
        numbers = numbers_of(rng, n, *WORLDS[world], repeat)
        for key in truth.keys() & numbers.keys():
            number = numbers[key]
            if number.value is None or number.low is None or number.high is None:
                continue
            ends[key].append((number.low, number.value, number.high))
    for key, found in sorted(ends.items()):
        if not found:
            continue
        low, value, high = np.array(found).T
        held = (low <= truth[key] + 1e-12) & (truth[key] <= high + 1e-12)
        yield {
            "number": key,
            "world": world,
            "n": n,
            "repeats": len(found),
            "coverage": float(held.mean()),
            "truth_below": float((truth[key] < low - 1e-12).mean()),
            "truth_above": float((truth[key] > high + 1e-12).mean()),
            "truth": truth[key],
            "mean_value": float(value.mean()),
            "mean_width": float((high - low).mean()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--n", type=int, nargs="+", default=[1000])
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--world", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--seed", type=int, default=0)
    out = Path(__file__).parent / "results" / "coverage.json"
    parser.add_argument("--out", type=Path, default=out)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for part in given.part:
        for world in given.world if part != "bias" else given.world[:1]:
            for n in given.n:
                started = time.process_time()
                for row in measure(part, world, n, given.repeats, given.seed):
                    key = (row["number"], world, n)
                    rows = [r for r in rows if (r["number"], r["world"], r["n"]) != key] + [row]
                    print(f"{row['coverage']:.3f}  {row['number']}  {world}  n={n}", flush=True)
                print(f"  {time.process_time() - started:.0f} s of CPU", flush=True)
                given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
