"""Which numbers of a run are shown first, on the terminal and in a notebook."""

from collections.abc import Iterable, Sequence

from counterlens.runs.keys import meaning

AUDIT = (
    *("multilabel.auroc", "multilabel.accuracy", "multilabel.ece", "multilabel.exact_match"),
    *("accuracy.top1", "calibration.ece", "calibration.ece_scaled", "calibration.temperature"),
    *("selective.aurra", "corruption.accuracy", "corruption.mce", "robust.accuracy"),
    *("ood.auroc", "ood.worst_auroc", "ood.mmc"),
    *("groups.worst", "slices.confirmed"),
    *("bias.shape", "bias.texture", "bias.background_gap", "bias.colour_flip", "bias.frame_flip"),
)
_MINED = ("funnel.pool", "funnel.shortlist", "filter.accuracy", "screen.low_level_auroc")
HEADLINES = {
    "audit": AUDIT,
    "disagree": (
        *("disagree.succeeded", "disagree.p_up", "disagree.p_down", "disagree.real"),
        *("disagree.real_change", "persist.succeeded", "persist.carried"),
    ),
    "curate adversarial": _MINED,
    "curate ood": _MINED,
    "explain": ("counterfactual.reached", "counterfactual.agreed"),
}
"""Kinds of numbers, AREA.METRIC, by command; the report has the rest."""


def kind(key: str) -> str:
    """AREA.METRIC of a key: `ood.auroc` of `ood.svhn.auroc`."""
    if key.startswith("groups."):  # of groups only the worst are headlines
        worst = key in ("groups.worst.accuracy", "groups.worst.gap")
        return "groups.worst" if worst else "groups"
    known = meaning(key)
    return f"{known.area}.{known.metric}"


def in_order(keys: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """These keys in the order in which `wanted` names their kinds, the others behind."""
    places = {name: place for place, name in enumerate(wanted)}
    return sorted(keys, key=lambda key: places.get(kind(key), len(places)))


def headline_keys(command: str, keys: Iterable[str]) -> list[str]:
    """The keys that a command's summary shows, in order; all of them where it names none."""
    every, wanted = list(keys), HEADLINES.get(command, ())
    return in_order((key for key in every if kind(key) in wanted), wanted) or every
