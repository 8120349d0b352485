"""What the paper prints for CIFAR-10, and what differs between its measurements and ours.

Paper: Augustin et al. 2020 (ratio2020), Tables 1, 3, 5 and 8.
"""

METRICS = {
    "clean": "accuracy.top1",
    "l2 0.5": "robust.l2-0.5.accuracy",
    "l2 1.0": "robust.l2-1.0.accuracy",
    "l∞ 8/255": "robust.linf-8_255.accuracy",
    "ECE": "calibration.ece_scaled",
    "AUC": "ood.auroc",
    "WC-AUC": "ood.worst_auroc",
    "MMC": "ood.mmc",
    "T": "calibration.temperature",
}
"""Column of the paper → our key; the three `ood` ones are means over the unseen natural sets."""

_PRINTED = """
plain      96.15  0.00  0.00  0.00 1.0 94.2  1.6 62.0 1.61
oe         96.41  0.01  0.00  0.00 2.9 96.5  8.7 31.9 0.10
acet       94.06 52.66 14.95 12.66 2.8 94.7 81.9 39.1 0.35
madry      90.83 69.32 36.86 29.59 2.6 81.8 48.5 62.7 1.20
at-0.5     90.79 70.42 38.20 30.58 2.2 88.9 57.4 55.8 1.11
at-0.25    94.00 65.02 20.83 14.30 2.2 92.7 42.0 55.2 1.39
jem        92.84 40.67  6.77  7.19 3.9 75.0 14.6 69.7 1.88
ratio-0.5  91.08 73.27 44.09 37.71 2.8 95.6 83.6 31.9 0.41
ratio-0.25 93.53 70.49 34.15 29.18 2.7 95.0 84.3 33.9 0.43
trades-0.5 90.87 71.02 39.53     -   - 88.80 56.59  -    -
"""

_PRINTED_SETS = """
SVHN      96.8/0.0 99.4/0.6  93.6/76.1 91.9/57.1 93.5/62.0 95.3/40.1 89.3/7.3  96.5/81.3 96.4/81.1
CIFAR-100 91.6/0.0 91.4/2.7  90.4/69.9 84.3/47.9 85.3/48.5 89.1/31.8 87.6/19.2 90.8/71.9 91.6/73.0
LSUN      95.6/0.0 99.6/4.0  98.2/87.9 89.7/52.0 90.7/52.8 92.5/36.5 91.6/20.6 98.0/87.3 98.3/89.1
ImageNet− 91.6/0.0 89.8/1.5  91.0/72.8 84.8/50.6 85.9/51.1 89.0/36.8 86.7/21.2 90.5/72.4 91.3/73.5
smooth    94.3/0.0 99.3/0.0  95.0/84.5 93.7/62.9 94.9/67.9 95.5/38.8 83.1/16.5 97.8/88.9 97.6/89.4
uniform   95.0/9.4 99.5/43.1 99.9/99.9 46.1/20.7 83.2/62.0 94.6/67.8 11.8/2.5  99.9/99.8 99.9/99.8
"""
"""Table 5: AUC / worst-case AUC per set, in the order of the rows above without TRADES. The two
noises are called as the sets of an audit are (noise:smooth, noise:uniform)."""

DIFFERENCES = (
    ("training images", "50,000", "48,000; the last 2,000 judge checkpoints and temperature"),
    (
        "out-distribution in training",
        "80 million tiny images (withdrawn)",
        "Tiny-ImageNet at 32 pixels without the classes that overlap, as each card names it",
    ),
    (
        "architecture",
        "ResNet-50, 23.5 M weights, ReLU (ACET: ResNet-18)",
        "ResNet-18 with SiLU and a last stage of 320 channels instead of 512, 6.4 M weights; small "
        "rows 3 M",
    ),
    (
        "epochs",
        "220 for every model (ACET: 100)",
        "unequal, as listed for each row: 208 for RATIO 0.25, 60 for AT 0.5, 80 for RATIO 0.5, 20 "
        "to 40 for the rest; averaged weights. A difference between two rows of ours is one of "
        "these models, not of their losses alone",
    ),
    (
        "attack steps outside, in training",
        "20 to 40 (RATIO, ACET)",
        "5 to 8 (RATIO), 10 (ACET)",
    ),
    ("checkpoint chosen on", "the test set", "held-out training images, or the last one"),
    (
        "robust accuracy",
        "an older AutoAttack: APGD-CE, APGD-DLR, FAB × 5, Square; 10,000 points",
        "AutoAttack standard with verdict, on the number of points each number states",
    ),
    (
        "temperature fitted on",
        "CIFAR-10.1 (2,000 images)",
        "held-out CIFAR-10 training images (2,000), or a fifth of the test images",
    ),
    (
        "AUC, WC-AUC and MMC averaged over",
        "SVHN, CIFAR-100, LSUN, ImageNet−, smooth noise, uniform noise: two near sets, two far, "
        "two noises",
        "four far natural sets that no training saw; seen sets and noise are listed apart. The two "
        "means are of different sets and not like for like",
    ),
    (
        "WC-AUC attack",
        "APGD 100 × 5 on the confidence, 1,024 points",
        "APGD 100 × 5 on log-confidence and on the lead, the worse of both; an upper bound",
    ),
)
"""What differs in protocol: subject, paper, ours."""


def printed() -> dict[str, dict[str, float]]:
    """The paper's table as it is printed, in per cent but for T.

    >>> printed()["ratio-0.25"]["WC-AUC"]
    84.3
    """
    table = {}
    for line in _PRINTED.split("\n")[1:-1]:
        row, *cells = line.split()
        table[row] = {m: float(c) for m, c in zip(METRICS, cells, strict=True) if c != "-"}
    return table


def printed_sets() -> dict[str, dict[str, tuple[float, float]]]:
    """Table 5: per row and set AUC and worst-case AUC as printed, in per cent.

    >>> printed_sets()["ratio-0.25"]["CIFAR-100"]
    (91.6, 73.0)
    """
    rows = [row for row in printed() if row != "trades-0.5"]
    table: dict[str, dict[str, tuple[float, float]]] = {row: {} for row in rows}
    for line in _PRINTED_SETS.split("\n")[1:-1]:
        name, *cells = line.split()
        for row, cell in zip(rows, cells, strict=True):
            clean, _, worst = cell.partition("/")
            table[row][name] = (float(clean), float(worst))
    return table
