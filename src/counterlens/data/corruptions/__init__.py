"""The common corruptions: noise, blur, weather and digital changes of an image at five severities.

Paper: Hendrycks, Dietterich 2019, arXiv:1903.12261, with the constants of the authors' code
    (ImageNet-C for 224 pixels, CIFAR-10-C for 32 pixels).
Differs: scipy and Pillow in place of OpenCV, scikit-image and ImageMagick. Images up to 64 pixels
    (longer side) take the 32-pixel constants, larger ones the 224-pixel constants; the authors'
    third table, for 64 pixels, is not used. Frost textures are made by code. Random draws depend on
    the seed and the corruption alone, so one seed has the same draws at every severity. ImageNet-C
    was stored as JPEG of quality 85; nothing is stored here, so numbers are not those of its files.
"""

from counterlens.data.corruptions.apply import COMMON, EXTRA, PRACTICE, corrupt
from counterlens.data.corruptions.practice import LEVELS
from counterlens.data.corruptions.tables import SMALL, constants
from counterlens.notation import CORRUPTION_GROUPS as GROUPS
from counterlens.notation import CORRUPTION_NAMES as NAMES
from counterlens.notation import SEVERITIES, parse_corruptions
from counterlens.notation import check_corruption as check

__all__ = [
    "COMMON",
    "EXTRA",
    "GROUPS",
    "LEVELS",
    "NAMES",
    "PRACTICE",
    "SEVERITIES",
    "SMALL",
    "check",
    "constants",
    "corrupt",
    "parse_corruptions",
]
