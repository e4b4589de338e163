"""Migrates flax.nnx to weft.nnx: rewrites imports, and expressions that spell out `flax.nnx`.

The rest of a program stays as it is. But objects of both libraries must not be mixed: a file in which flax.nnx
has to stay keeps all files of its group, which a program may load together, with flax.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

import libcst as cst

from .findings import Changes, Finding, written
from .imports import move_from, replace_statement
from .nnx_names import has, is_neutral, module_for
from .project import Project, Source
from .reading import Reader, as_node, dotted, names_of

_NNX = "flax.nnx"
_NAME = re.compile(r"flax\.(experimental\.)?nnx(\.\w+)*")
_WRITTEN_OUT = re.compile(r"\bflax\.nnx\b")
# Names of flax.nnx's internals: code that overrides or reads them works on flax's objects only.
_PRIVATE = re.compile(r"_(pytree__|graph_node_|object__)\w*")
_LIBRARY = re.compile(rb"^\s*(from flax import .*\bnnx\b|import flax\.nnx|from flax\.nnx)", re.MULTILINE)
# Libraries that do not create objects of flax.nnx; some import it in an experimental module.
_KNOWN = ("flax", "weft", "jax", "jaxlib", "numpy", "scipy", "optax", "orbax", "etils", "chex", "equinox", "jaxtyping")
_STAYS = "objects of flax.nnx and weft.nnx must not be mixed"


def changes_of(reader: Reader, project: Project) -> Changes:
    """Returns the edits and findings of a file for flax.nnx."""
    return _FlaxFile(reader, project).changes


class _FlaxFile:
    def __init__(self, reader: Reader, project: Project):
        self.reader, self.project = reader, project
        self.changes = Changes()
        self.parts: list[cst.Attribute] = []  # expressions `flax.nnx`
        self.texts: list[cst.SimpleString] = []  # annotations as strings that contain `flax.nnx`
        self.keeps_root = False  # whether `flax` is used for more than `flax.nnx`
        self._said: set[str] = set()  # parts of flax that were listed already
        self.imports: list[cst.Import | cst.ImportFrom] = []
        for node in reader.nodes:
            # References are read before imports are rewritten: whether `import flax` stays depends on all uses of
            # `flax`.
            self._look(node)
        for node in self.imports:
            if isinstance(node, cst.ImportFrom):
                self._import_from(node)
            else:
                self._import(node)
        self._write_out()

    def _report(self, node: cst.CSTNode, why: str, fix: str = "", holds: bool = True, code: str = "") -> None:
        work = "rewrite" if holds else "none"
        place = self.reader.source.path, self.reader.line(node)
        self.changes.findings.append(Finding(*place, code or written(node), why, fix, holds, work))

    def _look(self, node: cst.CSTNode) -> None:
        match node:
            case cst.Import() | cst.ImportFrom():
                self.imports.append(node)
            case cst.Attribute() | cst.Name():
                self._reference(node)
            case cst.SimpleString() if not self.reader.is_docstring(node):
                self._string(node)
            case cst.Del() | cst.AssignTarget() | cst.AugAssign():
                target = node.target
                if isinstance(target, cst.Attribute) and _NNX in self.reader.imported(target.value):
                    self._report(target, "the file changes an attribute of flax.nnx", "remove this, or change weft.nnx")
            case _:
                pass

    def _string(self, node: cst.SimpleString) -> None:
        """Rewrites string annotations; any other string with the name of a module may be imported at run time."""
        value = node.evaluated_value
        if any(isinstance(parent, cst.Annotation) for parent in self.reader.around(node)):
            if _WRITTEN_OUT.search(node.value):
                # A string annotation is evaluated in the file's namespace, so it moves together with the imports.
                self.texts.append(node)
        elif isinstance(value, str) and _NAME.fullmatch(value):
            self._report(
                node, "a string has the name of a module of flax.nnx", "write weft's module, if the string is imported"
            )

    def _reference(self, node: cst.Attribute | cst.Name) -> None:
        above = self.reader.parent(node)
        # Names inside of import statements are handled with the statement.
        if isinstance(above, (cst.ImportAlias, cst.AsName)) or self.reader.in_import(node):
            return
        # Code that reads `_pytree__nodes` was written for flax's objects, even where weft.nnx has an attribute of this
        # name.
        if isinstance(node, cst.Name) and _PRIVATE.fullmatch(node.value):
            self._report(node, "it is an internal name of flax.nnx's objects; those of weft.nnx have other internals")
        for name in self.reader.imported(node):
            if name == _NNX and isinstance(node, cst.Attribute):
                self.parts.append(node)
            is_base = isinstance(above, cst.Attribute) and above.value is node
            if name == "flax" and isinstance(node, cst.Name) and not (is_base and _names(above) == "nnx"):
                self.keeps_root = True
                if not is_base:
                    # `getattr(flax, "nnx")` would find flax.nnx only if another file imports it.
                    self._report(node, "the package `flax`, with its nnx, is used as a value", "write flax.nnx instead")
            if name.startswith(f"{_NNX}.") and not is_base and not has(name):
                self._report(node, f"weft.nnx has no {name.removeprefix(_NNX + '.')}", "use names that both have")
            # `nnx` passed as a value, `f(nnx)`: nobody can tell which names are looked up in it.
            if name == _NNX and not is_base:
                self._whole(node, above)
            is_other = name.startswith("flax.") and not name.startswith(_NNX)
            if is_other and not is_base and isinstance(node, cst.Attribute):
                self._report_dotted(node, name)

    def _report_dotted(self, node: cst.Attribute, name: str) -> None:
        """Lists a use like `flax.struct.dataclass` after `import flax`; names imported by `from` are listed there."""
        if dotted(node).split(".")[0] == "flax":
            part = ".".join(name.split(".")[:2])
            # One finding for `flax.struct` is enough; a part that keeps the file with flax is listed at every place.
            if not is_neutral(name) or part not in self._said:
                self._said.add(part)
                self._report_part(node, name)

    def _whole(self, node: cst.CSTNode, above: cst.CSTNode | None) -> None:
        """Lists a use of the module as a value: the names that are looked up in it later are unknown."""
        if isinstance(above, cst.Arg):
            call = self.reader.parent(above)
            if isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value == "setattr":
                self._report(call, "the file changes an attribute of flax.nnx", "remove this, or change weft.nnx")
                return
        self._report(node, "the names looked up in it are unknown; weft.nnx has every public name", holds=False)

    def _report_part(self, node: cst.CSTNode, name: str) -> None:
        """Lists a use of another part of flax, which stays. Unless it is neutral, it keeps the file with flax."""
        if is_neutral(name):
            self._report(node, "it stays flax's", holds=False, code=name)
        elif name == "flax.config" or name.startswith(("flax.config.", "flax.configurations")):
            self._report(node, "it has the switches of flax.nnx; weft.nnx has its own", "weft.nnx.config.config")
        elif name.startswith("flax.experimental.nnx"):
            self._report(node, "flax has removed this name", "import flax.nnx, then migrate")
        else:
            why = "it may read objects of flax.nnx, and does not support those of weft.nnx"
            self._report(node, why, "remove or replace this use first", code=name)

    def _import_from(self, node: cst.ImportFrom) -> None:
        module = "." * len(node.relative) + dotted(node.module)
        names = names_of(node)
        if module.split(".")[0] != "flax":
            # `from compat import flax`: what `flax` means here is decided in another file, which may assign it.
            if "flax" in names and self.project.meant(f"{module}.flax", self.reader.source):
                self._report(node, "another file's `flax` is imported", "import flax itself here")
            return
        if names == ["*"]:
            # A star import may bind any name, so no name in the file is known to come from flax.nnx, or not to.
            if module.startswith(_NNX) or module == "flax":
                self._report(node, "the names of a star import are unknown", "import names")
            return
        to: dict[str, tuple[str, str]] = {}
        for name in names:
            whole = f"{module}.{name}"
            if whole == _NNX:
                to[name] = ("weft", "nnx")
            elif module == _NNX or module.startswith(f"{_NNX}."):
                ours = module_for(module, name)
                if ours is None:
                    self._report(node, f"weft.nnx has no {whole.removeprefix(_NNX + '.')}", "use names that both have")
                else:
                    to[name] = (ours, name)
            else:
                self._report_part(node, whole)
        if to:
            move_from(self.reader, node, to, self.changes)

    def _import(self, node: cst.Import) -> None:
        """Rewrites `import flax`, `import flax.nnx` and `import flax.nnx as nnx`, also among others in a statement."""
        new: list[cst.ImportAlias] = []
        for alias in node.names:
            name = dotted(alias.name)
            of_nnx = name == _NNX or name.startswith(f"{_NNX}.")
            ours = module_for(name) if of_nnx else None
            if of_nnx and ours is None:
                self._report(node, f"weft.nnx has no {name.removeprefix(_NNX + '.')}", "use names that both have")
            if name.startswith("flax.") and not of_nnx:
                self._report_part(node, name)
            is_flax = name == "flax" or name.startswith("flax.")
            # `import flax.struct as struct` binds that part alone, and stays.
            if not is_flax or (alias.asname and not of_nnx and name != "flax"):
                new.append(alias)
            elif alias.asname and of_nnx:
                new.append(alias.with_changes(name=as_node(ours or name)))
            elif of_nnx:
                # `import flax.nnx` binds `flax`, and other parts of flax may be used by that name.
                root = [alias.with_changes(name=cst.Name("flax"))] if self.keeps_root else []
                new += [*root, alias.with_changes(name=as_node(ours or name))]
            else:
                # `import flax` may serve `flax.nnx`, other parts of flax, or both.
                keeps = self.keeps_root or not self._is_written_out or name != "flax"
                new += [alias] if keeps else []
                new += [cst.ImportAlias(as_node("weft.nnx"))] if self._is_written_out else []
        # An edit without a change would count the file as one that uses flax.nnx.
        if [dotted(alias.name) for alias in new] == [dotted(alias.name) for alias in node.names]:
            return
        plain = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in new]
        # A line `import a, b` is what linters refuse, so a statement with one name becomes several statements.
        if len(node.names) == 1 and len(plain) > 1:
            replace_statement(self.reader, node, [cst.Import([alias]) for alias in plain], self.changes)
        else:
            self.changes.edits[node] = lambda old: old.with_changes(names=plain)

    def _write_out(self) -> None:
        """Rewrites `flax.nnx.X` to `weft.nnx.X`, unless `weft` or `flax` means something else in the file."""
        written_out = [*self.parts, *self.texts, *self._roots()]
        if not written_out:
            return
        where, stored = written_out[0], self.reader.stored
        if "weft" in stored:
            self._report(where, "the file binds the name `weft`", "rename that")
        if "flax" in stored:
            self._report(where, "the file binds the name `flax` in several ways", "import flax.nnx as nnx")
        is_listed = any(isinstance(n, cst.SimpleString) and n.evaluated_value == "flax" for n in self.reader.nodes)
        has_list = any(isinstance(n, cst.Name) and n.value == "__all__" for n in self.reader.nodes)
        if is_listed and has_list and not self.keeps_root:
            self._report(where, "`__all__` has the name `flax`", "import flax.nnx as nnx")
        for part in self.parts:
            self.changes.edits[part] = lambda old: old.with_changes(value=cst.Name("weft"))
        for text in self.texts:
            self.changes.edits[text] = lambda old: old.with_changes(value=_WRITTEN_OUT.sub("weft.nnx", old.value))

    @property
    def _is_written_out(self) -> bool:
        return bool(self.parts or self.texts)

    def _roots(self) -> list[cst.CSTNode]:
        """The edited imports that bind the name `flax`."""
        return [
            node
            for node in self.changes.edits
            if isinstance(node, cst.Import)
            and any(dotted(alias.name).split(".")[0] == "flax" and not alias.asname for alias in node.names)
        ]


def _names(node: cst.CSTNode | None) -> str:
    return node.attr.value if isinstance(node, cst.Attribute) else ""


def foreign(source: Source, project: Project) -> list[Finding]:
    """Finds imports of libraries that use flax.nnx themselves: their objects stay flax's."""
    # Objects that such a library creates are flax's, and the program would mix them with weft's.
    tops = {name.split(".")[0] for name in source.imports if not name.startswith(".")}
    return [
        Finding(source.path, 1, f"import {top}", f"the library uses flax.nnx; {_STAYS}", holds=True)
        for top in sorted(tops)
        if top and top not in _KNOWN and not project.has_top(top) and _is_over_flax(top)
    ]


@cache
def _is_over_flax(top: str) -> bool:
    try:
        spec = importlib.util.find_spec(top)
    # `find_spec` raises ValueError for a module without a spec, such as `__main__`.
    except (ImportError, ValueError):
        return False
    folders: Collection[str] = (spec.submodule_search_locations or ()) if spec else ()
    return any(_LIBRARY.search(file.read_bytes()) for folder in folders for file in Path(folder).rglob("*.py"))
