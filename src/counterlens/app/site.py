"""What all pages share: folders, helpers and templates."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse

from counterlens.app.decoder import Decoder
from counterlens.app.folders import Folders
from counterlens.app.jobs import Jobs
from counterlens.app.security import Secrets
from counterlens.app.thumbnails import Thumbnails
from counterlens.report.html import environment
from counterlens.version import __version__


@dataclass(frozen=True)
class Site:
    """One started app.

    Args:
        offer: models that the form offers besides the shipped ones.
    """

    folders: Folders
    secrets: Secrets
    decoder: Decoder
    thumbnails: Thumbnails
    jobs: Jobs
    read_only: bool = False
    offer: tuple[str, ...] = ()


def site(request: Request) -> Site:
    """The app that a request came to."""
    state: Site = request.app.state.site
    return state


def show(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page of the app."""
    here = site(request)
    text = (
        environment("counterlens.app")
        .get_template(template)
        .render(
            **context,
            form_key=here.secrets.form,
            read_only=here.read_only,
            path=request.url.path,
            link=link,
            version=__version__,
        )
    )
    return HTMLResponse(text, status)


def link(address: str, /, **query: object) -> str:
    """An address of the app; what is empty is left out.

    >>> link("/run", run="a b/ü", page="")
    '/run?run=a+b%2F%C3%BC'
    """
    given = {key: value for key, value in query.items() if value not in ("", None)}
    return address + (f"?{urlencode(given, doseq=True)}" if given else "")
