"""From an audit to the card of a model: its numbers, its protocol and its temperature."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterlens.data import name_of, scheme_of
from counterlens.errors import InputError
from counterlens.runs import Number, Run
from counterlens.runs.keys import meaning

SEEN, NOISE, UNSEEN = "seen", "noise", "unseen"
REPORTED = (
    "accuracy.top1",
    "robust.accuracy",
    "calibration.ece",
    "calibration.ece_scaled",
    "calibration.temperature",
    "ood.auroc",
    "ood.worst_auroc",
    "ood.mmc",
    "ood.worst_mmc",
)
"""What a card keeps of an audit, as area.metric; the rest is in the run."""


def with_audit(
    card: Mapping[str, Any],
    run: Run,
    *,
    seen: Sequence[str] = (),
    also: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The card with the numbers of an audit of its model.

    Args:
        card: of the model; its own numbers and temperature are replaced.
        run: a finished audit.
        seen: out-distribution sets that share the distribution which models of the comparison
            were trained against; they stay out of every row's mean. Noise is known by its spec.
        also: numbers of these weights measured elsewhere, and the kinds of their sets:
            {"weights_sha256", "numbers", "ood"}. What the audit measured itself wins.
    """
    manifest = run.manifest
    if manifest["command"] != "audit" or not run.done:
        raise InputError(f"{run.folder} is no finished audit.")
    settings = manifest["settings"]
    names = {name_of(spec): spec for spec in settings["ood"]}
    unknown = sorted(set(seen) - set(names))
    if unknown:
        raise InputError(f"the audit has no set {unknown[0]!r}, it has {', '.join(names)}.")
    kinds = {name: set_kind(name, spec, seen) for name, spec in names.items()}
    numbers = {key: _brief(n) for key, n in run.numbers.items() if _reported(key)}
    fitted = numbers.get("calibration.temperature")
    more = also or {}
    if more and more["weights_sha256"] != card["weights_sha256"]:
        raise InputError(f"the added numbers are of other weights than those of {card['name']}.")
    return {
        **card,
        "temperature": fitted.value if fitted and fitted.value is not None else 1.0,
        "numbers": more.get("numbers", {}) | {k: n.to_json() for k, n in numbers.items()},
        "audit": {
            "date": str(manifest["started"])[:10],
            "version": manifest["versions"].get("counterlens"),
            "weights_hash": manifest.get("weights_hash"),
            "data": manifest["data"],
            "data_fingerprint": manifest["data_fingerprint"],
            "ood": more.get("ood", {}) | kinds,
            "attack": list(settings["attack"]),
            "ood_attack": settings["ood_attack"],
            "attack_version": settings["attack_version"],
            "attack_points": settings["attack_points"],
            "calibrate": name_of(settings["calibrate"]) if settings["calibrate"] else None,
            "seed": settings["seed"],
        },
    }


def _reported(key: str) -> bool:
    m = meaning(key)
    return f"{m.area}.{m.metric}" in REPORTED


def set_kind(name: str, spec: str, seen: Sequence[str]) -> str:
    """Whether a set is noise made by code, shares the training's out-data, or is unseen."""
    if name in seen:
        return SEEN
    return NOISE if scheme_of(spec) == "noise" else UNSEEN


def _brief(number: Number) -> Number:
    """Without the flags behind a verdict: the run has them."""
    if number.trust is None:
        return number
    verdict = {key: number.trust[key] for key in ("verdict", "reasons") if key in number.trust}
    return replace(number, trust=verdict)


def check_weights(run: Run, folder: Path) -> None:
    """Refuse numbers of other weights than the ones the card lies beside."""
    from counterlens.models.sources import checkpoint
    from counterlens.models.weights import weights_hash

    expected = weights_hash(checkpoint.load(folder))
    audited = run.manifest.get("weights_hash")
    if audited != expected:
        raise InputError(
            f"{run.folder} audited other weights ({str(audited)[:12]}…) than {folder} holds "
            f"({expected[:12]}…). Audit that folder: counterlens audit {folder} DATA …"
        )
