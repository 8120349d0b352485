"""Ask why: a picture, a model, a target; the command line answers in a child process.

The browser never names files or code: pictures are uploads, pictures of a run, of a shipped sample
or of a folder that the app was given; models are specs of known schemes or were offered at start.
"""

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from counterlens import zoo
from counterlens.app.jobs import Job
from counterlens.app.pieces import model_of, picture, small_picture, spec_of
from counterlens.app.site import Site, link, show, site
from counterlens.errors import CounterlensError, InputError
from counterlens.runs import file_bytes, key_part, new_folder
from counterlens.workflows._shared.generation.search_options import NORMS
from counterlens.workflows._shared.options import options_of
from counterlens.workflows.explain.options import METHODS

router = APIRouter()
TITLES = {
    "pixel": "pixels: the nearest picture that shows the target",
    "cam": "maps: where the evidence lies",
    "colour": "colour edits: which change of colour flips the answer",
    "frame": "frame edits: which shift, scale or crop flips the answer",
    "diffusion": "diffusion: a realistic picture of the target",
    "dvce": "DVCE: diffusion guided by a robust model",
}
WORDS = {
    "target": "A target",
    "judge": "A further model",
    "radius": "A radius",
    "norm": "A norm",
    "sampling_steps": "A number of steps",
}
SCHEMES = ("zoo", "timm", "torchvision", "hf", "clip", "robustbench")
"""Models that the form takes without having been offered: none of them runs a user's file."""
MOST_FILES = 8
_SPEC = re.compile(r"[A-Za-z]+:[\w./+-]{1,200}")
_TEXT = 80


@dataclass(frozen=True)
class Question:
    """What a form asks.

    Args:
        images: as the command line takes them.
        judges: further models that say whether they see the target.
    """

    model: str
    images: tuple[str, ...]
    targets: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    method: str = "pixel"
    radii: tuple[str, ...] = ()
    norm: str = "l2"
    steps: str = ""
    seed: str = "0"

    def argv(self, out: Path) -> list[str]:
        """The command line behind `counterlens`; what a method does not take is refused."""
        words = ["explain", self.method, "--seed", self.seed, "--out", str(out)]
        known = options_of(METHODS[self.method])
        steps = "steps" if "steps" in known else "sampling_steps"
        given = {
            "target": self.targets,
            "judge": self.judges,
            "radius": self.radii,
            "norm": (self.norm,) if self.norm != NORMS[0] else (),
            steps: (self.steps,) if self.steps else (),
        }
        for name, values in given.items():
            if values and name not in known:
                raise InputError(
                    f"{WORDS[name]} has no effect with the method {self.method}. Leave it empty."
                )
            words += [f"{_flag(known[name], name)}={value}" for value in values]
        return [*words, "--", self.model, *self.images]


def _flag(one: Field[Any], name: str) -> str:
    return str(one.metadata["flag"] or f"--{name.replace('_', '-')}")


@router.get("/ask")
def form(
    request: Request,
    run: str = "",
    set: str = "",
    id: str = "",
    path: str = "",
    model: str = "",
    target: str = "",
) -> HTMLResponse:
    """The form, filled in as far as the link says, and what was asked before."""
    here = site(request)
    opened = here.folders.run(run) if run else None
    given = {"run": run, "set": set, "id": id, "path": path}
    chosen = model or (model_of(opened) if opened else "")
    classes = [str(row["class"]) for row in opened.table("per_class")] if opened else []
    values = {"model": chosen, "target": target, "method": "pixel", "norm": "l2"}
    return _form(request, values, given, classes)


@router.post("/ask")
async def start(request: Request) -> Response:
    """Take the question and start the command."""
    here = site(request)
    async with request.form(max_files=MOST_FILES, max_fields=40) as sent:
        values = {key: str(value) for key, value in sent.items() if isinstance(value, str)}
        try:
            images = await _images(here, sent)
            question = _question(here, sent, images)
            folder = _new_folder(here, question)
            argv = question.argv(folder)
        except CounterlensError as error:
            given = {key: values.get(key, "") for key in ("run", "set", "id", "path")}
            return _form(request, values, given, [], problem=str(error))
    title = f"{question.model}: {', '.join(question.targets) or question.method}"
    job = here.jobs.start(argv, folder, title)
    return RedirectResponse(link("/job", name=job.name), 303)


@router.get("/job")
def progress(request: Request, name: str) -> HTMLResponse:
    """One explanation: under way, ended or failed."""
    here = site(request)
    job = here.jobs.get(name)
    return show(request, "job.html", job=job, **_status(here, job))


@router.get("/job.json")
def progress_facts(request: Request, name: str) -> JSONResponse:
    """The same for the script of the page."""
    here = site(request)
    return JSONResponse(_status(here, here.jobs.get(name)))


@router.post("/job/cancel")
def cancel(request: Request, name: str) -> Response:
    """End an explanation."""
    here = site(request)
    here.jobs.cancel(here.jobs.get(name))
    return RedirectResponse(link("/job", name=name), 303)


@router.get("/upload")
def uploaded(request: Request, name: str, side: int = 320) -> Response:
    """A picture that was uploaded."""
    here = site(request)
    path = here.folders.upload(name)
    return small_picture(here, path, side) if side else picture(file_bytes(path))


def _form(
    request: Request,
    values: dict[str, str],
    given: dict[str, str],
    classes: Sequence[str],
    problem: str = "",
) -> HTMLResponse:
    here = site(request)
    jobs = [{"job": job, **here.jobs.status(job)} for job in here.jobs.all()[:12]]
    preview = ""
    if given["path"]:
        preview = link("/thumb", run=given["run"], path=given["path"], side=320)
    elif given["id"]:
        preview = link("/picture", run=given["run"], set=given["set"], id=given["id"], side=320)
    return show(
        request, "ask.html", status=400 if problem else 200, values=values, given=given,
        models=offered(here, values.get("model", "")), methods=TITLES, norms=NORMS,
        classes=classes, samples=zoo.samples(), preview=preview, problem=problem, jobs=jobs,
    )  # fmt: skip


def offered(here: Site, chosen: str = "") -> list[str]:
    """Models of the form: those offered at start, the shipped ones, and the one of the run."""
    shipped = [f"zoo:{name}" for name in (*zoo.names(), *zoo.pairs())]
    more = [chosen] if chosen and _allowed(here, chosen) else []
    return list(dict.fromkeys([*here.offer, *more, *shipped]))


def _allowed(here: Site, model: str) -> bool:
    known = model in here.offer
    return known or bool(_SPEC.fullmatch(model) and model.partition(":")[0] in SCHEMES)


def _question(here: Site, sent: FormData, images: tuple[str, ...]) -> Question:
    """The question of a form; anything the command could misread is refused."""
    model, method, norm = (_text(sent, key) for key in ("model", "method", "norm"))
    named = (one.strip() for one in _text(sent, "judge").split(","))
    judges = tuple(dict.fromkeys(one for one in named if one and one != model))
    for one in (model, *judges):
        if not _allowed(here, one):
            raise InputError(
                f"{one!r} is no model that the app may open. Choose a shipped one, a spec such as "
                "timm:resnet50, or start the app with --offer MODEL."
            )
    if method not in METHODS or norm not in NORMS:
        raise InputError("Choose a method and a norm of the lists.")
    radii = tuple(_text(sent, "radius").replace(",", " ").split())
    if any(not re.fullmatch(r"\d{1,6}(\.\d{1,6})?(/\d{1,6})?", one) for one in radii):
        raise InputError(f"The radius is {' '.join(radii)!r}, expected numbers: 0.5 1.5 or 8/255.")
    targets = tuple(filter(None, (part.strip() for part in _text(sent, "target").split(","))))
    steps, seed = _text(sent, "steps"), _text(sent, "seed") or "0"
    if not (re.fullmatch(r"\d{0,5}", steps) and re.fullmatch(r"\d{1,9}", seed)):
        raise InputError(f"Steps are {steps!r} and the seed is {seed!r}, expected whole numbers.")
    return Question(model, images, targets, judges, method, radii, norm, steps, seed)


def _text(sent: FormData, key: str) -> str:
    value = sent.get(key, "")
    if not isinstance(value, str) or len(value) > 4 * _TEXT or "\0" in value:
        raise InputError(f"{key} is no short text.")
    return value.strip()


async def _images(here: Site, sent: FormData) -> tuple[str, ...]:
    """The pictures of a form as the command line takes them."""
    files = [one for one in sent.getlist("upload") if isinstance(one, UploadFile) and one.filename]
    if files:
        return tuple([await _keep(here, one) for one in files])
    run, path, own = (_text(sent, key) for key in ("run", "path", "id"))
    if run and path:
        return (str(here.folders.picture(here.folders.run(run), path)),)
    if run and own:
        source = here.folders.source(spec_of(here.folders.run(run), _text(sent, "set")), own)
        if source is None:
            raise InputError("This picture lies outside the folders that the app may open.")
        return (f"{source[0]}#{source[1]}" if source[0] else source[1],)
    sample, number = _text(sent, "sample"), _text(sent, "number")
    if sample in zoo.samples() and re.fullmatch(r"\d{1,7}", number):
        return (f"sample:{sample}#{number}",)
    raise InputError(
        "No picture was sent. Drop one, choose a file, or take one of a shipped sample."
    )


async def _keep(here: Site, upload: UploadFile) -> str:
    """Keep an upload under its content's hash; what is no whole picture is refused."""
    data = await upload.read()
    return await run_in_threadpool(_keep_bytes, here, data, (upload.filename or "picture")[-200:])


def _keep_bytes(here: Site, data: bytes, name: str) -> str:
    stem = key_part(Path(name.replace("\\", "/")).stem)[:40].strip(".-_") or "picture"
    folder = here.folders.state / "uploads"
    digest = hashlib.sha256(data).hexdigest()[:12]
    for known in folder.glob(f"{digest}-*"):
        return str(known)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{digest}-{uuid.uuid4().hex}"
    try:
        part.write_bytes(data)
        target = folder / f"{digest}-{stem}{here.decoder.check(part, name)}"
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return str(target)


def _new_folder(here: Site, question: Question) -> Path:
    name = Path(question.images[0]).name if len(question.images) == 1 else "pictures"
    model = question.model.rpartition(":")[2]
    here.folders.new_runs.mkdir(parents=True, exist_ok=True)
    return new_folder("explain", f"{key_part(model)}-{key_part(name)}", root=here.folders.new_runs)


def _status(here: Site, job: Job) -> dict[str, Any]:
    """A job's state, and the run it wrote where that can be opened."""
    status = here.jobs.status(job)
    folder = Path(job.run)
    inside = folder.is_relative_to(here.folders.root)
    name = str(folder.relative_to(here.folders.root)) if inside else ""
    exists = bool(name) and (folder / "run.json").is_file()
    return {**status, "run": link("/run", run=name) if exists else ""}
