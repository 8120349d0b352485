"""Attacks of an audit.

`spec` reads balls and budgets, `search` is what all of them share. `robustness` measures robust
accuracy, `classes` splits it by class, `published` puts a
leaderboard's value beside it, `radius` draws confidence against radius, `grids` tries
every point of a grid, `surrogates` attacks other models in place of the audited one.
"""
