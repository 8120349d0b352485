"""Explain: what would have to change, and where did the model look?

`run` opens model and pictures and chooses targets; `pixel`, `diffusion`, `dvce`, `maps` and `edits`
are the methods; `cases` prepares edits by a generator; `chapter` explains the worst mistakes of an
audit inside its report.
"""
