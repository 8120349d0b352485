"""What the keys of result.json mean: words, units, which way is better, and what counts as failing.

A key is `area.metric` or `area.subject.metric`: `accuracy.top1`, `ood.svhn.auroc`,
`robust.l2-0.5.accuracy`. Unknown keys are shown as they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from counterlens.runs.number import Number

Better = Literal["up", "down", ""]
Unit = Literal["share", "plain"]

NARROW = "\u202f"  # narrow no-break space, between a figure and its unit


@dataclass(frozen=True)
class Meaning:
    """One key in words.

    Args:
        key: the key itself.
        area, subject, metric: its pieces; `subject` is a data set or an attack, else empty.
        label: the metric in a few words, with its subject.
        unit: "share" is shown in per cent.
        better: which way is better; empty where neither is.
        limit: how far behind the best of a comparison counts as a failure; None: never.
    """

    key: str
    area: str
    subject: str
    metric: str
    label: str
    unit: Unit
    better: Better
    limit: float | None


# area.metric → words, unit, better, failure limit. The limits are absolute and are the ones under
# which the summary tables of ratio2020 yield that paper's own statement about failure cases.
_KNOWN: dict[str, tuple[str, Unit, Better, float | None]] = {
    "accuracy.top1": ("Accuracy", "share", "up", 0.03),
    "accuracy.top1_all": ("Accuracy, all classes allowed", "share", "up", None),
    "accuracy.top5": ("Top-5 accuracy", "share", "up", None),
    "accuracy.balanced": ("Class-balanced accuracy", "share", "up", None),
    "calibration.ece": ("Calibration error (ECE)", "share", "down", 0.05),
    "calibration.ece_common": ("ECE, bins of [0, 1]", "share", "down", None),
    "calibration.rms": ("RMS calibration error", "share", "down", None),
    "calibration.rms_paper": ("RMS calibration error, last bin skipped", "share", "down", None),
    "calibration.temperature": ("Temperature", "plain", "", None),
    "calibration.temperature_nll": ("Temperature by likelihood", "plain", "", None),
    "calibration.nll": ("Negative log-likelihood", "plain", "down", None),
    "calibration.brier": ("Brier score", "plain", "down", None),
    "selective.aurra": ("Selective accuracy (AURRA)", "share", "up", None),
    "ood.auroc": ("AUROC", "share", "up", 0.05),
    "ood.aupr": ("AUPR", "share", "up", None),
    "ood.fpr95": ("FPR at 95 % TPR", "share", "down", None),
    "ood.mmc": ("Mean confidence", "share", "down", 0.15),
    "ood.worst_auroc": ("Worst-case AUROC", "share", "up", 0.10),
    "ood.worst_mmc": ("Worst-case mean confidence", "share", "down", None),
    "ood_score.auroc": ("AUROC", "share", "up", None),
    "ood_score.aupr": ("AUPR, unknown positive", "share", "up", None),
    "ood_score.aupr_in": ("AUPR, known positive", "share", "up", None),
    "ood_score.fpr95": ("FPR at 95 % TPR", "share", "down", None),
    "ood_score.worst_auroc": ("Worst-case AUROC", "share", "up", None),
    "ood.ece": ("Joint-distribution ECE", "share", "down", None),
    "background.accuracy": ("Accuracy on another background", "share", "up", None),
    "bias.background_gap_clear": ("Background gap, clear masks", "share", "down", None),
    "corruption.accuracy": ("Accuracy under corruption", "share", "up", 0.05),
    "corruption.mce": ("mCE", "share", "down", 0.05),
    "corruption.relative_mce": ("Relative mCE", "share", "down", None),
    "robust.accuracy": ("Robust accuracy", "share", "up", 0.10),
    "bias.colour_flip": ("Answers that a change of colour flips", "share", "down", None),
    "bias.colour_flip_mean": ("Colour changes that flip the answer", "share", "down", None),
    "bias.colour_hue_flip": ("Answers that a change of hue flips", "share", "down", None),
    "bias.colour_saturation_flip": (
        "Answers that a change of saturation flips",
        "share",
        "down",
        None,
    ),
    "bias.colour_grey_flip": ("Answers that the loss of colour flips", "share", "down", None),
    "bias.colour_channels_flip": ("Answers that swapped channels flip", "share", "down", None),
    "bias.frame_flip": ("Answers that a change of frame flips", "share", "down", None),
    "bias.frame_flip_mean": ("Frame changes that flip the answer", "share", "down", None),
    "bias.frame_shift_flip": ("Answers that a shift flips", "share", "down", None),
    "bias.frame_scale_flip": ("Answers that a change of scale flips", "share", "down", None),
    "bias.frame_crop_flip": ("Answers that a crop flips", "share", "down", None),
    "operating.threshold": ("Threshold", "plain", "", None),
    "operating.coverage": ("Coverage", "share", "up", None),
    "operating.risk": ("Selective risk", "share", "down", None),
    "operating.recall": ("Recall", "share", "up", None),
    "operating.precision": ("Precision", "share", "up", None),
    "operating.fpr": ("False positive rate", "share", "down", None),
    "operating.mean": ("Mean cost", "plain", "down", None),
    "operating.saved": ("Saved against arg-max", "plain", "up", None),
    "slices.confirmed": ("Confirmed slices", "plain", "down", None),
    "slices.excess": ("Error of the slice beyond its classes", "share", "down", None),
    "groups.accuracy": ("Accuracy of the group", "share", "up", None),
    "groups.gap": ("Group less the rest", "share", "up", None),
    "groups.overconfidence": ("Confidence less accuracy of the group", "share", "", None),
    "groups.robust": ("Robust accuracy of the group", "share", "up", None),
    "groups.auroc": ("AUROC of the group", "share", "up", None),
    "compose.flagged": ("Counterfactuals flagged", "share", "", None),
    "compose.area": ("Mean area", "share", "", None),
    "compose.entropy": ("Mean entropy in bits", "plain", "down", None),
    "heads.accuracy": ("Accuracy of a head", "share", "up", None),
    "heads.shape_bias": ("Shape bias of a head", "share", "", None),
    "heads.texture": ("Answers that name the texture", "share", "", None),
    "heads.background": ("Answers that name the background", "share", "", None),
    "natural.mask": ("Mean mask", "share", "", None),
    "natural.entropy": ("Entropy of the masks in bits", "plain", "down", None),
    "natural.collapsed": ("Masks that have collapsed", "share", "down", None),
    "natural.judged": ("Composed images of their class", "share", "up", None),
    "ratchet.broken": ("Mended before, wrong again", "plain", "down", None),
    "ratchet.missing": ("Of the suite, not seen", "plain", "down", None),
    "ratchet.mended": ("Mended", "plain", "up", None),
    "ratchet.open": ("Still open", "plain", "down", None),
    "ratchet.added": ("Added", "plain", "", None),
    "multilabel.auroc": ("AUROC, mean over labels", "share", "up", 0.03),
    "multilabel.accuracy": ("Accuracy, mean over labels", "share", "up", 0.03),
    "multilabel.ece": ("ECE, mean over labels", "share", "down", 0.05),
    "multilabel.exact_match": ("All labels right", "share", "up", None),
    "label.auroc": ("AUROC", "share", "up", None),
    "label.accuracy": ("Accuracy", "share", "up", None),
    "label.sensitivity": ("Sensitivity", "share", "up", None),
    "label.specificity": ("Specificity", "share", "up", None),
    "label.ece": ("ECE", "share", "down", None),
    "label.prevalence": ("Prevalence", "share", "", None),
    "flips.negative": ("Right before, wrong after", "share", "down", None),
    "flips.positive": ("Wrong before, right after", "share", "up", None),
    "parity.same_answer": ("Equal answers", "share", "up", None),
    "parity.logit_gap": ("Mean difference of logits, in their spread", "plain", "down", None),
    "parity.logit_gap_max": ("Largest difference of logits, in it", "plain", "down", None),
    "counterfactual.reached": ("Target reached", "share", "", None),
    "counterfactual.sure": ("Sure of the target", "share", "", None),
    "counterfactual.agreed": ("Other classifiers agree", "share", "up", None),
    "counterfactual.evidence": ("Class evidence", "share", "up", None),
    "counterfactual.confidence": ("Confidence in the target", "share", "", None),
    "counterfactual.smoothness": ("Smoothness of the change", "plain", "", None),
    "uvce.reached": ("Target reached", "share", "", None),
    "uvce.sure": ("Sure of the target", "share", "", None),
    "uvce.confidence": ("Confidence in the target", "share", "", None),
    "uvce.agreed": ("Another classifier answers it", "share", "up", None),
    "uvce.background": ("Change outside the mask, l2", "plain", "down", None),
    "uvce.background_change": ("The same less prompt only", "plain", "down", None),
    "uvce_error.reached": ("Target reached", "share", "", None),
    "uvce_error.sure": ("Sure of the target", "share", "", None),
    "uvce_error.confidence": ("Confidence in the target", "share", "", None),
    "uvce_error.agreed": ("Another classifier answers it", "share", "up", None),
    "uvce_error.background": ("Change outside the mask, l2", "plain", "down", None),
    "uvce_error.background_change": ("The same less prompt only", "plain", "down", None),
    "inversion.psnr": ("PSNR of the inversion in dB", "plain", "up", None),
    "inversion.faithful": ("Pictures made again at 30 dB", "share", "up", None),
    "quality.flipped": ("Target reached", "share", "up", None),
    "quality.sure": ("Confidence of 80 % or more", "share", "up", None),
    "quality.confidence": ("Confidence in the target", "share", "up", None),
    "quality.agreed": ("Most others answer the target", "share", "up", None),
    "quality.judged": ("Confidence of the others", "share", "up", None),
    "quality.l2": ("Distance, l2", "plain", "down", None),
    "quality.l2_inside": ("Distance inside the mask, l2", "plain", "", None),
    "quality.l2_outside": ("Distance outside the mask, l2", "plain", "down", None),
    "quality.lpips": ("LPIPS", "plain", "down", None),
    "quality.lpips_inside": ("LPIPS inside the mask", "plain", "", None),
    "quality.lpips_outside": ("LPIPS outside the mask", "plain", "down", None),
    "quality.kid": ("KID", "plain", "down", None),
    "quality.nearest": ("Nearest real one, features", "plain", "down", None),
    "quality.nearest_l2": ("Nearest real one, pixels", "plain", "down", None),
    "quality.changed": ("Pixels that changed", "share", "down", None),
    "quality.smoothness": ("Smoothness of the change", "plain", "", None),
    "quality.seconds": ("Seconds per counterfactual", "plain", "down", None),
    "quality.denoiser_passes": ("Passes of the denoiser", "plain", "down", None),
    "quality.classifier_passes": ("Passes of classifiers", "plain", "down", None),
    "held_out.zero_shot": ("Zero-shot accuracy, held out", "share", "up", None),
    "test.zero_shot": ("Zero-shot accuracy, test", "share", "up", None),
    "held_out.clean": ("Held-out accuracy", "share", "up", None),
    "held_out.before": ("The same before the training", "share", "up", None),
    "held_out.robust": ("Held-out accuracy under the judging attack", "share", "up", None),
    "held_out.near": ("Held-out accuracy under the training attack", "share", "up", None),
    "disagree.succeeded": ("One sure of the class, the other not", "share", "", None),
    "disagree.p_up": ("Confidence of the raised model", "share", "", None),
    "disagree.p_down": ("Confidence of the lowered model", "share", "", None),
    "disagree.start_p_up": ("The same at the start, raised model", "share", "", None),
    "disagree.start_p_down": ("The same at the start, lowered model", "share", "", None),
    "disagree.real": ("Real images that this one alone gets right", "share", "", None),
    "disagree.real_change": ("Accuracy on real images, second less first", "share", "", None),
    "persist.succeeded": ("Apart again with another second model", "share", "", None),
    "persist.carried": ("Found images that part it from another one, too", "share", "", None),
    "persist.p_up": ("Confidence of the raised model, again", "share", "", None),
    "persist.p_down": ("Confidence of the other model", "share", "", None),
    "spurious.outside": ("Share of the map outside the object", "share", "", None),
    "npca.taken": ("Taken for the class", "share", "down", None),
    "npca.driven": ("Driven there by the component", "share", "down", None),
    "npca.top_taken": ("Taken for the class, where it is strongest", "share", "down", None),
    "feature.start": ("Value as it is", "plain", "", None),
    "feature.raised": ("Value raised", "plain", "", None),
    "feature.lowered": ("Value lowered", "plain", "", None),
    "feature.start_confidence": ("Confidence as it is", "share", "", None),
    "feature.raised_confidence": ("Confidence, raised", "share", "", None),
    "feature.lowered_confidence": ("Confidence, lowered", "share", "", None),
    "feature.raised_inside": ("Change of the object, raised", "plain", "down", None),
    "feature.lowered_inside": ("Change of the object, lowered", "plain", "down", None),
    "feature.raised_class_kept": ("Class stays, raised", "share", "up", None),
    "feature.lowered_class_kept": ("Class stays, lowered", "share", "up", None),
    "gradient.inside": ("Gradient on the object", "share", "up", None),
    "gradient.gain": ("More of it than without augmentation", "share", "up", None),
    "gradient.area": ("Area of the object", "share", "", None),
    "neurons.own_first": ("Units that their own images drive most", "share", "", None),
    "neurons.images_first": ("Units driven most by their own images", "share", "", None),
    "neurons.beats_real": ("Units driven further than by any real image", "share", "", None),
    "neurons.beats_prompt": ("Units driven further than by the best prompt", "share", "", None),
    "generator.agreement": ("Samples that show the prompt's class", "share", "up", None),
    "generator.psnr": ("PSNR of the autoencoder in dB", "plain", "up", None),
    "generator.psnr_image": ("PSNR of the autoencoder, mean over images", "plain", "up", None),
    "generator.lpips": ("LPIPS of the autoencoder", "plain", "down", None),
    "generator.kid": ("KID of samples and test images", "plain", "down", None),
    "generator.recall": ("Test images that samples come near to", "share", "up", None),
    "generator.nearest": (
        "Distance to training images, over that of test images",
        "plain",
        "",
        None,
    ),
    "generator.copies": ("Samples next to a training image", "share", "down", None),
    "outdata.kept": ("Pictures that stay", "share", "", None),
    "outdata.removed": ("Pictures that went", "share", "", None),
    "outdata.auroc": ("AUROC of a linear model", "share", "down", None),
    "cgn.intact": ("Digits intact", "share", "up", None),
    "cgn.test": ("Test accuracy", "share", "up", None),
    "cgn.train": ("Training accuracy", "share", "", None),
    "cgn.counterfactual": ("Accuracy on counterfactuals", "share", "up", None),
    "cgn.iou": ("Mean IoU of heat map, digit and background", "share", "up", None),
    "cgn.object_iou": ("IoU of heat map and digit", "share", "up", None),
    "cgn.flips_object": ("Answers that a change of the object flips", "share", "", None),
    "cgn.flips_background": ("Answers that a change of the ground flips", "share", "down", None),
    "compare.failures": ("Clear failures", "plain", "down", None),
    "screen.low_level_auroc": ("Separable by low-level statistics", "share", "", None),
    "filter.accuracy": ("Accuracy on the pool", "share", "", None),
    "classes.kept": ("Classes kept", "plain", "", None),
    "classes.rare": ("Classes left out: too few images", "plain", "", None),
    "classes.backdrop": ("Classes left out: backgrounds", "plain", "", None),
    "classes.overlaps": ("Classes left out: overlapping another", "plain", "", None),
    "classes.group": ("Classes left out: fine-grained", "plain", "", None),
    "triage.suspects": ("Images whose label every model contradicts", "plain", "", None),
    "labels.agree": ("Answers that are the label", "share", "", None),
    "labels.doubtful": ("Labels in doubt", "share", "", None),
    "review.fleiss": ("Agreement of reviewers (Fleiss)", "plain", "up", None),
    "repair.accuracy_change": ("Change of accuracy by the repair", "share", "up", None),
    "repair.worst_group_change": ("Change of the worst group by the repair", "share", "up", None),
    "repair.smallest_shown": ("Smallest gain that could be shown", "share", "down", None),
    "repair.seconds": ("Seconds of forward passes", "plain", "down", None),
    "repair.probe_before": ("AUROC of the groups by a linear probe", "share", "", None),
    "repair.probe_after": ("The same after erasure", "share", "", None),
    "confidence.mean": ("Mean confidence", "share", "", None),
    "bias.shape": ("Shape bias", "share", "", None),
    "bias.texture": ("Texture bias", "share", "", None),
    "bias.background_gap": ("Background gap", "share", "down", None),
}
_FUNNEL = {
    "pool": "Files in the pool",
    "pictures": "Pictures among them",
    "shortlist": "On the shortlist",
}
SCALED = "_scaled"  # the same metric after temperature
OOD_SCORES = {
    "msp": "MSP",
    "max_logit": "Max-logit",
    "energy": "Energy",
    "entropy": "Entropy",
    "odin": "ODIN",
    "knn": "kNN",
    "mahalanobis": "Mahalanobis",
    "relative_mahalanobis": "Relative Mahalanobis",
    "vim": "ViM",
    "react": "ReAct",
    "ash_s": "ASH-S",
    "ash_b": "ASH-B",
}
"""What reports call a score; in a key it stands before the metric: `ood_score.svhn.knn_auroc`."""


def meaning(key: str) -> Meaning:
    """Read a key.

    >>> m = meaning("robust.linf-8_255.accuracy")
    >>> m.label, m.subject, m.better
    ('Robust accuracy, l∞ 8/255', 'linf-8_255', 'up')
    >>> meaning("funnel.pool").label, meaning("funnel.wrong_in_all_crops").label
    ('Files in the pool', 'Left after “wrong in all crops”')
    >>> meaning("calibration.ece_scaled").label
    'Calibration error (ECE) after temperature'
    """
    area, *middle, metric = key.split(".") if "." in key else ("", key)
    subject = ".".join(middle)
    base = metric.removesuffix(SCALED)
    stage = " after temperature" if base != metric else ""
    kind = "agreed" if base.startswith("agreed_") else base  # one key per second classifier
    if area == "funnel":
        stage = key.partition(".")[2]
        words = _FUNNEL.get(stage, f"Left after “{stage.replace('_', ' ')}”")
        return Meaning(key, area, subject, metric, words, "plain", "", None)
    if area == "ood_score":
        return _score_meaning(key, subject, metric)
    known = _KNOWN.get(f"{area.removesuffix('_gap')}.{kind}")
    if area == "paired":
        return Meaning(key, area, subject, metric, f"{subject}: {metric}", "share", "", None)
    if known is None:
        return Meaning(key, area, subject, metric, key, "plain", "", None)
    label, unit, better, limit = known
    if kind != base:
        label = f"{base.removeprefix('agreed_')} answers the target"
    label += stage + (f", {subject_words(area, subject)}" if subject else "")
    return Meaning(key, area, subject, metric, label, unit, better, limit)


def _score_meaning(key: str, subject: str, metric: str) -> Meaning:
    """`ood_score.SET.SCORE_METRIC`: the longest score that the metric begins with."""
    fits = [name for name in OOD_SCORES if metric.startswith(f"{name}_")]
    name = max(fits, key=len, default="")
    known = _KNOWN.get(f"ood_score.{metric.removeprefix(f'{name}_')}")
    if not name or known is None:
        return Meaning(key, "ood_score", subject, metric, key, "plain", "", None)
    label, unit, better, limit = known
    words = f"{OOD_SCORES[name]}: {label}, {subject}"
    return Meaning(key, "ood_score", subject, metric, words, unit, better, limit)


def metric_words(area: str, metric: str) -> str:
    """A metric without its subject, for the head of a column.

    >>> metric_words("ood", "auroc"), metric_words("ood", "odd_thing")
    ('AUROC', 'odd thing')
    """
    known = meaning(f"{area}.{metric}")
    return known.label if known.label != known.key else metric.replace("_", " ")


def subject_words(area: str, subject: str) -> str:
    """A data set or attack as people write it.

    >>> subject_words("robust", "linf-8_255"), subject_words("ood", "street_view")
    ('l∞ 8/255', 'street_view')
    """
    if area in ("disagree", "persist"):
        way, dash, other = subject.partition("-")
        return f"{way} raised{dash and f', with {other}'}"
    if area == "filter" and subject.isdecimal():
        return f"filter {int(subject) + 1}"
    if area in ("generator", "gradient"):
        return subject.replace("_", " ")
    if area == "corruption":
        return subject.replace("_", " ") + (" corruptions" if subject == "common" else "")
    if area not in ("robust", "counterfactual"):
        return subject
    norm, _, radius = subject.partition("-")
    sign = {"linf": "l∞", "l2": "l₂", "l1": "l₁"}.get(norm, norm)
    return f"{sign} {radius.replace('_', '/')}" if radius else sign


def model_words(spec: str) -> str:
    """A model's spec for a heading: long paths are cut to their last pieces.

    >>> model_words("timm:resnet18@/data/weights/r18.pth"), model_words("zoo:cifar10-plain")
    ('timm:resnet18@r18.pth', 'zoo:cifar10-plain')
    >>> model_words("/data/runs/three/model"), model_words("hf:org/name")
    ('three/model', 'hf:org/name')
    """
    name, at, weights = spec.partition("@")
    if name.count("/") > 1:
        name = "/".join(name.rstrip("/").split("/")[-2:])
    return name + at + weights.rsplit("/", 1)[-1]


def show(value: float | None, unit: Unit = "plain", *, digits: int = 1) -> str:
    """A value as text: shares in per cent, the rest with four significant figures.

    >>> show(0.9321, "share"), show(1.23456), show(None), show(0.0412, "share", digits=2)
    ('93.2\\u202f%', '1.235', '–', '4.12\\u202f%')
    >>> show(12345.0)
    '12,345'
    """
    if value is None:
        return "–"
    if unit == "share":
        return f"{100 * value:.{digits}f}{NARROW}%".replace("-", "−")
    if abs(value) >= 10_000 and float(value).is_integer():  # a count
        return f"{int(value):,}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def show_number(number: Number, unit: Unit = "plain", *, digits: int = 1) -> str:
    """The value of a number as text; one that is only a bound says so.

    >>> show_number(Number(0.375, 48, 0, 0.5, "p", "budget ended", bound="upper"), "share")
    '≤\u202f37.5\u202f%'
    """
    sign = {"upper": f"≤{NARROW}", "lower": f"≥{NARROW}"}.get(number.bound or "", "")
    return sign + show(number.value, unit, digits=digits)


def show_interval(number: Number, unit: Unit = "plain", *, digits: int = 1) -> str:
    """The 95 % interval as text; empty where there is none.

    >>> show_interval(Number(0.93, 100, 0.9, 0.95, "p"), "share")
    '[90.0, 95.0]'
    """
    if number.low is None or number.high is None:
        return ""
    ends = (
        show(end, unit, digits=digits).removesuffix(f"{NARROW}%")
        for end in (number.low, number.high)
    )
    return f"[{', '.join(ends)}]"


def verdict(number: Number) -> str:
    """Trusted, weak or do not quote, for an attack result; empty for other numbers."""
    return str(number.trust.get("verdict", "")) if number.trust else ""


def worst_verdict(numbers: Iterable[Number]) -> str:
    """What is made of several numbers can be trusted as far as the worst of them."""
    verdicts = {verdict(number) for number in numbers}
    return next((word for word in ("do not quote", "weak", "trusted") if word in verdicts), "")


def bounded(numbers: Iterable[Number]) -> dict[str, Any]:
    """The `bound` and `reason` of a mean of numbers, some of which may only be bounds."""
    cut = [number for number in numbers if number.bound]
    return {"bound": cut[0].bound, "reason": cut[0].reason} if cut else {}


def reasons(number: Number) -> list[str]:
    """Why a number has its trust verdict."""
    if not number.trust:
        return []
    given = number.trust.get("reasons", number.trust.get("reason", []))
    return [given] if isinstance(given, str) else [str(reason) for reason in given]
