"""What the doctor says: one finding per check."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from counterlens.errors import DoctorRefused

Status = Literal["ok", "warn", "fail", "skipped"]
Sure = Literal["low", "medium", "high"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        check: name of the check.
        status: ok, warn (look at it), fail (numbers would be wrong), skipped (could not tell).
        found: what was seen, with its numbers.
        sure: high where the fact is exact or the evidence overwhelming, medium where the evidence
            is statistical and could be an unusual model, low where it is a hint.
        fix: what to type; empty where nothing is wrong.
    """

    check: str
    status: Status
    found: str
    sure: Sure = "high"
    fix: str = ""

    def row(self) -> dict[str, object]:
        """The finding as a row of the run's `doctor` table."""
        return asdict(self)


def refuse_if_failed(findings: Sequence[Finding]) -> None:
    """Raise one line that names every failed check and what to type first."""
    failed = [finding for finding in findings if finding.status == "fail"]
    if not failed:
        return
    first, names = failed[0], ", ".join(finding.check for finding in failed)
    raise DoctorRefused(
        f"the doctor refused ({names}): {first.found} {first.fix} "
        "To go on all the same: anyway=True."
    )
