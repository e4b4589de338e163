"""Methods, functions and `@contract`: what is checked around a call, in which scope."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, ArrayLike, Float, Int
from weft import ContractError, Module
from weft.core.hooks import call_checked
from weft.errors import AnnotationError
from weft.typecheck import contract

from ..layers import Linear, linear


@contract
def double(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jnp.concatenate([x, x]) if len(x) == 3 else x * 2


def test_arguments_and_results_are_one_scope():
    assert double(jnp.ones(2)).shape == (2,)
    with pytest.raises(ContractError, match=r"return value of double should be f32\[n=3\], and is f32\[6\]"):
        double(jnp.ones(3))


def test_every_sort_of_parameter_is_checked():
    @contract
    def function(
        a: Float[Array, "n"], /, b: int, *rest: Float[Array, "n"], c: str, **more: Float[Array, "n"]
    ) -> None: ...

    short, long = jnp.ones(1), jnp.ones(2)
    function(short, 1, short, c="", d=short)
    for call, place in (
        (lambda: function(1.0, 1, c=""), "argument a"),
        (lambda: function(short, "b", c=""), "argument b"),
        (lambda: function(short, b=2.5, c=""), "argument b"),
        (lambda: function(short, 1, short, long, c=""), r"argument rest\[1\]"),
        (lambda: function(short, 1, c=3), "argument c"),
        (lambda: function(short, 1, c="", d=long), "argument more.d"),
    ):
        with pytest.raises(ContractError, match=place):
            call()


def test_a_wrong_call_is_pythons_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        double()


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (float, 1, "a"),
        (float, jnp.ones(()), jnp.ones(1)),
        (int, np.int32(2), 2.0),
        (bool, True, 1),
        (Literal["a", 1], 1, True),
        (tuple[int, str], (1, "a"), (1,)),
        (tuple[int, ...], (1, 2), (1, "a")),
        (list[int], [1], (1,)),
        (dict[str, int], {"a": 1}, {"a": "b"}),
        (int | None, None, "a"),
        (Callable[[int], int], abs, 3),
        (Iterator[int], iter([]), [1]),
        (type[int], bool, str),
        (Float[Array, "n"] | Float[Array, "n n"], jnp.ones((2, 2)), jnp.ones((2, 3))),
        (Float[ArrayLike, ""], 1.0, "a"),
        (Awaitable[int], asyncio.sleep, None),
    ],
)
def test_hints_of_all_sorts(annotation, right, wrong):
    def function(x): ...

    function.__annotations__["x"] = annotation
    checked = contract(function)
    if annotation == Awaitable[int]:
        right = right(0)
    checked(right)
    with pytest.raises(ContractError, match="argument x"):
        checked(wrong)
    if annotation == Awaitable[int]:
        right.close()


def test_a_default_of_none_makes_an_argument_optional():
    @contract
    def function(x: Float[Array, "n"] = None) -> None: ...

    function(None), function(), function(jnp.ones(2))
    with pytest.raises(ContractError, match="argument x of function should be"):
        function(1)


def test_a_union_forgets_what_a_member_that_failed_had_bound():
    @contract
    def function(x: Float[Array, "n m"] | Float[Array, "m"], y: Float[Array, "n"]) -> None: ...

    function(jnp.ones(2), jnp.ones(5))


def test_self_is_the_class():
    class Counter(Module):
        count: Int[Array, ""]

        def next(self) -> Self:
            return self.replace(count=self.count + 1)

        def wrong(self) -> tuple[Float[Array, ""], Self]:
            return jnp.ones(()), None

    counter = Counter(jnp.array(1))
    assert int(counter.next().count) == 2
    with pytest.raises(ContractError, match=r"return value\[1\] of Counter.wrong should be Counter, and is None"):
        counter.wrong()


def test_an_inherited_method_sees_the_fields_of_the_instance():
    class Wide(Linear):
        scale: Float[Array, "out"] = None

        def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
            return super().__call__(x) * self.scale

    wide = Wide(jnp.ones((3, 5)), None, jnp.ones(3))
    assert wide(jnp.ones((2, 5))).shape == (2, 3)
    with pytest.raises(ContractError, match="in=5"):
        wide(jnp.ones((2, 4)))


def test_recursion_does_not_mix_scopes():
    @contract
    def halve(x: Float[Array, "n"]) -> Float[Array, "n"]:
        if len(x) > 1:
            halve(x[: len(x) // 2])
        return x

    assert halve(jnp.ones(8)).shape == (8,)


def test_a_generator_is_checked_as_it_goes():
    @contract
    def chunks(x: Float[Array, "n"]) -> Generator[Float[Array, "n"], Float[Array, "n"], Float[Array, ""]]:
        sent = yield x
        sent = yield sent
        if sent is not None:
            yield sent[0]
        return sent

    steps = chunks(jnp.ones(2))
    next(steps)
    assert steps.send(jnp.zeros(2)).shape == (2,)
    with pytest.raises(ContractError, match=r"yielded value of .*chunks should be f32\[n=2\], and is f32\[\]"):
        steps.send(jnp.ones(2))
    steps = chunks(jnp.ones(2))
    next(steps)
    with pytest.raises(ContractError, match=r"value sent to chunks should be f32\[n=2\], and is f32\[3\]"):
        steps.send(jnp.ones(3))
    steps = chunks(jnp.ones(2))
    next(steps), steps.send(jnp.ones(2))
    with pytest.raises(ContractError, match="return value of chunks should be Float"):
        next(steps)


def test_a_generator_passes_exceptions_on_and_closes():
    closed = []

    @contract
    def numbers() -> Iterator[int]:
        try:
            while True:
                try:
                    yield 1
                except KeyError:
                    yield 2
        finally:
            closed.append(True)

    steps = numbers()
    assert next(steps) == 1
    assert steps.throw(KeyError()) == 2
    steps.close()
    assert closed == [True]


def test_coroutines_keep_their_own_scope():
    @contract
    async def wait(x: Float[Array, "n"], wrong: bool = False) -> Float[Array, "n"]:
        await asyncio.sleep(0)
        return jnp.ones(9) if wrong else x

    @contract
    async def stream(x: Float[Array, "n"]) -> AsyncIterator[Float[Array, "n"]]:
        yield x
        yield x[:1]

    async def main() -> None:
        results = await asyncio.gather(*(wait(jnp.ones(n)) for n in (2, 3, 4)))
        assert [len(one) for one in results] == [2, 3, 4]
        with pytest.raises(ContractError, match=r"return value of wait should be f32\[n=2\], and is f32\[9\]"):
            await wait(jnp.ones(2), wrong=True)
        with pytest.raises(ContractError, match=r"yielded value of stream should be f32\[n=2\], and is f32\[1\]"):
            async for _ in stream(jnp.ones(2)):
                pass

    asyncio.run(main())


def test_threads_do_not_mix_scopes():
    errors: list[Exception] = []

    def work(n: int) -> None:
        try:
            for _ in range(20):
                linear(n, n + 1)(jnp.ones((2, n + 1)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_wrappers_are_not_taken_for_the_function_inside():
    def single(x: Float[Array, "n"]) -> Float[Array, ""]:
        return x.sum()

    batched = jax.vmap(single)  # carries the annotations of `single`
    assert weft.jit(batched)(jnp.ones((2, 3))).shape == (2,)
    assert weft.grad(lambda x: weft.vmap(single)(x).sum())(jnp.ones((2, 3))).shape == (2, 3)


def test_wrappers_that_pass_arguments_on_are_looked_through():
    class Named(Module):
        weight: Float[Array, "n"]

        @jax.named_scope("named")
        def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x * self.weight

    assert Named(jnp.ones(2))(jnp.ones(2)).shape == (2,)
    with pytest.raises(ContractError, match=r"argument x of Named\.__call__ should be f32\[n=2\]"):
        Named(jnp.ones(2))(jnp.ones(3))


def test_partial_applications_are_checked_with_what_they_hold():
    def scale(factor: Float[Array, ""], x: Float[Array, "n"]) -> Float[Array, "n"]:
        return factor * x

    assert weft.jit(functools.partial(scale, jnp.ones(())))(jnp.ones(2)).shape == (2,)
    with pytest.raises(ContractError, match="argument factor of scale should be"):
        weft.jit(functools.partial(scale, jnp.ones(2)))(jnp.ones(2))


def test_bound_methods_and_callable_objects_are_checked():
    class Scale:
        def __init__(self, factor: float):
            self.factor = factor

        def apply(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return self.factor * x

        def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return self.factor * x

    assert weft.jit(Scale(2.0).apply)(jnp.ones(2)).shape == (2,)
    with pytest.raises(ContractError, match=r"argument x of Scale\.apply should be"):
        weft.jit(Scale(2.0).apply)(jnp.ones((2, 2)))
    with pytest.raises(ContractError, match=r"argument x of Scale\.__call__ should be"):
        weft.vmap(Scale(2.0))(jnp.ones(2))
    with pytest.raises(ContractError, match=r"argument x of Linear\.__call__ should be"):
        weft.jit(linear(3, 5).__call__)(jnp.ones(4))


def test_functions_without_annotations_run_as_they_are():
    calls: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))

    contract(function)(1, a=2)
    assert calls == [((1,), {"a": 2})]


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        wrapper.calls += 1
        return function(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


def over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(xs: Any) -> Any:
        return jnp.stack([function(x) for x in xs]), "and more"

    return wrapper


def halved(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x / 2


@pytest.mark.parametrize("decorate", [logged, lambda function: logged(logged(function))])
def test_a_function_in_a_wrapper_of_the_users_is_checked(decorate):
    function = decorate(halved)
    assert weft.jit(function)(jnp.ones(3)).shape == (3,)
    assert function.calls == 1
    with pytest.raises(ContractError, match=r"argument x of halved should be f32\[n\], and is f32\[2,3\]"):
        weft.jit(function)(jnp.ones((2, 3)))
    assert jax.jit(function)(jnp.ones((2, 3))).shape == (2, 3)  # no transform of weft's


def test_what_counts_is_what_a_wrapper_passes_on_and_not_what_it_takes():
    rows, _ = weft.jit(over_rows(halved))(jnp.ones((2, 3)))
    assert rows.shape == (2, 3)
    with pytest.raises(ContractError, match=r"argument x of halved should be f32\[n\], and is f32\[\]"):
        weft.jit(over_rows(halved))(jnp.ones(3))


def test_methods_in_wrappers_are_checked():
    class Named(Module):
        weight: Float[Array, "n"]

        @logged
        def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x * self.weight

    assert Named(jnp.ones(2))(jnp.ones(2)).shape == (2,)
    with pytest.raises(ContractError, match=r"argument x of .*Named\.__call__ should be f32\[n=2\]"):
        Named(jnp.ones(2))(jnp.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("decorate", [lambda function: function, logged])
def test_a_checked_function_is_not_kept_alive(decorate):
    def local(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    call_checked(decorate(local), (jnp.ones(3),), {})
    known = weakref.ref(local)
    del local
    gc.collect()
    assert known() is None


def test_a_dim_that_differs_from_leaf_to_leaf_stands_in_a_tree():
    @contract
    def f(x: Float[Array, "?n"]) -> None: ...

    with pytest.raises(AnnotationError, match=r"'\?n' has a size for each leaf, .*\"T\"\]; here none is around it"):
        f(jnp.ones(2))


def test_a_hole_in_a_field_reads_the_other_fields():
    @contract
    @dataclasses.dataclass
    class Batch:
        size: int
        x: Float[Array, "{size} n"]
        y: Float[Array, "{size}+1"]

    Batch(2, jnp.ones((2, 5)), jnp.ones(3))
    with pytest.raises(ContractError, match=r"field Batch\.y"):
        Batch(2, jnp.ones((2, 5)), jnp.ones(2))
