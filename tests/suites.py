"""The test suite of another library, run over weft: from its source archive, and against what passes there.

The archives lie in `$WEFT_CACHE`, or `~/.cache/weft`; none of their code is kept here. What counts is what passes under
the other library in this environment; that is found once and kept beside the archive. A failure that the documentation
lists is printed with the reason given there, any other one with the first line of its error: that makes the exit
status 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
# Settings of their own make errors of warnings that newer versions of other packages give.
SETTINGS = "[pytest]\nfilterwarnings = ignore\n"


def pinned_version(package: str) -> str:
    """The version of a package that `constraints.txt` pins for this Python: each end has lines of its own."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith(f"{package}==") and ((pin := Requirement(line)).marker is None or pin.marker.evaluate()):
            return str(pin.specifier).removeprefix("==")
    sys.exit(f"constraints.txt pins no version of {package} for this Python")


def pip(*arguments: str) -> None:
    """Runs pip, quietly."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def cache() -> Path:
    """The folder for what comes from archives."""
    return Path(os.environ.get("WEFT_CACHE", Path.home() / ".cache" / "weft"))


def fetch(package: str, version: str, part: str, archive: Path | None = None) -> Path:
    """The folder with a part of a source archive, which is unpacked once.

    Args:
        package: the name on PyPI.
        version: of the archive.
        part: the folder wanted of it.
        archive: the archive, if it is not to be downloaded.
    """
    folder, name = cache(), f"{package}-{version}"
    wanted = folder / name / part
    if not wanted.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if archive is None:
                pip("download", "--no-deps", "--no-binary", package, "--dest", scratch, f"{package}=={version}")
                archive = next(Path(scratch).glob("*.tar.gz"))
            with tarfile.open(archive) as tar:
                members = [member for member in tar if member.name.startswith(f"{name}/{part}/")]
                if not members:
                    sys.exit(f"{archive} holds no {name}/{part}")
                tar.extractall(scratch, members, filter="data")
            wanted.parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / name / part).rename(wanted)
        (folder / name / "pytest.ini").write_text(SETTINGS)
    return wanted


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of another library.

    Attributes:
        library: whose they are.
        part: the folder of its source archive that holds them.
        runs: the command that runs a Python program over weft, and what it finds in its environment.
        under: the same for the library itself.
        listed: the file and the heading of the table of the tests that are known to fail.
        beside: packages whose versions what passes depends on, besides the library's own.
        how: by which way weft comes in, where there are several.
        changed: makes of the unpacked folder the one whose tests run over weft.
        apart: what fails by this way alone, with the reason.
    """

    library: str
    part: str
    runs: tuple[Sequence[str], dict[str, str]]
    under: tuple[Sequence[str], dict[str, str]]
    listed: tuple[Path, str]
    beside: tuple[str, ...] = ()
    how: str = "weft"
    changed: Callable[[Path], Path] = lambda unpacked: unpacked
    apart: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def run(self, unpacked: Path, files: Sequence[str], jobs: int, *, weft: bool) -> dict[str, str]:
        """What became of each test: "passed", "skipped", or the first line of its error."""
        python, variables = self.runs if weft else self.under
        unpacked = self.changed(unpacked) if weft else unpacked
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "report.xml"
            command = [*python, "-m", "pytest", f"--junitxml={report}", "-q", "--import-mode=importlib", "--tb=line"]
            command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
            command += [*(["-n", str(jobs)] if jobs > 1 else []), *(f"{self.part}/{file}" for file in files)]
            with open(unpacked / f"under-{'weft' if weft else self.library}.log", "w") as log:
                subprocess.run(command, cwd=unpacked, env=os.environ | variables, stdout=log, stderr=log)
            if not report.exists():
                sys.exit(f"the tests did not run; see {log.name}")
            return {self._name_of(case): _outcome_of(case) for case in ElementTree.parse(report).iter("testcase")}

    def _name_of(self, case: ElementTree.Element) -> str:
        """A test's name, `file::class::test`, or the file alone where that could not be imported."""
        owner = str(case.get("classname") or "").split(".")
        parts = [*owner, str(case.get("name"))] if owner != [""] else str(case.get("name")).split(".")
        parts = parts[len(self.part.split("/")) :]
        file = next(i for i, part in enumerate(parts) if part.startswith("test_") or part.endswith("_test"))
        return "::".join(["/".join(parts[: file + 1]) + ".py", *parts[file + 1 :]])

    def _theirs(self, unpacked: Path, jobs: int, *, fresh: bool) -> dict[str, str]:
        """What became of each test under the library itself, in this environment."""
        versions = [importlib.metadata.version(name) for name in ("jax", *self.beside)]
        outcomes_path = unpacked / f"under-{self.library}-{'-'.join([platform.python_version(), *versions])}.json"
        if fresh or not outcomes_path.exists():
            print(f"running them under {self.library}, once for this environment ...", flush=True)
            outcomes_path.write_text(json.dumps(self.run(unpacked, [""], jobs, weft=False), indent=1))
        return json.loads(outcomes_path.read_text())

    def _known(self) -> dict[str, str]:
        """The tests that are known to fail, with the reason."""
        file, heading = self.listed
        _, _, section = file.read_text().partition(heading)
        return dict(re.findall(r"^\| `([^`]+\.py[^`]*)` \| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE))

    def compared(self, unpacked: Path, files: Sequence[str], jobs: int, *, fresh: bool) -> int:
        """Runs the tests under both, and prints what passes there and not here; the exit status."""
        theirs = self._theirs(unpacked, jobs, fresh=fresh)
        ours = self.run(unpacked, files or [""], jobs, weft=True)
        if files:
            theirs = {name: outcome for name, outcome in theirs.items() if name.startswith(tuple(files))}
        counted = [name for name, outcome in theirs.items() if outcome == "passed"]
        failed = {name: ours.get(name, "did not run") for name in counted if ours.get(name) != "passed"}
        reasons = {**self._known(), **self.apart}
        for name, outcome in sorted(failed.items()):
            print(f"{'known  ' if name in reasons else 'FAILED '} {name}: {reasons.get(name, outcome)}")
        # A file that cannot be imported has no tests: its error is all that there is to say of it.
        for name, outcome in sorted(ours.items()):
            if "::" not in name and outcome not in ("passed", "skipped"):
                print(f"FAILED  {name}: {outcome}")
        mended = sorted(name for name in reasons if name in counted and name not in failed)
        for name in mended:
            print(f"PASSED  {name}: take it off the list in {self.listed[0].relative_to(ROOT)}")
        others = sum(outcome not in ("passed", "skipped") for outcome in theirs.values())
        skipped = len(theirs) - len(counted) - others
        print(f"{len(counted) - len(failed)}/{len(counted)} of {self.library}'s tests pass on {self.how}")
        print(f"not counted: {others} that fail under {self.library} here, {skipped} skipped")
        return int(bool(mended or failed.keys() - reasons.keys()))


def _outcome_of(case: ElementTree.Element) -> str:
    """What became of one test."""
    for child in case:
        if child.tag == "skipped":
            return "skipped"
        if child.tag in ("failure", "error"):
            lines = (child.get("message") or child.text or "").strip().splitlines()
            return lines[0] if lines else "no message"
    return "passed"


def command_line(
    describes: str | None, suite: Suite, fetched: Callable[[Path | None], Path], jobs: int, others: Sequence[Suite] = ()
) -> int:
    """The command line of a suite, and of the same by other ways: what is compared, and with how many processes."""
    parser = argparse.ArgumentParser(description=describes, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help=f"files of {suite.part}, by default all")
    parser.add_argument("--archive", type=Path, help=f"{suite.library}'s source archive, if it is not to be downloaded")
    parser.add_argument("--jobs", type=int, default=jobs, help="processes")
    parser.add_argument("--fresh", action="store_true", help=f"run the tests under {suite.library} again")
    arguments = parser.parse_args()
    unpacked = fetched(arguments.archive)
    status = suite.compared(unpacked, arguments.files, arguments.jobs, fresh=arguments.fresh)
    return max([status, *(other.compared(unpacked, arguments.files, arguments.jobs, fresh=False) for other in others)])
