"""How fast whvi is, beside its rivals: ``python -m benchmarks`` (see README.md in this folder)."""
