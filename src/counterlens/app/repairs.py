"""The repair desk: receipts of repairs side by side, and pairs that people accept or refuse.

A receipt says what a repair did on images that neither fitted nor chose anything. Pairs, a picture
and its counterfactual, are judged like any review; those that are accepted become a manifest.
"""

import csv
import io
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from counterlens.app.reviewable import is_pairs, review_of, store_if_any
from counterlens.app.site import show, site
from counterlens.errors import CounterlensError, InputError
from counterlens.report.kit.parts import plain_table
from counterlens.review import decisions
from counterlens.runs import Run, reading

router = APIRouter()


@router.get("/repairs")
def repairs(request: Request) -> HTMLResponse:
    """Repairs and pairs below the folder; the receipts of those that were chosen."""
    here = site(request)
    chosen = request.query_params.getlist("run")
    rows, pairs = [], []
    for name in here.folders.names():
        try:
            run = here.folders.run(name)
            if run.manifest["command"] == "repair":
                rows.append({"name": name, **verdict_of(run)})
            elif is_pairs(run):
                pairs.append({"name": name, **_judged(run)})
        except CounterlensError:
            continue  # the list of runs says what is wrong with it
    receipts = [receipt_of(here.folders.run(name), name) for name in chosen[:4]]
    return show(request, "repairs.html", rows=rows, pairs=pairs, receipts=receipts, chosen=chosen)


@router.get("/repairs/pairs.csv")
def accepted(request: Request, run: str) -> Response:
    """The accepted pairs of a run as a manifest: path, label, pair."""
    opened = site(request).folders.run(run)
    if not is_pairs(opened):
        raise InputError(f"{run} holds no pairs.")
    out = io.StringIO()
    lines = csv.writer(out)
    lines.writerow(["path", "label", "pair"])
    for number, (before, label, after, target) in enumerate(accepted_pairs(opened)):
        lines.writerow([opened.file(before), label, number])
        lines.writerow([opened.file(after), target, number])
    head = {"Content-Disposition": 'attachment; filename="pairs.csv"'}
    return Response(out.getvalue(), media_type="text/csv", headers=head)


def accepted_pairs(run: Run) -> list[tuple[str, str, str, str]]:
    """Original, its label, counterfactual and target of every pair that was accepted."""
    store = store_if_any(run)
    items = review_of(run).items
    decided = decisions([item.id for item in items], store.latest() if store else [])
    labels = {
        str(row["image"]): str(row.get("label") or row.get("predicted") or "")
        for name in ("counterfactuals", "quality", "pairs")
        for row in run.table(name)
        if row.get("image")
    }
    return [
        (item.before, labels[item.id], item.image, item.label)
        for item in items
        if decided[item.id].outcome == "accept"
    ]


def verdict_of(run: Run) -> dict[str, Any]:
    """The verdict of a repair and why; a plan has none."""
    rows = run.table("verdict")
    first: Mapping[str, Any] = rows[0] if rows else {}
    tone = {"better": "good", "not shown": "warn", "worse": "bad"}.get(
        str(first.get("verdict")), ""
    )
    return {
        "verdict": str(first.get("verdict", "no verdict")),
        "why": str(first.get("why", "")),
        "placebo": str(first.get("placebo", "")),
        "tone": tone,
        "model": str(run.manifest["settings"].get("model", "")),
    }


def receipt_of(run: Run, name: str) -> dict[str, Any]:
    """The receipt of a repair as tables, and its numbers."""
    if run.manifest["command"] != "repair":
        raise InputError(f"{name} is no repair.")
    with reading(run):
        blocks = [
            *plain_table("Before and after on the check images", run.table("receipt")),
            *plain_table("Remedies tried", run.table("tried")),
            *plain_table("Placebos", run.table("placebos")),
        ]
    return {
        "name": name,
        "blocks": [b for b in blocks if getattr(b, "rows", ())],
        **verdict_of(run),
    }


def _judged(run: Run) -> dict[str, int]:
    """How many pairs there are, and how many were accepted and refused."""
    store = store_if_any(run)
    ids = [item.id for item in review_of(run).items]
    decided = decisions(ids, store.latest() if store else [])
    words = [one.outcome for one in decided.values()]
    return {"pairs": len(ids), "accepted": words.count("accept"), "refused": words.count("reject")}
