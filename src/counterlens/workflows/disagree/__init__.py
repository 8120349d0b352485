"""Disagree: images that one classifier takes for a class and another does not.

`run` opens both models and a generator, `search` optimises the images, `numbers` measures them,
`real` verifies the finding on photographs, `persist` repeats it against other models.
"""
