"""Searches: how an objective is raised over images."""

from counterlens.search.apgd import apgd, apgd_from_afar
from counterlens.search.extremes import Extreme, lowest_confidence, worst_confidence
from counterlens.search.fab import Nearest, fab
from counterlens.search.found import Found, frozen
from counterlens.search.noise import adversarial_noise
from counterlens.search.pgd import pgd
from counterlens.search.probes import Flag
from counterlens.search.square import square
from counterlens.search.trust import Trust, weigh
from counterlens.search.worst import Robustness, Settings, robust

__all__ = [
    "Extreme",
    "Flag",
    "Found",
    "Nearest",
    "Robustness",
    "Settings",
    "Trust",
    "adversarial_noise",
    "apgd",
    "apgd_from_afar",
    "fab",
    "frozen",
    "lowest_confidence",
    "pgd",
    "robust",
    "square",
    "weigh",
    "worst_confidence",
]
