"""Exceptions of whvi; each is also a subclass of the matching built-in exception."""

from __future__ import annotations


class WhviError(Exception):
    """Base of every error raised by whvi on purpose."""


class ShapeError(WhviError, ValueError):
    """A tensor has a shape, size, data type or device that the operation cannot use."""


class DataError(WhviError, ValueError):
    """Rows, columns or values handed in as data are unusable; the message names them."""


class ConfigError(WhviError, ValueError):
    """An option has a value outside its range, or two options contradict each other."""


class ModelFileError(WhviError, OSError):
    """A model file or checkpoint is damaged, untrue to its header, or of another format."""


class NumericalError(WhviError, ArithmeticError):
    """A computation left the finite numbers; the message names the tensor and the step."""


class MissingDependencyError(WhviError, ImportError):
    """An optional package is needed; the message says what to install."""
