"""placeholder"""

from pathlib import Path


def write_gaps(folder: Path) -> None: ...
