"""Records, kinds, keys, the transform interpreter, capture."""

import typing as _typing
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

# First, since it refuses to go on where another project has overwritten files of this one.
from weft.core import another_project as another_project
from weft.core.caches import clear_caches as clear_caches
from weft.core.edge.contexts import DEBUG_SUCCESSORS as _DEBUG_SUCCESSORS
from weft.core.edge.contexts import is_on as _is_on
from weft.core.errors import AliasError as AliasError
from weft.core.errors import SuccessorError as SuccessorError
from weft.core.errors import WeftError as WeftError
from weft.core.public_names import first_use as _first_use
from weft.core.records.axis_names import Sharded as Sharded
from weft.core.records.kinds import BatchStat as BatchStat
from weft.core.records.kinds import Buffer as Buffer
from weft.core.records.kinds import Cache as Cache
from weft.core.records.kinds import FrozenParam as FrozenParam
from weft.core.records.kinds import Intermediate as Intermediate
from weft.core.records.kinds import Kind as Kind
from weft.core.records.kinds import LoRAParam as LoRAParam
from weft.core.records.kinds import MetricState as MetricState
from weft.core.records.kinds import OptState as OptState
from weft.core.records.kinds import Param as Param
from weft.core.records.kinds import Perturbation as Perturbation
from weft.core.records.kinds import RngCount as RngCount
from weft.core.records.kinds import RngKey as RngKey
from weft.core.records.kinds import RngState as RngState
from weft.core.records.module import Module as Module
from weft.core.records.module import static as static
from weft.core.threads.calls import drop_successor as drop_successor
from weft.core.threads.handle import peek as peek
from weft.core.threads.handle import thread as thread

if _typing.TYPE_CHECKING:
    from weft.core.records.keys import Keys as Keys
    from weft.core.records.keys import KeyStream as KeyStream
    from weft.core.records.surgery import at as at
    from weft.core.sowing.capturing import capture as capture
    from weft.core.sowing.capturing import name_scope as name_scope
    from weft.core.sowing.capturing import perturb as perturb
    from weft.core.sowing.capturing import perturbations as perturbations
    from weft.core.sowing.capturing import sow as sow

# The module of each name that is imported on first use; a test compares this with the imports above.
_HOMES = {
    "weft.core.records.keys": "Keys KeyStream",
    "weft.core.records.surgery": "at",
    "weft.core.sowing.capturing": "capture name_scope perturb perturbations sow",
}
__getattr__, __dir__ = _first_use(globals(), _HOMES)

if _is_on(_DEBUG_SUCCESSORS):
    _import_module("weft.core.threads.lost")  # from the first call on

if not _typing.TYPE_CHECKING:  # checkers read the names off the imports above
    __all__ = [name for name in __dir__() if name[0] != "_" and not isinstance(globals().get(name), _ModuleType)]
