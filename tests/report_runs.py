"""Runs made up for the tests of reports: simulated answers, written as audits write them."""

import struct
import zlib
from pathlib import Path

import numpy as np

from counterlens.runs import Number, Run, store_logits

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
OUTSIDE = ("svhn", "flowers", "smooth")
PROTOCOL = "10 classes, every image of cifar10 but the calibration fifth; simulated"


def simulate(
    seed: int, *, n: int = 600, skill: float = 2.2, ood: float = 1.0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits and labels of a made-up model, per set; the labels depend on the set alone."""
    labels = np.random.default_rng(7).integers(0, 10, n)
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.3, (n, 10))
    logits[np.arange(n), labels] += skill * 1.6
    cats = labels == 3  # one weak class, mostly taken for its neighbour
    logits[cats, 5] += skill * 1.4
    sets = {"cifar10": (3.2 * logits, labels)}
    for i, name in enumerate(OUTSIDE):
        sets[name] = (rng.normal(0, 1.6 + ood * i, (n // 2, 10)), np.full(n // 2, -1))
    return sets


def softmax(z: np.ndarray) -> np.ndarray:
    """Probabilities of logits."""
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def share(
    flags: np.ndarray, protocol: str = PROTOCOL, trust: dict[str, object] | None = None
) -> Number:
    """A share with its Wilson interval."""
    n, p, z = len(flags), float(np.mean(flags)), 1.96
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return Number(p, n, min(max(low, 0.0), p), max(min(high, 1.0), p), protocol, trust=trust)


def around(value: float, n: int, half: float, protocol: str) -> Number:
    """A value with a symmetric interval, cut to [0, 1]."""
    return Number(value, n, max(0.0, value - half), min(1.0, value + half), protocol)


def audit_run(
    folder: Path,
    *,
    model: str = "zoo:cifar10-plain-small",
    seed: int = 0,
    robust: float = 0.02,
    worst: float = 0.11,
    skill: float = 2.2,
    gates: bool = True,
    finish: bool = True,
) -> Run:
    """A whole audit of a simulated model: numbers, all tables of an audit, pictures and logits."""
    run = Run.create(folder, "audit", {"model": model, "data": "sample:cifar10", "seed": 0})
    run.note(
        model=model,
        data="cifar10",
        device="cpu",
        data_fingerprint={"cifar10": "f00d"},
        weights_hash="beef",
    )
    sets = simulate(seed, skill=skill)
    for name, (logits, labels) in sets.items():
        ids = [f"{name}/{i:05d}" for i in range(len(labels))]
        role = "in" if name == "cifar10" else "ood"
        store_logits(run, name, logits, labels=labels, ids=ids, role=role, temperature=1.7)
    _in_numbers(run, *sets["cifar10"])
    _ood(run, sets, worst)
    _attacks(run, robust)
    _gallery(run, sets)
    _doctor(run)
    if gates:
        rows = [
            ("accuracy.top1>=0.5", 0.83, True, "value 0.83"),
            ("robust.l2-0.5.accuracy>=0.4", robust, robust >= 0.4, f"value {robust:g}"),
        ]
        run.write_table(
            "gates", [dict(zip(("gate", "value", "passed", "why"), r, strict=True)) for r in rows]
        )
    if finish:
        run.finish()
    return run


def explain_run(folder: Path) -> Run:
    """Made-up counterfactuals of one picture, written as explain writes them."""
    run = Run.create(folder, "explain", {"model": "zoo:cifar10-ratio-small", "seed": 0})
    names = ("original", "near", "far", "change")
    for seed, name in enumerate(names):
        run.path("images", f"{name}.png").write_bytes(picture(seed))
    opinion = {"judge": "cifar10-at-0.5", "before": 0.1, "after": 0.8, "answer": "cat"}
    rows = [
        {
            "id": "cifar10-test/12",
            "label": "dog",
            "predicted": "dog",
            "confidence": 0.9,
            "original": "images/original.png",
            "target": "cat",
            "norm": "l2",
            "radius": radius,
            "image": f"images/{name}.png",
            "difference": "images/change.png",
            "before": 0.05,
            "after": after,
            "answer": "cat",
            "sure": after,
            "distance": radius,
            "changed": 1000,
            "smoothness": 0.7,
            "opinions": [{**opinion, "agrees": True}],
            "verdict": verdict,
        }
        for name, radius, after, verdict in (
            ("near", 0.5, 0.4, "not reached"),
            ("far", 3.0, 0.97, "class evidence"),
        )
    ]
    run.write_table("counterfactuals", rows)
    run.add_numbers({"counterfactual.l2-3.agreed": around(1.0, 1, 0.8, PROTOCOL)})
    run.finish()
    return run


def _in_numbers(run: Run, logits: np.ndarray, labels: np.ndarray) -> None:
    probs = softmax(logits)
    answer, sure = probs.argmax(1), probs.max(1)
    right = answer == labels
    numbers = {
        "accuracy.top1": share(right),
        "accuracy.top5": share((np.argsort(-probs, 1)[:, :5] == labels[:, None]).any(1)),
        "calibration.temperature": Number(1.7, 150, 1.6, 1.8, "least NLL on the calibration fifth"),
        "selective.aurra": around(0.93, len(labels), 0.02, "mean accuracy over response rates"),
        "accuracy.top1_all": Number.missing("the model has no other classes", PROTOCOL),
    }
    per_class, confusions = [], []
    for k, name in enumerate(CLASSES):
        rows = labels == k
        number = share(right[rows])
        wrong = np.bincount(answer[rows & ~right], minlength=10)
        taken = int(wrong.argmax())
        per_class.append(
            {"class": name, "n": int(rows.sum()), "accuracy": number.value, "low": number.low}
            | {"high": number.high, "confidence": float(sure[rows].mean())}
            | {"confused_with": CLASSES[taken], "confused_share": float(wrong[taken] / rows.sum())}
        )
        confusions += [
            {"true": name, "predicted": CLASSES[j], "count": int(c), "share": float(c / rows.sum())}
            for j, c in enumerate(wrong)
            if c
        ]
    run.write_table("per_class", per_class)
    run.write_table("confusions", sorted(confusions, key=lambda r: -r["count"]))
    reliability = []
    for when, t in (("before", 1.0), ("after", 1.7)):
        conf = softmax(logits / t).max(1)
        edges = np.linspace(0.1, 1, 16)
        place = np.clip(np.searchsorted(edges, conf) - 1, 0, 14)
        gap = 0.0
        for b in range(15):
            rows = place == b
            n = int(rows.sum())
            means = (float(conf[rows].mean()), float(right[rows].mean())) if n else (None, None)
            gap += n * abs(means[0] - means[1]) / len(conf) if n else 0.0
            reliability.append(
                {"when": when, "bin_low": edges[b], "bin_high": edges[b + 1], "n": n}
                | {"confidence": means[0], "accuracy": means[1]}
            )
        key = "calibration.ece" if when == "before" else "calibration.ece_scaled"
        numbers[key] = around(gap, len(conf), 0.012, f"15 bins of [1/10, 1], {when} temperature")
    run.write_table("reliability", reliability)
    order = np.argsort(-sure)
    curve = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    points = np.linspace(len(curve) // 50, len(curve) - 1, 50).astype(int)
    rates = []
    for i in points.tolist():
        own = share(right[order][: i + 1])
        ends = {"low": own.low, "high": own.high, "n": own.n}
        rates.append({"rate": (i + 1) / len(curve), "accuracy": float(curve[i]), **ends})
    run.write_table("response_rate", rates)
    run.add_numbers(numbers)


def _ood(run: Run, sets: dict[str, tuple[np.ndarray, np.ndarray]], worst: float) -> None:
    inside = softmax(sets["cifar10"][0] / 1.7).max(1)
    rows, numbers = [], {}
    edges = np.linspace(0, 1, 21)
    for name, (logits, _) in sets.items():
        sure = softmax(logits / 1.7).max(1)
        counts, _ = np.histogram(sure, edges)
        rows += [
            {"set": name, "bin_low": a, "bin_high": b, "share": c / len(sure), "n": c}
            for a, b, c in zip(edges, edges[1:], counts, strict=False)
        ]
        if name == "cifar10":
            continue
        auroc = float((inside[:, None] > sure[None]).mean())
        n = len(inside) + len(sure)
        told = f"after temperature, {len(inside)} in and {len(sure)} out"
        numbers |= {
            f"ood.{name}.auroc": around(auroc, n, 0.015, told),
            f"ood.{name}.fpr95": share(sure > np.quantile(inside, 0.05), told),
            f"ood.{name}.mmc": around(float(sure.mean()), len(sure), 0.02, told),
            f"ood.{name}.worst_auroc": around(worst, n, 0.02, "APGD 100×5 in the l2 ball of 1.0"),
        }
    run.write_table("confidence_hist", rows)
    run.add_numbers(numbers)


def _attacks(run: Run, robust: float) -> None:
    n, rng = 300, np.random.default_rng(3)
    told = "AutoAttack standard, first 300 images"
    trusted = {"verdict": "trusted", "reasons": ["every flag is clear"]}
    masked = {"verdict": "do not quote", "reasons": ["a black-box attack beat the white-box ones"]}
    run.add_numbers(
        {
            "robust.l2-0.5.accuracy": share(rng.random(n) < robust, told, trusted),
            "robust.linf-8_255.accuracy": share(rng.random(n) < 0.31, told, masked),
        }
    )
    ids = np.array([f"cifar10/{i:05d}" for i in range(n)])
    held = np.random.default_rng(4).random(n) < robust
    np.savez(run.path("tables", "adversarial-l2-0.5.npz"), all_ids=ids, robust=held)
    radii = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
    curve = []
    for r in radii:
        number = share(rng.random(n) < 0.85 * np.exp(-r * (4 if robust < 0.3 else 0.6)))
        curve.append(
            {"attack": "l2:1.0", "norm": "l2", "radius": r, "accuracy": number.value}
            | {"low": number.low, "high": number.high, "n": n}
            | {"kind": "attacked" if r in (0.0, 1.0) else "upper bound"}
        )
    run.write_table("robust_curve", curve)
    run.write_table(
        "confidence_radius",
        [
            {"set": s, "norm": "l2", "radius": r, "confidence": c(r), "n": n}
            for s, c in (
                ("true class", lambda r: float(0.85 * np.exp(-3 * r))),
                ("svhn", lambda r: float(1 - 0.6 * np.exp(-4 * r))),
            )
            for r in radii
        ],
    )
    flags = (
        ("gradients", "ok", "no gradient vanishes"),
        ("black box", "fail", "Square broke 12 more"),
    )
    run.write_table(
        "trust",
        [{"attack": "linf:8/255", "flag": f, "status": s, "detail": d} for f, s, d in flags],
    )


def _gallery(run: Run, sets: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    rows = []
    for name, (logits, labels) in sets.items():
        probs = softmax(logits)
        wrong = probs.argmax(1) != labels
        order = [i for i in np.argsort(-probs.max(1)) if wrong[i]][:12]
        for i in order:
            path = run.path("images", f"{name}-{i}.png")
            path.write_bytes(picture(int(i)))
            rows.append(
                {
                    "group": "mistakes" if name == "cifar10" else f"ood:{name}",
                    "id": f"{name}/{i:05d}",
                }
                | {"image": f"images/{path.name}", "predicted": CLASSES[int(probs[i].argmax())]}
                | {"label": CLASSES[labels[i]] if labels[i] >= 0 else None}
                | {"confidence": float(probs[i].max())}
            )
    run.write_table("gallery", rows)


def picture(seed: int, size: int = 32) -> bytes:
    """A small blotchy PNG, written without an imaging library."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    waves = [
        np.sin(rng.uniform(2, 9) * x + rng.uniform(2, 9) * y + rng.uniform(0, 6)) for _ in range(3)
    ]
    pixels = ((np.stack(waves, -1) + 1) * 127).astype(np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )


def _doctor(run: Run) -> None:
    rows = [
        ("logits", "ok", "outputs are logits", "high", ""),
        ("normalisation", "ok", "mean and std fit the data", "medium", ""),
        (
            "channel order",
            "warn",
            "RGB and BGR score alike",
            0.6,
            "Check Classifier(channels='rgb').",
        ),
        ("randomness", "ok", "two passes agree", "high", ""),
        ("class order", "skipped", "no data given", "low", "Pass DATA."),
    ]
    names = ("check", "status", "found", "sure", "fix")
    run.write_table("doctor", [dict(zip(names, r, strict=True)) for r in rows])
    run.write_table(
        "matching", [{"data_class": c, "model_class": c, "how": "same name"} for c in CLASSES]
    )
