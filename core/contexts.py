"""The settings of weft's that are part of the key of JAX's trace caches.

JAX forgets every trace when a setting is made: a training step would be compiled again because somebody captures a
value elsewhere. So the settings of what loads on first use are made here, as weft is imported.
"""

from __future__ import annotations

from weft.core.edge.contexts import UserContext, make_user_context
from weft.core.edge.levels import EAGER, current_level
from weft.core.switches import is_on

DEBUG_SUCCESSORS = "WEFT_DEBUG_SUCCESSORS"

# The names of the open scopes inside of a capture; None outside.
capture_context: UserContext[tuple[str, ...] | None] = make_user_context(None)
# Whether successors are marked, for `debug_successors`.
successors_context: UserContext[bool | None] = make_user_context(True if is_on(DEBUG_SUCCESSORS) else None)
# A number for each call that `tabulate` records: what was traced for another one would not run again.
tabulate_context: UserContext[int | None] = make_user_context(None)
# A number for each trial of a proof, so that none is answered from what JAX keeps of another.
trial_context: UserContext[int | None] = make_user_context(None)


def marking() -> bool:
    """Whether the running code is traced with marks."""
    return successors_context.value is not None and current_level() != EAGER
