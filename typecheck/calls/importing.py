"""install_import_hook: contracts of packages that have never heard of weft, checked while their code runs.

A finder at the head of `sys.meta_path` loads the modules of the named packages with one decorator more: innermost on
each annotated function, so that what other decorators make of it (`jax.jit`, `custom_vjp`, `property`) holds checked
code; outermost on each class, so that it sees what `@dataclass` has made. The code is compiled anew at each import and
never kept on disk: files in `__pycache__` are those of the package without the hook.

What a stranger's code may do, and weft's own may not, passes: an annotation that cannot be read leaves its function
unchecked, and says so in the hook's `unread`; of an instance whose fields do not fit (one half-initialised, stacked, or
in parts) only what fits binds dims. Fields of weft's own Modules, and their methods, check themselves.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType
from typing import Any, Self, cast

import jaxtyping
from weft.core.errors import WeftError
from weft.core.records.module import Module
from weft.core.tracebacks import cut
from weft.typecheck.calls import calls
from weft.typecheck.calls.plans import FunctionPlan, function_plan, owner_of
from weft.typecheck.calls.runtime import CONTRACTS
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.forms import DATACLASS, MODULE, form_of
from weft.typecheck.modes import current_mode

# What the decorator is called in the modules that are loaded: set before they run, so that no line of theirs moves.
_NAME = "__weft_contract__"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


_NO_CHECKER = "leave the type checker out that jaxtyping's hook takes: this one checks by itself"


class ImportHookError(WeftError, ImportError):
    """Contracts cannot be switched on for a package."""


class ImportHook(MetaPathFinder):
    """What `install_import_hook` gives: a finder, and a context manager that uninstalls it.

    Attributes:
        packages: whose contracts are checked.
        unread: the functions and classes that are not checked, each with the reason.
        decorates_all: whether the decorator is for what checks itself, too.

    >>> hook = ImportHook(["that_package"])
    >>> hook.covers("that_package.layers"), hook.covers("another")
    (True, False)
    """

    decorates_all = False

    # What is said where a package is imported already, and the way out.
    too_late = (
        "contracts are put into a package as it is imported, and this one is",
        "install the hook before the first import of it",
    )

    def __init__(self, packages: Sequence[str]):
        self.packages = tuple(packages)
        self.unread: dict[str, str] = {}

    def __enter__(self) -> ImportHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def install(self) -> Self:
        """Checks what is imported from now on.

        Raises:
            ImportHookError: if a package is imported already.
        """
        imported = sorted(filter(self.covers, sys.modules))
        if imported:
            what, fix = self.too_late
            raise ImportHookError(what, at=imported[:3], fix=fix)
        sys.meta_path.insert(0, self)
        return self

    def uninstall(self) -> None:
        """Leaves modules that are imported from now on as they are; those that were, go on checking."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the modules of the packages as Python does, to be loaded by `_Loader`."""
        if not self.covers(fullname):
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                # A loader of another hook's keeps its work: jaxtyping's own checks the same contracts.
                if type(spec.loader) is importlib.machinery.SourceFileLoader:
                    spec.loader = _Loader(spec.loader.name, spec.loader.path, self)
                return spec
        return None

    def covers(self, module: str) -> bool:
        """Whether a module is one of the packages, or in one."""
        return any(module == package or module.startswith(f"{package}.") for package in self.packages)

    def has_loaded(self, spec: importlib.machinery.ModuleSpec) -> bool:
        """Whether a module was loaded with the decorator."""
        return isinstance(spec.loader, _Loader) and spec.loader.hook is self

    def not_checked(self) -> dict[str, str]:
        """What nobody should take for checked, with the reason: what cannot be read, and what was not loaded so."""
        missing = [one for one in self.packages if one not in sys.modules]
        found = {**self.unread, **dict.fromkeys(missing, "nothing has imported it")}
        if jaxtyping.config.jaxtyping_disable:
            found["all"] = "JAXTYPING_DISABLE is set, which switches contracts of other packages off"
        return found

    def checked(self, thing: Any) -> Any:
        """The decorator: a function or a class with its contracts."""
        visible = sys._getframe(1).f_locals
        if isinstance(thing, type):
            return self._class(thing)
        return self._function(thing, visible)

    def _function(self, function: Callable[..., Any], visible: Mapping[str, Any]) -> Callable[..., Any]:
        plans: list[FunctionPlan | None] = []
        # A constructor is called on an instance that has no fields yet.
        is_method = function.__name__ not in ("__init__", "__new__", "__post_init__", "__init_subclass__")

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if _is_off() or getattr(checked, "__no_type_check__", False):
                return function(*args, **kwargs)
            if not plans:
                plans.append(self._plan(function, owner_of(cast(Any, function), args) if is_method else None, visible))
            plan = plans[0]
            if plan is None:
                return function(*args, **kwargs)
            try:
                return calls.run(plan, function, args, kwargs, lenient=True)
            except WeftError as error:  # an error of the package's own is shown as it would be without its contracts
                cut(error)
                raise

        return checked

    def _plan(self, function: Any, owner: type | None, visible: Mapping[str, Any]) -> FunctionPlan | None:
        try:
            plan = function_plan(function, owner, visible)
        except (AnnotationError, ValueError) as error:
            self._not_checked(function, error)
            return None
        return None if plan.idle else plan

    def _class(self, cls: type) -> type:
        form = form_of(cls)
        if form is DATACLASS and "__init__" in vars(cls):
            self._after(cls, "__init__")
        elif form is MODULE and not issubclass(cls, Module) and dataclasses.fields(cast(Any, cls)):
            self._after(cls, "__check_init__")  # without fields a package that looks for these finds its own only
        return cls

    def _after(self, cls: Any, name: str) -> None:
        """Checks the fields of an instance when the class's own method has run."""
        original = vars(cls).get(name)

        def method(instance: Any, *args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            if original is not None:
                original(instance, *args, **kwargs)
            if type(instance) is cls and cls.__qualname__ not in self.unread and not _is_off():
                try:
                    CONTRACTS.initialised(instance)
                except AnnotationError as error:
                    self._not_checked(cls, error)

        setattr(cls, name, method if original is None else functools.wraps(original)(method))

    def _not_checked(self, thing: Any, error: Exception) -> None:
        self.unread[f"{thing.__module__}.{thing.__qualname__}"] = str(error).splitlines()[0]


def _is_off() -> bool:
    """Whether nothing is checked now: by weft's mode, or by jaxtyping's switch, which packages turn, too."""
    return current_mode() == "off" or jaxtyping.config.jaxtyping_disable


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with the decorator on what it defines."""

    def __init__(self, name: str, path: str, hook: ImportHook):
        super().__init__(name, path)
        self.hook = hook

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # pyright: ignore[reportIncompatibleMethodOverride]
        tree = ast.parse(importlib.util.decode_source(data) if isinstance(data, bytes) else data, str(path))
        decorate(tree, all_of_it=self.hook.decorates_all)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _NAME, self.hook.checked)
        super().exec_module(module)


def decorate(tree: ast.Module, all_of_it: bool = False) -> None:
    """Puts the decorator on the annotated functions and the classes of a module, at any depth.

    Left alone, with all that is in them: what `no_type_check` is on, and, but for `all_of_it`, what `jaxtyped` checks.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _Definition):
            if any(_name(one) == "no_type_check" for one in node.decorator_list):
                continue
            if all_of_it or not any(_checks_itself(one) for one in node.decorator_list):
                _decorate(node)
        pending += ast.iter_child_nodes(node)
    ast.fix_missing_locations(tree)


def _decorate(node: _Definition) -> None:
    decorator = ast.copy_location(ast.Name(_NAME, ast.Load()), node)
    if isinstance(node, ast.ClassDef):
        node.decorator_list.insert(0, decorator)
        return
    given = node.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    if node.returns is not None or any(one is not None and one.annotation is not None for one in parameters):
        node.decorator_list.append(decorator)


def _name(decorator: ast.expr) -> str:
    """The last name of a decorator: `jaxtyped` of `@jaxtyping.jaxtyped(typechecker=beartype)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _checks_itself(decorator: ast.expr) -> bool:
    """Whether it is `jaxtyped` with a type checker, as the bare one binds names and checks nothing."""
    if _name(decorator) != "jaxtyped" or not isinstance(decorator, ast.Call):
        return False
    given = [one.value for one in decorator.keywords if one.arg == "typechecker"]
    return any(not (isinstance(one, ast.Constant) and one.value is None) for one in given)


def install_import_hook(packages: str | Sequence[str], *more: str) -> ImportHook:
    """Checks the contracts of packages that are imported from now on: their functions, dataclasses, equinox Modules.

    What jaxtyping's hook of this name does, with weft's contracts: the fields of an instance bind the dims of its
    methods, a dim expression may read any argument, and errors say what, where and what to do. Dims that a call has
    bound hold in its body, for `isinstance(y, Float[Array, "a b"])`, and what these bind holds for the result. What
    `jaxtyped(typechecker=...)` checks already is left to it, and what `typing.no_type_check` is on is left alone.

    Args:
        packages: the names of packages or modules; none of them may be imported yet.
        more: further names.

    Returns:
        The hook; `with install_import_hook("package"): import package`, or `hook.uninstall()`.

    Raises:
        ImportHookError: if a package, or a part of one, is imported already, or a name is no string: jaxtyping's hook
            takes a type checker, too, and this one checks by itself.

    >>> with install_import_hook("this_package", "that_package.layers") as hook:
    ...     hook.packages
    ('this_package', 'that_package.layers')
    """
    names = (*((packages,) if isinstance(packages, str) else packages), *more)
    others = [name for name in names if not isinstance(name, str)]
    if others:
        raise ImportHookError(f"the name of a package is a string, and this is {others[0]!r}", fix=_NO_CHECKER)
    return ImportHook(names).install()


__all__ = ["ImportHook", "ImportHookError", "decorate", "install_import_hook"]
