"""Export: a run or a frozen set in the forms of other programs, written by plain JSON and YAML.

    model-card      README.md for the Hugging Face hub: model-index with intervals, and a table
    croissant       croissant.json of a frozen set (MLCommons Croissant 1.0)
    fiftyone        a folder that FiftyOne imports as FiftyOneImageClassificationDataset
    label-studio    tasks.json with the pictures, answers as predictions, and config.xml

None of these programs is needed to write them.
"""

from pathlib import Path

from counterlens.data.sources.frozen import is_frozen
from counterlens.errors import InputError, RunExists, nearest
from counterlens.report import exports
from counterlens.runs import Run, file_bytes, inside, read_json, read_lines, write_json, write_text
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows.documents.options import FORMS, ExportOptions


@takes(ExportOptions)
def export(run: str | Path | Run | Result, form: str, options: ExportOptions) -> Path:
    """Write a run, or a frozen set, in the form of another program; returns what was written.

    Args:
        run: a finished audit; for croissant a frozen set; for fiftyone and label-studio either.
        form: model-card, croissant, fiftyone or label-studio.

    >>> import counterlens as cl
    >>> cl.export("runs/mine", "model-card", write_to="README.md")          # doctest: +SKIP
    """
    folder = run.folder if isinstance(run, Run | Result) else Path(run)
    if form not in FORMS:
        near = nearest(form, FORMS)
        hint = f" Did you mean {near}?" if near else ""
        raise InputError(f"the form is {form!r}, expected {', '.join(FORMS)}.{hint}")
    frozen = folder.is_dir() and is_frozen(folder)
    if (form == "croissant") != frozen and form in ("croissant", "model-card"):
        wanted = "a frozen set" if form == "croissant" else "a finished audit"
        raise InputError(f"{form} is written of {wanted}, and {folder} is none.")
    if form == "model-card":
        return _text(
            options.write_to or folder / "model-card.md", exports.model_card(_audit(folder))
        )
    if form == "croissant":
        return _croissant(folder, options.write_to)
    target = options.write_to or folder.with_name(f"{folder.name}-{form}")
    if target.exists() and any(target.iterdir()):
        raise RunExists(f"{target} is not empty. Choose another place: write_to.")
    rows, classes = _frozen_rows(folder) if frozen else _gallery(_audit(folder))
    if not rows:
        raise InputError(f"{folder} has no pictures to export.")
    return (
        exports.fiftyone(rows, classes, target)
        if form == "fiftyone"
        else (exports.label_studio(rows, classes, target))
    )


def _audit(folder: Path) -> Run:
    opened = Run.open(folder)
    if opened.manifest["command"] != "audit" or not opened.done:
        raise InputError(f"{folder} is no finished audit.")
    return opened


def _text(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _croissant(folder: Path, out: Path | None) -> Path:
    card = read_json(folder / "card.json")
    path = out or folder / "croissant.json"
    digest = exports.digest(file_bytes(folder / "images.jsonl"))
    write_json(path, exports.croissant(card, digest))
    return path


def _frozen_rows(folder: Path) -> tuple[list[exports.ExportedPicture], list[str]]:
    """The pictures of a frozen set of plain files."""
    card = read_json(folder / "card.json")
    if card["format"] != "folder":
        raise InputError(f"{folder} holds its pictures in tar files, expected plain files.")
    rows = [
        exports.ExportedPicture(
            str(row["id"]), file_bytes(inside(folder, row["file"])), Path(row["file"]).suffix,
            str(row["label"]), str(row.get("answer") or "") or None, None,
        )
        for _, row in read_lines(folder / "images.jsonl")
    ]  # fmt: skip
    return rows, list(card["classes"])


def _gallery(run: Run) -> tuple[list[exports.ExportedPicture], list[str]]:
    """The pictures that an audit shows, mistakes and unknown images."""
    rows = []
    for row in run.table("gallery"):
        label = row.get("label")
        rows.append(
            exports.ExportedPicture(
                f"{row['group']}/{row['id']}", file_bytes(run.file(row["image"])), ".png",
                None if label in (None, "", -1) else str(label), row.get("predicted"),
                row.get("confidence"),
            )
        )  # fmt: skip
    names = {str(row["class"]) for row in run.table("per_class")}
    names |= {text for one in rows for text in (one.label, one.answer) if text}
    return rows, sorted(names)
