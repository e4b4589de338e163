"""equinox to weft: the transforms, and modules that hold arrays only.

Most of equinox stays: its layers and tools work on weft's records and in weft's transforms. Where a transform of both
means the same for what a function takes and returns (`known.py`), weft's takes its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from .equinox_files import Around, called, is_plain_error_if
from .findings import Changes, Left, written
from .imports import replace_statement
from .known import ARRAY, NUMBER, TREE, UNKNOWN, Known
from .reading import as_node, dotted

_MOVED = {
    "equinox.filter_jit": "weft.jit",
    "equinox.filter_grad": "weft.grad",
    "equinox.filter_value_and_grad": "weft.value_and_grad",
    "equinox.filter_vmap": "weft.vmap",
}
_BY_HAND = {
    "tree_at": "weft.at(model)....set(value), where it is one leaf",
    "partition": "weft.split and weft.merge",
    "tree_serialise_leaves": "weft.save_checkpoint, which reads other files than equinox's",
    "tree_deserialise_leaves": "weft.load_checkpoint, which reads other files than equinox's",
    "filter_checkpoint": "weft.remat",
    "filter_eval_shape": "weft.eval_shape",
    "filter_make_jaxpr": "weft.make_jaxpr",
    "filter_shard": "weft.shard",
    "filter_vjp": "weft.vjp",
    "filter_jvp": "weft.jvp",
    "filter_pmap": "weft.pmap",
    "filter_custom_vjp": "weft.custom_vjp",
    "filter_custom_jvp": "weft.custom_jvp",
}
_AXES = re.compile(r"[\s\d,()\-]|None")
# What is no number and yet a leaf of equinox's modules only.
_LEAVES = re.compile(r"Callable|\bstr\b|optax|GradientTransformation|OptState|ndarray")
_ANNOTATE = "annotate what is an array or a module, if it is one"


def changes_of(known: Known, around: Around) -> Changes:
    """What of a file's equinox is moved, and what is left."""
    return _EquinoxFile(known, around).changes


@dataclass(frozen=True)
class _Doubt(Exception):
    """Why something stays."""

    why: str
    fix: str = ""


class _EquinoxFile:
    def __init__(self, known: Known, around: Around):
        self.known, self.around = known, around
        self.reader = reader = known.reader
        self.changes = Changes()
        self.moved: set[cst.CSTNode] = set()
        self.said: set[str] = set()
        for node in reader.nodes:
            if isinstance(node, (cst.Name, cst.Attribute)) and not self._is_part(node):
                self._use(node)
        if self.moved:
            self._imports()

    def _is_part(self, node: cst.CSTNode) -> bool:
        """Whether a name is part of a longer one, or of an import."""
        above = self.reader.parent(node)
        if isinstance(above, cst.Attribute):
            return True
        return any(isinstance(one, (cst.Import, cst.ImportFrom)) for one in self.reader.around(node)[:6])

    def _left(self, node: cst.CSTNode, doubt: _Doubt, what: str = "") -> None:
        line = self.reader.line(node)
        self.changes.left.append(Left(self.reader.source.path, line, what or written(node), doubt.why, doubt.fix))

    def _use(self, node: cst.Name | cst.Attribute) -> None:
        names = self.reader.imported(node)
        name = next((one for one in sorted(names) if one.split(".")[0] == "equinox"), "")
        try:
            if name in _MOVED and self.reader.means(node) != name:
                raise _Doubt("the name may mean something else, too")
            if name in _MOVED:
                self._transform(node, name)
            elif is_plain_error_if(self.reader, node):
                self._check_names()
                if self.around.tied:
                    raise _Doubt(f"{self.around.tied} needs equinox's own transforms")
                self._move(node, name, [], [])
            elif name == "equinox.Module":
                self._class(node)
            elif name.split(".")[1:2] and name.split(".")[1] in _BY_HAND and name not in self.said:
                self.said.add(name)
                raise _Doubt("it stays equinox's, and works on weft's records", _BY_HAND[name.split(".")[1]])
        except _Doubt as doubt:
            self._left(node, doubt)

    def _transform(self, node: cst.Name | cst.Attribute, name: str) -> None:
        """A use of a transform: as a decorator, as a decorator with options, or called with a function."""
        self._check_names()
        if self.around.tied:
            raise _Doubt(f"{self.around.tied} needs equinox's own transforms")
        above = self.reader.parent(node)
        if isinstance(above, cst.Decorator):
            function = self.reader.parent(above)
            assert isinstance(function, cst.FunctionDef)
            static = self._check(name, function, [])
            self._move(node, name, [], static)
            return
        if not (isinstance(above, cst.Call) and above.func is node):
            raise _Doubt("it is used as a value")
        outer = self.reader.parent(above)
        if isinstance(outer, cst.Attribute):
            raise _Doubt(f"`{outer.attr.value}` is asked of what it gives")
        if isinstance(outer, cst.Assign):
            for target in outer.targets:
                self._check_attributes(dotted(target.target))
        if isinstance(outer, cst.Decorator):
            function = self.reader.parent(outer)
            assert isinstance(function, cst.FunctionDef)
            options = list(above.args)
        else:
            if not above.args or above.args[0].keyword is not None or above.args[0].star:
                raise _Doubt("what it transforms is not plain")
            first, *options = above.args
            function = self._function(first.value)
        static = self._check(name, function, options)
        self._move(node, name, list(above.args), static)

    def _function(self, node: cst.BaseExpression) -> cst.FunctionDef:
        if isinstance(node, cst.Lambda):
            raise _Doubt("a lambda does not say what it takes", "a function with annotations")
        if not isinstance(node, cst.Name):
            raise _Doubt("what it transforms is not a function of this file")
        function = self.known.functions.get(node.value)
        if function is not None and not function.decorators and node.value not in self._parameters_around(node):
            return function
        for around in self.reader.around(node):
            if isinstance(around, cst.FunctionDef):
                for one in around.params.params:
                    if one.name.value == node.value and one.annotation and not self.known.stores(around, node.value):
                        called = self.known.call_of(one.annotation.annotation)
                        if called is not None:
                            return called
                break
        raise _Doubt("what it transforms is not a function of this file, without decorators")

    def _parameters_around(self, node: cst.CSTNode) -> set[str]:
        around = [one for one in self.reader.around(node) if isinstance(one, cst.FunctionDef)]
        return {name for one in around for name, _ in self.known.parameters(one)}

    def _check(self, name: str, function: cst.FunctionDef, options: list[cst.Arg]) -> list[str]:
        """Whether both mean the same for a function; gives the parameters that are static.

        Raises:
            _Doubt: if they may not.
        """
        if function.asynchronous is not None:
            raise _Doubt("an asynchronous function")
        if any(self.reader.means(called(one.decorator)) not in _MOVED for one in function.decorators):
            raise _Doubt("what it transforms has other decorators")
        if function.decorators:
            self._check_attributes(function.name.value)
        self._check_options(name, options)
        kinds = dict(self.known.parameters(function))
        one = self.known.of_modules(function) if self.around.stacks else None
        if one is not None:
            raise _Doubt(
                f"`{one}` may be a stack of modules, which a contract tells from one", "annotate it Batched[...]"
            )
        if name in ("equinox.filter_grad", "equinox.filter_value_and_grad"):
            if self.around.kinds:
                raise _Doubt("there are kinds of weft's, of which weft.grad differentiates Params only")
            first = next(iter(kinds.items()), ("", UNKNOWN))
            if first[1] not in (ARRAY, TREE):
                raise _Doubt(f"`{first[0]}` may be a number, which only weft differentiates", _ANNOTATE)
            return []
        static = [one for one, kind in kinds.items() if kind == NUMBER]
        if static and name != "equinox.filter_jit":
            raise _Doubt(f"`{static[0]}` is a number", "in_axes with None there")
        doubtful = next((one for one, kind in kinds.items() if kind == UNKNOWN), None)
        if doubtful is not None:
            raise _Doubt(f"`{doubtful}` may be a number, and is static in equinox only", _ANNOTATE)
        if self.known.returned(function) not in (ARRAY, TREE):
            raise _Doubt("it may return a number, which equinox leaves as it is", _ANNOTATE)
        return static

    def _check_attributes(self, name: str) -> None:
        """`step.lower`, `step.__wrapped__`: what equinox's wrapper has beside the call."""
        for node in self.reader.nodes:
            if isinstance(node, cst.Attribute) and name and dotted(node.value) == name:
                raise _Doubt(f"`{written(node)}` is asked of it")

    def _check_options(self, name: str, options: list[cst.Arg]) -> None:
        taken = {"equinox.filter_vmap": ("in_axes", "out_axes", "axis_name", "axis_size")}
        taken |= dict.fromkeys(("equinox.filter_grad", "equinox.filter_value_and_grad"), ("has_aux",))
        for option in options:
            keyword = option.keyword.value if option.keyword else ""
            if keyword not in taken.get(name, ()):
                raise _Doubt(f"it is given `{written(option)}`")
            if keyword in ("in_axes", "out_axes") and _AXES.sub("", written(option.value)):
                raise _Doubt(f"`{written(option)}` may say more than axes", "weft.axes, for axes by filter")

    def _check_names(self) -> None:
        if "weft" in self.reader.stored:
            raise _Doubt("the name `weft` is taken in this file", "call that otherwise")

    def _move(self, node: cst.Name | cst.Attribute, name: str, args: list[cst.Arg], static: list[str]) -> None:
        self.moved.add(node)
        new = as_node(_MOVED.get(name) or f"weft.{name.rpartition('.')[2]}")
        if not static:
            self.changes.edits[node] = lambda old: new
            return
        names = ", ".join(f'"{one}"' for one in static)
        option = cst.parse_expression(f"f(static_argnames=({names}{',' if len(static) == 1 else ''}))")
        assert isinstance(option, cst.Call)
        if args:
            call = self.reader.parent(node)
            assert isinstance(call, cst.Call)
            self.changes.edits[call] = lambda old: old.with_changes(
                func=new,
                args=[
                    *old.args[:-1],
                    old.args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))),
                    *option.args,
                ],
            )
        else:
            self.changes.edits[node] = lambda old: option.with_changes(func=new)

    def _class(self, node: cst.Name | cst.Attribute) -> None:
        """A base class: weft's holds annotations, and takes numbers and functions for configuration."""
        above = self.reader.parent(node)
        definition = self.reader.parent(above) if isinstance(above, cst.Arg) else None
        if not isinstance(definition, cst.ClassDef):
            return  # an annotation, or isinstance: weft's records are equinox.Modules
        self._check_names()
        if len(definition.bases) > 1 or definition.keywords or definition.decorators:
            raise _Doubt("a class with other bases, keywords or decorators")
        if self.around.stacks:
            raise _Doubt(
                "modules are stacked, which contracts tell from one", "weft.Module, and Batched[...] for stacks"
            )
        lines = [line.body for line in definition.body.body if isinstance(line, cst.SimpleStatementLine)]
        annotations = [one.annotation.annotation for line in lines for one in line if isinstance(one, cst.AnnAssign)]
        takes_arrays = any("Array" in written(one) or self.known.annotated(one) == ARRAY for one in annotations)
        if takes_arrays and (file := self.around.numpy.get(definition.name.value)) is not None:
            why = f"{file} makes it and has arrays of NumPy, which a field annotated with Array does not take"
            raise _Doubt(why, "weft.Module, where it is made with jax.numpy's")
        if definition.name.value in self.around.bases:
            raise _Doubt("other classes derive from it")
        fields = 0
        for line in definition.body.body:
            if isinstance(line, cst.FunctionDef):
                self._method(line)
            elif isinstance(line, cst.SimpleStatementLine):
                for one in line.body:
                    fields += self._field(one)
        if not fields:
            raise _Doubt("a class without fields")
        self._move(node, "equinox.Module", [], [])

    def _method(self, method: cst.FunctionDef) -> None:
        if method.name.value in ("replace", "__setstate__", "__getattr__", "__setattr__"):
            raise _Doubt(f"weft's records have a `{method.name.value}` of their own")
        if any((self.reader.means(called(one.decorator)) or "").startswith("jaxtyping.") for one in method.decorators):
            raise _Doubt("its annotations are held by jaxtyping")

    def _field(self, line: cst.BaseSmallStatement) -> bool:
        if isinstance(line, (cst.Expr, cst.Pass)):
            return False
        if not isinstance(line, cst.AnnAssign) or not isinstance(line.target, cst.Name):
            raise _Doubt("something in its body is neither a field nor a method")
        name = line.target.value
        if name == "replace":
            raise _Doubt("weft's records have a `replace` of their own")
        if line.value is not None:
            called = self.reader.means(line.value.func) if isinstance(line.value, cst.Call) else None
            if called != "equinox.field":
                raise _Doubt(f"the field `{name}` has a default", "weft.Module, if it is no number or function")
            assert isinstance(line.value, cst.Call)
            options = {one.keyword.value: written(one.value) for one in line.value.args if one.keyword}
            if options == {"static": "True"} and self.known.annotated(line.annotation.annotation) != UNKNOWN:
                return True
            raise _Doubt(f"the field `{name}` has options")
        kind = self.known.annotated(line.annotation.annotation)
        if kind not in (ARRAY, TREE) or _LEAVES.search(written(line.annotation.annotation)):
            why = f"the field `{name}` may hold a number or a function, which is a leaf in equinox only"
            raise _Doubt(why, "weft.Module, if nothing looks at it as a leaf")
        return True

    def _imports(self) -> None:
        """`import weft` beside the imports of equinox; of those, what is not used any more goes."""
        first = True
        for node in self.reader.nodes:
            if not isinstance(node, (cst.Import, cst.ImportFrom)) or not self._is_equinox(node):
                continue
            if not first and self._is_outermost(node):
                continue
            first = False
            keep = self._kept(node)
            ours = cst.Import([cst.ImportAlias(cst.Name("weft"))])
            replace_statement(self.reader, node, [*([keep] if keep else []), ours], self.changes)

    def _is_outermost(self, node: cst.CSTNode) -> bool:
        return not any(isinstance(one, (cst.FunctionDef, cst.ClassDef)) for one in self.reader.around(node))

    def _is_equinox(self, node: cst.Import | cst.ImportFrom) -> bool:
        if isinstance(node, cst.ImportFrom):
            return not node.relative and dotted(node.module).split(".")[0] == "equinox"
        return any(dotted(one.name).split(".")[0] == "equinox" for one in node.names)

    def _kept(self, node: cst.Import | cst.ImportFrom) -> cst.Import | cst.ImportFrom | None:
        """The statement without names that nothing uses any more."""
        if isinstance(node.names, cst.ImportStar):
            return node
        used = {dotted(one).split(".")[0] for one in self._used()}
        texts = [one.value for one in self.reader.nodes if isinstance(one, cst.SimpleString)]
        kept = [
            one
            for one in node.names
            if not self._was_moved(node, one)
            or (bound := _bound(one)) in used
            or any(re.search(rf"\b{bound}\b", text) for text in texts)
        ]
        if len(kept) == len(node.names):
            return node
        kept = [*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if kept else []
        return node.with_changes(names=kept) if kept else None

    def _was_moved(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> bool:
        """Whether a name was used for something that moved; one that nothing used stays as it was."""
        bound = _bound(alias)
        return any(dotted(one).split(".")[0] == bound for one in self.moved)

    def _used(self) -> list[cst.CSTNode]:
        return [
            node
            for node in self.reader.nodes
            if isinstance(node, (cst.Name, cst.Attribute))
            and node not in self.moved
            and not self._is_part(node)
            and self.reader.imported(node)
        ]


def _bound(alias: cst.ImportAlias) -> str:
    return dotted(alias.asname.name) if alias.asname else dotted(alias.name).split(".")[0]
