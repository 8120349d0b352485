"""Release gates of an audit: refused before anything is loaded where no audit could satisfy them.

Modules that load torch are imported only where the audit was asked for what they know.
"""

from counterlens.data.specs import name_of
from counterlens.notation import parse_corruptions, parse_scores
from counterlens.runs import check_gates, key_part, parse_gate, refuse_impossible
from counterlens.runs.number import Number
from counterlens.workflows.audit.settings import Settings

GIVEN = "=object:column@"
"""What stands behind the name of a column whose values were given in Python."""

_ACCURACY = ("accuracy.top1", "accuracy.top1_all", "accuracy.top5", "selective.aurra")
_ERRORS = ("ece", "ece_common", "rms", "nll")
_CALIBRATION = (
    *(f"calibration.{error}{stage}" for stage in ("", "_scaled") for error in _ERRORS),
    *(f"calibration.{name}" for name in ("rms_paper", "brier", "temperature", "temperature_nll")),
)
_CUES = ("bias.shape", "bias.texture")  # only the images tell whether they carry two cues


def possible_keys(settings: Settings) -> list[str]:
    """Every number that an audit with these settings may produce."""
    keys = [*_ACCURACY, *_CALIBRATION, *_CUES]
    if "imagenet-9" in settings.data:
        keys.append("bias.background_gap")
    if settings.flips:
        from counterlens.explanations.edits.colour import colour_variants
        from counterlens.explanations.edits.frame import frame_variants

        for sweep, variants in (("colour", colour_variants()), ("frame", frame_variants())):
            families = dict.fromkeys(variant.family for variant in variants)
            names = ("flip", "flip_mean", *(f"{family}_flip" for family in families))
            keys += [f"bias.{sweep}_{name}" for name in names]
    if settings.costs is not None or settings.threshold:
        from counterlens.workflows.audit.operating import operating_keys

        keys += operating_keys(settings)
    if settings.slices:
        from counterlens.metrics.slices import TESTED

        keys += ["slices.confirmed", *(f"slices.{k}.excess" for k in range(1, TESTED + 1))]
    keys += [f"robust.{key_part(ball)}.accuracy" for ball in settings.attack]
    keys += [f"robust.{name}-grid.accuracy" for name in settings.grid]
    metrics = ["auroc", "aupr", "fpr95", "mmc"]
    metrics += ["worst_auroc", "worst_mmc"] if settings.ood_attack else []
    keys += [
        f"ood.{key_part(name_of(spec))}.{metric}" for spec in settings.ood for metric in metrics
    ]
    if settings.masks is not None:
        from counterlens.workflows.audit.backgrounds import background_keys

        keys += background_keys(settings)
    return keys + score_keys(settings) + corruption_keys(settings)


def score_keys(settings: Settings) -> list[str]:
    """The numbers of several OOD scores."""
    if not settings.ood_score:
        return []
    names = parse_scores(settings.ood_score)
    metrics = ["auroc", "aupr", "aupr_in", "fpr95"]
    sets = [key_part(name_of(spec)) for spec in settings.ood]
    keys = [f"ood_score.{s}.{name}_{metric}" for s in sets for name in names for metric in metrics]
    groups = ("near", "far", "all") if settings.ood_near else ("all",)
    keys += [f"ood_score.{group}.{name}_auroc" for group in groups for name in names]
    if settings.ood_attack:
        keys += [f"ood_score.{s}.{n}_worst_auroc" for s in sets for n in names if n != "odin"]
    return keys


def check_requirements(settings: Settings) -> None:
    """Refuse gates that cannot be read, or on numbers that this audit cannot produce."""
    gates = [parse_gate(text) for text in settings.require]
    others = [gate for gate in gates if not may_measure(gate.key, settings)]
    labels = [gate.key for gate in gates if gate.key.startswith(("label.", "multilabel."))]
    possible = [*possible_keys(settings), *worst_keys(settings)]
    refuse_impossible(others, [*possible, *labels])  # labels: once they are known


def gate_rows(settings: Settings, numbers: dict[str, Number]) -> list[dict[str, object]]:
    """How each gate went, as the table `gates`."""
    results = check_gates([parse_gate(text) for text in settings.require], numbers)
    return [
        {"gate": r.gate.text, "value": r.value, "passed": r.passed, "why": r.why} for r in results
    ]


def corruption_keys(settings: Settings) -> list[str]:
    """The numbers that an audit with these settings may produce."""
    if not settings.corruptions:
        return []
    names = parse_corruptions(settings.corruptions)
    keys = [f"corruption.{key_part(name)}.accuracy" for name in names]
    return keys + [f"corruption.common.{m}" for m in ("accuracy", "mce", "relative_mce")]


def plain_name(spec: str) -> str:
    """The name of a column, without what stands for its values."""
    return spec.partition(GIVEN)[0]


def may_measure(key: str, settings: Settings) -> bool:
    """Whether an audit with these settings may measure a number of groups."""
    names = [plain_name(spec) for spec in settings.groups]
    parts = key.split(".")
    if not names or parts[0] != "groups":
        return False
    return key in worst_keys(settings) or any(
        key.startswith(f"groups.{group_part(n)}") for n in names
    )


def worst_keys(settings: Settings) -> list[str]:
    """Numbers of the worst group that an audit with these settings measures."""
    if not settings.groups:
        return []
    keys = [f"groups.worst.{name}" for name in ("accuracy", "gap", "overconfidence")]
    keys += [f"groups.worst.{key_part(ball)}.robust" for ball in settings.attack]
    return keys + [f"groups.worst.{key_part(name_of(spec))}.auroc" for spec in settings.ood]


def group_part(text: str) -> str:
    """A name as a part of a key that has no dot."""
    return key_part(text).replace(".", "_")
