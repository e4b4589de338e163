"""The builder: gives sizes to dims and ranks to variadic names, and takes options, as an assignment says.

An *assignment* says which size each dim has, how many axes each `*name`, and which option was taken wherever there are
several (an optional argument given or not, a flag on or off). A `Builder` follows it, gives sizes to the dims that it
does not mention, and notes every dim and every option that it met, so that other assignments can be made from them.

A *key* names a size: the dim's name, after the path of the record that it belongs to if records have names of their own
(`layers[0].width`). Integers without a default are sizes too: `Attention(width, heads)` has the keys `width`, `heads`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from weft.core.caches import cached_by
from weft.typecheck.arguments.concolic import Asked, Values
from weft.typecheck.language.annotations import Annotation
from weft.typecheck.language.dims import AnyDim, Dim, FixedDim, NamedDim, Shape, SymbolicDim, UnboundDim, VariadicDim
from weft.typecheck.language.signatures import names_of_class
from weft.typecheck.sizes.dim import is_same

_config: Any = jax.config  # its options are attributes that no type knows

# Distinct primes: no size equals, divides or is a product of others, so a mixed-up axis shows as a wrong shape.
PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)


# How many items a collection of unknown length gets, by the option taken; the first is the default.
ITEMS = (2, 1, 3)


class Unbuildable(Exception):
    """Raised where no value can be made from an annotation; the message names the argument and the reason."""


class Unwritten(Unbuildable):
    """Raised where a function or class leaves its body to other classes, so that there is nothing to call."""


@dataclass(frozen=True)
class Assignment:
    """The sizes, ranks and options of one trial.

    Attributes:
        sizes: by key.
        ranks: how many axes a `*name` has, by key.
        options: which option is taken, by the place that has several.
        merged: the key whose size a key takes, by the key that has no size of its own.
        names_per_record: whether each record has names of its own; else a name has one size throughout.
    """

    sizes: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)
    names_per_record: bool = False


@dataclass
class Scope:
    """The names that one signature or record can use, and what they stand for so far.

    Attributes:
        path: of the record, ending in a dot, with which its keys begin if records have names of their own.
        contract: which scopes share their names: names in one contract are different dims.
        bound, variadics: what names stand for so far.
        values: what the holes of expressions may read.
        lead: axes in front of every array.
        leaf: which leaf of a pytree, for dims that differ from leaf to leaf.
        many: whether the value is an item of a collection, in which each record has names of its own.
        function: whose parameters they are; its body shows what some of them may be.
        owner: the class whose constructor or method it is.
        loose: whether two of its names may be one size, as in a library's layer, which knows no dims of the program.
    """

    path: str = ""
    contract: str = ""
    bound: dict[str, Any] = field(default_factory=dict)
    variadics: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    lead: tuple[Any, ...] = ()
    leaf: str = ""
    many: bool = False
    loose: bool = False
    function: Callable[..., Any] | None = None
    owner: type | None = None

    def contract_of(self, name: str) -> str:
        """The contract that a name of this scope is under."""
        return f"{self.contract}{name}" if self.loose else self.contract


class ConstructorCall(NamedTuple):
    """The call of a class that has made a value."""

    made: Any
    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Builder:
    """Builds values under an assignment, and notes each dim and each option that it meets.

    Attributes:
        sizes: the size given to each key.
        scopes: the paths of the scopes that use a key; keys of one scope are different dims by contract.
        originals: the size that a key has in an instance that is being generalised.
        names, names_outside: the names in the annotations of records, and the names in those of the function.
        leading: the keys that are the first of several axes of an array at the outermost scope.
        ranks: the rank given to each variadic name, with whether the name is anonymous.
        rank_paths, written: the variadic names with the paths of the scopes that use them; the variadic names in a
            function's own annotations.
        options: how many options each place has.
        vocabulary: by contract, the dims that the methods of an object among the arguments name. A dim of the function
            with one of these names is the same dim, and so differs from the other dims of that contract.
        known, made: abstract instances by class and arguments: those of earlier trials, and those of this one.
        vague: the arguments whose annotation leaves open what the code may rely on.
        by_name: the arguments that are random keys by nothing but their names.
        emptied: the collections that are empty because their annotation does not say what the items are.
        open_keys: the keys of the axes of arrays whose annotation gives no shape, each with the place of its array.
        numbers: the keys of sizes that are passed as integers.
        shaped: the sizes that annotations of arrays name.
        classes, chosen_classes: by the place of an abstract class, the names of the subclasses that may stand there,
            and the number of the subclass that does.
        values: the options of a place as written in source, where the options are values.
        standing_in: the abstract classes for which an instance of a subclass is being made.
        inside: the plain classes and protocols for which an instance is being made.
        assumed: the callables that were called although no annotation says what they return.
        texts: the strings that were made up where no annotation or comparison says which strings are meant; `makes_up`
            says whether strings may be made up.
        lenient: whether an annotation that no value satisfies, such as `key: Key`, is read as what it most likely
            means; `bare` has a warning for each.
        asked: the values of the proof that note what is asked of them; `given` has those of this trial, by place.
        is_symbolic: whether sizes are symbolic.
        is_written: whether the values are written into a program, and so are plain.
        fixed: the parameters that stay at their default, with its words, as their annotation does not say what else
            there is.
        own: the parameters with a default that are the program's own, and none of another package's class.
        is_foreign: whether a class belongs to another package than the program that is judged.
        operations: the number of operations in the traces that made records.
        calls: the calls of classes that have made records and collections.
        stand_ins: what was made for callables, each with its annotation.
    """

    def __init__(
        self,
        assignment: Assignment,
        dims: Mapping[str, Any] | None = None,
        known: Mapping[Any, Any] | None = None,
        *,
        lenient: bool = False,
        asked: Asked | None = None,
        is_symbolic: bool = False,
        is_written: bool = False,
        is_foreign: Callable[[type], bool] = lambda _: False,
    ):
        self.assignment = assignment
        # The caller keeps `made` and passes it as `known` to the next trial: initialisers were two thirds of a layer's
        # trial.
        self.known, self.made = known or {}, dict[Any, Any]()
        self.kept = dict(dims or {})
        self.asked = {} if asked is None else asked
        self.given: dict[str, Values] = {}
        self.is_symbolic, self.is_written = is_symbolic, is_written
        self.fixed: dict[str, str] = {}
        self.own: set[str] = set()
        self.is_foreign = is_foreign
        self.sizes: dict[str, Any] = {}
        self.scopes: dict[str, set[str]] = {}
        self.originals: dict[str, int] = {}
        self.leading: set[str] = set()
        self.names: set[str] = set()
        self.names_outside: set[str] = set()
        self.ranks: dict[str, tuple[int, bool]] = {}
        self.rank_paths: set[tuple[str, str]] = set()
        self.written: set[str] = set()
        self.options: dict[str, int] = {}
        self.vague: set[str] = set()
        self.assumed: set[str] = set()
        self.by_name: set[str] = set()
        self.emptied: set[str] = set()
        self.texts: dict[str, str] = {}
        self.makes_up = True
        self.lenient = lenient
        self.bare: set[str] = set()
        self.open_keys: dict[str, str] = {}
        self.numbers: set[str] = set()
        self.shaped: list[Any] = []
        self.operations = 0
        self.calls: list[ConstructorCall] = []
        self.stand_ins: list[tuple[Callable[..., Any], Any]] = []
        self.vocabulary: dict[str, frozenset[str]] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        self.chosen_classes: dict[str, int] = {}
        self.values: dict[str, tuple[str, ...]] = {}
        self.standing_in: tuple[type, ...] = ()
        self.inside: tuple[type, ...] = ()

    @contextlib.contextmanager
    def making_up(self, allowed: bool) -> Iterator[None]:
        """Allows or forbids made-up strings for the length of a `with` block."""
        outer, self.makes_up = self.makes_up, allowed
        try:
            yield
        finally:
            self.makes_up = outer

    def state(self) -> dict[str, Any]:
        """A copy of all notes, for `restore` to go back to if the value that is tried next cannot be built."""
        # The sets inside `scopes` are changed in place, so a copy of the dict alone would not protect them.
        noted = {name: copy.copy(notes) for name, notes in vars(self).items() if isinstance(notes, dict | set | list)}
        return {**noted, "scopes": {key: set(notes) for key, notes in self.scopes.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Forgets the notes made since `state` was called."""
        vars(self).update(state)

    def size(self, name: str, scope: Scope) -> Any:
        """The size of a dim in a scope."""
        if name in scope.bound:
            self.used(scope.bound[name], scope, name)
            return scope.bound[name]
        scope.bound[name] = self.keyed(self.key_of(name, scope), name, scope)
        return scope.bound[name]

    def key_of(self, name: str, scope: Scope) -> str:
        """The key of a name: after the path of its record, if each record has names of its own.

        Then two `Linear` layers need not have the same `out`.
        """
        return scope.path + name if self.assignment.names_per_record else name

    def keyed(self, key: str, name: str, scope: Scope, original: int | None = None) -> Any:
        """The size of a key; `original` is its size in the instance that is being generalised."""
        (self.names if scope.contract else self.names_outside).add(name)
        key = self.assignment.merged.get(key, key)
        self.scopes.setdefault(key, set()).add(scope.contract_of(name))
        if original is not None:
            self.originals.setdefault(key, original)
        if key not in self.sizes:
            # Sizes that the user fixes by key or by name come before those of the assignment.
            size = self.kept.get(key, self.kept.get(name, self.assignment.sizes.get(key)))
            self.sizes[key] = self._fresh() if size is None else size
        return self.sizes[key]

    def contracts_by_key(self) -> dict[str, frozenset[str]]:
        """The contracts whose annotations name each key: keys of one contract are different dims."""
        return {
            key: frozenset(scopes | {scope for scope, names in self.vocabulary.items() if key in names})
            for key, scopes in self.scopes.items()
        }

    def used(self, size: Any, scope: Scope, name: str = "") -> None:
        """Notes that a scope names a dim whose size is known already."""
        for key, known in self.sizes.items():
            if is_same(known, size):
                self.scopes.setdefault(key, set()).add(scope.contract_of(name))

    @property
    def configured(self) -> frozenset[str]:
        """The keys that are integers and name no axis of an array: a number of layers or of heads, for example."""
        # A field that is not an argument has a shape, too: `freqs: "coords bands"`, made of two integers.
        named = frozenset[str]().union(*(names_of_class(call.cls) for call in self.calls))
        return frozenset(
            key
            for key in self.numbers
            if key.rpartition(".")[2] not in named and not any(is_same(size, self.sizes[key]) for size in self.shaped)
        )

    @property
    def by_default(self) -> frozenset[int]:
        """The integers above 1 that configuration objects have by default: no dim and no option varies them.

        A configuration is an object that is the argument of a call which makes another one. An integer of an object
        that is itself called, such as the number of points of a quadrature, is no size of the arrays that it gets.
        """
        # Without this test a quadrature of 20 points made a function "hold when D = 20".
        made_of = {id(argument) for call in self.calls for argument in (*call.args, *call.kwargs.values())}
        return frozenset(
            number
            for call in self.calls
            if id(call.made) in made_of
            for number in _defaults_of_call(call)
            if isinstance(number, int) and not isinstance(number, bool) and number > 1
        )

    def _fresh(self) -> int:
        """A prime that is no size yet."""
        used = {size for size in (*self.sizes.values(), *self.assignment.sizes.values()) if isinstance(size, int)}
        return next(prime for prime in all_primes() if prime not in used)

    def choose(self, place: str, options: int) -> int:
        """The option to take at a place: the first, unless the assignment names another."""
        if options > 1:
            # Noted even where the assignment is silent: the search makes its next assignments from these notes.
            self.options[place] = options
        return min(self.assignment.options.get(place, 0), options - 1)

    def one_of(self, place: str, values: Sequence[Any], words: Callable[[Any], str] = repr) -> Any:
        """One of several values, all of which are noted: a report says `mode = 'sum'` and not "the second option"."""
        self.values[place] = tuple(map(words, values))
        return values[self.choose(place, len(values))]

    def value(self, place: str, *usual: Any) -> Any:
        """A text or a number that notes what is asked of it: one of the usual ones, or of those that questions gave."""
        values = self.asked.setdefault((place, *map(repr, usual)), Values(place, list(usual)))
        self.given[place] = values
        # In other trials sizes are plain numbers, and a comparison with a size would count as one with a constant.
        values.is_heard = self.is_symbolic
        chosen = self.one_of(place, values.extend())
        # A written program has the value in its source, as text.
        return chosen if self.is_written else values.noting(chosen)

    @property
    def ranks_of_records(self) -> frozenset[str]:
        """The `*name`s that only records among the arguments use; the function and its own record do not use them."""
        own = {key for key, path in self.rank_paths if path in ("", "self.")}
        return frozenset(key for key, _ in self.rank_paths if key not in own and key not in self.written)

    def variadic(self, dim: VariadicDim, place: str, scope: Scope) -> tuple[Any, ...]:
        """The axes that a variadic dim stands for, as many as the assignment gives its name."""
        anonymous = dim.name is None
        name = place if dim.name is None else (scope.leaf + dim.name if dim.per_leaf else dim.name)
        if name not in scope.variadics:
            key = self.key_of(name, scope)
            # One axis by default; noting the rank lets the search try others.
            rank = self.assignment.ranks.get(key, 1)
            self.ranks[key] = rank, anonymous
            self.rank_paths.add((key, scope.path))
            scope.variadics[name] = tuple(self.size(f"{name}.{axis}", scope) for axis in range(rank))
        return scope.variadics[name]

    def dim(self, dim: Dim, place: str, scope: Scope) -> tuple[Any, ...]:
        """The axes that one dim of a shape stands for."""
        match dim:
            case FixedDim(size):
                full: Any = size
            case AnyDim():
                # An anonymous dim is a size of its own wherever it stands, so its place is its name.
                return (self.size(place, scope),)
            case VariadicDim():
                axes = self.variadic(dim, place, scope)
                return self._broadcast(dim, axes, place) if dim.broadcastable else axes
            case NamedDim(name):
                full = self.size(scope.leaf + name if dim.per_leaf else name, scope)
                self.shaped.append(full)
            case SymbolicDim():
                full = self._evaluated(dim, scope)
                if isinstance(full, str | tuple | list):
                    raise Unbuildable(f"{place}: `{dim}` is {full!r}, which is not a size")
        # `#` lets an axis be 1, and only a trial at 1 shows whether the program broadcasts there.
        if dim.broadcastable and self.choose(f"{place} broadcast", 2) == 1:
            return (1,)
        return (full,)

    def _broadcast(self, dim: VariadicDim, axes: tuple[Any, ...], place: str) -> tuple[Any, ...]:
        """The axes of a `*#name` in one array: all of them, none, or as many of size 1."""
        ways = ("in full", "()", f"{(1,) * len(axes)}")[: 3 if axes else 1]
        way = self.one_of(f"the `{dim}` of {place.rpartition('[')[0]}", ways, str)
        return axes if way == ways[0] else () if way == "()" else (1,) * len(axes)

    def _evaluated(self, dim: SymbolicDim, scope: Scope) -> Any:
        """The size of an expression, whose holes may name further dims: `{('in','out')[transposed]}`."""
        # In the order of the text: a set of strings has another order in each process, and sizes are dealt in the order
        # in which they are first asked for, so reports would differ from run to run.
        written = sorted(dim.names, key=lambda name: (dim.text.find(name), name))
        named = {name: self.size(name, scope) for name in written}
        self.shaped += named.values()
        # A hole can choose which dim it names, so the names are only known while the expression is evaluated.
        while True:
            try:
                return dim.evaluate(named, scope.values)
            except UnboundDim as unbound:
                if unbound.name in named or unbound.name in dim.arguments:
                    raise
                named[unbound.name] = self.size(unbound.name, scope)

    def shape(self, shape: Shape, place: str, scope: Scope) -> tuple[Any, ...]:
        """The axes of an array."""
        if shape.dims == (VariadicDim(None),):
            open_name = f"{place}...".removeprefix(scope.path)
            self.vague.add(place)
            rank = self.assignment.ranks.get(self.key_of(open_name, scope), 2)
            self.ranks[self.key_of(open_name, scope)] = rank, True
            # Each open axis has a contract of its own, because it may turn out to be the same dim as any other.
            names = [f"{open_name}.{axis}" for axis in range(rank)]
            self.open_keys |= {self.key_of(name, scope): place for name in names}
            return scope.lead + tuple(self.size(name, Scope(scope.path, f"{scope.path}{name}")) for name in names)
        axes = [self.dim(dim, f"{place}[{number}]", scope) for number, dim in enumerate(shape.dims)]
        # Leading axes are noted because an integer that no shape names may be the size of a later axis, never of the
        # first.
        if scope.contract == "" and len(axes) > 1 and axes[0]:
            self.leading |= {key for key, size in self.sizes.items() if is_same(size, axes[0][0])}
        return scope.lead + tuple(size for part in axes for size in part)

    def build(self, annotation: Annotation, place: str, scope: Scope) -> Any:
        """A value of an annotation, built by the function that `BUILDERS` has for the annotation's class.

        Raises:
            Unbuildable: naming the place.
        """
        builder = BUILDERS.get(type(annotation))
        if builder is None:
            raise Unbuildable(f"{place}: weft cannot make a value from the annotation {annotation}")
        return builder(self, annotation, place, scope)


def random_keys() -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of what `jax.random.key` and `jax.random.PRNGKey` return."""
    return _keys_of(_config.jax_default_prng_impl)


@cached_by("implementation", most=8)
def _keys_of(implementation: str) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    # Asked for once, because in a fresh trace even making a key compiles.
    makers = (jax.random.key, jax.random.PRNGKey)
    return jax.eval_shape(lambda: tuple(make(0, impl=implementation) for make in makers))


def all_primes() -> Iterator[int]:
    """`PRIMES`, and then all further primes in order."""
    yield from PRIMES
    candidate = PRIMES[-1] + 2
    while True:
        if all(candidate % divisor for divisor in range(3, int(candidate**0.5) + 1, 2)):
            yield candidate
        candidate += 2


Row = Callable[[Builder, Any, str, Scope], Any]

# How to build a value of each class of annotation; the other modules of this package fill the table on import.
BUILDERS: dict[type, Row] = {}


def _defaults_of_call(call: ConstructorCall) -> Iterator[Any]:
    """The defaults of those parameters of a call that the call leaves at their default."""
    try:
        signature = inspect.signature(call.cls)
        passed = signature.bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):  # a builtin without a signature
        return
    for name, parameter in signature.parameters.items():
        value = passed.get(name, parameter.default)
        if getattr(value, "number", value) is parameter.default:
            yield parameter.default
