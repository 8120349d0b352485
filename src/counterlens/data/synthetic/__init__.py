"""Images made by code: MNIST variants, textures, captions of measured attributes."""
