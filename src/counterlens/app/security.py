"""Who may talk to the app: this machine, with the token that the terminal showed.

Every request passes `Guard` first. It checks the host name (a foreign page cannot rebind its own
name to this machine), the token (once in the address, then in a cookie that scripts cannot read and
other sites cannot send), for changes the origin and a form key, and the size of what is sent. Every
answer carries a policy that lets the page load nothing from elsewhere and run no inline script.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.formparsers import MultiPartException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Of every page of the app."""
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
"""Of a report as its run holds it: it may come from anyone, so its scripts do not run."""
MOST_UPLOAD = 32 << 20
MOST_FORM = 1 << 20
_UPLOADS = ("/ask",)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Secrets:
    """What a session is known by.

    Args:
        token: in the address that the terminal shows.
        port: the cookie is named after it, since cookies of one machine share all ports.
    """

    token: str
    port: int

    @property
    def cookie(self) -> str:
        """Name of the cookie."""
        return f"counterlens-{self.port}"

    @property
    def session(self) -> str:
        """Value of the cookie."""
        return self._derived("session")

    @property
    def form(self) -> str:
        """Key that every form and every posting script carries."""
        return self._derived("form")

    @property
    def hosts(self) -> frozenset[str]:
        """Names under which the app answers."""
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def _derived(self, use: str) -> str:
        return hmac.new(self.token.encode(), use.encode(), hashlib.sha256).hexdigest()


class TooLarge(MultiPartException):
    """A body grew beyond what is allowed while it was read; parsers then close their files."""


class Guard:
    """The ASGI layer in front of the app."""

    def __init__(self, app: ASGIApp, secrets: Secrets, *, read_only: bool = False) -> None:
        self.app, self.secrets, self.read_only = app, secrets, read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        protected = _with_headers(send)
        refused = self._refusal(scope, Headers(scope=scope))
        if refused is not None:
            await refused(scope, receive, protected)
            return
        most = MOST_UPLOAD if scope["path"] in _UPLOADS else MOST_FORM
        try:
            await self.app(scope, _limited(receive, most), protected)
        except TooLarge:
            await _page(413, _too_much(most))(scope, receive, protected)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that must not pass; None where it may."""
        if headers.get("host", "").lower() not in self.secrets.hosts:
            return _page(421, "This address does not belong to the app.")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if scope["method"] in ("GET", "HEAD"):
            if _same(query.get("token"), self.secrets.token):
                return self._welcome(scope, query)
            return None if self._known(headers) else _page(403, _NO_TOKEN)
        if not self._known(headers):
            return _page(403, _NO_TOKEN)
        if scope["method"] != "POST":
            return _page(405, "The app takes GET and POST alone.")
        return self._refused_change(headers, query)

    def _refused_change(self, headers: Headers, query: Mapping[str, str]) -> Response | None:
        host = headers.get("host", "").lower()
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower() != f"http://{host}"
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _page(403, "This change came from another site and was refused.")
        if not _same(query.get("form") or headers.get("x-form-key"), self.secrets.form):
            return _page(403, "This form is out of date. Go back, reload the page, send it again.")
        if self.read_only:
            return _page(403, "The app is read-only: it was started with --read-only.")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_UPLOAD:
            return _page(413, _too_much(MOST_UPLOAD))
        return None

    def _known(self, headers: Headers) -> bool:
        cookies = dict(
            part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";")
        )
        return _same(cookies.get(self.secrets.cookie), self.secrets.session)

    def _welcome(self, scope: Scope, query: Mapping[str, str]) -> Response:
        """Take the token out of the address and keep the session in a cookie."""
        rest = {key: value for key, value in query.items() if key != "token"}
        path = "/" + scope["path"].lstrip("/")
        target = path + (f"?{urlencode(rest)}" if rest else "")
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            self.secrets.cookie, self.secrets.session, httponly=True, samesite="strict", path="/"
        )
        return answer


_NO_TOKEN = (
    "Open the address that the terminal shows: it carries the token without which nobody may look."
)


def _same(given: str | None, wanted: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())


def _page(status: int, text: str) -> HTMLResponse:
    """A page for those who may see nothing else."""
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>counterlens app</title><h1>{status}</h1><p>{escape(text)}</p></html>",
        status,
    )


def _too_much(most: int) -> str:
    return f"More than {most >> 20} MB were sent."


def _limited(receive: Receive, most: int) -> Receive:
    """The same messages, but a body that grows too large ends the request."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise TooLarge(_too_much(most))
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def protected(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            added: dict[str, Any] = {**_HEADERS, "Content-Security-Policy": POLICY}
            added["Cache-Control"] = "no-store"
            for name, value in added.items():
                headers.setdefault(name, value)
        await send(message)

    return protected
