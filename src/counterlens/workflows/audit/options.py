"""What an audit can be asked to do; and the doctor."""

from pathlib import Path

from counterlens.data.specs import check_set
from counterlens.notation import (
    parse_ball,
    parse_corruptions,
    parse_scores,
    seconds,
    split_attacks,
)
from counterlens.runs import parse_gate
from counterlens.workflows._shared.options import (
    Compute,
    Output,
    Pipeline,
    Resumable,
    TrustOption,
    option,
    record,
)


def _check_attack(text: str) -> None:
    """One attack, or several radii of one norm."""
    split_attacks([text])


@record
class AuditOptions(Output, Resumable, Compute, TrustOption, Pipeline):
    """Options of audit."""

    about: tuple[str, ...] = option(
        (),
        help='What a card does not say: "NAME: family=…, attention=…, training=…".',
        unit="FACTS",
        group="Models and data",
        scope="run",
    )
    calibrate: str | None = option(
        None,
        check=check_set,
        help="Images to fit the temperature on, 100 or more. Default: 20 % of DATA, held out; a "
        "set too small for that is reported on as a whole, at temperature 1.",
        unit="SPEC",
        group="Models and data",
        scope="objects",
    )
    ood: tuple[str, ...] = option(
        (),
        check=check_set,
        help="Out-of-distribution images, [NAME=]SPEC.",
        unit="SPEC",
        group="Models and data",
        scope="objects",
    )
    ood_score: str | None = option(
        None,
        check=parse_scores,
        help="OOD scores to compare: all, or some of msp, max_logit, energy, entropy, odin, knn, "
        "mahalanobis, relative_mahalanobis, vim, react, ash_s, ash_b, with commas.",
        unit="NAMES",
        group="OOD scores",
    )
    ood_fit: str | None = option(
        None,
        check=check_set,
        help="Images to fit OOD scores on. Default: those that the temperature is fitted on.",
        unit="SPEC",
        group="OOD scores",
        scope="objects",
    )
    ood_near: tuple[str, ...] = option(
        (),
        help="Name of an OOD set that is near; the others are far. Each group gets a mean.",
        unit="NAME",
        group="OOD scores",
    )
    limit: int | None = option(
        None, help="Use only this many images of each set.", unit="N", group="Models and data"
    )
    batch: int | None = option(
        None,
        help="Images per batch. Default: by the memory that is free.",
        unit="N",
        group="Models and data",
    )
    workers: int | None = option(
        None, help="Decoding processes.", unit="N", group="Models and data"
    )
    attack: tuple[str, ...] = option(
        (),
        check=_check_attack,
        help="Robustness test, e.g. l2:0.5, linf:8/255, l1:12; several radii at less cost: "
        "l2:0.25,0.5,1.",
        unit="BALL",
        group="Attacks",
    )
    attack_version: str = option(
        "standard",
        choices=("standard", "plus", "rand", "ratio-era", "fast"),
        help="standard, plus, rand, ratio-era, or fast (APGD alone: a first estimate).",
        unit="VERSION",
        group="Attacks",
    )
    attack_points: int = option(
        1000,
        help="How many images to attack: the first, or drawn if sorted by class.",
        unit="N",
        group="Attacks",
    )
    budget: str | None = option(
        None,
        check=seconds,
        help="Time for each attack, e.g. 10m; bounds when it runs out. Probes come on top.",
        unit="TIME",
        group="Attacks",
    )
    grid: tuple[str, ...] = option(
        (),
        help="Exact worst case over a grid of changes: spatial (rotations and translations) or "
        "colour (hue, saturation, value).",
        unit="GRID",
        group="Attacks",
    )
    surrogate: tuple[str, ...] = option(
        (),
        help="Attack this model, too, and try its adversarial images on the audited one.",
        unit="MODEL",
        group="Attacks",
        scope="objects",
    )
    ood_attack: str | None = option(
        None,
        check=parse_ball,
        help="Worst-case OOD detection within this ball, e.g. l2:1.0.",
        unit="BALL",
        group="Attacks",
    )
    radius_curve: str | None = option(
        None,
        check=parse_ball,
        help="Confidence at eight radii up to this ball, e.g. l2:3, 200 images each.",
        unit="BALL",
        group="Attacks",
    )
    groups: tuple[str, ...] = option(
        (),
        help="Report by group: columns of DATA, e.g. site,scanner; class, folder:2, exif:Model, "
        "image:brightness, mask:area, mask:edge.",
        unit="COLUMNS",
        group="Groups",
        scope="objects",
    )
    group_width: float = option(
        0.15,
        help="Judge a group where its interval is at most so wide to either side.",
        unit="SHARE",
        group="Groups",
    )
    corruptions: str | None = option(
        None,
        check=parse_corruptions,
        help="Accuracy under corruptions: common (the 15 of ImageNet-C), extra (4), practice "
        "(JPEG, resizing, colours, overlay, occlusion), all, or names such as fog, with commas.",
        unit="NAMES",
        group="Further tests",
    )
    severities: str = option(
        "1,2,3,4,5", help="Severities of the corruptions.", unit="LIST", group="Further tests"
    )
    corruption_files: str | None = option(
        None,
        help="Read published files in place of corrupting DATA: cifar10-c@ROOT, cifar100-c@ROOT, "
        "imagenet-c@ROOT.",
        unit="NAME@ROOT",
        group="Further tests",
    )
    masks: str | None = option(
        None,
        help="Masks of the objects: accuracy with other backgrounds. own, FOLDER, key:NAME of a "
        "pack, or made by a network: salient:FILE.onnx (U2-Net), sam:FOLDER (Segment Anything).",
        unit="MASKS",
        group="Further tests",
    )
    slices: bool = option(
        False,
        help="Look for groups of images that nobody named on which the model errs more.",
        group="Groups",
    )
    slice_encoder: str | None = option(
        None,
        help="Image–text pair whose features find the slices and whose phrases name them, e.g. "
        "zoo:cifar10-clip. Default: the features of the model, no phrases.",
        unit="PAIR",
        group="Groups",
    )
    threshold: tuple[str, ...] = option(
        (),
        help="Operating point: coverage:0.9, risk:0.05, recall:CLASS:0.95, precision:CLASS:0.9 or "
        "fpr:CLASS:0.05; chosen on calibration images, evaluated on the others.",
        unit="TARGET",
        group="Operating points",
    )
    costs: Path | None = option(
        None,
        help="Costs as a .csv, a row per true class, a column per decision: decide for the least.",
        unit="FILE",
        group="Operating points",
    )
    flips: int = option(
        0,
        help="Images that are classified again under small colour and frame edits.",
        unit="N",
        group="Further tests",
    )
    require: tuple[str, ...] = option(
        (),
        check=parse_gate,
        help='Release gate, e.g. "accuracy.top1>=0.9".',
        unit="RULE",
        group="Gates",
    )
    anyway: bool = option(False, help="Go on although the doctor refused.", group="Gates")


@record
class DoctorOptions(Output, Compute, TrustOption):
    """Options of doctor."""

    exported_from: str | None = option(
        None,
        help="The model that this one is an export of: names what makes their logits differ.",
        unit="MODEL",
        group="Models and data",
        scope="objects",
    )
