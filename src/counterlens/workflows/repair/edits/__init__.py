"""Edits that change the shortcut alone, from which pairs are made.

`made` draws, swaps and reads them, `stylised` paints them in other styles, `judged` takes those
that people accepted from a run, `plan` opens what `--pairs` names and writes pairs for review.
"""
