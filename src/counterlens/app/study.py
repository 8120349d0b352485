"""The study: which of two counterfactuals is better, asked of people as the paper asked them.

A rater sees pairs in an order and on sides of their own, and never which method made what. Where an
audit of the same model is beside the run, half of the raters are the control: they compare a
counterfactual with real images of the target, sorted by their logit.
"""

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, Response

from counterlens.app.folders import NotFound
from counterlens.app.images import rows as image_rows
from counterlens.app.judge import about_class
from counterlens.app.pieces import cell, model_of, picture, row_picture
from counterlens.app.site import Site, link, show, site
from counterlens.errors import CounterlensError, InputError
from counterlens.review import same_person
from counterlens.review.study import (
    ARMS,
    CONTROL,
    QUESTIONS,
    Answer,
    Pair,
    StudyAnswers,
    Trial,
    answers_path,
    arm_of,
    results,
    trials,
)
from counterlens.runs import Run, file_bytes, parse_json, stored_logits

router = APIRouter()
_REFERENCES = 4  # as many as the paper showed
_SORTED = 5


def has_study(run: Run) -> bool:
    """Whether a run holds pairs for a study."""
    return (run.folder / "tables" / "study.jsonl").is_file()


def pairs_of(run: Run) -> list[Pair]:
    """The pairs that an evaluation drew."""
    out = []
    for number, row in enumerate(run.table("study")):
        try:
            images = {str(row["left_method"]): str(row["left"]),
                      str(row["right_method"]): str(row["right"])}  # fmt: skip
            pair = Pair(f"{number} {row['id']}", str(row["target"]), str(row["original"]), images)
        except KeyError as error:
            raise InputError(f"{run.folder.name}: a study pair lacks {error}.") from None
        if len(images) == 2:
            out.append(pair)
    return out


@router.get("/studies")
def studies(request: Request) -> HTMLResponse:
    """All runs from which a study can be opened."""
    here = site(request)
    rows = []
    for name in here.folders.names():
        try:
            run = here.folders.run(name)
            if has_study(run):
                answers = StudyAnswers(answers_path(run.folder)).latest()
                raters = len({one.rater for one in answers})
                rows.append({"name": name, "pairs": len(pairs_of(run)), "answers": len(answers),
                             "raters": raters})  # fmt: skip
        except CounterlensError:
            continue
    return show(request, "studies.html", rows=rows)


@router.get("/study")
def study(request: Request, run: str, rater: str = "") -> HTMLResponse:
    """Results so far; with a name, the next pair of that rater."""
    here = site(request)
    opened = here.folders.run(run)
    pairs = pairs_of(opened)
    if not pairs:
        raise InputError(
            f"{run} holds no pairs for a study. Make some: counterlens explain evaluate."
        )
    answers = StudyAnswers(answers_path(opened.folder)).latest()
    name = _spelled(answers, rater)
    if not name or here.read_only:
        return show(
            request, "study.html", run=run, pairs=len(pairs), answers=len(answers),
            numbers=list(results(answers).items()), raters=sorted({one.rater for one in answers}),
            control=control_audit(here, opened) is not None,
        )  # fmt: skip
    done = {one.pair for one in answers if one.rater == name}
    mine = trials(pairs, name)
    left = [trial for trial in mine if trial.pair.name not in done]
    if not left:
        return show(request, "rated.html", run=run, count=len(mine))
    trial = left[0]
    arm, shown = _shown(here, run, opened, name, trial)
    about, same = about_class(here, trial.pair.target), {"run": run, "rater": name}
    return show(
        request, "rate.html", run=run, rater=name, done=len(mine) - len(left), total=len(mine),
        pair=trial.pair.name, target=trial.pair.target,
        sides={
            side: [
                link("/study/picture", **same, pair=trial.pair.name, side=side, number=k)
                for k in range(len(shown[side]))
            ]
            for side in ("A", "B")
        },
        original=link("/file", run=run, path=trial.pair.original),
        questions=QUESTIONS if arm == ARMS[0] else {},
        references=about["images"][:_REFERENCES], definition=about["definition"],
    )  # fmt: skip


@router.get("/study/picture")
def shown_picture(
    request: Request, run: str, rater: str, pair: str, side: str, number: int = 0
) -> Response:
    """A picture of a trial, by its side: its address does not say which method made it."""
    here = site(request)
    opened = here.folders.run(run)
    trial = _trial(opened, rater, pair)
    _, shown = _shown(here, run, opened, rater, trial)
    places = shown.get(side, [])
    if not 0 <= number < len(places):
        raise NotFound("There is no such picture in this trial.")
    return places[number]()


@router.post("/study/answer.json")
async def take(request: Request, run: str) -> JSONResponse:
    """Keep an answer; the server knows which method stood where."""
    given = parse_json((await request.body()).decode("utf-8", "replace"), "the answer")
    return await run_in_threadpool(_take, site(request), run, given)


def _take(here: Site, run: str, given: Any) -> JSONResponse:
    opened = here.folders.run(run)
    try:
        name = _spelled(StudyAnswers(answers_path(opened.folder)).latest(), str(given["rater"]))
        trial = _trial(opened, name, str(given["pair"]))
        texts = {
            str(question): {side: bool(sides[side]) for side in ("A", "B")}
            for question, sides in dict(given["questions"]).items()
        }
        better, mark = str(given["better"]), str(given["mark"])
    except (KeyError, TypeError, ValueError):
        raise InputError("an answer lacks rater, pair, questions, better or mark.") from None
    arm, _ = _shown(here, run, opened, name, trial)
    sides = sides_of(trial, arm)
    answer = Answer(name, trial.pair.name, *sides, texts, better, mark, arm)
    StudyAnswers(answers_path(opened.folder)).add(answer)
    return JSONResponse({"kept": mark})


def _spelled(answers: Sequence[Answer], rater: str) -> str:
    """A name as it was given before, so that one person is not two."""
    name = " ".join(rater.split())[:80]
    return next((o.rater for o in answers if same_person(o.rater) == same_person(name)), name)


def _trial(run: Run, rater: str, pair: str) -> Trial:
    mine = {trial.pair.name: trial for trial in trials(pairs_of(run), rater)}
    if pair not in mine:
        raise NotFound(f"There is no pair {pair!r} in this study.")
    return mine[pair]


def sides_of(trial: Trial, arm: str) -> tuple[str, str]:
    """What stands at A and B; in the control arm the second method gives way to real images."""
    if arm == ARMS[0]:
        return trial.a, trial.b
    first = sorted(trial.pair.images)[0]
    return (first, CONTROL) if trial.a == first else (CONTROL, first)


def _shown(
    here: Site, name: str, run: Run, rater: str, trial: Trial
) -> tuple[str, dict[str, list[Callable[[], Response]]]]:
    """The arm of a trial, and what gives the pictures of each side."""
    audit = control_audit(here, run)
    arm = arm_of(rater, control=audit is not None)
    real = sorted_images(here, *audit, trial.pair.target) if audit and arm != ARMS[0] else []
    arm = arm if real else ARMS[0]
    out: dict[str, list[Callable[[], Response]]] = {}
    for side, method in zip("AB", sides_of(trial, arm), strict=True):
        file = trial.pair.images.get(method, "")
        out[side] = real if method == CONTROL else [partial(_file, here, run, file)]
    return arm, out


def _file(here: Site, run: Run, path: str) -> Response:
    return picture(file_bytes(here.folders.picture(run, path)))


def control_audit(here: Site, run: Run) -> tuple[str, Run] | None:
    """An audit of the same model whose pictures may be shown, for the control arm."""
    model = model_of(run)
    for name in here.folders.names():
        try:
            other = here.folders.run(name)
            facts = other.manifest
        except CounterlensError:
            continue
        if facts["command"] == "audit" and model and model_of(other) == model and other.done:
            some = [
                row for row in image_rows(other)[:50] if cell(here, name, other, row)["address"]
            ]
            if len(some) >= _SORTED:
                return name, other
    return None


def sorted_images(here: Site, name: str, audit: Run, target: str) -> list[Callable[[], Response]]:
    """Real images labelled as the target, from the highest logit of the target to the lowest."""
    rows = [row for row in image_rows(audit) if row.label == target]
    listed = {row.id: row for row in rows if cell(here, name, audit, row)["address"]}
    ordered = by_logit(audit, target, set(listed))
    places = np.linspace(0, len(ordered) - 1, min(_SORTED, len(ordered))).round().astype(int)
    return [partial(row_picture, here, audit, listed[ordered[int(k)]]) for k in places]


def by_logit(audit: Run, target: str, wanted: Container[str]) -> list[str]:
    """Ids of an audit's images, from the highest logit of a class to the lowest."""
    classes = [str(row["class"]) for row in audit.table("per_class")]
    ranked: list[tuple[float, str]] = []
    for one in stored_logits(audit).values():
        if one.role == "in" and target in classes and len(classes) == one.logits.shape[1]:
            logits = np.asarray(one.logits[:, classes.index(target)])
            ranked += [(float(z), i) for z, i in zip(logits, one.ids, strict=True) if i in wanted]
    return [own for _, own in sorted(ranked, reverse=True)]
