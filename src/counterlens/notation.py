"""What people type for radii, times, devices, OOD scores and corruptions, and what it means.

Nothing here loads a library, so that a mistyped option is answered at once.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from fractions import Fraction

from counterlens.errors import InputError, nearest

EXPONENTS: dict[str, float] = {"l1": 1.0, "l1.5": 1.5, "l2": 2.0, "linf": float("inf")}
_NORMS = {"l1": "l1", "l2": "l2", "linf": "linf", "l∞": "linf"}
LOGIT_SCORES = ("msp", "max_logit", "energy", "entropy")
FEATURE_SCORES = (
    "knn",
    "mahalanobis",
    "relative_mahalanobis",
    "vim",
    "react",
    "ash_s",
    "ash_b",
)
OOD_SCORES = (*LOGIT_SCORES, "odin", *FEATURE_SCORES)
ALIASES = {  # of OpenOOD and pytorch-ood
    "ebo": "energy",
    "energybased": "energy",
    "energy_based": "energy",
    "mls": "max_logit",
    "maxlogit": "max_logit",
    "softmax": "msp",
    "maxsoftmax": "msp",
    "max_softmax": "msp",
    "mds": "mahalanobis",
    "rmds": "relative_mahalanobis",
    "rmd": "relative_mahalanobis",
    "ash": "ash_b",
    "ashb": "ash_b",
    "ashs": "ash_s",
}
CORRUPTIONS = {
    "common": (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    ),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
    "practice": ("jpeg_quality", "resize_filter", "colour_order", "overlay", "occlusion"),
}
CORRUPTION_NAMES = tuple(name for group in CORRUPTIONS.values() for name in group)
CORRUPTION_GROUPS = {**CORRUPTIONS, "all": CORRUPTION_NAMES}
SEVERITIES = (1, 2, 3, 4, 5)


def parse_radius(text: str | float) -> float:
    """A budget: 1.5 or 8/255, above 0.

    >>> parse_radius("1.5"), round(parse_radius("8/255"), 4)
    (1.5, 0.0314)
    """
    try:
        value = float(Fraction(text)) if isinstance(text, str) else float(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"radius is {text!r}, expected a number such as 1.5 or 8/255.") from None
    if not 0 < value < float("inf"):
        raise InputError(f"radius is {text}, expected more than 0.")
    return value


def check_radius(text: str, norm: str, radius: float, numbers: float = float("inf")) -> None:
    """Refuse a radius that leads from any image to any other; most often 8 is meant as 8/255.

    Args:
        text: as the user wrote it.
        numbers: how many numbers an image has; without it only linf can be judged.
    """
    widest = numbers ** (1 / EXPONENTS[norm])
    if radius < widest:
        return
    hint = f" (did you mean {text}/255?)" if radius / 255 < widest and "/" not in text else ""
    raise InputError(
        f"{text}: pixels lie in [0, 1], and no two images are further apart than "
        f"{widest:.4g} in {norm}{hint}."
    )


def parse_ball(text: str, numbers: float = float("inf")) -> tuple[str, float]:
    """Norm and radius of `l2:0.5` or `linf:8/255`, as `check_radius` allows it.

    >>> parse_ball("l2:0.5")
    ('l2', 0.5)
    """
    norm, _, size = text.partition(":")
    try:
        radius = float(Fraction(size.strip()))
    except (ValueError, ZeroDivisionError):
        radius = -1.0
    if norm.strip() not in _NORMS or radius <= 0:
        raise InputError(
            f"attack {text!r} is not NORM:RADIUS with a radius above 0, "
            "for example l2:0.5, linf:8/255 or l1:12."
        )
    check_radius(text, _NORMS[norm.strip()], radius, numbers)
    return _NORMS[norm.strip()], radius


def split_attacks(texts: Sequence[str]) -> tuple[str, ...]:
    """`l2:0.25,0.5,1` as one attack per radius, the smaller ones of a norm first.

    >>> split_attacks(["l2:1,0.5", "linf:8/255"])
    ('l2:0.5', 'l2:1', 'linf:8/255')
    """
    split: list[str] = []
    for text in texts:
        norm, colon, radii = text.partition(":")
        parts = [f"{norm.strip()}{colon}{radius.strip()}" for radius in radii.split(",")]
        split += parts if colon else [text]
    order = list(dict.fromkeys(text.partition(":")[0] for text in split))
    return tuple(
        sorted(
            dict.fromkeys(split),
            key=lambda text: (
                order.index(text.partition(":")[0]),
                parse_ball(text)[1],
            ),
        )
    )


def seconds(budget: str | None) -> float | None:
    """`90`, `90s`, `10m` or `1.5h` in seconds.

    >>> seconds("10m")
    600.0
    """
    if budget is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", budget)
    if not match:
        raise InputError(f"budget is {budget!r}, expected a time such as 90s, 10m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def check_device(name: str) -> None:
    """Refuse what no machine calls a device."""
    if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu|hpu|xla|meta)(:\d+)?", name):
        raise InputError(f"no device {name!r}. Use auto, cpu, cuda, cuda:1 or mps.")


def parse_scores(text: str | Sequence[str]) -> tuple[str, ...]:
    """`all`, or names separated by commas or in a list, in a fixed order.

    OpenOOD's and pytorch-ood's names are understood, too: ebo, mls, mds, rmds, ash.

    >>> parse_scores("knn, ebo")
    ('energy', 'knn')
    """
    names = text.split(",") if isinstance(text, str) else list(text)
    typed = {name.strip().lower().replace("-", "_") for name in names} - {""}
    wanted = {ALIASES.get(name, name) for name in typed}
    unknown = sorted(wanted - {*OOD_SCORES, "all"})
    if unknown or not wanted:
        near = nearest(unknown[0], [*OOD_SCORES, *ALIASES]) if unknown else None
        got = f"got {unknown[0]!r}" if unknown else "no score given"
        meant = f" (did you mean {near}?)" if near else ""
        raise InputError(
            f"OOD scores: {got}{meant}, expected all or some of {', '.join(OOD_SCORES)}, "
            "separated by commas."
        )
    return OOD_SCORES if "all" in wanted else tuple(name for name in OOD_SCORES if name in wanted)


def parse_corruptions(text: str) -> tuple[str, ...]:
    """Names or groups (common, extra, practice, all) with commas, in the order of CORRUPTION_NAMES.

    >>> parse_corruptions("fog, gaussian-noise")
    ('gaussian_noise', 'fog')
    """
    wanted: set[str] = set()
    for word in text.split(","):
        name = word.strip().lower().replace("-", "_")
        if name and name not in CORRUPTION_GROUPS:
            check_corruption(name, 1)
        wanted |= set(CORRUPTION_GROUPS.get(name, (name,) if name else ()))
    if not wanted:
        raise InputError(
            f"corruptions are {text!r}, expected {', '.join(CORRUPTION_GROUPS)} or names such as "
            "fog, with commas."
        )
    return tuple(name for name in CORRUPTION_NAMES if name in wanted)


def check_corruption(name: str, severity: int) -> None:
    """Refuse an unknown corruption or severity."""
    if name not in CORRUPTION_NAMES:
        near = get_close_matches(name, CORRUPTION_NAMES, n=3, cutoff=0.5)
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        known = ", ".join(CORRUPTION_NAMES)
        raise InputError(f"{name} is no corruption{meant}, expected one of {known}.")
    if severity not in SEVERITIES:
        raise InputError(f"{name} has no severity {severity}, expected 1, 2, 3, 4 or 5.")
