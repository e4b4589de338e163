"""The command `weft check`: its options, the run, and the output.

Nothing here imports JAX: if all verdicts are stored, the command ends before an import of JAX would.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from .baseline import Baseline
from .config import Config, ConfigError, Settings, checked, nearest, read
from .formats import FORMATS, Text, as_json, as_sarif, github
from .lines import Checked, Line, joined
from .running import watch
from .shapes_front import add_shapes, show_shapes
from .units import Unit, ignores_in, shown, units_of

# Judges units without workers: one list of parts for each unit, in order.
Judge = Callable[[Sequence[Unit], Settings], Iterator[list[Checked]]]

# The exit code with which shells report a command that SIGPIPE ended.
BROKEN_PIPE = 141
INTERRUPTED = 130
# The same as `modes.MODES`, which cannot be imported here because that would import JAX.
_MODES = ("off", "on", "strict")
_DEFAULTS = Config()
# Commands with modules of their own, imported on request because they import weft.
_OTHERS = {
    "migrate": ("weft.migrate.front", "move a code base from flax.nnx, and list what it uses of equinox"),
    "plan": ("weft.insight.plan.command", "what a training step will cost on a mesh that need not exist"),
    "inspect": ("weft.modules.checkpoints.inspecting", "what a checkpoint holds, without a tree to load it into"),
    "info": ("weft.typecheck.command.info", "versions, devices, modes and caches, for a bug report"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Ends with one line: the usage text, which `--help` prints, would hide the reason in a log."""
        self.exit(2, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The command line; an option that is left out is None, and the configuration has its value."""
    top = _Parser("weft", description="Tools for weft programs.")
    commands = top.add_subparsers(dest="command", required=True)
    for name, (_, summary) in _OTHERS.items():
        commands.add_parser(name, help=summary, add_help=False)  # their own parsers have the help
    command = commands.add_parser(
        "check",
        help="verify the shape contracts of files and modules, for all sizes",
        description="[tool.weft.check] in the nearest pyproject.toml has the values of options that are left out.",
        epilog="Exit code: 0 if nothing fails, 1 if something fails, 2 if something cannot be used or weft fails, "
        "130 if the run was interrupted.",
    )
    add = command.add_argument
    add("names", nargs="*", metavar="PATH|MODULE", help="files, folders, or modules by dotted name")
    add("--format", choices=FORMATS, default="text", help="how to print (default: text)")
    add("-v", "--verbose", action="store_true", help="list warnings, conditions, unchecked contracts and programs")
    add("-q", "--quiet", action="store_true", help="print no warnings, even if something fails")
    add("--only", metavar="REGEX", help="check only functions and classes whose name matches")
    add("--exclude", action="append", metavar="PATTERN", help="leave out files that match (repeat)")
    strict = "warnings and undecided contracts are failures"
    add("--strict", action=argparse.BooleanOptionalAction, default=None, help=strict)
    add("-j", "--jobs", type=int, help="number of processes (default: 0, one for each core)")
    add("--trials", type=int, metavar="N", help=f"traces for each proof (default: {_DEFAULTS.trials})")
    add("--seconds", type=float, metavar="S", help=f"processor time for each proof (default: {_DEFAULTS.seconds:g})")
    add("--memory", type=float, metavar="MB", help=f"memory limit of a process (default: {_DEFAULTS.memory:g})")
    add("--baseline", metavar="FILE", help="file of accepted failures: only new ones fail")
    add("--write-baseline", action="store_true", help="write the failures of this run to the file of --baseline")
    add("--watch", action="store_true", help="check again whenever a file changes, until ^C")
    add("--no-cache", action="store_true", help="neither use nor store verdicts in .weft/cache")
    add_shapes(commands)
    server = commands.add_parser("lsp", help="a language server on standard input and output, for editors")
    server.add_argument("--stdio", action="store_true", help="the default, which some editors ask for")
    server.add_argument("--undecided", action="store_true", help="report undecided contracts, too, as information")
    return top


def main(
    argv: Sequence[str] | None = None,
    judge: Judge | None = None,
    serve: Callable[[argparse.Namespace], int] | None = None,
) -> int:
    """Runs the command and returns its exit code.

    Args:
        argv: the arguments; by default the process's.
        judge: judges units in place of workers; verdicts are not stored then.
        serve: the language server, passed in because it is built on this package.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # Decided before the parser: these commands have options of their own, which this parser does not know.
        if arguments and arguments[0] in _OTHERS:
            code = importlib.import_module(_OTHERS[arguments[0]][0]).main(arguments[1:])
            sys.stdout.flush()
            return code
        options = parser().parse_args(arguments)
        # Contracts are on for the imports if `WEFT_TYPECHECK` names no mode, and the exit code says that it does not.
        mode = os.environ.get("WEFT_TYPECHECK") or "on"
        usable = mode in _MODES
        if not usable:
            print(f"unknown WEFT_TYPECHECK {mode!r}: it is one of {', '.join(_MODES)}", file=sys.stderr)
            os.environ["WEFT_TYPECHECK"] = "on"
        if options.command == "lsp" and serve is not None:
            return serve(options)
        if options.command == "shapes":
            return show_shapes(options)
        config = _configured(options)
        if options.watch:
            return watch(lambda: Run(options, config).go(judge), config)
        code = Run(options, config).go(judge)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python flushes its buffer at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code if usable else 2


def _configured(options: argparse.Namespace) -> Config:
    """The configuration, with the command line's values in place of its own.

    Raises:
        ConfigError: in one line, if a value cannot be used.
    """
    # An unset variable in a CI script gives an empty option, and the command must not check everything then.
    for name in ("only", "exclude", "baseline"):
        if getattr(options, name) == "" or (name == "exclude" and "" in (options.exclude or ())):
            raise ConfigError(f"weft check: --{name} is empty")
    try:
        re.compile(options.only or "")
    except re.error as error:
        raise ConfigError(f"--only is not a regular expression: {options.only!r}: {error}") from None
    config = read(Path.cwd())
    names = options.names or [_from_here(config.root, path) for path in config.paths]
    if not names:
        raise ConfigError(
            "weft check: nothing to check: name files, folders or modules, here or as `paths` of a table "
            "[tool.weft.check] in pyproject.toml"
        )
    values = {name: getattr(options, name) for name in ("strict", "jobs", "trials", "seconds", "memory")}
    baseline = options.baseline or (config.baseline and _from_here(config.root, config.baseline))
    if options.write_baseline and not baseline:
        raise ConfigError("weft check: --write-baseline needs --baseline FILE")
    return checked(
        dataclasses.replace(
            config,
            paths=tuple(names),
            exclude=(*config.exclude, *(options.exclude or ())),
            baseline=baseline,
            only=options.only,
            **{name: value for name, value in values.items() if value is not None},
        )
    )


def _from_here(root: Path, path: str) -> str:
    """A path of the configuration relative to the current folder; a dotted module name is returned as it is."""
    whole = root / path
    return os.path.relpath(whole) if whole.exists() or "/" in path or path.endswith(".json") else path


@dataclass
class Run:
    """One run: its options, and the parts so far."""

    options: argparse.Namespace
    config: Config
    parts: list[Checked] = field(default_factory=list)
    printed: set[Line] = field(default_factory=set)

    @functools.cached_property
    def text(self) -> Text:
        """The printer of text, which remembers the failures that it has printed."""
        return Text(self.options.verbose, self.options.quiet)

    def go(self, judge: Judge | None) -> int:
        """Judges, prints, and returns the exit code."""
        config = self.config
        units, troubles = units_of(config.paths, config.exclude, config.root)
        file = Path(config.baseline) if config.baseline else None
        # Read before any work, so that a broken baseline does not cost a run.
        baseline = Baseline(file) if file and self.options.write_baseline else Baseline.read(file) if file else None
        # A pre-commit hook names the changed files one by one, and the configuration may exclude all of them.
        whole = self.options.exclude or not all(Path(path).is_file() for path in config.paths)
        if whole and config.exclude and not units and not troubles.lines:
            raise ConfigError(f"weft check: nothing to check: {', '.join(config.exclude)} leaves out every file")
        self._say(troubles)
        results = self._results(units) if judge is None else judge(units, self.config.settings)
        judged = itertools.count()
        try:
            for parts in results:
                next(judged)
                for part in parts:
                    self._say(baseline.apply(part) if baseline and not self.options.write_baseline else part)
        except KeyboardInterrupt:
            # No baseline is written, and nothing is called unused: the rest of the files was not looked at.
            print(f"weft check: interrupted, {next(judged)} of {len(units)} files were judged", file=sys.stderr)
            return self._print_end(INTERRUPTED)
        # With `--only`, markers and targets outside of it were not looked at, and all of them would be reported.
        if self.options.only is None:
            self._say(Checked(tuple(self._without_effect(units, baseline))))
        return self._end(baseline)

    def _results(self, units: Sequence[Unit]) -> Iterator[list[Checked]]:
        from .running import results  # here, because a test with a judge of its own needs no hashes and no processes

        config, root = self.config, None if self.options.no_cache else self.config.root
        # A container may use fewer cores than the machine has.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return results(units, config.settings, config.jobs or cores, config.memory, root)

    def _say(self, part: Checked) -> None:
        """Adds a part, and prints its lines at once if the format allows; a line is printed once.

        A helper that fails has a line from each of its callers.
        """
        part = dataclasses.replace(part, lines=tuple(line for line in part.lines if line not in self.printed))
        self.printed |= set(part.lines)
        self.parts.append(part)
        streamed = {"text": self.text.lines, "github": github}.get(self.options.format)
        for line in streamed(part) if streamed else ():
            print(line, flush=True)

    def _without_effect(self, units: Sequence[Unit], baseline: Baseline | None) -> Iterator[Line]:
        """Lines about markers, baseline entries and names in the configuration that had no effect.

        A misspelt name in the configuration would otherwise fix no size, and nobody would notice.
        """
        level = "error" if self.config.strict else "warning"
        outcome = joined(self.parts)
        broken = {line.file for line in outcome.lines if line.rule == "import"}  # no marker in these was reached
        files = [file for file in (shown(unit.file) for unit in units) if file not in broken]
        for file in files:
            for number in ignores_in(file):
                if (file, number) not in outcome.marks:
                    yield Line(
                        level, file, number, "weft: ignore", "the marker has no finding to ignore", "unused-ignore"
                    )
        if baseline is not None and not self.options.write_baseline:
            yield from baseline.stale(files)
        modules = {unit.module for unit in units if shown(unit.file) not in broken}
        pyproject = nearest(Path.cwd())
        for target in dict.fromkeys([*self.config.dims, *self.config.args]):
            if target.partition(":")[0] in modules and target not in outcome.targets:
                message = (
                    f"[tool.weft.check] configures {target!r}, and no public function or class of that name is checked"
                )
                yield Line(level, shown(pyproject or ""), 0, "weft check", message, "unknown-target")

    def _end(self, baseline: Baseline | None) -> int:
        """Prints the end of the report, and returns the exit code."""
        outcome = joined(self.parts)
        code = outcome.exit_code
        if baseline is not None and self.options.write_baseline:
            count = baseline.write(outcome.lines)
            print(f"{baseline.file}: {count} failures are accepted", file=sys.stderr)
            # Writing a baseline accepts the failures, so the command has succeeded.
            code = 0 if code == 1 else code
        # If nothing matched `--only`, nothing was checked, and exit code 0 would say that all is well.
        if self.options.only is not None and not outcome.targets and code == 0:
            print(f"weft check: --only {self.options.only!r} matches the name of no function or class", file=sys.stderr)
            code = 2
        return self._print_end(code)

    def _print_end(self, code: int) -> int:
        outcome = joined(self.parts)
        if self.options.format == "text":
            print("\n".join(self.text.end(outcome, code)))
        elif self.options.format == "github":
            print(outcome.summary)
        else:
            print({"json": as_json, "sarif": as_sarif}[self.options.format](outcome, code, Path.cwd()))
        return code
