"""Which functions of a file may make modules: where one of these is mapped over, modules are stacked."""

from __future__ import annotations

from functools import cached_property

import libcst as cst

from .known import ARRAY, HOLDERS, NUMBER, OTHERWISE, Known
from .reading import dotted, names_in

# Of these a value is a module only if one of its parts may be.
_CONTAINERS = tuple(one for one in HOLDERS if one != "jaxtyping.PyTree")


class Making(Known):
    """What one file says of its functions, and of which of them may make modules."""

    @cached_property
    def _gives(self) -> dict[cst.FunctionDef, bool]:
        return {}

    def makes_modules(self, node: cst.CSTNode) -> bool:
        """Whether a function that is mapped over may return modules."""
        if isinstance(node, cst.Lambda):
            body = node.body
            calls_maker = isinstance(body, cst.Call) and self._makes(body.func)
            return calls_maker or any(self._has_module(child) for child in body.children)
        if not isinstance(node, cst.Name):
            return False  # a method or a layer
        if node.value in self.functions:
            return self.gives_modules(self.functions[node.value])
        # What is no function or class of the file is a parameter or a variable, and a model as a rule.
        return self.is_module(node) or self._elsewhere(self._means(node)) or bool(self._means(node))

    def _makes(self, called: cst.BaseExpression) -> bool:
        """Whether what a lambda calls may return modules; a model that it calls, and a library's function, do not."""
        if isinstance(called, cst.Name):
            return self.makes_modules(called)
        if self._means(called):
            return self._means(called).split(".")[0] not in ("jax", "numpy", "math", "jaxtyping")
        methods = [one for one in self.reader.nodes if isinstance(one, cst.FunctionDef) and self._is_method(one)]
        name = dotted(called).rpartition(".")[2]
        return any(self.gives_modules(one) for one in methods if one.name.value == name)

    def gives_modules(self, function: cst.FunctionDef) -> bool:
        """Whether a function may return modules: by its annotation, or by each of its `return`s."""
        if function not in self._gives:
            self._gives[function] = False  # for who calls itself
            if function.returns is not None:
                gives = self._may_hold_modules(function.returns.annotation)
            else:
                found = [one for one in self._inside.get(function, ()) if isinstance(one, (cst.Return, cst.Yield))]
                values = [one.value for one in found]
                gives = any(
                    isinstance(one, cst.BaseExpression) and self._may_be_module(one, function) for one in values
                )
            self._gives[function] = gives
        return self._gives[function]

    def _may_hold_modules(self, annotation: cst.BaseExpression) -> bool:
        match annotation:
            case cst.Subscript() if (self._means(annotation.value) or dotted(annotation.value)) in _CONTAINERS:
                inner = [one.slice.value for one in annotation.slice if isinstance(one.slice, cst.Index)]
                return any(map(self._may_hold_modules, inner))
            case cst.BinaryOperation():
                return self._may_hold_modules(annotation.left) or self._may_hold_modules(annotation.right)
            case cst.Ellipsis() | cst.Name(value="None" | "str"):
                return False
            case _:
                return self.annotated(annotation) not in (ARRAY, NUMBER)

    def _assigned(self, function: cst.FunctionDef, name: str) -> list[cst.Assign]:
        """The assignments that bind a name, if nothing else does."""
        if name in [one for one, _ in self.parameters(function)]:
            return []
        binds = [one for one in self._inside.get(function, ()) if isinstance(one, OTHERWISE)]
        if any(name in [one.value for one in names_in(node.target)] for node in binds):
            return []
        assigned = [one for one in self._inside.get(function, ()) if isinstance(one, cst.Assign)]
        return [
            one for one in assigned if name in [it.value for target in one.targets for it in names_in(target.target)]
        ]

    def _may_be_module(
        self, node: cst.BaseExpression, function: cst.FunctionDef, seen: frozenset[str] = frozenset()
    ) -> bool:
        if self.value(node, function) in (ARRAY, NUMBER):
            return False
        match node:
            case cst.Tuple() | cst.List():
                return any(self._may_be_module(one.value, function, seen) for one in node.elements)
            case cst.Name():
                if node.value == "None" or node.value in seen:
                    return False
                given = [one.value for one in self._assigned(function, node.value)]
                return not given or any(self._may_be_module(one, function, seen | {node.value}) for one in given)
            case cst.Call():
                return self._means(node.func).startswith(("jax.tree", "equinox.")) or self._makes(node.func)
            case cst.Subscript():
                return self._may_be_module(node.value, function, seen)
            case _:
                return not isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison))
