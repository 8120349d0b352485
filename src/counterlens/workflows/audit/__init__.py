"""Audit: measure a classifier on a set of images.

`run` loads the model and the images, lets the doctor examine the wrapping, predicts once over each
set (`outputs`) and turns the logits into numbers. `protocol` decides which classes count;
`labelled` has the numbers of the labelled set, `groups` and `slices` for whom they are worse,
`operating` thresholds, `corruptions` other weather. `ood` measures detection of unknown images,
`attacks` attacks a subset. `gallery` keeps the images to look at.
"""
