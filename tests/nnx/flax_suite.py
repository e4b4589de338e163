"""flax's own tests of NNX, run over `weft.nnx`: `make flax-suite`.

The tests come from flax's source archive at the version that `constraints.txt` pins, and lie in a cache folder,
`$WEFT_CACHE` or `~/.cache/weft`. What counts is what passes under flax itself in this environment; that is found once
and kept beside the archive. A failure that `docs/differences.md` lists is printed with the reason given there, any
other one with the first line of its error, and makes the exit status 1.

    python tests/nnx/flax_suite.py                          all of them
    python tests/nnx/flax_suite.py transforms_test.py       one file, or several
    python tests/nnx/flax_suite.py --archive flax.tar.gz    an archive that is there already
    python tests/nnx/flax_suite.py --fresh                  run them under flax again, too
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIFFERENCES = ROOT / "docs" / "differences.md"
HEADING = "## flax's own tests that fail here"
# What the tests import besides flax's own dependencies: by package, the module to look for.
NEEDED = {"absl-py": "absl", "cloudpickle": "cloudpickle", "treescope": "treescope"}
# How flax's own `run_all_tests.sh` runs them.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "FLAX_PROFILE": "1",
}


def pinned_version() -> str:
    """The version of flax in `constraints.txt`."""
    found = re.search(r"^flax==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if found is None:
        sys.exit("constraints.txt pins no version of flax")
    return found[1]


def pip(*arguments: str) -> None:
    """Runs pip, quietly."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def cache() -> Path:
    """The folder for what comes from flax's archive."""
    return Path(os.environ.get("WEFT_CACHE", Path.home() / ".cache" / "weft"))


def fetch(folder: Path, archive: Path | None, part: str = "tests/nnx") -> Path:
    """The folder with a part of the archive, which is unpacked once."""
    version = pinned_version()
    unpacked = folder / f"flax-{version}"
    if not (unpacked / part).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if archive is None:
                pip("download", "--no-deps", "--no-binary", "flax", "--dest", scratch, f"flax=={version}")
                archive = next(Path(scratch).glob("*.tar.gz"))
            with tarfile.open(archive) as tar:
                members = [member for member in tar if member.name.startswith(f"flax-{version}/{part}/")]
                if not members:
                    sys.exit(f"{archive} holds no flax-{version}/{part}")
                tar.extractall(scratch, members, filter="data")
            (unpacked / part).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / f"flax-{version}" / part).rename(unpacked / part)
        # flax's own settings make errors of warnings that newer versions of other packages give.
        (unpacked / "pytest.ini").write_text("[pytest]\nfilterwarnings = ignore\n")
    return unpacked / part


def run(unpacked: Path, files: list[str], jobs: int, *, hook: bool) -> dict[str, str]:
    """What became of each test: "passed", "skipped", or the first line of its error."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, *(["-m", "weft.nnx"] if hook else []), "-m", "pytest", f"--junitxml={report}"]
        command += ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += ["--tb=line", *(["-n", str(jobs)] if jobs > 1 else []), *(f"tests/nnx/{file}" for file in files)]
        with open(unpacked / f"under-{'weft' if hook else 'flax'}.log", "w") as log:
            subprocess.run(command, cwd=unpacked, env=os.environ | ENVIRONMENT, stdout=log, stderr=log)
        if not report.exists():
            sys.exit(f"the tests did not run; see {log.name}")
        return {name_of(case): outcome_of(case) for case in ElementTree.parse(report).iter("testcase")}


def name_of(case: ElementTree.Element) -> str:
    """A test's name, `file::class::test`, or the file alone where that could not be imported."""
    owner = str(case.get("classname") or "").split(".")
    parts = [*owner, str(case.get("name"))] if owner != [""] else str(case.get("name")).split(".")
    _, _, *parts = parts  # tests/nnx
    file = next(i for i, part in enumerate(parts) if part.startswith("test_") or part.endswith("_test"))
    return "::".join(["/".join(parts[: file + 1]) + ".py", *parts[file + 1 :]])


def outcome_of(case: ElementTree.Element) -> str:
    """What became of one test."""
    for child in case:
        if child.tag == "skipped":
            return "skipped"
        if child.tag in ("failure", "error"):
            lines = (child.get("message") or child.text or "").strip().splitlines()
            return lines[0] if lines else "no message"
    return "passed"


def under_flax(unpacked: Path, jobs: int, *, fresh: bool) -> dict[str, str]:
    """What became of each test under flax itself, in this environment."""
    versions = [importlib.metadata.version(name) for name in ("jax", "optax", "orbax-checkpoint")]
    kept = unpacked / f"under-flax-{'-'.join([platform.python_version(), *versions])}.json"
    if fresh or not kept.exists():
        print("running them under flax, once for this environment ...", flush=True)
        kept.write_text(json.dumps(run(unpacked, [""], jobs, hook=False), indent=1))
    return json.loads(kept.read_text())


def known() -> dict[str, str]:
    """The tests that are known to fail, with the reason: a table of `docs/differences.md`."""
    _, _, section = DIFFERENCES.read_text().partition(HEADING)
    rows = re.findall(r"^\| `([^`]+\.py[^`]*)` \| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return dict(rows)


def main() -> int:
    """Runs, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of tests/nnx, by default all")
    parser.add_argument("--archive", type=Path, help="flax's source archive, if it is not to be downloaded")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--fresh", action="store_true", help="run the tests under flax again")
    given = parser.parse_args()
    missing = [package for package, module in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        pip("install", "-c", str(ROOT / "constraints.txt"), *missing)
    unpacked = fetch(cache(), given.archive).parents[1]
    theirs = under_flax(unpacked, given.jobs, fresh=given.fresh)
    ours = run(unpacked, given.files or [""], given.jobs, hook=True)
    if given.files:
        theirs = {name: outcome for name, outcome in theirs.items() if name.startswith(tuple(given.files))}
    counted = [name for name, outcome in theirs.items() if outcome == "passed"]
    failed = {name: ours.get(name, "did not run") for name in counted if ours.get(name) != "passed"}
    reasons = known()
    for name, outcome in sorted(failed.items()):
        print(f"{'known  ' if name in reasons else 'FAILED '} {name}: {reasons.get(name, outcome)}")
    # A file that cannot be imported has no tests: its error is all that there is to say of it.
    broken = {
        name: outcome for name, outcome in ours.items() if "::" not in name and outcome not in ("passed", "skipped")
    }
    for name, outcome in sorted(broken.items()):
        print(f"FAILED  {name}: {outcome}")
    mended = sorted(name for name in reasons if name in counted and name not in failed)
    for name in mended:
        print(f"PASSED  {name}: take it off the list in {DIFFERENCES.relative_to(ROOT)}")
    others = [name for name, outcome in theirs.items() if outcome not in ("passed", "skipped")]
    print(f"{len(counted) - len(failed)}/{len(counted)} of flax's tests pass on weft.nnx")
    print(f"not counted: {len(others)} that fail under flax here, {len(theirs) - len(counted) - len(others)} skipped")
    return int(bool(mended or failed.keys() - reasons.keys()))


if __name__ == "__main__":
    sys.exit(main())
