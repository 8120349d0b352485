"""Curate: choose images that fixed classifiers get wrong, review them, freeze them as a data set.

`pool` opens the images, `run` filters them, `record` writes the shortlist, `review` collects
verdicts, `freeze` writes the data set with its card, `transfer` tests it on held-out models.
`classes` proposes classes, `triage` queues doubtful labels, `outdata` cleans a training pool.
"""
