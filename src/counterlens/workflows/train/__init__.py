"""Train: a classifier, an image–text pair or a diffusion model by a recipe.

`recipes` reads settings, `plan` turns them into losses and attacks, `datasets` holds the images,
`run` trains a classifier and `health` watches it; `clip`, `diffusion` and `captioned` train the
generator and its text, `few_steps` distils it, `diffusion_quality` measures it.
"""
