"""Searches: how an objective is raised over images."""

from counterlens.search.found import Found, frozen
from counterlens.search.pgd import pgd

__all__ = ["Found", "frozen", "pgd"]
