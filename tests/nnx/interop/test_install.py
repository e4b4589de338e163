"""The import hook, each time in a process of its own: this one has imported the real flax.nnx."""

import importlib
import subprocess
import sys
import textwrap
from typing import TypeVar

import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.nnx import install as install_function
from weft.nnx.interop.installing import InstallError, twin_module

pytestmark = pytest.mark.slow

HIDE_FLAX = """
import importlib.machinery, sys
class NoFlax(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "flax" else super().find_spec(name, path, target)
sys.meta_path[:] = [NoFlax if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder) or "weft" in repr(finder)]
"""


def run(*command, cwd=None):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd, check=False)


def python(program, before=""):
    return run("-c", textwrap.dedent(before) + textwrap.dedent(program))


def printed(program, before=""):
    result = python(program, before)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


IMPORTS = """
import weft.nnx
weft.nnx.install()
from flax import nnx
import flax.nnx as same
import flax.nnx.graphlib
from flax.nnx import Param, statelib
from flax.nnx.transforms.iteration import vmap
from flax.nnx.variablelib import Variable
print(nnx is weft.nnx is same, Param is weft.nnx.Param, statelib.State is weft.nnx.State, vmap is weft.nnx.vmap)
print(Variable is weft.nnx.Variable, flax.nnx.graphlib.split is weft.nnx.split)
"""


def test_every_way_to_import_flax_nnx_gives_weft():
    assert printed(IMPORTS) == ["True True True True", "True True"]


def test_the_rest_of_flax_stays_the_real_one():
    program = """
        import weft.nnx
        weft.nnx.install()
        from flax import linen, nnx, struct
        from flax.training import train_state
        print(linen.Dense.__module__, struct.__name__, train_state.TrainState.__module__)
        """
    assert printed(program) == ["flax.linen.linear flax.struct flax.training.train_state"]


def test_a_minimal_flax_appears_where_there_is_none():
    program = (
        IMPORTS
        + """
try:
    import flax.linen
except ImportError as error:
    print(error)
from flax.errors import TraceContextError
print(TraceContextError.__module__, flax.config is weft.nnx.config.config if hasattr(weft.nnx, "config") else True)
"""
    )
    lines = printed(program, HIDE_FLAX)
    assert lines[:2] == ["True True True True", "True True"]
    assert lines[2] == "No module named 'flax.linen': flax is not installed, and weft provides flax.nnx only"
    assert lines[3] == "  fix: install flax for this module"
    assert lines[4] == "weft.nnx.errors True"


def test_what_has_no_counterpart_says_so():
    program = """
        import weft.nnx
        weft.nnx.install()
        try:
            import flax.nnx.no_such_module
        except ModuleNotFoundError as error:
            print(error)
        """
    said = "No module named 'flax.nnx.no_such_module': weft.nnx has no counterpart of it"
    assert printed(program)[0] == said


def test_the_bridge_joins_linen_with_weft():
    program = """
        import sys
        import weft.nnx
        weft.nnx.install()
        print("flax" in sys.modules)
        import jax.numpy as jnp
        from flax import linen, nnx
        from flax.nnx import bridge, wrappers
        from flax.nnx.bridge.module import MODULE_CONTEXT
        print(bridge.__name__, wrappers is bridge.wrappers, bridge is weft.nnx.bridge)
        model = bridge.ToNNX(linen.Dense(3), rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 2)))
        print(type(model.kernel) is weft.nnx.Param, model(jnp.ones((1, 2))).shape)
        """
    assert printed(program) == ["False", "weft.nnx.bridge True True", "True (1, 3)"]


def test_without_flax_the_bridge_says_what_it_needs():
    program = """
        from weft import nnx
        try:
            nnx.bridge
        except ModuleNotFoundError as error:
            print(error)
        """
    assert printed(program, HIDE_FLAX) == [
        "nnx.bridge needs flax for its Linen modules, but flax is not installed",
        "  fix: pip install 'weft-jax[linen]' (flax)",
    ]


def test_installing_after_the_real_one_was_imported_is_an_error():
    with pytest.raises(InstallError, match=r"the real flax\.nnx was imported before weft\.nnx\.install\(\)") as error:
        install_function()
    assert "in a conftest.py, for pytest" in str(error.value)


def test_installing_twice_is_installing_once_and_uninstalling_restores():
    program = """
        import sys
        import weft.nnx
        from weft.nnx.interop.installing import installed
        ours = lambda: [type(finder).__module__ for finder in sys.meta_path].count("weft.nnx.interop.installing")
        weft.nnx.install()
        weft.nnx.install()
        from flax import errors, nnx
        import flax.nnx.graphlib
        print(ours(), nnx is weft.nnx, errors.TraceContextError.__module__)
        weft.nnx.uninstall()
        weft.nnx.uninstall()
        print(ours(), installed(), [n for n in sys.modules if n.startswith("flax.nnx")])
        from flax import nnx
        import flax
        print(nnx.__name__, flax.nnx is nnx, nnx.Param.__module__, errors.TraceContextError.__module__)
        print("update" in vars(flax.config))
        """
    assert printed(program) == [
        "1 True weft.nnx.errors",
        "0 False []",
        "flax.nnx True flax.nnx.variablelib flax.errors",
        "False",
    ]


def test_switches_of_flax_reach_weft():
    program = """
        import weft.nnx
        weft.nnx.install()
        import flax
        from flax import nnx
        from weft.nnx.config import config
        flax.config.update("flax_always_shard_variable", False)
        print(config.flax_always_shard_variable, flax.config.flax_always_shard_variable)
        flax.config.update("flax_return_frozendict", False)
        """
    assert printed(program) == ["False False"]


PROGRAM = """
import sys
from flax import nnx
import neighbour
if __name__ == "__main__":
    print(nnx.__name__, sys.argv[1:], neighbour.name)
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "neighbour.py").write_text("name = 'next door'")
    return tmp_path


def test_a_script_runs_as_it_is(folder):
    result = run("-m", "weft.nnx", str(folder / "program.py"), "--steps", "2")
    assert (result.returncode, result.stdout) == (3, "weft.nnx ['--steps', '2'] next door\n"), result.stderr


def test_a_scripts_file_is_absolute_and_holds_in_another_folder(tmp_path):
    (tmp_path / "program.py").write_text("import os\nos.chdir('/')\nprint(os.path.exists(__file__), __file__)\n")
    result = run("-m", "weft.nnx", "program.py", cwd=tmp_path)
    assert result.stdout == f"True {tmp_path / 'program.py'}\n", result.stderr


def test_a_module_runs_as_it_is(folder):
    result = run("-m", "weft.nnx", "-m", "program", "-m", "x", cwd=folder)
    assert (result.returncode, result.stdout) == (3, "weft.nnx ['-m', 'x'] next door\n"), result.stderr


@pytest.mark.parametrize("arguments", [(), ("-m",), ("no_such_file.py",)])
def test_arguments_that_name_no_program_are_refused(arguments):
    result = run("-m", "weft.nnx", *arguments)
    assert result.returncode == 2
    assert "weft.nnx" in result.stderr


CONFTEST = "import weft.nnx\nweft.nnx.install()\n"
SUITE = """
import pytest
from flax import nnx

@pytest.mark.parametrize("i", range(4))
def test_it(i):
    assert nnx.__name__ == "weft.nnx"
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
@pytest.mark.parametrize("way", ["conftest", "command"])
def test_it_works_in_pytest_and_its_workers(tmp_path, way, workers):
    (tmp_path / "test_suite.py").write_text(SUITE)
    if way == "conftest":
        (tmp_path / "conftest.py").write_text(CONFTEST)
    start = ("-m", "weft.nnx") if way == "command" else ()
    result = run(*start, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, cwd=tmp_path)
    assert "4 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.slow
def test_pytest_runs_where_warnings_are_errors(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    half_written = "ignore:Error reading persistent compilation cache entry:UserWarning"  # by another of these tests
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfilterwarnings =\n    error\n    {half_written}\n")
    result = run("-m", "weft.nnx", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "4 passed" in result.stdout, result.stdout + result.stderr
    assert "warning" not in result.stdout


@pytest.mark.parametrize(
    "name",
    ["graph", "graphlib", "statelib", "variablelib", "pytreelib", "object", "filterlib", "rnglib", "extract", "helpers"]
    + ["module", "traversals", "compat", "reprlib", "transforms", "transforms.autodiff", "transforms.compilation"]
    + ["transforms.iteration", "transforms.transforms", "nn", "tracers", "visualization", "deprecations"],
)
def test_public_modules_have_a_twin(name):
    twin = twin_module(f"flax.nnx.{name}")
    assert twin.__name__.rpartition(".")[2] == name.rpartition(".")[2]
    assert "." in name or importlib.import_module(f"weft.nnx.{name}") is twin


def test_a_trace_context_error_is_caught_by_the_name_that_flax_gives_it():
    program = """
        from flax.errors import TraceContextError as before
        import weft.nnx
        weft.nnx.install()
        import flax.errors
        import jax
        from flax import nnx

        variable = nnx.Param(1.0)
        for kind in (before, flax.errors.TraceContextError, flax.errors.FlaxError):
            try:
                jax.jit(lambda: variable.set_value(2.0))()
            except kind:
                print("caught")
        """
    assert printed(program) == ["caught"] * 3


def test_an_error_of_the_program_shows_no_frames_but_the_programs(tmp_path):
    (tmp_path / "program.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    result = run("-m", "weft.nnx", str(tmp_path / "program.py"))
    frames = [line.split('"')[1] for line in result.stderr.splitlines() if line.startswith('  File "')]
    assert frames == [str(tmp_path / "program.py")] * 2
    assert result.stderr.splitlines()[-1] == "ValueError: mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["FOLDER"], "can't run folder 'FOLDER': it has no __main__.py"),
        (["-m", "nosuch.module"], "no module named 'nosuch.module'"),
        (["nosuch.py"], "can't open file 'nosuch.py': no such file"),
        (["-m"], "-m needs the name of a module"),
        (["-m", "json"], "No module named json.__main__; 'json' is a package and cannot be directly executed"),
    ],
)
def test_what_is_no_program_gets_one_line(tmp_path, arguments, said):
    arguments = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    result = run("-m", "weft.nnx", *arguments)
    assert (result.returncode, result.stderr) == (2, f"python -m weft.nnx: {said.replace('FOLDER', str(tmp_path))}\n")


@pytest.mark.parametrize("name", ["graph", "extract", "statelib"])
def test_public_modules_are_attributes_too(name):
    assert getattr(nnx, name) is twin_module(f"flax.nnx.{name}")


def defined_names():
    """The public names of flax.nnx that each of its modules defines."""
    # Those that flax.nnx imports itself: importing another would add to its names.
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith("flax.nnx."):
            own = {
                name: value for name, value in vars(module).items() if getattr(value, "__module__", None) == module_name
            }
            names = [name for name, value in own.items() if vars(flax_nnx).get(name) is value]
            yield module_name.removeprefix("flax.nnx."), [name for name in names if not isinstance(own[name], TypeVar)]


@pytest.mark.parametrize(("name", "names"), [pytest.param(*part, id=part[0]) for part in defined_names()])
def test_names_are_in_the_modules_where_they_were(name, names):
    twin = twin_module(f"flax.nnx.{name}")
    assert [one for one in names if getattr(twin, one, None) is not getattr(nnx, one)] == []
