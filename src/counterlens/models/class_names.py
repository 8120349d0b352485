"""Class names for weights that do not carry their own."""

from pathlib import Path

from counterlens.errors import InputError


def names_beside(file: Path, count: int) -> tuple[str, ...] | None:
    """Names from `FILE.classes.txt`, one a line, if that file lies beside the weights."""
    beside = file.with_name(file.stem + ".classes.txt")
    if not beside.is_file():
        return None
    names = tuple(n for n in beside.read_text(encoding="utf-8").splitlines() if n.strip())
    if len(names) != count:
        raise InputError(
            f"{beside} has {len(names)} names, but {file.name} is for {count} classes. "
            "Write one name a line, in the order of the logits."
        )
    return names
