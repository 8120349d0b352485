"""Everything counterlens raises on purpose, and how it quotes what others raise.

CounterlensError            base: one clear line for the user, exit code 2
├── InputError              something given does not fit: what came, what was expected, what to type
├── MissingExtra            an optional dependency is not installed
├── RunExists               a run folder would have been overwritten
├── StorageError            a run cannot be kept: its folder is gone
│   └── DiskFull            a file does not fit on the disk
├── DoctorRefused           the classifier is wrapped wrongly, exit code 3
└── TrainingFailed          a loss stopped being finite: step, term and last good checkpoint named
"""

NO_GRADIENTS = (
    "no gradient of the model reaches the pixels, and this needs one. Give a model without "
    "detach, no_grad or NumPy in forward, or a differentiable stand-in: counterlens.bpda."
)


class CounterlensError(Exception):
    """Base of all errors whose text is meant for the user."""

    exit_code = 2


class InputError(CounterlensError):
    """Something given does not fit."""


class MissingExtra(CounterlensError):
    """An optional dependency is not installed."""


class RunExists(CounterlensError):
    """A run folder would have been overwritten."""


class StorageError(CounterlensError):
    """What a run found cannot be kept: its folder is gone."""


class DiskFull(StorageError):
    """A file does not fit on the disk, or is larger than this process may write."""


class DoctorRefused(CounterlensError):
    """The classifier is wrapped wrongly, so no number about it would mean anything."""

    exit_code = 3


class TrainingFailed(CounterlensError):
    """Training stopped because a loss term was no longer finite."""


def first_line(error: BaseException, most: int = 160) -> str:
    """What an error says first, of at most so many characters; its kind where it says nothing.

    >>> first_line(ValueError("the file ends early\\nin line 3")), first_line(EOFError())
    ('the file ends early', 'EOFError')
    """
    lines = str(error).strip().splitlines()
    return lines[0][:most] if lines else type(error).__name__
