"""Random programs for both libraries: `source(seed)` is the text of one, `compare(text)` says how its two runs differ.

A program makes two models and an array, nests two or three transforms around functions that mutate them, and calls the
nest a few times (see `fuzz_writer.py`). Text, so that a difference can be pasted into a bug report as it is:

    python tests/nnx/fuzz.py 300            # seeds 0..299: counts, and each difference
    python tests/nnx/fuzz.py 300 1000       # seeds 1000..1299
    python tests/nnx/fuzz.py 300 --jobs 1   # in one process, by default as many as there are processors
    python tests/nnx/fuzz.py 300 --holding custom_  # of seeds 0..299, those whose programs hold this text
    python tests/nnx/fuzz.py 17 --show      # one program, and both runs
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest's conftest says this for the tests
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Three quarters of a program's time are XLA's, and programs this small are not worth several threads of it.
    quick = "--xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=2 {quick}")

import jax

sys.path.append(str(Path(__file__).parent))
import agreement
from fuzz_operations import LAYERS
from fuzz_programs import PartialWriteError, program_of
from fuzz_transforms import MODES, OUTERMOST, WRAPS
from fuzz_writer import Writer

__all__ = ["LAYERS", "MODES", "OUTERMOST", "WRAPS", "Writer", "compare", "source"]


def source(seed: int) -> str:
    """The text of one program."""
    return Writer(seed).program()


# Errors of flax that are its own defects (see docs/differences.md): nothing can be compared then.
CRASHES: list[tuple[type[Exception], str]] = [
    (AttributeError, r"'(?!(Node|List|Dict|Rngs)')[\w.]+' object has no attribute"),
    (RuntimeError, "already used"),
    (RuntimeError, "generator raised StopIteration"),
    (RuntimeError, "Attempt to donate the same buffer twice"),  # XLA's own; weft says which Variables hold it
    (RuntimeError, "is already aliased with one output"),  # XLA's own, for a ref in a donated argument
    # pmap's own, for what it gave back itself the call before
    (ValueError, "Sharding passed to jit does not match the sharding on the respective arg.*_internal_pmap_axis_name"),
    (RecursionError, ""),
    (ValueError, "Incorrect number of leaves"),
    (TypeError, r"__array__\(\) was called on traced array"),
    # an array as a new attribute, which stays a tracer
    (ValueError, "Exception raised while checking equality of metadata fields of pytree"),
    # cached_partial of one object in two arguments
    (KeyError, r"^\d+$"),
    # capture in a model with an nnx.List, whose attributes are then numbers and a name
    (ValueError, "Comparator raised exception while sorting pytree dictionary keys"),
    (TypeError, "'<' not supported between instances of"),
]
# What one refuses and the other lets pass, on purpose (see docs/differences.md): the refusal's builtin and text.
WEFT_REFUSES: list[tuple[type[Exception], str]] = [
    (ValueError, r"nnx\.(while_loop|fori_loop) in tree mode \(graph=False\) does not support shared references"),
    (
        TypeError,
        r"^the carry of (scan|fori_loop) changes from one iteration to the next(: Carry references [^:]*)? "
        r"at: carry[^:]*: \w+ -> (another|the) ",
    ),
    # An array that is an attribute, in an argument that a filter carries.
    (TypeError, r"^the carry of scan changes from one iteration to the next at: a new \w*Tracer in an argument"),
]
FLAX_REFUSES: list[tuple[type[Exception], str]] = [
    (ValueError, "`graph_updates` not supported by `jit_partial`"),
    (NotImplementedError, r"graph-mode with graph_updates is not supported for nnx\.(vjp|jvp)"),
    # flax carries what the loop does not change, too
    (ValueError, r"^Reverse-mode differentiation does not work for lax\.while_loop"),
    (ValueError, r"nnx\.(eval_shape|custom_vjp) with graph_updates=False does not support Variable aliasing"),
    # A Variable that grad reaches under two arguments, and differentiates under neither.
    (ValueError, r"^Inconsistent aliasing detected\. [^:]*:( Node: \w+( [^ ]+: (False|None)){2,})+$"),
]


@contextlib.contextmanager
def _quick_compilation() -> Iterator[None]:
    """Each function is compiled for a call or two: optimising takes more time than it saves, and Threefry is long.

    In float64, in which what is rounded differently by two libraries, and grows from call to call, stays small.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.default_prng_impl("unsafe_rbg"), jax.enable_x64(True):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _run(program: Any, library: Any) -> Any:
    """One library's run of a program, in a thread of its own.

    Where flattening overflows the stack, JAX does not give back the depth that it took, and depth is counted by thread.
    """

    def run() -> Any:
        with _quick_compilation():
            return agreement.run(program, library)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def compare(text: str) -> tuple[str, str | None]:
    """How the two runs of a program went: how they ended, and how they differ (None if they agree)."""
    from flax import nnx as flax_nnx
    from weft import nnx as weft_nnx
    from weft.nnx.config import config

    program = program_of(text)
    before = config.nnx_flax_faults
    theirs = _run(program, flax_nnx)
    try:
        config.update("nnx_flax_faults", True)  # what flax does to the weights in a WeightNorm
        ours = _run(program, weft_nnx)
    except PartialWriteError as error:
        return "partial write", f"an exception left changes behind: {error}"
    finally:
        config.update("nnx_flax_faults", before)
    if _is_among(theirs, CRASHES):
        return "flax crashes", None
    if not isinstance(theirs, Exception) and _is_among(ours, WEFT_REFUSES):
        return "weft refuses", None
    if _is_among(theirs, FLAX_REFUSES):  # whatever weft makes of what comes after
        return "flax refuses", None
    end = type(theirs).__name__ if isinstance(theirs, Exception) else "done"
    return end, agreement.difference(theirs, ours)


def _is_among(outcome: object, known: list[tuple[type[Exception], str]]) -> bool:
    text = " ".join(str(outcome).split())
    return any(isinstance(outcome, kind) and re.search(pattern, text) for kind, pattern in known)


def _compare_all(seeds: list[int]) -> tuple[collections.Counter[str], dict[int, str]]:
    """How the programs of some seeds ended, and how they differ, by seed; each difference is printed at once."""
    ends: collections.Counter[str] = collections.Counter()
    different: dict[int, str] = {}
    for seed in seeds:
        end, difference = compare(source(seed))
        ends[end] += 1
        if difference is not None:
            different[seed] = difference
            print(f"seed {seed} ({end}): {difference}"[:420], flush=True)
    return ends, different


def main(argv: list[str]) -> int:
    """Compares many programs, or shows one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="how many programs; with --show, the seed of one")
    parser.add_argument("start", type=int, nargs="?", default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--holding", default="", help="only programs with this text")
    parser.add_argument("--show", action="store_true", help="show one program and both runs")
    options = parser.parse_args(argv)
    if options.show:
        text = source(options.count)
        print(text)
        print(compare(text))
        return 0
    every = range(options.start, options.start + options.count)
    seeds = [seed for seed in every if options.holding in source(seed)]
    ends: collections.Counter[str] = collections.Counter()
    different: dict[int, str] = {}
    # A process for a hundred programs at most: what they leave in JAX's caches is gigabytes after a thousand.
    size = min(100, -(-len(seeds) // options.jobs))
    chunks = [seeds[i : i + size] for i in range(0, len(seeds), size or 1)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn, max_tasks_per_child=1) as processes:
        for done in as_completed([processes.submit(_compare_all, chunk) for chunk in chunks]):
            more, differences = done.result()
            ends += more
            different |= differences
            print(f"{ends.total()} programs, {len(different)} differ", file=sys.stderr, flush=True)
    print(f"{ends.total()} programs: {dict(ends)}; {len(different)} differ")
    kinds = collections.Counter(re.sub(r"[0-9]+", "#", difference)[:60] for difference in different.values())
    for kind, times in kinds.most_common():
        print(f"{times:4} {kind}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
