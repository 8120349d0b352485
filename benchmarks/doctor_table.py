"""The doctor on twelve faults, with and without data, and its false alarms on healthy models:
with many labelled images, none, and so few as a new user has at hand.

Result: docs/doctor.md (table) and benchmarks/results/doctor.json, written by this script.
Run: .venv/bin/python benchmarks/doctor_table.py faults MODEL DATA [--role held-out]
     .venv/bin/python benchmarks/doctor_table.py healthy MODEL DATA
     .venv/bin/python benchmarks/doctor_table.py few MODEL DATA
     .venv/bin/python benchmarks/doctor_table.py random DATA
     .venv/bin/python benchmarks/doctor_table.py table
Rows already in the results are not measured again; delete the file to start anew.
"""

import argparse
import fcntl
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

from counterlens import models
from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.sets import subset
from counterlens.diagnosis import Finding, examine
from counterlens.images import ImageSet
from counterlens.label_spaces import imagenet_names
from counterlens.runs import read_json, write_json, write_text
from counterlens.types import Preprocess
from doctor_faults import FAULTS, Fault

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "doctor.json"
PAGE = HERE.parent / "docs" / "doctor.md"
RANDOM = (
    *("resnet10t", "mobilenetv3_small_050", "lcnet_035", "regnetx_002", "efficientnet_lite0"),
    *(
        "convnext_atto",
        "vit_tiny_patch16_224",
        "edgenext_xx_small",
        "mobilevitv2_050",
        "pit_ti_224",
    ),
)
FIXED = ("vit", "pit")  # built for one size
FEW, DRAWS = (2, 5, 20), 3


def thresholds() -> str:
    """Hash of the doctor's source: rows of a table must share it."""
    folder = HERE.parent / "src" / "counterlens" / "diagnosis"
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(text).hexdigest()[:12]


def givens(data: ImageSet) -> dict[str, ImageSet | None]:
    """Nothing, images without labels, images with labels."""
    blind = replace(data, labels=np.full(len(data), -1, dtype=np.int64))
    return {"nothing": None, "images": blind, "labelled images": data}


def store(rows: Sequence[dict[str, Any]]) -> None:
    """Add rows to the results; several runs of this script may do so at once."""
    folder = os.open(RESULTS.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        kept = load_rows()
        kept.update({row_key(row): row for row in rows})
        write_json(RESULTS, {"schema": 1, "torch": torch.__version__, "rows": list(kept.values())})
    finally:
        os.close(folder)


def load_rows() -> dict[str, dict[str, Any]]:
    """Rows measured so far."""
    rows = read_json(RESULTS)["rows"] if RESULTS.exists() else []
    return {row_key(row): row for row in rows}


def row_key(row: dict[str, Any]) -> str:
    """What makes a row one of its kind."""
    return "|".join(str(row[k]) for k in ("part", "model", "data", "fault", "given"))


def measure(
    classifier: Classifier, images: ImageSet | None, fault: Fault | None, row: dict[str, Any]
) -> None:
    """Examine once and store; a row that is there already is left."""
    if row_key(row) in load_rows():
        return
    began = time.process_time()
    found = examine(fault.make(classifier) if fault else classifier, images)
    row["cpu_seconds"] = round(time.process_time() - began, 2)
    own = [f for f in found if fault and f.check in fault.checks]
    row["status"] = own[0].status if own else worst(found)
    if own and fault and own[0].status in ("fail", "warn") and fault.said not in own[0].found:
        row["misnamed"] = True
    told = own if own else [f for f in found if f.status in ("fail", "warn")]
    row["findings"] = [f.row() for f in told]
    row["others"] = [f.check for f in found if f.status == "fail" and f not in own]
    row["source"] = thresholds()
    store([row])
    print(row["model"], row["fault"], row["given"], row["status"], row["cpu_seconds"], flush=True)


def worst(found: Sequence[Finding]) -> str:
    """The gravest status."""
    statuses = {f.status for f in found}
    return next((s for s in ("fail", "warn") if s in statuses), "ok")


def faults(model: str, data: str, role: str, skip: Sequence[str]) -> None:
    """All faults on one trained model; the healthy model first."""
    classifier, images = models.load(model, device="cpu"), open_set(data)
    for given, shown in givens(images).items():
        if given in skip:
            continue
        for fault in (None, *FAULTS):
            row = {
                "part": role if fault else "healthy",
                "model": short(model),
                "data": images.name,
                "fault": fault.name if fault else "none",
                "given": given,
            }
            measure(classifier, shown, fault, row)


def healthy(model: str, data: str) -> None:
    """A trained model as it should be wrapped."""
    classifier, images = models.load(model, device="cpu"), open_set(data)
    for given, shown in givens(images).items():
        row = {"part": "healthy", "model": short(model), "fault": "none", "given": given}
        measure(classifier, shown, None, {**row, "data": images.name})


def few(model: str, data: str) -> None:
    """A right model with so little data as a new user has: three draws of each size."""
    classifier, images = models.load(model, device="cpu"), open_set(data)
    row = {"part": "few", "model": short(model), "data": images.name, "fault": "none"}
    measure(classifier, None, None, {**row, "given": "nothing"})
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(images))
        blind = replace(images, labels=np.full(len(images), -1, dtype=np.int64))
        some = {"unlabelled, 20": subset(blind, order[:20])}
        some |= {f"labelled, {count}": subset(images, order[:count]) for count in FEW}
        for given, shown in some.items():
            measure(classifier, shown, None, {**row, "given": f"{given}: draw {draw}"})


def random_models(data: str) -> None:
    """Ten untrained networks of ten families."""
    images = open_set(data)
    for seed, name in enumerate(RANDOM):
        torch.manual_seed(seed)
        size = 224 if name.startswith(FIXED) else 96
        net = timm.create_model(name, pretrained=False)
        names, (mean, std) = imagenet_names(), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        classifier = Classifier(net, names, mean, std, preprocess=Preprocess((size, size), 0.875))
        for given, shown in {"nothing": None, "labelled images": images}.items():
            row = {"part": "random", "model": name, "fault": "none", "given": given}
            measure(classifier.eval(), shown, None, {**row, "data": images.name})


def short(spec: str) -> str:
    """A model's name without folders: no path of a machine goes into the results."""
    scheme, _, rest = spec.partition(":")
    if scheme.endswith(".py") or "/" in scheme:
        return rest or Path(scheme).name
    return f"{scheme}:{rest.partition('@')[0]}"


def table() -> None:
    """Write the tables into docs/doctor.md, between its markers."""
    rows = list(load_rows().values())
    if len({row["source"] for row in rows}) > 1:
        print("note: rows were measured with different versions of the doctor")
    text = PAGE.read_text(encoding="utf-8")
    made_of = {"faults": fault_table, "healthy": healthy_table, "few": few_table}
    for part, made in ((name, make(rows)) for name, make in made_of.items()):
        begin, end = f"<!-- {part}: made by benchmarks/doctor_table.py -->", f"<!-- end {part} -->"
        head, rest = text.split(begin)
        text = head + begin + "\n\n" + made + "\n" + end + rest.split(end)[1]
    write_text(PAGE, text)


def fault_table(rows: Sequence[dict[str, Any]]) -> str:
    """Faults down, models and what was given across."""
    shown = [row for row in rows if row["part"] in ("developed", "held-out")]
    columns = sorted({(r["part"], r["model"], r["given"]) for r in shown}, key=_place)
    cells = {(r["part"], r["model"], r["given"], r["fault"]): r for r in shown}
    names = [f"{m}{' (held out)' if p == 'held-out' else ''}: {g}" for p, m, g in columns]
    lines = ["| fault | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for fault in FAULTS:
        marks = [_mark(cells.get((*column, fault.name))) for column in columns]
        lines.append(f"| {fault.name} | " + " | ".join(marks) + " |")
    caught = []
    for column in columns:
        run = [cells[key]["status"] for f in FAULTS if (key := (*column, f.name)) in cells]
        caught.append(f"{sum(status in ('fail', 'warn') for status in run)} of {len(run)}")
    return "\n".join([*lines, "| **found** | " + " | ".join(caught) + " |", ""])


def _place(column: tuple[str, str, str]) -> tuple[bool, str, int]:
    order = ("nothing", "images", "labelled images")
    return column[0] == "held-out", column[1], order.index(column[2])


def _mark(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    sure = row["findings"][0]["sure"] if row["findings"] else ""
    if row["status"] in ("fail", "warn"):
        return f"{row['status']} ({sure}{', misnamed' if row.get('misnamed') else ''})"
    return "cannot tell" if row["status"] == "skipped" else "missed"


def healthy_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per healthy or untrained model."""
    lines = [
        "| model | trained | data | given | worst status | what it said | CPU s |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        if row["part"] not in ("healthy", "random"):
            continue
        said = "; ".join(f"{f['check']}: {f['found']}" for f in row["findings"]) or "–"
        trained = "yes" if row["part"] == "healthy" else "no"
        told = f"| {row['model']} | {trained} | {row['data']} | {row['given']} | {row['status']} "
        lines.append(told + f"| {said} | {row['cpu_seconds']:.1f} |")
    return "\n".join([*lines, ""])


def few_table(rows: Sequence[dict[str, Any]]) -> str:
    """Right models down, what was given across: the statuses of the draws, gravest first."""
    shown = [row for row in rows if row["part"] == "few"]
    givens = list(dict.fromkeys(row["given"].partition(":")[0] for row in shown))
    lines = ["| model | " + " | ".join(givens) + " | checks that warned |"]
    lines.append("|---" * (len(givens) + 2) + "|")
    for model in sorted({row["model"] for row in shown}):
        cells, warned = [], []
        for given in givens:
            own = [r for r in shown if (r["model"], r["given"].partition(":")[0]) == (model, given)]
            counts = {s: sum(r["status"] == s for r in own) for s in ("fail", "warn", "ok")}
            cells.append(", ".join(f"{n} {s}" for s, n in counts.items() if n))
            warned += [f["check"] for r in own for f in r["findings"]]
        lines.append(f"| {model} | " + " | ".join(cells) + f" | {', '.join(sorted(set(warned)))} |")
    failed = sum(row["status"] == "fail" for row in shown)
    return "\n".join([*lines, "", f"{failed} of {len(shown)} ended in a failure.", ""])


def main() -> None:
    """Parse and run one part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("faults", "healthy", "few", "random", "table"))
    parser.add_argument("specs", nargs="*")
    parser.add_argument("--role", default="developed", choices=("developed", "held-out"))
    parser.add_argument("--skip", nargs="*", default=[], help="given: nothing, images, …")
    options = parser.parse_args()
    torch.set_num_threads(1)
    match options.part:
        case "faults":
            faults(*options.specs, role=options.role, skip=options.skip)
        case "healthy":
            healthy(*options.specs)
        case "few":
            few(*options.specs)
        case "random":
            random_models(*options.specs)
        case _:
            table()


if __name__ == "__main__":
    main()
