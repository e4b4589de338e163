"""`weft migrate` over equinox: what means the same is moved, the rest is left with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]

HEAD = """import equinox as eqx
import jax
from jaxtyping import Array, Float
"""
AFTER = HEAD.replace("eqx\n", "eqx\nimport weft\n", 1)
ONLY = HEAD.replace("import equinox as eqx", "import weft")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@eqx.filter_jit\ndef f(x: Array):\n    return x * 2\n", "@weft.jit\ndef f(x: Array):\n    return x * 2\n"),
        (
            "@eqx.filter_jit\ndef f(x: Array, n: int) -> Array:\n    return x * n\n",
            '@weft.jit(static_argnames=("n",))\ndef f(x: Array, n: int) -> Array:\n    return x * n\n',
        ),
        (
            "def f(x: Array, n: int) -> Array:\n    return x * n\ng = eqx.filter_jit(f)\n",
            'def f(x: Array, n: int) -> Array:\n    return x * n\ng = weft.jit(f, static_argnames=("n",))\n',
        ),
        (
            "@eqx.filter_grad(has_aux=True)\ndef f(x: Float[Array, '3'], n):\n    return x.sum(), n\n",
            "@weft.grad(has_aux=True)\ndef f(x: Float[Array, '3'], n):\n    return x.sum(), n\n",
        ),
        (
            "@eqx.filter_vmap(in_axes=(0, None))\ndef f(x: Array, y: Array) -> Array:\n    return x * y\n",
            "@weft.vmap(in_axes=(0, None))\ndef f(x: Array, y: Array) -> Array:\n    return x * y\n",
        ),
    ],
)
def test_a_transform_is_moved_where_it_means_the_same(migrate: Migrate, before: str, after: str):
    assert migrate({"a.py": HEAD + before})[0] == {"a.py": ONLY + after}


def test_a_module_of_arrays_and_layers_is_moved(migrate: Migrate):
    body = """
class Net({base}.Module):
    \"\"\"eqx.Module in words.\"\"\"

    layers: list[eqx.nn.Linear]
    scale: Float[Array, "n"]
    width: int = eqx.field(static=True)

    def __call__(self, x):
        return x * self.scale
"""
    after, _ = migrate({"a.py": HEAD + body.replace("{base}", "eqx")})
    assert after == {"a.py": AFTER + body.replace("{base}", "weft")}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@eqx.filter_jit\ndef f(x): return x\n", "`x` may be a number, and is static in equinox only"),
        ("@eqx.filter_jit\ndef f(x: Array): return x.shape[0]\n", "it may return a number"),
        ("@eqx.filter_jit(donate='all')\ndef f(x: Array): return x\n", "it is given `donate='all'`"),
        ("@eqx.filter_jit\ndef f(x: Array): return x\nf.lower\n", "`f.lower` is asked of it"),
        ("@jax.named_call\n@eqx.filter_jit\ndef f(x: Array): return x\n", "has other decorators"),
        ("@eqx.filter_grad\ndef f(x: float, y: Array): return x\n", "`x` may be a number, which only weft differenti"),
        ("g = eqx.filter_grad(lambda x: x)\n", "a lambda does not say what it takes"),
        ("@eqx.filter_vmap(in_axes=eqx.if_array(0))\ndef f(x: Array) -> Array: return x\n", "may say more than axes"),
        ("class A(eqx.Module):\n    rate: float\n", "the field `rate` may hold a number or a function"),
        ("class A(eqx.Module):\n    w: Array\n    def replace(self): ...\n", "have a `replace` of their own"),
        ("class A(eqx.Module):\n    w: Array\nclass B(A):\n    v: int\n", "other classes derive from it"),
        (
            "import numpy\nclass A(eqx.Module):\n    w: Array\na = A(numpy.ones(2))\n",
            "a.py makes it and has arrays of NumPy",
        ),
        (
            "@eqx.filter_jit\ndef f(x: Array): return eqx.error_if(x, x < 0, 'below', on_error='nan')\n",
            "eqx.error_if (a.py) needs equinox's own transforms",
        ),
        (
            "class A(eqx.Module):\n    w: Array\n@eqx.filter_vmap\ndef make(k: Array) -> A: return A(k)\n"
            "@eqx.filter_jit\ndef f(a: A): return a.w\n",
            "`a` may be a stack of modules, which a contract tells from one",
        ),
        ("weft = 1\n@eqx.filter_jit\ndef f(x: Array): return x\n", "the name `weft` is taken"),
        ("eqx.tree_serialise_leaves('a', 1)\n", "do: weft.save_checkpoint, which reads other files than equinox's"),
    ],
)
def test_what_is_in_doubt_is_left_with_its_reason(migrate: Migrate, text: str, why: str):
    after, report = migrate({"a.py": HEAD + text})
    assert why in report
    # What is in doubt stays; another use in the same file may move.
    assert after["a.py"].replace("import weft\n", "").replace("@weft.vmap", "@eqx.filter_vmap") == HEAD + text


MODEL = "class A(eqx.Module):\n    w: Array\n    def __call__(self, x: Array) -> Array: return self.w * x\n"


@pytest.mark.parametrize(
    "text",
    [
        "def loss(model: A, xs: Array) -> Array: return jax.vmap(lambda x: model(x))(xs).sum()\n",
        "def loss(model, xs: Array, keys: Array): return jax.vmap(lambda x, k: model(x))(xs, keys).sum()\n",
        "def norms(xs: Array): return jax.vmap(lambda x: jax.numpy.sum(x))(xs)\n",
        "import numpy\ntable = numpy.ones(2)\n",
        "def f(xs: Array): return jax.vmap(lambda x: g(x))(xs)\ndef g(x) -> float: return x + 1\n",
        "def f(xs: Array): return jax.vmap(g)(xs)\ndef g(x: Array) -> tuple[Array, int | None]: return x, 1\n",
        "def f(xs: Array): return jax.vmap(g)(xs)\ndef g(x):\n    y = jax.grad(h)(x)\n    return {'y': y}['y'] + 1\n",
        "def f(m, xs):\n    def g(v):\n        out = m.mv(v)\n        return jax.flatten_util.ravel_pytree(out)[0]\n"
        "    return jax.vmap(g)(xs)\n",
        "def f(xs):\n    def g(c, x): return c, x\n    return jax.vmap(jax.lax.scan, (None, None, 0))(g, 0, xs)\n",
    ],
)
def test_a_model_that_is_mapped_and_numpy_elsewhere_hold_no_class_back(migrate: Migrate, text: str):
    after, _ = migrate({"a.py": HEAD + MODEL + text})
    assert "class A(weft.Module):" in after["a.py"]


def test_a_class_that_takes_no_array_is_not_held_by_arrays_of_numpy(migrate: Migrate):
    text = "import numpy\nmodels = [A(numpy.ones(2)), B(A(numpy.ones(2)))]\nclass B(eqx.Module):\n    part: A\n"
    after, report = migrate({"a.py": HEAD + MODEL + text})
    assert "class B(weft.Module):" in after["a.py"]
    assert "a.py makes it and has arrays of NumPy" in report
    assert "class A(eqx.Module):" in after["a.py"]


@pytest.mark.parametrize(
    "text",
    [
        "models = jax.vmap(lambda k: A(k))(keys)\n",
        "models = jax.vmap(A)(keys)\n",
        "def make(k):\n    w = k\n    model = A(w)\n    return w, model\nmodels = jax.vmap(make)(keys)\n",
        "def make(k) -> tuple[A, Array]: ...\nmodels = jax.vmap(make)(keys)\n",
        "def make(k, model):\n    return jax.tree.map(lambda x: x * k, model)\nmodels = jax.vmap(make)(keys, model)\n",
        "def make(k):\n    return again(k)\ndef again(k):\n    return A(k)\nmodels = jax.vmap(make)(keys)\n",
        "@eqx.filter_vmap\ndef make(k):\n    return A(k)\n",
        "@jax.vmap\ndef same(model):\n    return model\n",
    ],
)
def test_a_lambda_that_makes_modules_stacks_them(migrate: Migrate, text: str):
    after, report = migrate({"a.py": HEAD + MODEL + text})
    assert "modules are stacked" in report
    assert "class A(eqx.Module):" in after["a.py"]


def test_a_check_of_values_is_wefts(migrate: Migrate):
    text = "@eqx.filter_jit\ndef f(x: Array) -> Array: return eqx.error_if(x, x < 0, 'below')\n"
    after, _ = migrate({"a.py": HEAD + text})
    assert "@weft.jit\ndef f(x: Array) -> Array: return weft.error_if(x, x < 0, 'below')\n" in after["a.py"]


def test_a_file_that_this_python_cannot_parse_is_said_and_the_others_move(migrate: Migrate):
    newer = HEAD + MODEL + "x = 1\ndef f():\n    print(x)\n    global x\n"
    after, report = migrate({"a.py": newer, "b.py": HEAD + MODEL})
    assert "a.py:1: the file: line " in report
    assert "this Python cannot parse it" in report
    assert after["a.py"] == newer
    assert "class A(weft.Module):" in after["b.py"]
