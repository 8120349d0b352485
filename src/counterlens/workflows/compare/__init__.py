"""Compare: audits side by side.

`run` reads finished audits, judges each metric against the best model, and pairs what was measured
on the same images (`pairs`). `families` groups models by architecture and training.
"""
