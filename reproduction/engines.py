"""Units on other machines: Dask or Ray runs them, and this process keeps what comes back.

A worker sees neither the files nor the working directory of this process and writes nothing. What a
work reads besides the data (a ``RecordStore`` among its fields) is carried to the worker, and what
it adds there comes back with the records. At most as many units are under way as the cluster has
cores, so that later units see what earlier ones found out. A unit whose worker is lost is run again
by the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple

import torch

from reproduction.records import CarriedRecords, Record, RecordStore
from whvi.errors import ConfigError, MissingDependencyError
from whvi.training.process import keep_freed_memory

BACKENDS = ("local", "dask", "ray")
_SECONDS_TO_CONNECT = 10
_SECONDS_FOR_WORKERS = 30


class Engine(NamedTuple):
    """A cluster that runs functions."""

    submit: Callable[..., Future[Any]]
    num_slots: Callable[[], int]  # cores that it has now
    losses: tuple[type[Exception], ...]  # a unit was lost with its worker, again and again


class Found(NamedTuple):
    """What a worker sends back."""

    records: list[Record]
    added: dict[str, list[Record]]  # by the field of the work


def run_on_engine(
    engine: Engine, units: Sequence[Any], work: Any, store: RecordStore, *, jobs: int
) -> Iterator[Any]:
    """Yield units as they are finished and their records stored.

    Args:
        engine: The cluster.
        units: To be computed, in this order.
        work: Computes the records of a unit; a function or a dataclass that can be called.
        store: Where the records go.
        jobs: The most units under way; ``-1``: one for every core of the cluster.
    """
    under_way: dict[Future[Found], Any] = {}
    for unit in units:
        while len(under_way) >= (jobs if jobs > 0 else max(1, engine.num_slots())):
            yield from _collect(engine, under_way, work, store)
        under_way[engine.submit(compute, unit, _portable(work))] = unit
    while under_way:
        yield from _collect(engine, under_way, work, store)


def compute(unit: Any, work: Any) -> Found:
    """Compute the records of a unit, on a worker."""
    torch.set_num_threads(1)  # one unit per core: several threads in each would compete
    keep_freed_memory()
    records = list(work(unit))
    carried = _fields(work, CarriedRecords).items()
    return Found(records, {name: value.added for name, value in carried})


def _collect(
    engine: Engine, under_way: dict[Future[Found], Any], work: Any, store: RecordStore
) -> Iterator[Any]:
    """Wait for a unit, and keep what those that are finished have found."""
    finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
    for future in finished:
        unit = under_way.pop(future)
        try:
            found = future.result()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"a worker has no module {error.name!r}: start workers in the checkout, or with "
                "PYTHONPATH, with the packages of whvi[experiments]"
            ) from error
        except engine.losses as error:
            raise ConfigError(f"{unit} lost its workers too often: {error}") from error
        for name, rows in found.added.items():
            getattr(work, name).append(rows)
        store.append(found.records)
        yield unit


def _portable(work: Any) -> Any:
    """Replace the stores of a work by their records of this moment."""
    stores = _fields(work, RecordStore)
    carried = {name: CarriedRecords(store) for name, store in stores.items()}
    return dataclasses.replace(work, **carried) if carried else work


def _fields(work: Any, kind: type) -> dict[str, Any]:
    fields: Iterable[Any] = dataclasses.fields(work) if dataclasses.is_dataclass(work) else ()
    named = {field.name: getattr(work, field.name) for field in fields}
    return {name: value for name, value in named.items() if isinstance(value, kind)}


# The clusters


def connected(backend: str, address: str | None) -> contextlib.AbstractContextManager[Engine]:
    """Connect to a cluster, or start one on this machine if there is no ``address``."""
    package, open_cluster = {"dask": ("distributed", _dask), "ray": ("ray", _ray)}[backend]
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"--backend {backend} needs {package}: pip install 'whvi[{backend}]'"
        )
    return open_cluster(address)


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[Engine]:
    import distributed

    options: dict[str, Any] = {} if address else {"threads_per_worker": 1, "processes": True}
    with distributed.Client(address, timeout=_SECONDS_TO_CONNECT, **options) as client:
        try:
            client.wait_for_workers(1, timeout=_SECONDS_FOR_WORKERS)
        except TimeoutError as error:
            raise ConfigError(f"the scheduler {address} has no workers; start some") from error
        executor = client.get_executor(pure=False)
        yield Engine(
            executor.submit,
            lambda: sum(client.nthreads().values()),
            (distributed.KilledWorker,),
        )


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[Engine]:
    import ray

    ray.init(address=address, log_to_driver=False, include_dashboard=False if not address else None)
    try:
        run = ray.remote(lambda function, *given: function(*given))
        yield Engine(
            lambda *given: run.remote(*given).future(),
            lambda: math.floor(ray.cluster_resources().get("CPU", 1)),
            (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError),
        )
    finally:
        ray.shutdown()
