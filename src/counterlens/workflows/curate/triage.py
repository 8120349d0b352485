"""Triage of labels: a queue of images whose label every model contradicts, most doubtful first.

Beside the first ones stand error counterfactuals: the least that would have to change for the
model to accept the label, and what makes it surer of its answer. Where the picture turns into
something else on the way to the label, the label is likely wrong.
"""

from collections.abc import Sequence

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data import name_of
from counterlens.explanations.counterfactuals.pixel import (
    Counterfactuals,
    counterfactuals,
    default_radii,
)
from counterlens.filters.label_errors import Suspects, suspects
from counterlens.filters.opinions import Opinions
from counterlens.images import prepared, write_png
from counterlens.runs import Number, Run, new_folder
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import Log, logger, running
from counterlens.workflows.curate.options import TriageOptions
from counterlens.workflows.curate.pool import (
    ClassFrame,
    Pool,
    PoolParts,
    choose_frame,
    filter_facts,
    judge_pool,
    labelled,
    load_models,
    matches,
)
from counterlens.workflows.curate.sharded import Where

_STEPS = 60
_RADIUS = 2  # of the six default budgets: the third


@takes(TriageOptions)
def triage(pool: Sequence[str], options: TriageOptions) -> Result:
    """List images of a labelled pool whose labels are likely wrong.

    Args:
        pool: specs of labelled sets.
    """
    log, specs = logger(options), texts(pool)
    loaded = load_models(
        options.models, device=options.device, trust_remote_code=options.trust_remote_code
    )
    parts = PoolParts.open(specs, alias=options.alias, limit=options.limit, seed=options.seed)
    parts.need_labels()
    frame = choose_frame(loaded, parts, options.label_space)
    whole = labelled(parts, frame, loaded[0])
    name = f"triage-{name_of(specs[0])}"
    folder = options.out or new_folder("curate", name)
    inputs = {"pool": specs}
    with running("curate triage", options, name=name, inputs=inputs, folder=folder) as run:
        run.note(
            model=" + ".join(options.models),
            data=whole.images.name,
            kind="triage",
            protocol=frame.description,
            filters=filter_facts(options.models, loaded),
            data_fingerprint=whole.images.fingerprint,
        )
        run.write_table("matching", matches(parts, loaded[0]))
        _triage(run, options, loaded[0], frame, whole, log)
    log(
        f"next: look at {run.folder / 'report.html'} and correct the labels that are wrong in the "
        "pool itself; tables/suspects.jsonl lists them"
    )
    return Result(run)


def _triage(
    run: Run, options: TriageOptions, first: Classifier, frame: ClassFrame, pool: Pool, log: Log
) -> None:
    query = Opinions(
        pool.images,
        options.models,
        frame.columns,
        crops=False,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    where = Where(options.shard, options.on, options.ray_workers, options.device)
    table = judge_pool(run, query, where, log=log)
    doubtful = suspects(table, pool.images.labels, len(options.models))
    run.add_numbers(_numbers(table, pool, doubtful))
    _write(run, pool, frame, table, doubtful, options.most)
    rows = doubtful.rows[: min(options.explained, options.most)].tolist()
    if rows:
        _explain(run, first, pool, frame, rows, options.seed)


def _numbers(table: dict[str, np.ndarray], pool: Pool, doubtful: Suspects) -> dict[str, Number]:
    seen = int(((table["why"] == "") & (pool.images.labels >= 0)).sum())
    text = "labelled images that every model gives one and the same other class"
    return {"triage.suspects": Number(float(len(doubtful.rows)), seen, None, None, text)}


def _write(
    run: Run,
    pool: Pool,
    frame: ClassFrame,
    table: dict[str, np.ndarray],
    doubtful: Suspects,
    most: int,
) -> None:
    rows, gallery = [], []
    for rank, (row, score) in enumerate(
        zip(doubtful.rows[:most].tolist(), doubtful.score[:most].tolist(), strict=True), 1
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
    run: Run, model: Classifier, pool: Pool, frame: ClassFrame, rows: list[int], seed: int
) -> None:
    """Images changed towards the label and towards the answer, within one budget."""
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
    results = counterfactuals(model, x, targets, radii=[radius], steps=_STEPS, seed=seed)
    table = []
    for k in range(len(results)):
        i = int(results.image[k])
        start = f"error-{i:03d}.png"
        write_png(run.path("images", start), x[i].cpu())
        ids = {"id": pool.images.ids[rows[i]], "label": frame.classes[labels[i]]}
        table.append({**ids, **_counterfactual(run, model, results, k, start)})
    run.write_table("counterfactuals", table)


def _counterfactual(
    run: Run, model: Classifier, results: Counterfactuals, k: int, start: str
) -> dict[str, object]:
    """One counterfactual as a row of the report, its image written."""
    i, target = int(results.image[k]), int(results.target[k])
    end = f"error-{i:03d}-{target:04d}.png"
    write_png(run.path("images", end), results.points[k].cpu())
    return {
        "predicted": model.classes[int(results.answer_before[k])],
        "confidence": None,
        "target": model.classes[target],
        "norm": "l2",
        "radius": default_radii("l2", model.preprocess.size)[_RADIUS],
        "before": float(results.before[k]),
        "after": float(results.after[k]),
        "distance": float(results.distance[k]),
        "changed": int(results.changed[k]),
        "smoothness": float(results.smooth[k]),
        "original": f"images/{start}",
        "image": f"images/{end}",
    }
