"""Numbers about classifiers: pure functions of logits, confidences and labels.

`judge` turns logits and labels into what every metric needs, in one float64 pass; the functions
of the other files measure; `numbers` puts n, an interval and a protocol around the results.
"""

from counterlens.metrics.accuracy import accuracy, confusions, per_class, top_k
from counterlens.metrics.answers import Answers, Judged, answers, judge
from counterlens.metrics.bias import CueVotes, background_gap, coarse_right, cue_votes
from counterlens.metrics.calibration import brier, ece, joint_ece, nll, reliability, rms
from counterlens.metrics.label_map import coarse_answers, group_means, restrict
from counterlens.metrics.numbers import (
    background_number,
    classification_numbers,
    detection_numbers,
    ood_numbers,
    shape_number,
    share,
    temperature_number,
    texture_number,
)
from counterlens.metrics.ood import aupr, auroc, confidence_hist, fpr95, mmc
from counterlens.metrics.selective import aurra, response_rate
from counterlens.metrics.temperature import by_ece, by_nll, split_by_id

__all__ = [
    "Answers",
    "CueVotes",
    "Judged",
    "accuracy",
    "answers",
    "aupr",
    "auroc",
    "aurra",
    "background_gap",
    "background_number",
    "brier",
    "by_ece",
    "by_nll",
    "classification_numbers",
    "coarse_answers",
    "coarse_right",
    "confidence_hist",
    "confusions",
    "cue_votes",
    "detection_numbers",
    "ece",
    "fpr95",
    "group_means",
    "joint_ece",
    "judge",
    "mmc",
    "nll",
    "ood_numbers",
    "per_class",
    "reliability",
    "response_rate",
    "restrict",
    "rms",
    "shape_number",
    "share",
    "split_by_id",
    "temperature_number",
    "texture_number",
    "top_k",
]
