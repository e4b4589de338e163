"""What is asked for beside paths: recorded calls, a script to record, one call, an explanation."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import Config, ConfigError
from .lines import Checked
from .recorded import PLACE, digest_of, read_calls, write_calls
from .units import units_of

# A process of its own: whatever a script does, and prints, is not the command's.
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from weft.typecheck.recording.program import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Asked:
    """The calls that verdicts may be made of.

    Attributes:
        settings: of `Settings`, as workers are told.
        paths: what to check, if that is not what was given.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


def check_options(options: argparse.Namespace) -> None:
    """Fills in what `--call` and `--explain` say of what is to be checked.

    Raises:
        ConfigError: in one line, for options that do not go together.
    """
    empty = [name for name in ("only", "baseline", "calls", "run", "call", "explain") if getattr(options, name) == ""]
    if empty or "" in (options.exclude or ()):
        raise ConfigError(f"weft check: --{(empty or ['exclude'])[0]} is empty")
    sources = [name for name in ("calls", "run", "call") if getattr(options, name)]
    if len(sources) > 1:
        raise ConfigError(f"weft check: {' and '.join('--' + one for one in sources)} are not used together")
    if options.call and options.names:
        raise ConfigError("weft check: --call names its function itself: leave out the paths")
    if options.explain:
        _check_explain(options)


def _check_explain(options: argparse.Namespace) -> None:
    place, _, name = options.explain.rpartition(":")
    if place:
        options.names = [*options.names, place]
    if not name or options.only is not None:
        raise ConfigError("weft check: --explain takes the name of a function, class or method, and no --only")
    first = name.partition(".")[0]
    options.only = rf"^{re.escape(first)}(\.|$)"
    options.explain = name


def explained(part: Checked, name: str) -> Checked:
    """A part with the failures of one function, class or method only, each with the program that shows it."""
    lines = [one for one in part.lines if one.name == name or one.name.startswith(f"{name}.")]
    lines += [one for one in part.lines if one.level in ("unusable", "crash") and one not in lines]
    told = [
        dataclasses.replace(one, message=f"{one.message}\n\n{_indented(one.program)}\n")
        if one.level == "error"
        else one
        for one in lines
    ]
    return dataclasses.replace(part, lines=tuple(told))


def _indented(program: str) -> str:
    return "\n".join(f"    {line}" for line in (program or "# no program of ten lines shows it").splitlines())


def calls_for(options: argparse.Namespace, config: Config) -> Asked:
    """The recorded calls that are in force: those of a file, of a script, or one.

    Raises:
        ConfigError: in one line, if they cannot be used.
    """
    if options.call:
        return _called(options, config)
    if options.run:
        return _ran(options, config)
    file = Path(options.calls) if options.calls else config.root / PLACE
    if not options.calls and not file.exists():
        return Asked()
    return _of(file)


def _of(file: Path, **more: Any) -> Asked:
    read_calls(file)
    return Asked({"calls": os.path.abspath(file), "digest": digest_of(file), **more})


def _called(options: argparse.Namespace, config: Config) -> Asked:
    answer = _started(config, {"call": options.call, "roots": [os.getcwd()]})
    calls, file = answer["calls"], answer["file"]
    (name,) = calls
    if file is None:
        raise ConfigError(f"weft check: --call: {name} is not Python's to read: its module has no file")
    options.only = f"^{re.escape(name.partition(':')[2])}$"
    asked = _of(_kept(config, calls), only_calls=True)
    return dataclasses.replace(asked, paths=(os.path.relpath(file),))


def _ran(options: argparse.Namespace, config: Config) -> Asked:
    try:
        arguments = shlex.split(options.run)
    except ValueError as error:
        raise ConfigError(f"weft check: --run {options.run!r}: {error}") from None
    if not arguments:
        raise ConfigError("weft check: --run needs a script")
    units, _ = units_of(config.paths, config.exclude, config.root)
    script = Path(arguments[0]).resolve()
    modules = [unit.module for unit in units if Path(unit.file).resolve() == script]
    request = {
        "run": arguments,
        "packages": sorted({unit.module.partition(".")[0] for unit in units}),
        "aliases": dict(zip(["__main__"], modules, strict=False)),
        "roots": sorted({unit.root for unit in units}),
    }
    return _of(_kept(config, _started(config, request)["calls"]))


def _kept(config: Config, calls: Mapping[str, list[Any]]) -> Path:
    """The calls of this run, in a file beside the recorded ones: workers read it, and verdicts are kept by it."""
    file = (config.root / PLACE).with_name("asked.json")
    try:
        write_calls(file, calls)
    except OSError as error:
        raise ConfigError(f"{file}: the calls cannot be written: {error.strerror or error}") from None
    return file


def _started(config: Config, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a process recorded; one that fails is said, and what it has recorded until then is used."""
    folder = (config.root / PLACE).parent
    answer = folder / f"answer.{os.getpid()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", _START, json.dumps(sys.path), json.dumps({**request, "to": str(answer.resolve())})],
            stdin=subprocess.DEVNULL,
            env={"JAX_PLATFORMS": "cpu", **os.environ} if "call" in request else None,
            stdout=sys.stderr if _has_number(sys.stderr) else None,
            check=False,
        )
        found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"weft check: calls could not be recorded: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            answer.unlink(missing_ok=True)
    if "error" in found:
        raise ConfigError(f"weft check: --{'call' if 'call' in request else 'run'}: {found['error']}")
    if done.returncode:
        what = "the call" if "call" in request else f"{' '.join(request['run'])}"
        if not found:
            raise ConfigError(f"weft check: {what} could not be run")
        if not found.get("calls"):
            raise ConfigError(f"weft check: {what} ended with exit code {done.returncode}, and nothing was recorded")
        print(f"{what} ended with exit code {done.returncode}; its calls until then are used", file=sys.stderr)
    elif not found["calls"]:
        print("nothing was recorded: no annotated function of what is checked was called", file=sys.stderr)
    return found


def _has_number(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True
