"""Neurons: what drives units, components and logits of a model.

`run` draws features by pixels or by a generator; `study` shows them on real images; `npca` and
`spurious` rank components by class and by where they live; `scan` finds the images that drive each.
"""
