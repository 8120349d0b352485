"""The command that starts the local web app: app."""

from pathlib import Path
from typing import Annotated

import typer

from counterlens.app.options import AppOptions
from counterlens.cli.commands import command
from counterlens.cli.options import app
from counterlens.errors import MissingExtra


@command(app, AppOptions, name="app", example="runs --read-only")
def start(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, or one run. Default: runs.")] = Path(
        "runs"
    ),
    *,
    options: AppOptions,
) -> None:
    """Browse, explain, review and compare runs in a browser; nothing leaves this machine."""
    try:
        from counterlens.app.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "counterlens":
            raise
        raise MissingExtra(
            f"the app needs {error.name}: python -m pip install 'counterlens[app]'."
        ) from None
    from counterlens.progress import idle

    idle()
    serve(runs, options)
