"""Stated conditions of released packages at random sizes: `python tests/typecheck/field/draws.py [PACKAGE...]`.

Of each contract that `field.py` found to hold under a condition, sizes are drawn that the condition allows
(`WEFT_DRAWS`, by default 500 a contract, for at most a minute of processor time), and the function is traced under
jaxtyping with beartype. Exit code 1 if that objects anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COUNT = int(os.environ.get("WEFT_DRAWS", "500"))


def drawn(rows: Path) -> int:
    """Draws for the contracts of one package, in a process of its environment; how many violations there are."""
    import importlib

    sys.path.insert(0, str(HERE.parent / "proofs"))
    from drawing import violations  # pyright: ignore[reportMissingImports]
    from weft.typecheck.command.linter import definitions
    from weft.typecheck.proofs.explaining import USUAL
    from weft.typecheck.proofs.prover import proofs_of

    conditional = [row for row in map(json.loads, rows.read_text().splitlines()) if row.get("assumptions")]
    wanted = {(row["module"], row["name"]) for row in conditional if row["verdict"] in ("proved", "holds")}
    draws = contracts = bad = 0
    seen: set[tuple[str, int]] = set()
    for module in sorted({module for module, _ in wanted}):
        for _, thing in definitions(importlib.import_module(module)):
            for proof in proofs_of(thing, {}, {}, USUAL):
                target = proof.target
                if (module, target.name) not in wanted or (target.name, target.line) in seen:
                    continue
                seen.add((target.name, target.line))
                count, counterexamples = violations(target, COUNT, 60)
                draws, contracts, bad = draws + count, contracts + bool(count), bad + len(counterexamples)
                print(
                    f"{module}: {target.name}: {count} draws, {len(counterexamples)} violations {counterexamples[:2]}",
                    flush=True,
                )
    print(f"{rows.stem}: {draws} draws of {contracts} conditions, {bad} violations", flush=True)
    return bad


def main(packages: list[str]) -> int:
    """Draws for packages one after the other."""
    from field import CACHE, VERDICTS, environment, site_of, with_this_checkout

    python = environment(CACHE, HERE / "packages.txt", "beartype", "optax")
    failed = False
    for package in packages or list(json.loads(VERDICTS.read_text())):
        rows = CACHE / f"{package}.jsonl"
        if (site_of(python) / package).exists():
            if not rows.exists():
                sys.exit(f"{rows} is not there: run field.py {package} first")
            environ = {**os.environ, "PYTHONPATH": str(with_this_checkout(CACHE)), "JAX_PLATFORMS": "cpu"}
            command = [str(python), __file__, "--of", str(rows)]
            failed |= subprocess.run(command, check=False, cwd=CACHE, env=environ).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(bool(drawn(Path(sys.argv[2]))) if sys.argv[1:2] == ["--of"] else main(sys.argv[1:]))
