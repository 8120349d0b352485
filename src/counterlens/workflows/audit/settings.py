"""One audit of one model: its options, and the specs they are about."""

from counterlens.workflows._shared.options import record
from counterlens.workflows.audit.options import AuditOptions


@record
class Settings(AuditOptions):
    """Everything that decides what an audit measures; a resumed run must agree on it.

    `peers` names the other models of the same audit, whose adversarial images are tried on this
    one as those of `surrogate` are.
    """

    model: str
    data: str
    peers: tuple[str, ...] = ()
