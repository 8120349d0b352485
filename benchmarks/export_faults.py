"""Claim: the doctor names at least 95 % of seeded export faults, and passes exports without one.

Evidence: `python benchmarks/export_faults.py --out benchmarks/results/export_faults.json`. Each
shipped CIFAR-10 classifier is exported to ONNX by torch, with one fault built into the graph or
into its description, and quantised by onnxruntime where the fault is one of quantisation. Pictures
are shipped ones at 96 pixels, so that another way to resize them matters. A fault counts as named
where `diagnosis.export.export` gives its words; an export without a fault counts as passed where it
says ok. Float exports are also compared with torch (largest difference of logits), int8 exports by
their flips.
Not shown: photographs' classifiers at 224 pixels, faults in pairs.
"""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.diagnosis.export import export
from counterlens.diagnosis.probes import stack
from counterlens.images import resize
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models import load

MODELS = ("zoo:cifar10-plain-small", "zoo:cifar10-ratio-small", "zoo:cifar10-at-0.5")
Change = Callable[[Tensor, Tensor, Tensor], Tensor]


class Exported(nn.Module):
    """A network that takes pixels in [0, 1] and holds its normalisation, with a fault in it."""

    def __init__(self, classifier: Classifier, change: Change) -> None:
        super().__init__()
        self.net, self.change = classifier.net, change
        self.mean, self.std = classifier.mean, classifier.std

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.change(x, self.mean, self.std))


def right(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
    return (x - m) / s


def statistics(mean: tuple[float, ...], std: tuple[float, ...]) -> Change:
    m, s = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return lambda x, _, __: (x - m) / s


GRAPH_FAULTS: dict[str, tuple[str, Change]] = {
    "mean and std of ImageNet": (
        "mean and std of ImageNet",
        statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ),
    "mean and std 0.5": ("mean and std of 0.5", statistics((0.5,) * 3, (0.5,) * 3)),
    "mean and std of CLIP": (
        "mean and std of CLIP",
        statistics((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)),
    ),
    "no normalisation": ("no normalisation", lambda x, m, s: x),
    "mean left out": ("the mean left out", lambda x, m, s: x / s),
    "std left out": ("the standard deviation left out", lambda x, m, s: x - m),
    "normalised twice": ("normalisation applied twice", lambda x, m, s: ((x - m) / s - m) / s),
    "BGR": ("BGR order", lambda x, m, s: (x.flip(1) - m) / s),
    "pixels of 0 … 255": ("pixels of 0 … 255", lambda x, m, s: (255 * x - m) / s),
    "divided by 255 twice": ("divided by 255 twice", lambda x, m, s: (x / 255 - m) / s),
    "clipped to [0, 1]": ("clipped to [0, 1]", lambda x, m, s: ((x - m) / s).clamp(0, 1)),
    "clipped to [−1, 1]": ("clipped to [−1, 1]", lambda x, m, s: ((x - m) / s).clamp(-1, 1)),
}
PREPARATIONS: dict[str, dict[str, Any]] = {
    "nearest": {"interpolation": "nearest"},
    "bilinear": {"interpolation": "bilinear"},
    "lanczos": {"interpolation": "lanczos"},
    "crop 0.875": {"crop": 0.875},
    "crop 0.7": {"crop": 0.7},
}


def to_onnx(classifier: Classifier, change: Change, path: Path, **facts: Any) -> Path:
    x = torch.rand(2, classifier.channels, *classifier.preprocess.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Exported(classifier, change).eval(), (x,), str(path), dynamo=False,
            input_names=["x"], dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    described = {
        "classes": list(classifier.classes),
        "size": list(classifier.preprocess.size),
        "crop": classifier.preprocess.crop,
        "interpolation": classifier.preprocess.interpolation,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        **facts,
    }
    path.with_name(path.name + ".json").write_text(json.dumps(described))
    return path


def quantised(source: Path, target: Path, images: Tensor) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Images(CalibrationDataReader):  # type: ignore[misc]
        rows = iter([{"x": part.numpy()} for part in images.split(16)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(source, target, Images())
    target.with_name(target.name + ".json").write_text(
        source.with_name(source.name + ".json").read_text()
    )
    return target


def cases(reference: Classifier, pictures: list[np.ndarray], at: Path) -> Iterator[dict[str, Any]]:
    """Every export of one model: what it is, its file, the words that name its fault."""
    plain = to_onnx(reference, right, at / "fp32.onnx")
    yield {"kind": "none", "name": "float32", "file": plain, "words": ""}
    calibration = stack(reference, pictures)
    int8 = quantised(plain, at / "int8.onnx", calibration)
    yield {"kind": "none", "name": "int8", "file": int8, "words": ""}
    for name, (words, change) in GRAPH_FAULTS.items():
        file = to_onnx(reference, change, at / f"{len(name)}-{abs(hash(name))}.onnx")
        kind = "BGR" if name == "BGR" else "clipped" if "clipped" in name else "mean"
        yield {"kind": kind, "name": name, "file": file, "words": words}
    for name, facts in PREPARATIONS.items():
        file = to_onnx(reference, right, at / f"prepared-{name}.onnx", **facts)
        own = reference.preprocess
        if all(getattr(own, key) == value for key, value in facts.items()):
            continue
        yield {"kind": "resize", "name": name, "file": file, "words": "pictures prepared by"}
    for share in (0.02, 0.05, 0.1):
        dark = calibration * share
        file = quantised(plain, at / f"clipped-{share}.onnx", dark)
        words = "clipped scales of a quantisation"
        yield {"kind": "clipped", "name": f"int8, calibrated at {share}", "file": file,
               "words": words}  # fmt: skip


def measure(spec: str, count: int) -> list[dict[str, Any]]:
    reference = load(spec, device="cpu")
    images = open_set("sample:cifar10", limit=count, seed=1)
    pictures = [resize(images.read(i), (96, 96), "bicubic") for i in range(count)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(reference, pictures, Path(folder)):
            exported = load(f"onnx:{case['file']}", device="cpu")
            finding = export(exported, reference, pictures)
            words = case["words"]
            named = finding.status == "ok" if not words else words in finding.found
            rows.append(
                {
                    "model": spec, "kind": case["kind"], "fault": case["name"], "named": named,
                    "status": finding.status, "found": finding.found,
                }
            )  # fmt: skip
            print(f"{'named ' if named else 'MISSED'} {spec} {case['name']}: {finding.found}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=int, default=64)
    given = parser.parse_args()
    rows = [row for spec in MODELS for row in measure(spec, given.images)]
    seeded = [row for row in rows if row["kind"] != "none"]
    healthy = [row for row in rows if row["kind"] == "none"]
    kinds = sorted({row["kind"] for row in seeded})
    result: dict[str, Any] = {"images": given.images, "models": list(MODELS), "rows": rows}
    for name, part in (
        ("faults", seeded),
        ("healthy", healthy),
        *((k, [r for r in seeded if r["kind"] == k]) for k in kinds),
    ):
        hits = sum(row["named"] for row in part)
        low, high = wilson(hits, len(part))
        result[name] = {"named": hits, "n": len(part), "share": hits / len(part), "low": low,
                        "high": high}  # fmt: skip
        print(f"{name}: {hits} of {len(part)} [{low:.3f}, {high:.3f}]")
    if given.out:
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
