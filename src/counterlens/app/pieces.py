"""Pieces that several pages share: an image of a run, its address, and pictures as answers."""

from pathlib import Path
from typing import Any

from starlette.responses import Response

from counterlens.app.folders import NotFound, picture_type
from counterlens.app.images import ImageRow
from counterlens.app.site import Site, link
from counterlens.app.thumbnails import file_key
from counterlens.runs import Run

SIDES = (64, 160, 320, 720)
"""Longer sides of the thumbnails that are kept, in pixels."""


def cell(here: Site, name: str, run: Run, row: ImageRow) -> dict[str, Any]:
    """An image of a run as a page shows it: where its picture is, and where it is explained."""
    source = here.folders.source(spec_of(run, row.set), row.id)
    if source is not None:
        address = link("/picture", run=name, set=row.set, id=row.id)
        where = {"set": row.set, "id": row.id}
    elif row.picture:
        address = link("/thumb", run=name, path=row.picture)
        where = {"path": row.picture}
    else:
        address, where = "", {}
    ask = link("/ask", run=name, **where, target=row.label) if where else ""
    return {"row": row, "address": address, "ask": ask, "number": row.number}


def spec_of(run: Run, name: str) -> str:
    """The data spec behind a set's name, of those that the run's settings list."""
    settings = run.manifest["settings"]
    given = [settings.get("data"), settings.get("calibrate")]
    more = settings.get("ood")
    given += more if isinstance(more, list) else []
    for spec in given:
        if not isinstance(spec, str):
            continue
        own, sign, rest = spec.partition("=")
        if sign and own == name:
            return rest
        if name in (spec.rpartition(":")[2], Path(spec).name, Path(spec).stem):
            return spec
    return ""


def model_of(run: Run) -> str:
    """The model of a run, as the command line takes it; empty where there is none."""
    settings = run.manifest["settings"]
    model = settings.get("model") or run.manifest.get("model")
    return model if isinstance(model, str) else ""


def small_picture(here: Site, path: Path, side: int) -> Response:
    """A thumbnail of a picture file that the app may show."""
    wanted = snapped(side)
    key = file_key(path, wanted)
    data = here.thumbnails.get(key, lambda: here.decoder.thumbnail(path, wanted))
    return picture(data)


def picture(data: bytes) -> Response:
    """Bytes of a picture; what is no picture that browsers show is refused."""
    kind = picture_type(data)
    if not kind:
        raise NotFound("This file is no picture that a browser can show.")
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


def snapped(side: int) -> int:
    """The kept size of thumbnails that is nearest to a wanted one."""
    return min(SIDES, key=lambda known: abs(known - side))


def row_picture(here: Site, run: Run, row: ImageRow, side: int = 160) -> Response:
    """A picture of an image of a run, from its data set where that may be opened."""
    source = here.folders.source(spec_of(run, row.set), row.id)
    if source is None:
        return small_picture(here, here.folders.picture(run, row.picture), side)
    key = f"{source} {snapped(side)}"
    data = here.thumbnails.get(key, lambda: here.decoder.of_set(*source, side=snapped(side)))
    return picture(data)
