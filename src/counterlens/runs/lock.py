"""One process writes a run folder at a time.

The lock belongs to the operating system and ends with the process, however it ends; the file
`.lock` that is left after a kill locks nothing. Processes forked from a writer do not hold it.
"""

import os
import platform
import sys
from pathlib import Path

from counterlens.errors import RunExists, StorageError

NAME = ".lock"
_held: dict[Path, int] = {}  # resolved folder → descriptor of its lock file


def lock(folder: Path) -> bool:
    """Lock a folder for this process; refuse where another process holds it.

    Returns whether the lock is new: False where this process held it before.
    """
    whole = folder.resolve()
    if whole in _held:
        return False
    file = os.open(whole / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(file)
    except BlockingIOError:
        holder = os.read(file, 200).decode("utf-8", "replace").strip()
        os.close(file)
        raise RunExists(
            f"{folder} is being written by another process ({holder or 'which is starting'}). "
            "Wait until it ends, or choose another folder: out=FOLDER."
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
    _held[whole] = file
    return True


def unlock(folder: Path) -> None:
    """Give the lock back and remove its file; without a lock, do nothing."""
    whole = folder.resolve()
    file = _held.pop(whole, None)
    if file is not None:
        (whole / NAME).unlink(missing_ok=True)
        os.close(file)


def check_present(path: Path) -> None:
    """Refuse to write below a run folder that was removed since this process locked it."""
    whole = Path(os.path.realpath(path))
    for folder in _held:
        if whole.is_relative_to(folder) and not folder.is_dir():
            raise StorageError(
                f"the run folder {folder} was removed while it was being written. Nothing of it "
                "is left to resume: run the command again."
            )


def _take(file: int) -> None:
    """Lock an open file or raise BlockingIOError; where locks do not exist, go on without."""
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(file, 1 << 20, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:  # POSIX allows either
        raise BlockingIOError from error
    except OSError:  # a file system without locks
        return
