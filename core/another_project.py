"""Refuses to be imported from a folder into which another project has installed a package `weft`, too.

The distribution is called `weft-jax`, since `weft` on PyPI is another project. Where pip installs both, the later one
overwrites files of the earlier one, at least `weft/__init__.py`, and programs would run a mixture of both. This check
runs before other modules of weft are imported. It is in the core and not in the top package, whose `__init__.py` may be
the other project's: an import of `weft.nnx`, say, then still comes here.
"""

import os


def metadata_of_another_project(folder: str) -> str | None:
    """Returns the name of the metadata that a distribution called exactly `weft` has in a folder.

    The listing of the folder is all that this costs an import: `importlib.metadata` would take longer to import.

    Args:
        folder: a folder of packages, such as site-packages. `weft-jax` has the metadata `weft_jax-*` there.
    """
    try:
        names = os.listdir(folder)
    except OSError:  # a zip file, or a folder that may be entered but not listed
        return None
    suffixes = (".dist-info", ".egg-info")
    return next((name for name in names if name.startswith("weft-") and name.endswith(suffixes)), None)


def refuse_another_project(folder: str) -> None:
    """Raises an ImportError if another project's `weft` is installed in a folder of packages."""
    metadata = metadata_of_another_project(folder)
    if metadata is not None:
        version = metadata.rpartition(".")[0].split("-")[1]
        raise ImportError(
            f"the distributions weft-jax and weft {version}, which is another project, both install a package "
            f"`weft` in {folder}, and one has overwritten files of the other: pip uninstall weft; "
            "pip install --force-reinstall --no-deps weft-jax"
        )


refuse_another_project(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
