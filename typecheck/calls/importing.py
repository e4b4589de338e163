"""install_import_hook: checks the contracts of packages that do not use weft, while their code runs.

A finder at the head of `sys.meta_path` loads the modules of the named packages with one more decorator. On each
annotated function it is the innermost, so that other decorators (`jax.jit`, `custom_vjp`, `property`) wrap checked
code. On each class it is the outermost, so that it sees the result of `@dataclass`. The code is compiled again at each
import and never written to disk: the files in `__pycache__` are those of the package without the hook.

Code of other packages may do what weft's users may not. A function with an unreadable annotation is left unchecked and
listed in the hook's `unread`. If the fields of an instance do not fit (half initialised, stacked, or a part), only the
fields that fit bind dims. The fields and methods of weft's own Modules check themselves.
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

# The decorator's name in the loaded modules. It is set before a module runs and not imported by it: no line moves.
_NAME = "__weft_contract__"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class ImportHookError(WeftError, ImportError):
    """An import hook that cannot check a package, for example because it is imported already."""


class ImportHook(MetaPathFinder):
    """The finder that `install_import_hook` returns; as a context manager it uninstalls itself.

    Attributes:
        packages: the packages whose contracts are checked.
        unread: the functions and classes that are left unchecked, with the reasons.
        decorates_all: whether to decorate also functions that check themselves with `jaxtyped`.

    >>> hook = ImportHook(["that_package"])
    >>> hook.covers("that_package.layers"), hook.covers("another")
    (True, False)
    """

    decorates_all = False

    # The error for a package that is imported already, and its fix.
    too_late = (
        "the hook adds contracts to a package while it is imported, and this package is imported already",
        "install the hook before the package is first imported",
    )

    def __init__(self, packages: Sequence[str]):
        self.packages = tuple(packages)
        self.unread: dict[str, str] = {}

    def __enter__(self) -> ImportHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def install(self) -> Self:
        """Puts the finder in place: contracts of modules imported from now on are checked.

        Raises:
            ImportHookError: if one of the packages is imported already.
        """
        # Functions of a loaded module cannot be replaced: `jax.jit` and other modules hold references to them.
        imported = sorted(filter(self.covers, sys.modules))
        if imported:
            problem, fix = self.too_late
            raise ImportHookError(problem, at=imported[:3], fix=fix)
        sys.meta_path.insert(0, self)
        return self

    def uninstall(self) -> None:
        """Removes the finder; modules that were loaded with it go on checking."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module of the packages as Python does, with `_Loader` as its loader."""
        if not self.covers(fullname):
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                # If another hook loads the module, its loader stays: jaxtyping's hook checks the same contracts.
                if type(spec.loader) is importlib.machinery.SourceFileLoader:
                    spec.loader = _Loader(spec.loader.name, spec.loader.path, self)
                return spec
        return None

    def covers(self, module: str) -> bool:
        """Whether a module is one of the packages or inside one."""
        return any(module == package or module.startswith(f"{package}.") for package in self.packages)

    def not_checked(self) -> dict[str, str]:
        """The functions, classes and packages that were to be checked and are not, with the reasons."""
        missing = [package for package in self.packages if package not in sys.modules]
        reasons = {**self.unread, **dict.fromkeys(missing, "no module has imported it")}
        if jaxtyping.config.jaxtyping_disable:
            reasons["all"] = "JAXTYPING_DISABLE is set, which switches off the contracts of other packages"
        return reasons

    def checked(self, thing: Any) -> Any:
        """The decorator: returns a function or class that checks its contract."""
        # String annotations may name locals of the function in which the definition stands.
        visible = sys._getframe(1).f_locals
        if isinstance(thing, type):
            return self._class(thing)
        return self._function(thing, visible)

    def _function(self, function: Callable[..., Any], visible: Mapping[str, Any]) -> Callable[..., Any]:
        """A function that checks its contract at each call, once its annotations could be read."""
        plans: list[FunctionPlan | None] = []
        # A constructor is called on an instance that has no fields yet.
        is_method = function.__name__ not in ("__init__", "__new__", "__post_init__", "__init_subclass__")

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if _is_off() or getattr(checked, "__no_type_check__", False):
                return function(*args, **kwargs)
            # At the first call: at definition time, annotations may name classes that are defined further down.
            if not plans:
                plans.append(self._plan(function, owner_of(cast(Any, function), args) if is_method else None, visible))
            plan = plans[0]
            if plan is None:
                return function(*args, **kwargs)
            try:
                return calls.run(plan, function, args, kwargs, lenient=True)
            except WeftError as error:  # the traceback shows the package's frames as if it were not decorated
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
        """The class, whose instances check their fields once they are made."""
        form = form_of(cls)
        if form is DATACLASS and "__init__" in vars(cls):
            self._after(cls, "__init__")
        elif form is MODULE and not issubclass(cls, Module) and dataclasses.fields(cast(Any, cls)):
            self._after(cls, "__check_init__")  # none without fields: a package may look for its own `__check_init__`
        return cls

    def _after(self, cls: Any, name: str) -> None:
        """Checks the fields of an instance after a method of its class, such as `__init__`, has run."""
        original = vars(cls).get(name)

        def method(instance: Any, *args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            if original is not None:
                original(instance, *args, **kwargs)
            # The instance of a subclass with a method of its own is complete after that one, which checks the fields.
            if getattr(type(instance), name) is method and not _is_off():
                try:
                    CONTRACTS.initialised(instance)
                except AnnotationError as error:
                    self._not_checked(cls, error)

        setattr(cls, name, method if original is None else functools.wraps(original)(method))

    def _not_checked(self, thing: Any, error: Exception) -> None:
        self.unread[f"{thing.__module__}.{thing.__qualname__}"] = str(error).splitlines()[0]


def _is_off() -> bool:
    """Whether no contract is checked now: by weft's mode, or by jaxtyping's switch, which packages may set as well."""
    return current_mode() == "off" or jaxtyping.config.jaxtyping_disable


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with the decorator on its functions and classes."""

    def __init__(self, name: str, path: str, hook: ImportHook):
        super().__init__(name, path)
        self.hook = hook

    def get_code(self, fullname: str) -> CodeType:
        # Not from `__pycache__`, whose files have no decorator; and nothing is written there.
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
    """Puts the decorator on the annotated functions and all classes of a module, at any depth.

    Definitions under `no_type_check` are left out with all definitions inside them. Unless `all_of_it`, so are
    definitions under `jaxtyped` with a type checker, but not the definitions inside them.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _Definition):
            if "no_type_check" in map(_name, node.decorator_list):
                continue
            if all_of_it or not any(map(_has_checker, node.decorator_list)):
                decorator = ast.copy_location(ast.Name(_NAME, ast.Load()), node)
                # First in the list is outermost: `@dataclass` has added `__init__` when the decorator runs.
                if isinstance(node, ast.ClassDef):
                    node.decorator_list.insert(0, decorator)
                # Last in the list is innermost: `jax.jit` and others then wrap the checked function.
                elif node.returns is not None or any(
                    isinstance(part, ast.arg) and part.annotation is not None for part in ast.walk(node.args)
                ):
                    node.decorator_list.append(decorator)
        pending += ast.iter_child_nodes(node)
    ast.fix_missing_locations(tree)


def _name(decorator: ast.expr) -> str:
    """The last part of a decorator's name: `jaxtyped` for `@jaxtyping.jaxtyped(typechecker=beartype)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _has_checker(decorator: ast.expr) -> bool:
    """Whether a decorator is `jaxtyped` with a type checker; without a checker it binds names and checks nothing."""
    if _name(decorator) != "jaxtyped" or not isinstance(decorator, ast.Call):
        return False
    checkers = [keyword.value for keyword in decorator.keywords if keyword.arg == "typechecker"]
    return any(not (isinstance(checker, ast.Constant) and checker.value is None) for checker in checkers)


def install_import_hook(packages: str | Sequence[str], *more: str) -> ImportHook:
    """Checks the contracts of packages that are imported from now on: functions, dataclasses and equinox Modules.

    It does the work of jaxtyping's hook of this name with weft's contracts. The fields of an instance bind the dims of
    its methods, and a dim expression may read any argument. Errors say what is wrong, where, and what to do. Dims of a
    call hold in its body, for `isinstance(y, Float[Array, "a b"])`, and dims bound there hold for the result. Functions
    under `jaxtyped(typechecker=...)` are left to jaxtyping, definitions under `typing.no_type_check` are left alone.

    Args:
        packages: the names of packages or modules; none of them may be imported yet.
        more: further names.

    Returns:
        The hook; `with install_import_hook("package"): import package`, or `hook.uninstall()`.

    Raises:
        ImportHookError: if a package or a part of it is imported already, or a name is no string, such as the type
            checker that jaxtyping's hook takes.

    >>> with install_import_hook("this_package", "that_package.layers") as hook:
    ...     hook.packages
    ('this_package', 'that_package.layers')
    """
    names = (*((packages,) if isinstance(packages, str) else packages), *more)
    not_names = [name for name in names if not isinstance(name, str)]
    if not_names:
        raise ImportHookError(
            f"the name of a package must be a string, and this is {not_names[0]!r}",
            fix="leave out the type checker that jaxtyping's hook takes: this hook has its own",
        )
    return ImportHook(names).install()


__all__ = ["ImportHook", "ImportHookError", "decorate", "install_import_hook"]
