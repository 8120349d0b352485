"""Searches: how an objective is raised over images."""

from counterlens.search.apgd import apgd, apgd_from_afar
from counterlens.search.ensemble.autoattack import AttackSettings, Robustness, robust
from counterlens.search.ensemble.extremes import (
    Extreme,
    highest_output,
    lowest_confidence,
    worst_confidence,
)
from counterlens.search.ensemble.probes import Flag
from counterlens.search.ensemble.trust import Trust, weigh
from counterlens.search.fab import Nearest, fab
from counterlens.search.noise import adversarial_noise
from counterlens.search.pgd import pgd
from counterlens.search.result import SearchResult, frozen
from counterlens.search.square import square

__all__ = [
    "AttackSettings",
    "Extreme",
    "Flag",
    "Nearest",
    "Robustness",
    "SearchResult",
    "Trust",
    "adversarial_noise",
    "apgd",
    "apgd_from_afar",
    "fab",
    "frozen",
    "highest_output",
    "lowest_confidence",
    "pgd",
    "robust",
    "square",
    "weigh",
    "worst_confidence",
]
