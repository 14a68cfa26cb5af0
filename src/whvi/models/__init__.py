"""Models made of the layers."""

from whvi.models.vae import Vae, load_vae, vae

__all__ = ["Vae", "load_vae", "vae"]
