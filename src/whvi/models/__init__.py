"""Models made of the layers."""
