"""Finding one's way in a folder that should have a known layout."""

from pathlib import Path


class Missing(Exception):
    """A file or folder of the layout is not there; `open_known` says what was expected."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


def below(root: Path, *candidates: str) -> Path:
    """The first of some places that is there; `.` is the root itself."""
    for candidate in candidates:
        path = root / candidate if candidate != "." else root
        if path.exists():
            return path
    raise Missing(root / candidates[0])


def lines(path: Path) -> list[str]:
    """The lines of a text file that hold something."""
    if not path.is_file():
        raise Missing(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
