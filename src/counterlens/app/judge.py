"""Review: verdicts of people on the pictures of a run, one at a time or in a grid.

The filter's answer leaves the server only once the verdict on an image is kept: a review is blind.
"""

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from counterlens.app.pieces import picture, small_picture
from counterlens.app.reviewable import Item, has_review, review_of, store_if_any, store_of
from counterlens.app.site import Site, link, show, site
from counterlens.errors import CounterlensError, InputError
from counterlens.review import (
    VERDICTS,
    Store,
    Task,
    Verdict,
    agreement,
    counts,
    decisions,
    gold,
    gold_numbers,
    places,
    same_person,
    set_gold,
    share_out,
    shares,
    spelled,
    tasks,
)
from counterlens.review.store import as_row
from counterlens.runs import Run, file_bytes, parse_json, read_object

router = APIRouter()
THUMB, LARGE = 160, 720
_MOST = 240


@router.get("/reviews")
def reviews(request: Request) -> HTMLResponse:
    """All runs that hold something to judge."""
    here = site(request)
    rows = []
    for name in here.folders.names():
        try:
            run = here.folders.run(name)
            if has_review(run):
                store = store_if_any(run)
                count = len(store.history()) if store else 0
                command = str(run.manifest["command"])
                rows.append({"name": name, "command": command, "verdicts": count})
        except CounterlensError:
            continue  # the list of runs says what is wrong with it
    return show(request, "reviews.html", rows=rows)


@router.get("/review")
def review(
    request: Request, run: str, reviewer: str = "", role: str = "reviewer", view: str = "one"
) -> HTMLResponse:
    """Where a review stands; with a name, the place to judge."""
    here = site(request)
    opened = here.folders.run(run)
    queue = review_of(opened)
    if not reviewer.strip() or here.read_only:
        return _overview(request, here, run, opened)
    name = _named(reviewer, role)
    store = store_of(opened)
    name = spelled(store, name)
    done, total = counts(store, name, role=role)
    template = "grid.html" if view == "grid" and role == "reviewer" else "judge.html"
    return show(
        request, template, run=run, reviewer=name, role=role, tags=queue.tags, done=done,
        total=len(_contested(store, name)) if role == "adjudicator" else total,
        pairs=bool(queue.items[0].before), size=len(queue.items),
    )  # fmt: skip


@router.get("/review/items.json")
def items(
    request: Request,
    run: str,
    reviewer: str,
    role: str = "reviewer",
    after: int = -1,
    most: int = 20,
    judged: bool = False,
) -> JSONResponse:
    """The next images of a person, behind a place."""
    here = site(request)
    opened, store, name = _opened(here, run, reviewer, role)
    limit = max(1, min(most, _MOST))
    if role == "adjudicator":
        wanted = [t for t in _contested(store, name) if t.place > after][:limit]
    else:
        wanted = tasks(store, name, after=after, most=limit, judged=judged)
    known = review_of(opened).items
    rows = [_facts(here, run, store, known[t.place], t, role) for t in wanted]
    return JSONResponse(rows)


@router.get("/review/places.json")
def all_places(request: Request, run: str, reviewer: str) -> JSONResponse:
    """Places of all images of a person, for the grid."""
    _, store, name = _opened(site(request), run, reviewer, "reviewer")
    return JSONResponse(places(store, name))


@router.post("/review/verdicts.json")
async def take(request: Request, run: str) -> JSONResponse:
    """Keep verdicts; answers which are on disk now, and shows what the filter said of them."""
    given = parse_json((await request.body()).decode("utf-8", "replace"), "the verdicts")
    return await run_in_threadpool(_take, site(request), run, given)


@router.post("/review/plan")
async def plan(request: Request, run: str) -> Response:
    """Share the images out among reviewers."""
    here = site(request)
    async with request.form(max_files=0, max_fields=8) as sent:
        names = [
            one.strip() for one in str(sent.get("reviewers", "")).replace(",", "\n").split("\n")
        ]
        overlap = _number(str(sent.get("overlap", "20"))) / 100
    store = store_of(here.folders.run(run))
    await run_in_threadpool(share_out, store, [n for n in names if n], overlap=overlap)
    return RedirectResponse(link("/review", run=run), 303)


@router.post("/review/gold")
async def known_answers(request: Request, run: str) -> Response:
    """Name gold items, one a line: accept, reject or unsure, a space, the image's id."""
    here = site(request)
    async with request.form(max_files=0, max_fields=8) as sent:
        lines = [line.strip() for line in str(sent.get("gold", "")).splitlines() if line.strip()]
    pairs = [line.partition(" ")[::2] for line in lines]
    answers = {item.strip(): verdict for verdict, item in pairs}
    await run_in_threadpool(set_gold, store_of(here.folders.run(run)), answers)
    return RedirectResponse(link("/review", run=run), 303)


@router.get("/review/export")
def export(request: Request, run: str) -> Response:
    """All verdicts as JSON lines, as `curate review --export` writes them."""
    store = store_if_any(site(request).folders.run(run))
    rows = store.history() if store else []
    text = "".join(json.dumps(as_row(row), ensure_ascii=False) + "\n" for row in rows)
    name = f"{Path(run).name}.verdicts.jsonl".encode("ascii", "replace").decode()
    head = {"Content-Disposition": f'attachment; filename="{name.replace(chr(34), "")}"'}
    return Response(text, media_type="application/jsonl", headers=head)


@router.get("/reference")
def reference(request: Request, label: str, file: str, side: int = THUMB) -> Response:
    """A reference image of a class."""
    here = site(request)
    path = here.folders.reference(label, file)
    return small_picture(here, path, side) if side else picture(file_bytes(path))


@router.get("/class.json")
def class_facts(request: Request, label: str) -> JSONResponse:
    """What a class is, and reference images of it."""
    return JSONResponse(about_class(site(request), label))


def about_class(here: Site, label: str) -> dict[str, Any]:
    """Definition and reference images of a class, where the app was given them."""
    images = [
        {"small": link("/reference", label=label, file=name),
         "large": link("/reference", label=label, file=name, side=LARGE), "name": name}
        for name in here.folders.reference_images(label)
    ]  # fmt: skip
    return {"label": label, "definition": _definition(here, label), "images": images}


def _definition(here: Site, label: str) -> str:
    folder = here.folders.references
    path = folder / "definitions.json" if folder else None
    if path is None or not path.is_file():
        return ""
    return str(read_object(path).get(label, ""))


def _overview(request: Request, here: Site, run: str, opened: Run) -> HTMLResponse:
    """Outcomes, people, agreement, gold items, and what is left to do."""
    queue = review_of(opened)
    store = None if here.read_only else store_of(opened)
    store = store or store_if_any(opened)
    ids = [item.id for item in queue.items]
    latest = store.latest() if store else []
    outcomes = Counter(d.outcome for d in decisions(ids, latest).values())
    people = Counter((v.reviewer, v.role) for v in latest)
    numbers = _agreement(str(store.path), len(store.history()), tuple(ids)) if store else {}
    given = shares(store) if store else {}
    return show(
        request, "review.html", run=run, outcomes=outcomes, size=len(ids),
        people=sorted(people.items()), given=given, numbers=list(numbers.values()),
        gold_numbers=list(gold_numbers(store).values()) if store else [],
        gold="\n".join(f"{v} {i}" for i, v in gold(store).items()) if store else "",
        kind=queue.kind, reviewers="\n".join(given),
    )  # fmt: skip


@lru_cache(maxsize=8)
def _agreement(path: str, stamp: int, ids: tuple[str, ...]) -> dict[str, Any]:
    """Kappas with intervals; only images that two people judged can tell."""
    latest = Store(Path(path)).latest()
    seen = Counter(v.item for v in latest if v.role == "reviewer")
    both = [item for item in ids if seen[item] > 1]
    wanted = set(both)
    few = [v for v in latest if v.item in wanted]
    return dict(agreement(both, few)) if both else {}


def _opened(here: Site, run: str, reviewer: str, role: str) -> tuple[Run, Store, str]:
    opened = here.folders.run(run)
    name = _named(reviewer, role)
    if here.read_only:
        raise InputError("The app is read-only: nobody judges here.")
    return opened, store_of(opened), name


def _named(reviewer: str, role: str) -> str:
    name = " ".join(reviewer.split())
    if not name or len(name) > 80 or not name.isprintable():
        raise InputError("A reviewer's name has 1 to 80 printable characters.")
    if role not in ("reviewer", "adjudicator"):
        raise InputError(f"got role {role!r}, expected reviewer or adjudicator.")
    return name


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"got {text!r}, expected a number.") from None


def _contested(store: Store, name: str) -> list[Task]:
    """Images on which reviewers differ, and which this person did not review."""
    latest = store.latest()
    ids = store.items()
    decided = decisions(ids, latest)
    mine = {v.item: v.verdict for v in latest if v.reviewer == name and v.role == "adjudicator"}
    return [
        Task(place, item, mine.get(item, ""))
        for place, item in enumerate(ids)
        if decided[item].outcome == "contested"
        and same_person(name) not in map(same_person, decided[item].verdicts)
    ]


def _facts(here: Site, run: str, store: Store, item: Item, task: Task, role: str) -> dict[str, Any]:
    """An image as the script of the page takes it; what the filter said only after a verdict."""
    facts: dict[str, Any] = {
        "place": task.place,
        "id": item.id,
        "label": item.label,
        "original": item.original,
        "question": item.question,
        "thumb": link("/thumb", run=run, path=item.image, side=THUMB),
        "large": link("/thumb", run=run, path=item.image, side=LARGE),
        "full": link("/file", run=run, path=item.image),
        "before": link("/thumb", run=run, path=item.before, side=LARGE) if item.before else "",
        "verdict": task.verdict,
    }
    if task.verdict:
        facts["reveal"] = _revealed(item)
    if role == "adjudicator":
        facts["others"] = [
            {"verdict": v.verdict, "reason": v.reason, "tags": list(v.tags)}
            for v in store.latest()
            if v.item == item.id and v.role == "reviewer"
        ]
    return facts


def _revealed(item: Item) -> dict[str, Any]:
    return {
        "answer": item.answer, "confidence": item.confidence, "suggested": list(item.suggested),
    }  # fmt: skip


def _take(here: Site, run: str, given: Any) -> JSONResponse:
    if not isinstance(given, list) or not 0 < len(given) <= 200:
        raise InputError("expected a list of 1 to 200 verdicts.")
    opened = here.folders.run(run)
    store = store_of(opened)
    verdicts = [_verdict(row) for row in given]
    store.add(verdicts)
    queue = review_of(opened)
    reveal = {
        v.item: _revealed(queue.items[queue.places[v.item]])
        for v in verdicts
        if v.item in queue.places
    }
    last = verdicts[-1]
    done, total = counts(store, last.reviewer, role=last.role)
    if last.role == "adjudicator":
        total = len(_contested(store, last.reviewer)) + done
    marks = [v.mark for v in verdicts]
    return JSONResponse({"kept": marks, "reveal": reveal, "done": done, "total": total})


def _verdict(row: Any) -> Verdict:
    try:
        texts = {k: str(row[k]) for k in ("item", "reviewer", "verdict", "mark", "role")}
        reason, tags = str(row.get("reason", ""))[:2000], [str(t)[:80] for t in row["tags"]][:20]
    except (KeyError, TypeError, AttributeError):
        raise InputError("a verdict lacks item, reviewer, role, verdict, tags or mark.") from None
    if not 16 <= len(texts["mark"]) <= 64 or texts["verdict"] not in VERDICTS:
        raise InputError("a verdict has no identifier of its own, or is not a known word.")
    name = _named(texts["reviewer"], texts["role"])
    return Verdict(
        texts["item"], name, texts["verdict"], reason, tuple(tags), texts["role"],
        mark=texts["mark"],
    )  # fmt: skip
