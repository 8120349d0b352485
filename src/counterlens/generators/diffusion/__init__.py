"""Latent diffusion models: sampling, inversion, attention, and optimisation through the sampler."""
