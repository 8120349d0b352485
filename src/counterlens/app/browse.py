"""Look at runs: the list, one run, its images by any filter, and two runs side by side."""

import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from counterlens.app.explained import explanations
from counterlens.app.folders import NotFound, describe
from counterlens.app.images import ImageFilter, ImageRow, choices, page, rows
from counterlens.app.pieces import cell, model_of, picture, small_picture, snapped, spec_of
from counterlens.app.reviewable import has_review
from counterlens.app.security import REPORT_POLICY
from counterlens.app.site import Site, link, show, site
from counterlens.app.study import has_study
from counterlens.errors import InputError
from counterlens.progress import idle
from counterlens.report.kit.parts import anchor
from counterlens.report.page import page as report_page
from counterlens.runs import Run, file_bytes, reading
from counterlens.runs.headline import headline_keys
from counterlens.runs.keys import meaning, show_interval, show_number
from counterlens.workflows.compare.run import compare as compare_runs

router = APIRouter()
_HEADLINES = 3


@router.get("/")
def index(request: Request, command: str = "", words: str = "") -> HTMLResponse:
    """All runs."""
    here = site(request)
    rows = [describe(here.folders, name) for name in here.folders.names()]
    commands = sorted({row["command"] for row in rows if not row["damaged"]})
    wanted = [row for row in rows if _wanted(row, command, words.casefold())]
    lines = [{**row, "headline": _headline(row)} for row in wanted]
    return show(
        request, "index.html", rows=lines, commands=commands, command=command, words=words,
        total=len(rows), root=str(here.folders.root),
    )  # fmt: skip


@router.get("/run")
def one(request: Request, run: str) -> HTMLResponse:
    """One run: its report, and what can be done with it."""
    here = site(request)
    opened = here.folders.run(run)
    with reading(opened):
        page = report_page(opened)
        listed = rows(opened)
        growing = _growth(here, run, opened)
    return show(
        request, "run.html", page=page, run=run, images=len(listed),
        mistakes=sum(row.wrong for row in listed), growth=growing,
        done=opened.done,
        review=has_review(opened),
        study=has_study(opened),
        command=str(opened.manifest["command"]), report=(opened.folder / "report.html").is_file(),
        inner=[name for name in here.folders.names() if name.startswith(f"{run}/")],
        models=model_of(opened),
    )  # fmt: skip


@router.get("/report")
def report(request: Request, run: str) -> Response:
    """The report as the run holds it, without its scripts: a run may come from anyone."""
    path = site(request).folders.run(run).file("report.html")
    if not path.is_file():
        raise NotFound(f"{run} has no report.")
    text = file_bytes(path)
    return Response(
        text, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY}
    )


@router.get("/file")
def file(request: Request, run: str, path: str) -> Response:
    """A picture of a run, as it is stored."""
    here = site(request)
    data = file_bytes(here.folders.picture(here.folders.run(run), path))
    return picture(data)


@router.get("/thumb")
def thumb(request: Request, run: str, path: str, side: int = 160) -> Response:
    """A small picture of a run."""
    here = site(request)
    whole = here.folders.picture(here.folders.run(run), path)
    return small_picture(here, whole, side)


@router.get("/picture")
def of_set(request: Request, run: str, set: str, id: str, side: int = 160) -> Response:
    """A picture of the data set that a run is about, where it may be opened."""
    here = site(request)
    source = here.folders.source(spec_of(here.folders.run(run), set), id)
    if source is None:
        raise NotFound("This picture lies outside the folders that the app may open.")
    wanted = snapped(side) if side else 0
    data = here.thumbnails.get(
        f"{source} {wanted}", lambda: here.decoder.of_set(*source, side=wanted)
    )
    return picture(data)


@router.get("/images")
def images(
    request: Request,
    run: str,
    low: str = "",
    high: str = "",
    after: int = -1,
) -> HTMLResponse:
    """The images of a run, filtered by class, confusion, confidence, group, slice or tag."""
    here = site(request)
    opened = here.folders.run(run)
    listed = rows(opened)
    given: dict[str, Any] = {
        f.name: request.query_params.get(f.name, "") for f in fields(ImageFilter)
    }
    given |= {"low": _share(low, 0.0), "high": _share(high, 1.0)}
    wanted = ImageFilter(**given)
    some, count, more = page(listed, wanted, after=after)
    query = {f.name: getattr(wanted, f.name) for f in fields(wanted)}
    query |= {"low": low, "high": high}
    known = explanations(here, opened)
    cells = [
        {**cell(here, run, opened, row), "explained": known.get((row.set, row.id), [])[:3]}
        for row in some
    ]
    following = link("/images", run=run, **query, after=some[-1].number) if more else ""
    return show(
        request, "images.html", run=run, cells=cells, wanted=wanted, count=count,
        total=len(listed), choices=choices(listed), following=following, low=low, high=high,
        start=link("/images", run=run, **query) if after >= 0 else "",
    )  # fmt: skip


@router.get("/compare")
def compare(request: Request, kind: str = "", most: int = 24) -> HTMLResponse:
    """Two runs side by side, with the images on which the answers flip."""
    here, run = site(request), request.query_params.getlist("run")
    if len(run) != 2 or run[0] == run[1]:
        raise InputError("Choose two different runs to compare.")
    opened = [here.folders.run(name) for name in run]
    with tempfile.TemporaryDirectory() as folder, reading(*opened):
        result = compare_runs(*opened, out=Path(folder) / "compared", quiet=True)
        idle()  # the heartbeat of the command line has nothing to tell
        both = report_page(result.run)
        flips = result.run.table("flips")
    known = [{row.id: row for row in rows(one)} for one in opened]
    wanted = [row for row in flips if kind in ("", row["flip"])]
    cells = [
        _flip(here, run, opened, known, row)
        for row in wanted[: max(0, most)]
        if _both(known, row["image"])
    ]
    sections = [part for part in both.sections if part.name not in ("manifest", "flips")]
    return show(
        request, "compare.html", page=both, sections=sections, run=run, kind=kind, cells=cells,
        counts={word: sum(r["flip"] == word for r in flips) for word in ("negative", "positive")},
        more=link("/compare", run=run, kind=kind, most=most + 96) if len(wanted) > most else "",
        shown=len(cells), total=len(wanted), names=[str(model_of(one)) for one in opened],
    )  # fmt: skip


def _share(text: str, usual: float) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return usual


def _wanted(row: Mapping[str, Any], command: str, words: str) -> bool:
    if row["damaged"]:
        return not command
    text = " ".join(str(row[key]) for key in ("name", "model", "data", "command")).casefold()
    return command in ("", row["command"]) and words in text


def _headline(row: Mapping[str, Any]) -> list[dict[str, str]]:
    if row["damaged"]:
        return []
    numbers = {key: one for key, one in row["numbers"].items() if one.value is not None}
    out = []
    for key in headline_keys(row["command"], numbers)[:_HEADLINES]:
        unit, number = meaning(key).unit, numbers[key]
        places = 2 if key.startswith("calibration.") else 1
        out.append(
            {
                "label": meaning(key).label,
                "value": show_number(number, unit, digits=places),
                "interval": show_interval(number, unit, digits=places) or "",
                "n": f"{number.n:,}",
            }
        )
    return out


def _growth(here: Site, name: str, run: Run) -> list[dict[str, Any]]:
    """Counterfactuals of a picture towards a class, budget by budget: the change as it grows."""
    grown: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in run.table("counterfactuals"):
        if all(key in row for key in ("id", "target", "radius", "image", "original", "after")):
            grown.setdefault((str(row["id"]), str(row["target"])), []).append(row)
    out: list[dict[str, Any]] = []
    places: set[str] = set()
    for (own, target), steps in list(grown.items())[:24]:
        steps.sort(key=lambda row: row["radius"])
        out.append(
            {
                "id": own,
                "place": "" if own in places else f"growth-{anchor(own)}",
                "target": target,
                "predicted": str(steps[0].get("predicted", "")),
                "original": link("/file", run=name, path=steps[0]["original"]),
                "before": float(steps[0].get("before", 0.0)),
                "steps": [
                    {
                        "address": link("/file", run=name, path=row["image"]),
                        "budget": f"{row.get('norm', '')} {float(row['radius']):.3g}",
                        "after": float(row["after"]),
                        "answer": str(row.get("answer", "")),
                    }
                    for row in steps
                ],
            }
        )
        places.add(own)
    return out


def _both(known: list[dict[str, ImageRow]], name: str) -> bool:
    return all(name in rows for rows in known)


def _flip(
    here: Site,
    names: list[str],
    opened: list[Run],
    known: list[dict[str, ImageRow]],
    row: Mapping[str, Any],
) -> dict[str, Any]:
    sides = [known[k][row["image"]] for k in range(2)]
    cells = [cell(here, names[k], opened[k], sides[k]) for k in range(2)]
    return {"flip": row["flip"], "id": row["image"], "sides": cells}
