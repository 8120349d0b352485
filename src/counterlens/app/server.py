"""The server: the parts put together, and how it starts and ends."""

import secrets as random
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import resources
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from counterlens.app import ask, browse, judge, repairs, study
from counterlens.app.decoder import Decoder
from counterlens.app.folders import Folders, NotFound
from counterlens.app.jobs import Jobs
from counterlens.app.options import AppOptions
from counterlens.app.reviewable import close_stores
from counterlens.app.security import Guard, Secrets
from counterlens.app.site import Site, show
from counterlens.app.thumbnails import Thumbnails
from counterlens.errors import CounterlensError, InputError

_STATIC = {
    "style.css": ("counterlens.report", "templates", "text/css"),
    "report.js": ("counterlens.report", "templates", "text/javascript"),
    "app.css": ("counterlens.app", "static", "text/css"),
    "app.js": ("counterlens.app", "static", "text/javascript"),
    "queue.js": ("counterlens.app", "static", "text/javascript"),
    "review.js": ("counterlens.app", "static", "text/javascript"),
    "study.js": ("counterlens.app", "static", "text/javascript"),
    "grid.js": ("counterlens.app", "static", "text/javascript"),
}
_FILES = {"report.js": "script.js"}


def create(
    folders: Folders, secrets: Secrets, options: AppOptions, decoder: Decoder | None = None
) -> ASGIApp:
    """The app over some folders, behind its guard.

    Args:
        decoder: processes that read pictures; None: its own, which end with it.
    """
    store = "" if options.read_only else str(folders.state / "thumbnails.sqlite")
    here = Site(
        folders,
        secrets,
        decoder or Decoder(),
        Thumbnails(store),
        Jobs(folders.state / "jobs"),
        options.read_only,
        options.offer,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if decoder is None:
            here.decoder.warm()
        yield
        here.jobs.close()
        close_stores()
        if decoder is None:
            here.decoder.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.site = here
    for part in (browse, ask, judge, study, repairs):
        app.include_router(part.router)
    app.get("/static/{name}")(static)
    app.exception_handler(CounterlensError)(known_error)
    app.exception_handler(HTTPException)(http_error)
    app.exception_handler(RequestValidationError)(incomplete)
    app.exception_handler(Exception)(crash)
    return Guard(app, secrets, read_only=options.read_only)


def static(name: str) -> Response:
    """A stylesheet or script of the app: one of a fixed list."""
    if name not in _STATIC:
        raise NotFound(f"There is no file {name!r}.")
    package, folder, kind = _STATIC[name]
    file = resources.files(package) / folder / _FILES.get(name, name)
    headers = {"Cache-Control": "no-cache"}
    return PlainTextResponse(file.read_text("utf-8"), media_type=kind, headers=headers)


def known_error(request: Request, error: Exception) -> Response:
    """A page, or a line for scripts, that says what is wrong."""
    status = 404 if isinstance(error, NotFound) else 400
    return _error(request, status, str(error))


def http_error(request: Request, error: Exception) -> Response:
    """Addresses that do not exist."""
    status = getattr(error, "status_code", 404)
    detail = str(getattr(error, "detail", error))
    return _error(request, status, "There is no such page." if status == 404 else detail)


def incomplete(request: Request, error: Exception) -> Response:
    """Addresses that lack a part, or hold one that is no number."""
    parts = {str(one["loc"][-1]) for one in getattr(error, "errors", list)()}
    return _error(request, 400, f"This address is incomplete: {', '.join(sorted(parts))}.")


def crash(request: Request, error: Exception) -> Response:
    """A fault of the app: a page that says so; the traceback goes to the terminal."""
    text = f"The app failed on this page ({type(error).__name__}). The terminal shows more."
    return _error(request, 500, text)


def _error(request: Request, status: int, text: str) -> Response:
    if request.headers.get("x-form-key") or request.url.path.endswith(".json"):
        return PlainTextResponse(text, status)
    return show(request, "error.html", status=status, code=status, text=text)


def serve(runs: Path, options: AppOptions) -> None:
    """Start the app and stay until Ctrl-C."""
    folders = Folders.open(runs, options.pictures, options.references)
    listener = _listen(options.port)
    port = listener.getsockname()[1]
    secrets = Secrets(random.token_urlsafe(32), port)
    address = f"http://127.0.0.1:{port}/?token={secrets.token}"
    print(f"the app shows {folders.root}; stop it with Ctrl-C", file=sys.stderr)
    print(address, flush=True)
    config = uvicorn.Config(
        create(folders, secrets, options),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        ws="none",
    )
    if not options.no_browser:
        webbrowser.open(address)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    print("stopped", file=sys.stderr)


def _listen(port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise InputError(f"--port is {port}, expected 0 … 65535.")
    # only with its protocol named does asyncio send at once; else every answer waits 40 ms
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)  # a browser that is quicker than the server waits
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} cannot be used ({error.strerror}). Choose another: --port 0."
        ) from None
    return listener
