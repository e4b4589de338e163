"""`weft check` on released packages: `python tests/typecheck/field/field.py [PACKAGE...]` (`make check-field`).

The pinned packages are installed into an environment of their own in a cache folder (`WEFT_FIELD`, by default
`~/.cache/weft-field`), one for each Python; every module of theirs that imports jaxtyping is judged (`judge.py`), and
the counts of verdicts are compared with `verdicts.json`. `--update` writes that file, and the table in `docs/field.md`,
anew. Exit code 1 if more contracts fail, or fewer are decided, than it says. A package that asks for another Python
than this one, or for another JAX than is pinned for it, is left out, and that is said: `make check-field-floor` judges
what asks for an old JAX.

`--small` judges the packages of `small.txt` in the environment that runs this, with nothing but them beside it: in a
minute, for each landing. Exit code 3 if they could not be fetched, which is said: then nothing was judged.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from environments import environment, with_this_checkout  # noqa: E402

PYTHON = ".".join(map(str, sys.version_info[:2]))
CACHE = Path(os.environ.get("WEFT_FIELD", Path.home() / ".cache" / "weft-field")) / PYTHON
VERDICTS = HERE / "verdicts.json"
DECIDED = ("proved", "holds", "fails")


def small_ones() -> tuple[Path, list[str]] | None:
    """The folder in which the small packages lie, and which of them are judged; None if they could not be fetched."""
    folder, wanted = CACHE / "small" / "site-packages", HERE / "small.txt"
    pins, stamp = wanted.read_text(), CACHE / "small" / "stamp"
    if not stamp.exists() or stamp.read_text() != pins:
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        if subprocess.run([*pip, "--requirement", str(wanted)], check=False).returncode:
            return None
        stamp.write_text(pins)
    judged = {line.partition("==")[0] for line in pins.splitlines()} & json.loads(VERDICTS.read_text()).keys()
    return folder, sorted(judged)


def site_of(python: Path) -> Path:
    """Where the packages of an environment lie."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return site


def modules_of(package: str, site: Path) -> Iterator[str]:
    """The modules of an installed package that speak of jaxtyping."""
    for path in sorted((site / package).rglob("*.py")):
        parts = path.relative_to(site).with_suffix("").parts
        if "jaxtyping" in path.read_text(errors="replace"):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def judged(package: str, python: Path, site: Path) -> list[dict[str, Any]]:
    """The contracts of a package, each once: a method in the class that writes it."""
    out, path = CACHE / f"{package}.jsonl", os.pathsep.join((str(with_this_checkout(CACHE)), str(site)))
    # Otherwise the file of an earlier run was read where the judge ended with an ImportError, and nothing was judged.
    out.unlink(missing_ok=True)
    subprocess.run(
        [str(python), str(HERE / "judge.py"), str(out), *modules_of(package, site)],
        check=True,
        cwd=CACHE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return list({(row["name"], row.get("place", row["module"])): row for row in reversed(rows)}.values())[::-1]


def main(arguments: list[str]) -> int:
    """Judges packages, prints what fails, and compares the counts."""
    update, chosen = "--update" in arguments, [argument for argument in arguments if not argument.startswith("-")]
    known: dict[str, dict[str, int]] = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    if "--small" in arguments:
        packages = small_ones()
        if packages is None:
            print(
                "NOT JUDGED: the packages could not be fetched from PyPI, so nothing is known of them", file=sys.stderr
            )
            return 3
        python, (site, chosen) = Path(sys.executable), packages
    else:
        python = environment(CACHE, HERE / "packages.txt", "beartype", "optax")
        site = site_of(python)
    worse = False
    for package in chosen or list(known):
        if not (site / package).exists():
            print(f"{package}: left out, it asks for another Python than {PYTHON}, or for another JAX")
            continue
        rows = judged(package, python, site)
        counts = dict(sorted(collections.Counter(row["verdict"] for row in rows).items()))
        for row in rows:
            for failure in row.get("failures", ()):
                print(f"{row['module']}: {row['name']}: {failure}")
        print(f"{package}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}", flush=True)
        if update:
            known[package] = counts
        elif counts != (before := known.get(package, {})):
            print(f"  was: {', '.join(f'{count} {verdict}' for verdict, count in before.items())}")
            decided = [sum(one.get(verdict, 0) for verdict in DECIDED) for one in (counts, before)]
            worse |= counts.get("fails", 0) > before.get("fails", 0) or decided[0] < decided[1]
    if update:
        VERDICTS.write_text(json.dumps(known, indent=2) + "\n")
        subprocess.run([sys.executable, str(HERE / "tables.py")], check=True)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
