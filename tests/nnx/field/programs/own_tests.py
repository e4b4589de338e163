"""Packages' own tests, of source archives or wheels, and what became of each: `python own_tests.py [PACKAGE...]`.

What an archive lacks to run them (fixtures, mostly) is written here, as is what a user has to change in a package to
use it with today's flax. The archives are those of the installed versions, and lie in the environment.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import gymnasium as gym
import pytest
from flax import nnx

SOURCES = Path(sys.prefix) / "sources"


class RLBlox:
    """The environments that rl-blox's tests ask for."""

    def __init__(self):
        from rl_blox.blox.function_approximator import gaussian_mlp, layer_norm_mlp, mlp

        # Its networks keep layers in plain lists, which flax refuses since 0.12.
        for network in (mlp.MLP, gaussian_mlp.GaussianMLP, layer_norm_mlp.LayerNormMLP):
            network.__setattr__ = lambda self, name, value: nnx.Module.__setattr__(
                self, name, nnx.List(value) if isinstance(value, list) else value
            )

    @pytest.fixture
    def cart_pole_env(self):
        return gym.make("CartPole-v1")

    @pytest.fixture
    def cart_pole_envs(self):
        same_step = gym.vector.AutoresetMode.SAME_STEP
        return gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=same_step)

    @pytest.fixture
    def pendulum_env(self):
        return gym.make("Pendulum-v1", max_episode_steps=50)  # the search of CMA-ES goes through a whole population

    @pytest.fixture
    def inverted_pendulum_env(self):
        return gym.make("InvertedPendulum-v5")

    @pytest.fixture
    def tabular_test_env(self):
        return gym.make("CliffWalking-v1")


class Outcomes:
    """Prints what became of each test."""

    def __init__(self, output):
        self.output = output

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            error = "" if report.passed else f" {str(report.longrepr).splitlines()[-1]}"
            print(report.nodeid, report.when, report.outcome, error, file=self.output, flush=True)


def source(package):
    """The folder with the source archive of the installed version, unpacked on first use."""
    version = importlib.metadata.version(package)
    folder = SOURCES / f"{package}-{version}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
        subprocess.run([*pip, "--dest", SOURCES, f"{package}=={version}"], check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(SOURCES / f"{package}-{version}.tar.gz") as archive:
            archive.extractall(SOURCES, filter="data")
    return folder


def installed(package):
    """The folder of a package that brings its tests with it."""
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    return folder


# By package: what pytest needs beside its tests, the arguments that it is given, and where the tests lie.
SUITES = {
    "rl_blox": (RLBlox, ["tests"], source),
    "nnx_ppo": (object, ["networks"], installed),  # those of its algorithms ask for MuJoCo's playground
}


def run(package):
    """Runs the tests of one package; pytest's own output goes nowhere."""
    needs, arguments, folder = SUITES[package]
    with contextlib.chdir(folder(package)):
        plugins = [Outcomes(sys.stdout), needs()]
        options = ["--import-mode=importlib", "-p", "no:cacheprovider", "-o", "addopts=", "-q"]
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main([*options, *arguments], plugins=plugins)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or SUITES:
        run(name)
