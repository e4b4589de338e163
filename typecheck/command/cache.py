"""Stores verdicts from run to run in `.weft/cache`, next to the `pyproject.toml`.

An entry is for one unit and one set of options; in it, the outcomes of each definition (a function or a class) are
valid by themselves. They are valid as long as what they depend on is unchanged. These are the definitions that they
reach, and the skeletons of all Python files of the unit's package, or of a script's folder (`sources`). These are also
the files that its worker read, and the modules that it imported from outside of the package and of installed packages.
At last, the versions of Python and of installed packages count, and weft's own sources. The lines of an outcome follow
its definitions (`lines.moved`).

What a definition reaches is found twice. The names in the sources show it, since a process runs a cached function once
for many verdicts. So do the functions that ran while it was judged. A function that ran although no name leads to it,
one that ran while modules were imported, and one whose results are kept, count for all later verdicts of its process.

An entry that cannot be read is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..language.siblings import is_test_or_script, sources_below
from .config import Settings
from .lines import Checked, from_json, moved, places, places_in_texts, to_json
from .sources import Node, Sources, digest, summary
from .units import MACHINERY, WEFT, Unit, state_of

# How many entries a folder may have before the oldest half is deleted.
_MOST = 5000
# The prefixes of environment variables that influence tracing, and exceptions among those variables.
_PREFIXES = ("JAX_", "XLA_", "WEFT_", "LIBTPU_")
_NOT_DECIDING = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE")


def sources_of(unit: Unit) -> tuple[str, ...]:
    """The Python files that a unit's verdicts may depend on: those of its package, or of a script's folder."""
    return _sources_in(*_folder_of(unit))


def _folder_of(unit: Unit) -> tuple[str, bool]:
    """The folder of a unit's package, or of a script; and whether it is a package."""
    top, *rest = unit.module.split(".")
    # The folder of a checkout may have any name.
    package = str(WEFT) if _is_of_weft(unit) else os.path.join(unit.root, top)
    is_package = bool(rest or Path(unit.file).stem == "__init__") and os.path.isdir(package)
    return (package if is_package else unit.root), is_package


def _sources_in(folder: str, is_package: bool) -> tuple[str, ...]:
    return tuple(sources_below(folder) if is_package else sorted(map(str, Path(folder).glob("*.py"))))


@dataclass
class Group:
    """The outcomes of one definition.

    Attributes:
        name: the definition as `module:name`; "" for what comes before all definitions, `module:` for what comes after.
        parts: its outcomes.
        ran: the file and qualified name of each function that ran while it was judged; None if that is not known.
        is_stored: whether it comes from an entry; then `ran` has all that it depends on.
    """

    name: str
    parts: list[Checked] = field(default_factory=list)
    ran: Sequence[Node] | None = None
    is_stored: bool = False

    @property
    def lasting(self) -> bool:
        """Whether each outcome is one that the same sources always give."""
        return all(part.lasting for part in self.parts)


class Cache:
    """The stored verdicts of a project, as of one run.

    Args:
        root: the folder that contains `.weft`.
        settings: all that verdicts depend on besides the sources.
    """

    def __init__(self, root: Path, settings: Settings):
        self.folder = root / ".weft" / "cache"
        self._args = settings.args
        self._settings = json.dumps(dataclasses.asdict(settings), sort_keys=True)
        # Each file is read once in a run, and has one state in it: the 200 units of a package share the same 200 files.
        self._digest_of_file = functools.cache(_digest_of_file)
        self._digest_of_files = functools.cache(
            lambda files: digest(f"{file}\0{self._digest_of_file(file)}" for file in files)
        )
        self._versions = functools.cache(lambda own: digest(_versions(own)))
        self._sources = functools.cache(self._sources_now)
        # As of a unit's first look-up: verdicts of the old text of a file that is edited during the run must not be
        # stored under its new text.
        self._states = functools.cache(_states)
        self._sources_in = functools.cache(_sources_in)
        # The files that the valid outcomes of a unit depend on: a worker that judges the others does not read them.
        self._reads = dict[Unit, list[str]]()
        # Each option and each renamed file adds some entries.
        with contextlib.suppress(OSError):
            entries = [*self.folder.glob("*.json"), *self.folder.glob("*.sources")]
            if len(entries) > _MOST:
                for entry in sorted(entries, key=lambda file: file.stat().st_mtime)[: -_MOST // 2]:
                    entry.unlink()

    def _files(self, unit: Unit) -> tuple[str, ...]:
        """The unit's own file and those that it may depend on; the same tuple for all units of a package."""
        sources, own = self._sources_in(*_folder_of(unit)), str(Path(unit.file).resolve())
        files = sources if own in sources else (own, *sources)
        self._states(files)
        return files

    def find(self, unit: Unit) -> tuple[dict[str, Group], bool]:
        """The valid outcomes of a unit by definition, and whether these are all of the unit."""
        files, version = self._files(unit), self._versions(_is_of_weft(unit))
        try:
            entry = json.loads(self._file(unit).read_text())
            # The entry's own list of files is used: a worker knows which files it reads after it has judged the unit.
            if entry["key"] != version or self._read(entry["reads"]) != entry["read"]:
                return {}, False
            self._reads[unit] = entry["reads"]
            if entry["files"] == self._digest_of_files(files):
                groups = {name: _group(name, stored) for name, stored in entry["groups"].items()}
                return groups, entry["whole"]
            sources = self._sources_of(unit)
            if entry["skeleton"] != sources.skeleton:
                return {}, False
            stored = entry["groups"].items()
            groups = {
                name: _group(name, entry, sources) for name, entry in stored if _is_valid(entry["reach"], sources)
            }
            is_whole = entry["whole"] and len(groups) == len(stored)
            if is_whole:  # the next run need not look at single definitions
                self.store(unit, groups, [], set())
            return groups, is_whole
        except (OSError, KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            # Read before the first verdict and not after it: who interrupts the run gets the verdicts so far.
            self._sources_of(unit)
            return {}, False

    def store(self, unit: Unit, groups: Mapping[str, Group], reads: Sequence[str] | None, carried: set[Node]) -> None:
        """Stores the outcomes of a unit, except those that another run may change.

        A limit may end a proof on one machine and not on another; a missing library may be installed.

        Args:
            unit: the unit.
            groups: its outcomes by definition, in the order in which they were judged.
            reads: the files outside of its package that its worker has read so far; None if it gave no whole answer.
            carried: the functions on which all verdicts of its worker's process depend; those of this unit are added.
        """
        files, sources = self._files(unit), self._sources_of(unit)
        # Also if nothing is stored: what ran may serve later verdicts of the process.
        reaches = {name: self._reach(unit, group, sources, carried) for name, group in groups.items()}
        lines = (line for group in groups.values() for part in group.parts for line in part.lines)
        if reads is None or any(line.rule == "import" for line in lines) or _states(files) != self._states(files):
            return
        known = self._reads[unit] if any(group.is_stored for group in groups.values()) else []
        reads = sorted({file for file in (*reads, *known) if file not in sources})
        entry = {
            "key": self._versions(_is_of_weft(unit)),
            "files": self._digest_of_files(files),
            "skeleton": sources.skeleton,
            "reads": reads,
            "read": self._read(reads),
            "whole": all(group.lasting for group in groups.values()),
            "groups": {
                name: {"parts": [to_json(part) for part in group.parts], "reach": reaches[name]}
                for name, group in groups.items()
                if group.lasting
            },
        }
        # A project in a read-only folder is checked all the same.
        with contextlib.suppress(OSError):
            _write_below_weft(self._file(unit), json.dumps(entry))

    def _read(self, files: Iterable[str]) -> str:
        return self._digest_of_files(tuple(files))

    def _reach(self, unit: Unit, group: Group, sources: Sources, carried: set[Node]) -> dict[str, Any] | None:
        """The definitions that outcomes depend on; None if these depend on all text of all files."""
        if group.ran is None:
            return None
        file, name = str(Path(unit.file).resolve()), group.name.partition(":")[2]
        ran = _nodes(group.ran, sources)
        own = {sources.node(file, name)} if name and file in sources else set[Node]()
        for written in (self._args.get(group.name) or {}).values():
            module, _, name = str(written.get("import") if isinstance(written, dict) else "").partition(":")
            own |= sources.imported(module, name)
        if not group.is_stored:
            reached = sources.reached(own)
            carried |= (ran - reached) | sources.caching(reached)
        roots = own | (ran if group.is_stored else carried)
        return _reach_of(group.parts, roots, sources) if file in sources else None

    def carry(self, unit: Unit, ran: Sequence[Node] | None, carried: set[Node]) -> None:
        """Adds the functions that ran for another question about a unit, and that its names do not lead to."""
        file, sources = str(Path(unit.file).resolve()), self._sources_of(unit)
        carried |= _nodes(ran or (), sources) - sources.reached({(file, "")})

    def _sources_of(self, unit: Unit) -> Sources:
        is_script = "." not in unit.module and not unit.in_package
        return self._sources(unit.root, "" if is_script else unit.module.partition(".")[0], self._files(unit))

    def _sources_now(self, root: str, top: str, files: tuple[str, ...]) -> Sources:
        """The definitions of a package's files; those of unchanged files are stored, because parsing takes long."""
        # A named pipe is a file of the folder, too, and has no end.
        modules = {path: module for path, module in _modules(root, top, files) if os.path.isfile(path)}
        if any(os.path.realpath(path) != path for path in modules):  # code and this would name it by two paths
            modules = {}
        file = self.folder / f"{digest((root, top))[:32]}.sources"
        known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            known = {**json.loads(file.read_text())}
        version = digest((sys.version, self._digest_of_file(str(Path(__file__).with_name("sources.py")))))
        keys = {path: f"{version} {self._digest_of_file(path)}" for path in modules}
        summaries = {path: known[path] for path in modules if known.get(path, {}).get("key") == keys[path]}
        if len(summaries) < len(modules):
            for path in modules.keys() - summaries.keys():
                with contextlib.suppress(OSError):
                    text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
                    made = summary(text, modules[path], Path(path).stem == "__init__")
                    summaries[path] = {**json.loads(json.dumps(made)), "key": keys[path]}
            with contextlib.suppress(OSError):
                _write_below_weft(file, json.dumps(summaries))
        return Sources(modules, summaries, {path: self._digest_of_file(path) for path in modules})

    def _file(self, unit: Unit) -> Path:
        # Paths in lines are relative to the current folder, so each folder has entries of its own.
        return self.folder / f"{digest((os.path.abspath(unit.file), os.getcwd(), self._settings))[:32]}.json"


def _write_below_weft(file: Path, text: str) -> None:
    """Writes a file below the folder `.weft` of a project in one step.

    An editor and a terminal may run at once, and one of them would read half of what the other writes.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # What is below `.weft` is made anew at any time, and must not be committed by mistake.
    ignoring = next(folder for folder in file.parents if folder.name == ".weft") / ".gitignore"
    if not ignoring.exists():
        ignoring.write_text("*\n")
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(file)


def _digest_of_file(path: str) -> str:
    """The digest of a file; "" for a file that cannot be read, and for a named pipe, which has no end."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""


def _states(files: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(map(state_of, files))


def _nodes(functions: Iterable[Sequence[str]], sources: Sources) -> set[Node]:
    """The definitions that functions are in, by file and qualified name; a lambda of a module is in its skeleton."""
    return {sources.node(file, name) for file, name in functions if file in sources and not name.startswith("<")}


def _group(name: str, stored: Mapping[str, Any], sources: Sources | None = None) -> Group:
    """An entry's outcomes of one definition, at the lines where the definitions are now."""
    parts, reach = [from_json(part) for part in stored["parts"]], stored["reach"]
    if sources is not None:
        moves = reach["moves"]
        lines = {(file, line): _line_of(node, index, sources) + after for file, line, node, index, after in moves}
        parts = [moved(part, lambda file, line: lines.get((file, line), line)) for part in parts]
    ran = None if reach is None else [(file, name) for file, name in reach["roots"]]
    return Group(name, parts, ran, is_stored=True)


def _line_of(node: Sequence[str], index: int, sources: Sources) -> int:
    return sources.spans((node[0], node[1]))[index][0]


def _reach_of(parts: Iterable[Checked], roots: set[Node], sources: Sources) -> dict[str, Any] | None:
    """What outcomes depend on, as an object for JSON, with the definitions that their lines are in.

    Returns:
        None if a line cannot be placed: then nothing says whether the outcomes still hold. Otherwise:

        - `roots`: the definitions to begin from; what they lead to is read off the sources again in later runs;
        - `also`: further definitions (or whole files) in which the lines of the outcomes lie;
        - `digest`: of the sources of all of these;
        - `moves`: for each line shown, its definition and how far below that definition's start it is, so that a later
          run shows the line where the definition is then;
        - `fixed`: for each line that a text mentions, the definition and where that begins: it must begin there still.
    """
    nodes, moves, fixed = sources.reached(roots), list[Any](), list[Any]()
    shown, named = set[Node](), set[tuple[str, int]]()
    for part in parts:
        of_texts = places_in_texts(part)
        if of_texts is None:
            return None
        named |= {*of_texts}
        for file, line in places(part):
            if (path := os.path.realpath(file)) not in sources:
                continue
            place = sources.at(path, line)
            if place is None:
                return None
            shown.add(place[0])
            moves.append((file, line, *place, line - _line_of(*place, sources)))
    # `moved` does not rewrite a line number in a text, because the text has the name of a file only, and several files
    # may have that name. So what the text may point to has to stay where it is: a reached definition must begin at the
    # same line, and any other file must not change at all.
    for name, line in named:
        for path in sources.called(name):
            node, index = sources.at(path, line) or ((path, ""), 0)
            is_reached = node in nodes
            fixed.append((node, index, _line_of(node, index, sources)) if is_reached else ((path, ""), 0, 0))
    also = shown | {(node[0], node[1]) for node, _, _ in fixed}
    return {
        "roots": sorted(roots),
        "also": sorted(also),
        "digest": sources.digest_of(nodes | also),
        "moves": moves,
        "fixed": fixed,
    }


def _is_valid(reach: Mapping[str, Any] | None, sources: Sources) -> bool:
    if reach is None:
        return False
    roots, also = ({(file, name) for file, name in reach[key]} for key in ("roots", "also"))
    return sources.digest_of(sources.reached(roots) | also) == reach["digest"] and all(
        not node[1] or _line_of(node, index, sources) == line for node, index, line in reach["fixed"]
    )


def _is_of_weft(unit: Unit) -> bool:
    return unit.root == str(WEFT.parent) and unit.module.partition(".")[0] == "weft"


def _modules(root: str, top: str, files: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The files of a package, or of a script's folder, whose definitions are looked at, with their dotted names."""
    for file in dict.fromkeys(files):
        *inner, name = os.path.relpath(file, root).removesuffix(".py").split(os.sep)
        # The folder of a checkout of weft may have any name, so the package's name stands in place of the folder's.
        module = (*([top, *inner[1:]] if inner else ()), *(() if name == "__init__" and inner else (name,)))
        # weft's own machinery is part of every key, and its tests are imported by nothing else.
        is_other = is_test_or_script(".".join(module)) or not {*module[1:2]}.isdisjoint(MACHINERY)
        if not (is_other and top == "weft" and root == str(WEFT.parent)):
            yield file, module


def _versions(own: bool) -> Iterable[str]:
    """All that every verdict depends on: Python, versions of installed packages, the environment, and weft itself.

    Args:
        own: whether weft's own modules are what is checked, and not part of what checks.
    """
    yield sys.version
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            yield from sorted(name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info")))
    for name in sorted(os.environ):
        if name.startswith(_PREFIXES) and not name.startswith(_NOT_DECIDING):
            yield f"{name}={os.environ[name]}"
    rooms = (WEFT / name for name in (*MACHINERY, *(() if own else ("modules",))))
    for file in (WEFT / "__init__.py", *sorted(file for room in rooms for file in room.rglob("*.py"))):
        yield f"{file}\0{_digest_of_file(str(file))}"
