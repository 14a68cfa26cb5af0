"""Sample the posterior of the toy's network by NUTS and write what it says of ``f``.

``numpyro`` is not among the requirements of the project; to make the record again:

    .venv/bin/python -m pip install "numpyro==0.22.0"
    .venv/bin/python -m reproduction.gaps.toy_nuts reproduction/results/gaps/toy_nuts.json

Parameters need not be identified, functions must be: chains are judged by the split R-hat of ``f``
at every point of the grid, and go on until it is at most 1.05.
"""

from __future__ import annotations

import json
import math
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.gaps import toy
from reproduction.records import software_versions
from reproduction.report import replace_file

QUANTILES = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)
RHAT = 1.05
SETTINGS: dict[str, Any] = {
    "num_chains": 8,
    "num_warmup": 1500,
    "draws_per_round": 1500,
    "max_rounds": 8,
    "max_tree_depth": 10,
    "target_accept_prob": 0.9,
    "seed": 0,
}


def main(path: Path) -> None:
    """Run the chains, round after round, and rewrite the record after each."""
    start = time.perf_counter()
    draws: list[NDArray[np.float64]] = []
    divergences = steps = 0
    for f, diverged, leapfrogs in _rounds(SETTINGS):
        draws.append(f)
        divergences, steps = divergences + diverged, steps + leapfrogs
        record = summarise(np.concatenate(draws, axis=1))
        record |= {"divergences": divergences, "leapfrog_steps": steps}
        record |= {"seconds": time.perf_counter() - start, **_about()}
        replace_file(path, json.dumps(record, indent=1) + "\n")
        worst = max(record["rhat"])
        print(f"{record['num_draws']} draws per chain, R-hat {worst:.3f}", file=sys.stderr)
        if worst <= RHAT:
            return


def summarise(f: NDArray[np.float64]) -> dict[str, Any]:
    """Return moments, quantiles and diagnostics of draws ``(chains, draws, points)``."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    pooled = f.reshape(-1, f.shape[-1])
    quantiles = np.quantile(pooled, QUANTILES, axis=0)
    return {
        "grid": toy.GRID.tolist(),
        "mean": pooled.mean(0).tolist(),
        "std": pooled.std(0, ddof=1).tolist(),
        "quantiles": {str(q): row.tolist() for q, row in zip(QUANTILES, quantiles, strict=True)},
        "rhat": split_gelman_rubin(f).tolist(),
        "effective_sample_size": effective_sample_size(f).tolist(),
        "std_of_chains": f.std(1, ddof=1).tolist(),
        "num_chains": f.shape[0],
        "num_draws": f.shape[1],
    }


def _rounds(settings: dict[str, Any]) -> Any:
    """Yield, round by round, draws of ``f (chains, draws, points)``, divergences and steps."""
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    kernel = NUTS(
        _model,
        max_tree_depth=settings["max_tree_depth"],
        target_accept_prob=settings["target_accept_prob"],
    )
    chains = MCMC(
        kernel,
        num_warmup=settings["num_warmup"],
        num_samples=settings["draws_per_round"],
        num_chains=settings["num_chains"],
        chain_method="vectorized",
        progress_bar=False,
    )
    x, y = toy.toy_data()
    key = jax.random.PRNGKey(settings["seed"])
    fields = ("diverging", "num_steps")
    for _ in range(settings["max_rounds"]):
        chains.run(key, x, y, extra_fields=fields)
        chains.post_warmup_state = chains.last_state
        key = chains.post_warmup_state.rng_key
        found = chains.get_extra_fields()
        f = np.asarray(chains.get_samples(group_by_chain=True)["f"])
        yield f, int(found["diverging"].sum()), int(found["num_steps"].sum())


def _model(x: Any, y: Any) -> None:
    import jax.numpy as jnp
    import numpyro
    from numpyro.distributions import Normal

    parameters = {
        name: numpyro.sample(name, Normal(0, 1).expand([size]).to_event(1))
        for name, size in toy.parameter_sizes().items()
    }
    for layer, plan in enumerate(toy.PLANS, start=1):  # not centred: g = sqrt(λ) z
        parameters[f"g_{layer}"] *= math.sqrt(toy.prior_variance(plan))
    numpyro.deterministic("f", toy.network(parameters, toy.GRID[:, None], jnp))
    numpyro.sample("y", Normal(toy.network(parameters, x, jnp), toy.NOISE), obs=y)


def _about() -> dict[str, Any]:
    """Return what the record says about the model, the sampler and the software."""
    x, y = toy.toy_data()
    packages = {name: version(name) for name in ("numpyro", "jax")}
    return {
        "network": list(toy.WIDTHS),
        "num_parameters": sum(toy.parameter_sizes().values()),
        "prior_variance_of_g": [toy.prior_variance(plan) for plan in toy.PLANS],
        "noise": toy.NOISE,
        "x": x[:, 0].tolist(),
        "y": y.tolist(),
        "settings": SETTINGS,
        "versions": software_versions() | packages,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
