"""Protocols: which searches an evaluation runs, in which order, for how long.

Paper: Croce and Hein 2020 (autoattack2020, section 5) for `standard`, `plus` and `rand`; Croce
       and Hein 2021 (croce2021) for l1: l1-APGD with 5 restarts, then 5 targets;
       Augustin et al. 2020 (ratio2020) for the older ensemble of its tables.
Differs: below four classes the targeted DLR, below three the DLR, is replaced by the plain
       margin, and fewer targets are tried, with a note. `rand` averages logits and
       gradients over 20 evaluations. `fast` is ours: the first two searches of `standard`, the
       second with the three likeliest targets. Whatever lacks a stage of `standard` is never
       better than weak.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from counterlens import objectives
from counterlens.ball import Norm
from counterlens.errors import InputError
from counterlens.objectives import at
from counterlens.search.apgd import Apgd
from counterlens.search.apgd_l1 import climbing
from counterlens.search.ensemble.stage import SearchStage
from counterlens.search.fab import FAB_NORMS, Fab
from counterlens.search.fast.engine import Engine, LogitScore
from counterlens.search.square import SQUARE_NORMS, Square

Version = Literal["standard", "plus", "rand", "ratio-era", "fast"]
VERSIONS: tuple[Version, ...] = ("standard", "plus", "rand", "ratio-era", "fast")

TARGETS = 9
FEW_TARGETS = 3
L1_TARGETS = 5
EOT = 20
QUERIES = 5000
TRANSFER_STEPS = 100

SCORES: dict[str, LogitScore] = {
    "ce": lambda logits, y, _: objectives.ce(logits, y),
    "margin": lambda logits, y, _: objectives.margin_of(logits, y),
    "dlr": lambda logits, y, _: objectives.dlr_of(logits, y),
    "targeted-dlr": objectives.targeted_dlr_of,
    "gap": lambda logits, y, target: at(logits, target) - at(logits, y),
    "confidence": lambda logits, _y, _t: objectives.confidence_anywhere_of(logits),
    "lead": lambda logits, _y, _t: objectives.lead_of(logits),
    "target-confidence": lambda logits, _, t: objectives.log_confidence_of(logits, t),
    "first": lambda logits, _y, _t: logits[:, 0],
}


def stages_of(version: Version, classes: int, norm: Norm) -> tuple[list[SearchStage], list[str]]:
    """The stages of a protocol, and what had to be replaced for this model and norm."""
    if version not in VERSIONS:
        raise InputError(f"version is {version!r}, expected one of {', '.join(VERSIONS)}.")
    notes: list[str] = []
    targets = min(TARGETS, classes - 1)
    dlr, targeted = "dlr", "targeted-dlr"
    if classes < 4:
        targeted = "gap"
        notes.append(f"{classes} classes: targeted DLR is undefined, the logit gap replaces it")
    if classes < 3:
        dlr = "margin"
        notes.append("2 classes: DLR is undefined, the margin replaces it")
    if targets < TARGETS and version in ("standard", "plus"):
        notes.append(f"{classes} classes: {targets} target classes instead of {TARGETS}")

    rule = climbing(norm, 100)
    aimed = min(L1_TARGETS, targets) if norm == "l1" else targets

    def climb(score: str, restarts: int) -> SearchStage:
        return SearchStage(f"apgd-{score}", rule, SCORES[score], restarts)

    apgd_t = SearchStage("apgd-t", rule, SCORES[targeted], aimed, targeted=True)
    fab_t = SearchStage("fab-t", Fab(100), SCORES["gap"], targets, targeted=True)
    fab = [SearchStage("fab", Fab(100), None), SearchStage("fab", Fab(100, wander=True), None, 4)]
    square = SearchStage("square", Square(QUERIES), SCORES["margin"], slope=False)
    plans: dict[str, list[SearchStage]] = {
        "standard": [climb("ce", 5 if norm == "l1" else 1), apgd_t, fab_t, square],
        "plus": [climb("ce", 5), climb(dlr, 5), *fab, square, apgd_t, fab_t],
        "rand": [climb("ce", 1), climb(dlr, 1)],
        "ratio-era": [climb("ce", 5), climb(dlr, 5), *fab, square],
        "fast": [climb("ce", 1), replace(apgd_t, variants=min(FEW_TARGETS, targets))],
    }
    plan = plans[version]
    if norm not in FAB_NORMS and any(stage.name.startswith("fab") for stage in plan):
        plan = [stage for stage in plan if not stage.name.startswith("fab")]
        notes.append(f"no FAB for {norm}")
    if norm not in SQUARE_NORMS and any(stage.name == "square" for stage in plan):
        plan = [stage for stage in plan if stage.name != "square"]
        notes.append(f"no Square for {norm}")
    return plan, notes


def without_gradients(stages: Sequence[SearchStage], norm: str) -> list[SearchStage]:
    """What is left of an ensemble for a model without gradients: Square."""
    remaining = [stage for stage in stages if not stage.slope]
    if remaining or norm not in SQUARE_NORMS:
        return remaining
    return [SearchStage("square", Square(QUERIES), SCORES["margin"], slope=False)]


def transfer(surrogate: Engine, name: str) -> SearchStage:
    """Adversarial images of another model, tried on the attacked one."""
    return SearchStage(f"transfer-{name}", Apgd(TRANSFER_STEPS), SCORES["ce"], surrogate=surrogate)


def lacking(stages: Sequence[SearchStage], classes: int, norm: Norm) -> list[str]:
    """What an attack misses to be as strong as `standard`: stages it has not, or has shorter.

    Square has no form for some norms; there even `standard` misses it.
    """
    plan, _ = stages_of("standard", classes, norm)
    missing = [want.name for want in plan if not any(_covers(one, want) for one in stages)]
    return missing if norm in SQUARE_NORMS else [*missing, f"square, for {norm} there is none"]


def _covers(stage: SearchStage, wanted: SearchStage) -> bool:
    same = stage.score is wanted.score and stage.targeted == wanted.targeted
    longer = stage.rule.evaluations >= wanted.rule.evaluations
    kind = isinstance(stage.rule, type(wanted.rule))
    own = stage.judge is None and stage.surrogate is None
    return same and own and kind and longer and stage.variants >= wanted.variants
