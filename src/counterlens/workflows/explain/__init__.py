"""Explain: what would have to change, and where does the evidence lie?

`options` has a record for each method. `run` opens model and pictures and chooses targets; `pixel`,
`diffusion`, `dvce`, `maps` and `edits` are the methods; `cases` prepares edits by a generator;
`chapter` explains the worst mistakes of an audit inside its report.
"""
