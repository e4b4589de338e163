"""pyrefly on the corpus: `python tests/typecheck/pyrefly.py`.

pyrefly 1.4 checks shapes where its stubs for JAX are found and each function declares its dims by a decorator. So the
declarations that its documentation asks for are written into a copy of every program, with the names that its own
annotations use, and pyrefly looks at both versions. It and the stubs are wheels at a pinned version, unpacked into a
cache folder (`WEFT_PYREFLY`, by default `~/.cache/weft-pyrefly`): the stubs would not install before Python 3.12.

Prints in how many programs it objects to the wrong version, to the right one, and to the wrong one alone; once as it
says it, and once without what it says of annotations and names that it does not know.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import corpus

VERSION = "1.4.0"
WHEELS = ("pyrefly==1.4.1", f"jax-pyrefly-stubs=={VERSION}", f"pyrefly-shape-extensions=={VERSION}")
CACHE = Path(os.environ.get("WEFT_PYREFLY", Path.home() / ".cache" / "weft-pyrefly"))
# What it says where it does not follow: `Float[Array, "2*n"]`, functions that the stubs leave out, PEP 695.
LIMITS = ("invalid-annotation", "missing-attribute", "unknown-name", "invalid-syntax")
_DECLARATION = "from shape_extensions import static_jaxtyping"
_NAME = re.compile(r"[A-Za-z]\w*")


def unpacked() -> Path:
    """The folder with pyrefly and its stubs, made on first use."""
    if not (CACHE / VERSION).exists():
        with tempfile.TemporaryDirectory() as wheels:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "--python-version", "3.12", "--dest", wheels, *WHEELS], check=True)
            CACHE.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                for wheel in Path(wheels).glob("*.whl"):
                    zipfile.ZipFile(wheel).extractall(Path(scratch) / "site")
                (Path(scratch) / "site").rename(CACHE / VERSION)
    return CACHE / VERSION


def dims_of(annotation: ast.AST) -> Iterator[str]:
    """The names in the shapes of an annotation, `*` before those of several axes."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
            shape = node.slice.elts[1]
            for word in shape.value.split() if isinstance(shape, ast.Constant) and isinstance(shape.value, str) else ():
                stars = "*" if word.startswith(("*", "#*")) else ""
                yield from (stars + name for name in _NAME.findall(word) if not word.startswith("_"))


def declared(source: str) -> str:
    """A program with a declaration on each function and class that writes shapes."""
    tree, lines = ast.parse(source), source.split("\n")
    where: list[tuple[int, int, list[str]]] = []

    def visit(body: list[ast.stmt], known: frozenset[str]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                written = [statement.annotation for statement in node.body if isinstance(statement, ast.AnnAssign)]
            elif isinstance(node, ast.FunctionDef):
                arguments = node.args
                parameters = (
                    *arguments.posonlyargs,
                    *arguments.args,
                    *arguments.kwonlyargs,
                    arguments.vararg,
                    arguments.kwarg,
                )
                written = [
                    parameter.annotation
                    for parameter in parameters
                    if parameter is not None and parameter.annotation is not None
                ]
                written += [node.returns] if node.returns is not None else []
            else:
                continue
            names = [name for annotation in written for name in dims_of(annotation)]
            if names:
                new = [name for name in dict.fromkeys(names) if name not in known]
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                where.append((first, node.col_offset, new))
            visit(node.body, known | {*names})

    visit(tree.body, frozenset())
    for line, indent, names in sorted(where, reverse=True):
        lines.insert(line - 1, " " * indent + f'@static_jaxtyping("{" ".join(names)}")')
    imports = [statement for statement in tree.body if isinstance(statement, ast.Import | ast.ImportFrom)]
    after = [statement for statement in imports if getattr(statement, "module", "") != "__future__"]
    lines.insert(after[0].lineno - 1, _DECLARATION)
    return "\n".join(lines)


def errors_of(folder: Path) -> list[tuple[str, str, str]]:
    """What pyrefly says: the version, the program and the kind of each error."""
    site, root = unpacked(), folder / "root"
    root.mkdir()
    (root / "weft").symlink_to(Path(__file__).resolve().parents[2])
    (folder / "pyrefly.toml").write_text("")
    paths = ["--search-path", str(site), "--search-path", str(root)]
    paths += ["--site-package-path", sysconfig.get_path("purelib"), "--python-version", "3.12"]
    command = next(site.glob("*.data/scripts/pyrefly"), site / "bin" / "pyrefly")
    command.chmod(0o755)
    files = sorted(str(program) for version in corpus.VERSIONS for program in (folder / version).glob("*.py"))
    done = subprocess.run(
        [str(command), "check", "--config", str(folder / "pyrefly.toml"), *paths, "--output-format", "json", *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    errors = json.loads(done.stdout)["errors"]
    return [(*Path(error["path"]).parts[-2:], error["name"]) for error in errors]


def main() -> None:
    """Prints the counts."""
    with tempfile.TemporaryDirectory() as folder:
        for version in corpus.VERSIONS:
            (Path(folder) / version).mkdir()
            for program in corpus.PROGRAMS:
                (Path(folder) / version / program.name).write_text(declared(corpus.source(program, version)))
        errors = errors_of(Path(folder))
    for name, without in (("as it is", ()), ("without its limits", LIMITS)):
        wrong, right = (
            {program for version, program, kind in errors if version == one and kind not in without}
            for one in ("wrong", "right")
        )
        counts = f"{len(wrong)} wrong found, {len(right)} false alarms, {len(wrong - right)} wrong alone"
        print(f"{WHEELS[0]}, {name}: {counts}, of {len(corpus.PROGRAMS)} programs")


if __name__ == "__main__":
    main()
