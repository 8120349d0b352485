"""Triage of labels: a queue of images whose label every model contradicts, most doubtful first.

Beside the first ones stand error counterfactuals: the least that would have to change for the
model to accept the label, and what makes it surer of its answer. Where the picture turns into
something else on the way to the label, the label is likely wrong.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data import name_of
from counterlens.explanations.counterfactuals.pixel import counterfactuals, default_radii
from counterlens.filters.label_errors import Suspects, suspects
from counterlens.filters.opinions import Opinions
from counterlens.images import prepared, write_png
from counterlens.report import render
from counterlens.runs import Number, Run, new_folder
from counterlens.workflows._shared.session import teller
from counterlens.workflows.curate.pool import (
    Frame,
    Parts,
    Pool,
    choose_frame,
    filter_facts,
    judge_pool,
    labelled,
    load_models,
    matches,
)

_STEPS = 60
_RADIUS = 2  # of the six default budgets: the third


def triage(
    pool: Sequence[str],
    *,
    models: Sequence[str],
    classes: str = "pool",
    most: int = 100,
    explained: int = 6,
    alias: Sequence[str] = (),
    limit: int | None = None,
    shard: int = 512,
    on: str = "here",
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Run:
    """List images of a labelled pool whose labels are likely wrong.

    Args:
        pool: specs of labelled sets.
        models: models that must agree against the label.
        classes: in which classes answers are counted: pool, all, a declared space, or a file.
        most: length of the queue.
        explained: how many of its first images get error counterfactuals.
    """
    settings = {
        "pool": list(pool),
        "models": list(models),
        "classes": classes,
        "most": most,
        "explained": explained,
        "alias": list(alias),
        "limit": limit,
        "shard": shard,
        "seed": seed,
        "device": device,
    }
    say = teller(quiet)
    loaded = load_models(models, device=device, trust_remote_code=trust_remote_code)
    parts = Parts.open(pool, alias=alias, limit=limit, seed=seed)
    parts.need_labels()
    frame = choose_frame(loaded, parts, classes)
    whole = labelled(parts, frame, loaded[0])
    folder = out or new_folder("curate", f"triage-{name_of(pool[0])}")
    run = Run.create(folder, "curate triage", settings, resume=resume)
    run.note(
        model=" + ".join(models),
        data=whole.images.name,
        kind="triage",
        protocol=frame.told,
        filters=filter_facts(models, loaded),
        data_fingerprint=whole.images.fingerprint,
    )
    run.write_table("matching", matches(parts, loaded[0]))
    asked = Opinions(
        whole.images,
        tuple(models),
        frame.columns,
        crops=False,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    table = judge_pool(run, asked, size=shard, on=on, workers=workers, say=say)
    found = suspects(table, whole.images.labels, len(models))
    run.add_numbers(_numbers(table, whole, found))
    _write(run, whole, frame, table, found, most)
    _explain(run, loaded[0], whole, frame, found, min(explained, most), seed)
    render(run)
    run.finish()
    say(
        f"next: look at {run.folder / 'report.html'} and correct the labels that are wrong in the "
        "pool itself; tables/suspects.jsonl lists them"
    )
    return run


def _numbers(table: dict[str, np.ndarray], pool: Pool, found: Suspects) -> dict[str, Number]:
    seen = int(((table["why"] == "") & (pool.images.labels >= 0)).sum())
    text = "labelled images that every model gives one and the same other class"
    return {"triage.suspects": Number(float(len(found.rows)), seen, None, None, text)}


def _write(
    run: Run,
    pool: Pool,
    frame: Frame,
    table: dict[str, np.ndarray],
    found: Suspects,
    most: int,
) -> None:
    rows, gallery = [], []
    for rank, (row, score) in enumerate(
        zip(found.rows[:most].tolist(), found.score[:most].tolist(), strict=True), 1
    ):
        entry = {
            "rank": rank,
            "id": pool.images.ids[row],
            "label": frame.classes[int(pool.images.labels[row])],
            "answer": frame.classes[int(table["0_answer"][row])],
            "doubt": score,
            "confidence": float(table["0_confidence"][row]),
        }
        rows.append(entry)
        if rank <= 24:
            name = f"suspect-{rank:03d}.png"
            write_png(run.path("images", name), pool.images.read(row))
            gallery.append(
                {
                    "group": "suspects",
                    "image": f"images/{name}",
                    "id": entry["id"],
                    "label": entry["label"],
                    "predicted": entry["answer"],
                    "confidence": entry["confidence"],
                }
            )
    run.write_table("suspects", rows)
    run.write_table("gallery", gallery)


def _explain(
    run: Run,
    model: Classifier,
    pool: Pool,
    frame: Frame,
    found: Suspects,
    count: int,
    seed: int,
) -> None:
    """Pictures changed towards the label and towards the answer, within one budget."""
    rows = found.rows[:count].tolist()
    if not rows:
        return
    views = [
        prepared(pool.images.read, row, model.preprocess, channels=model.channels) for row in rows
    ]
    x = torch.from_numpy(np.stack(views)).float().div(255).to(model.mean.device)
    columns = frame.columns[0]
    with torch.inference_mode():
        answers = model(x)[:, list(columns)].argmax(1).tolist()
    labels = [int(pool.images.labels[row]) for row in rows]
    targets = [[columns[y], columns[a]] for y, a in zip(labels, answers, strict=True)]
    radius = default_radii("l2", model.preprocess.size)[_RADIUS]
    made = counterfactuals(model, x, targets, radii=[radius], steps=_STEPS, seed=seed)
    table = []
    for k in range(len(made)):
        i, target = int(made.image[k]), int(made.target[k])
        start, end = f"error-{i:03d}.png", f"error-{i:03d}-{target:04d}.png"
        write_png(run.path("images", start), x[i].cpu())
        write_png(run.path("images", end), made.points[k].cpu())
        before = int(made.answer_before[k])
        table.append(
            {
                "id": pool.images.ids[rows[i]],
                "label": frame.classes[labels[i]],
                "predicted": model.classes[before],
                "confidence": None,
                "target": model.classes[target],
                "norm": "l2",
                "radius": radius,
                "before": float(made.before[k]),
                "after": float(made.after[k]),
                "distance": float(made.distance[k]),
                "changed": int(made.changed[k]),
                "smoothness": float(made.smooth[k]),
                "original": f"images/{start}",
                "image": f"images/{end}",
            }
        )
    run.write_table("counterfactuals", table)
