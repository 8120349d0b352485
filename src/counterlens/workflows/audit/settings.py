"""What an audit is asked to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Everything that decides what an audit measures; a resumed run must agree on it.

    `surrogate` and `peers` name models whose adversarial images are tried on this one: those that
    were asked for, and the other models of the same audit.
    """

    model: str
    data: str
    ood: tuple[str, ...] = ()
    attack: tuple[str, ...] = ()
    ood_attack: str | None = None
    attack_version: str = "standard"
    attack_points: int = 1000
    budget: str | None = None
    flips: int = 0
    calibrate: str | None = None
    require: tuple[str, ...] = ()
    anyway: bool = False
    limit: int | None = None
    batch: int | None = None
    workers: int | None = None
    seed: int = 0
    device: str = "auto"
    trust_remote_code: bool = False
    radius_curve: str | None = None
    surrogate: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
