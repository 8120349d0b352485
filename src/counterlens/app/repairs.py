"""The repair desk: receipts of repairs side by side, and pairs that people accept or refuse.

A receipt says what a repair did on images that neither fitted nor chose anything. Pairs, a picture
and its counterfactual, are judged like any review. The class that people see in the changed picture
is its label, whatever the model answers: the target where they accept it, the class of the original
where they reject it and say so. Pairs of the second kind differ in what the model should ignore.

Paper: Bender et al. 2023 (cfkd2023): a person's answer on a counterfactual is its label.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from counterlens.app.reviewable import is_pairs, review_of, store_if_any
from counterlens.app.site import show, site
from counterlens.errors import CounterlensError, InputError
from counterlens.report.kit.blocks import Table
from counterlens.report.pages.repair import sections
from counterlens.review import decisions
from counterlens.review.pairs import PAIR_TABLES, seen
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


@dataclass(frozen=True)
class Pair:
    """A picture and its changed version, as people labelled it.

    Args:
        label: its class; empty where the run does not know it.
        shows: the class that people see in the changed picture.
    """

    before: str
    label: str
    after: str
    shows: str

    @property
    def same(self) -> bool:
        """Whether the change left the class as it was."""
        return bool(self.label) and self.label == self.shows


@router.get("/repairs/pairs.csv")
def labelled(request: Request, run: str) -> Response:
    """Pictures and labelled changed versions as a manifest: path, label, pair.

    The two of a pair share the text in the column pair where the change left the class as it was.
    """
    opened = site(request).folders.run(run)
    if not is_pairs(opened):
        raise InputError(f"{run} holds no pairs.")
    out = io.StringIO()
    lines = csv.writer(out)
    lines.writerow(["path", "label", "pair"])
    originals: set[str] = set()
    for pair in labelled_pairs(opened):
        number = pair.before if pair.same else ""
        if pair.label and pair.before not in originals:
            lines.writerow([opened.file(pair.before), pair.label, pair.before])
            originals.add(pair.before)
        lines.writerow([opened.file(pair.after), pair.shows, number])
    head = {"Content-Disposition": 'attachment; filename="pairs.csv"'}
    return Response(out.getvalue(), media_type="text/csv", headers=head)


def labelled_pairs(run: Run) -> list[Pair]:
    """Every pair whose changed picture people gave a class, in the order of the table."""
    store = store_if_any(run)
    items = review_of(run).items
    seen_in = seen([item.id for item in items], store.latest() if store else [])
    rows = {
        str(row["image"]): row
        for name in PAIR_TABLES
        for row in run.table(name)
        if row.get("image")
    }
    out = []
    for item in items:
        label = str(rows[item.id].get("label") or "")
        shows = {"target": item.label, "original": label}.get(seen_in.get(item.id, ""), "")
        if shows:
            out.append(Pair(item.before, label, item.image, shows))
    return out


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
    """The tables of a repair's report: what changed, what was tried, and its placebos."""
    if run.manifest["command"] != "repair":
        raise InputError(f"{name} is no repair.")
    with reading(run):
        blocks = [
            block
            for section in sections(run)
            if section.name in ("receipt", "tried")
            for block in section.blocks
            if isinstance(block, Table)
        ]
    return {"name": name, "blocks": blocks, **verdict_of(run)}


def _judged(run: Run) -> dict[str, int]:
    """How many pairs there are, how many were accepted and refused, and of one class."""
    store = store_if_any(run)
    ids = [item.id for item in review_of(run).items]
    decided = decisions(ids, store.latest() if store else [])
    words = [one.outcome for one in decided.values()]
    return {
        "pairs": len(ids),
        "accepted": words.count("accept"),
        "refused": words.count("reject"),
        "same": sum(pair.same for pair in labelled_pairs(run)),
    }
