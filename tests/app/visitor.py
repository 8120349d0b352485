"""A visitor of the app without a browser: the same requests, cookies and forms."""

import atexit
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from counterlens.app.decoder import Decoder
from counterlens.app.folders import Folders
from counterlens.app.options import AppOptions
from counterlens.app.security import Secrets
from counterlens.app.server import create

PORT = 8017
DECODER = Decoder(workers=1)
"""Shared by all tests: its process takes seconds to start."""
atexit.register(DECODER.close)


@dataclass(frozen=True)
class Visitor:
    """Requests to one app.

    Attributes:
        client: follows redirects, keeps cookies.
        secrets: of the app.
        folders: that it was given.
    """

    client: TestClient
    secrets: Secrets
    folders: Folders

    def get(self, address: str, /, **query: Any) -> Any:
        """GET; `query` becomes the query of the address."""
        return self.client.get(address, params=query)

    def post(self, path: str, *, form: str | None = None, **given: Any) -> Any:
        """POST with the key that the app's own forms carry, unless another is given."""
        params = {"form": self.secrets.form if form is None else form, **given.pop("params", {})}
        return self.client.post(path, params=params, **given)

    def jobs_started(self) -> int:
        """How many commands were asked for."""
        return len(list((self.folders.state / "jobs").glob("*/job.json")))


def visit(runs: Path, *, welcome: bool = True, **options: Any) -> Visitor:
    """Start an app over a folder; with `welcome` the address with the token was opened."""
    record = AppOptions(**options)
    folders = Folders.open(runs, record.pictures, record.references)
    secrets = Secrets("t0ken-of-the-tests", PORT)
    made = create(folders, secrets, record, DECODER)
    client = TestClient(made, base_url=f"http://127.0.0.1:{PORT}")
    if welcome:
        client.cookies.set(secrets.cookie, secrets.session, domain="127.0.0.1", path="/")
    return Visitor(client, secrets, folders)
