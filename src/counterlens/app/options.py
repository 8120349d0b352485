"""What the app can be started with."""

from pathlib import Path

from counterlens.workflows._shared.options import option, record


@record
class AppOptions:
    """Options of app."""

    port: int = option(8017, help="Port on 127.0.0.1; 0: any free one.", unit="N", scope="run")
    no_browser: bool = option(False, help="Print the address, open no browser.", scope="run")
    read_only: bool = option(
        False, help="Only show: no explanations, verdicts or answers.", scope="run"
    )
    pictures: tuple[Path, ...] = option(
        (),
        help="Folder whose pictures may be shown and explained, besides those of the runs.",
        unit="FOLDER",
        scope="run",
    )
    references: Path | None = option(
        None,
        help="Folder per class of reference images for reviews and studies; definitions.json "
        "in it says what each class is.",
        unit="FOLDER",
        scope="run",
    )
    offer: tuple[str, ...] = option(
        (),
        help="Model to offer in the form, e.g. my_model.py:make. Python files are refused there "
        "unless offered here.",
        unit="MODEL",
        scope="run",
    )
