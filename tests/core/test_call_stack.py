"""Room for deep calls: what is called there behaves as elsewhere, and its frames lie in one piece."""

import ctypes
import itertools
import platform
import sys
import threading

import pytest
from weft.core.call_stack import call_with_room


def places(depth: int) -> list[int]:
    """Where the frames of `depth` nested calls lie in memory."""
    # The second field of a frame object, after its header: where the interpreter keeps the frame itself.
    address = ctypes.c_void_p.from_address(id(sys._getframe()) + object.__basicsize__ + 8).value
    assert address is not None
    return [address, *(places(depth - 1) if depth else ())]


def steps(addresses: list[int]) -> set[int]:
    return {after - before for before, after in itertools.pairwise(addresses)}


@pytest.mark.skipif(platform.python_implementation() != "CPython", reason="about the memory of CPython's frames")
def test_the_frames_below_lie_one_after_another():
    assert len(steps(places(400))) > 1, "400 calls do not fit into an ordinary chunk"
    assert len(steps(call_with_room(places, 400))) == 1


def test_results_arguments_and_errors_pass():
    assert call_with_room(lambda *args, **kwargs: (args, kwargs), 1, function=2) == ((1,), {"function": 2})
    with pytest.raises(ZeroDivisionError):
        call_with_room(lambda: 1 // 0)


def test_it_nests_and_runs_in_threads():
    def nested(depth: int) -> int:
        return depth if depth == 0 else 1 + call_with_room(nested, depth - 1)

    depths: list[int] = []
    threads = [threading.Thread(target=lambda: depths.append(call_with_room(nested, 50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert depths == [50] * 4


def test_endless_recursion_is_still_python_s_error():
    def endless() -> int:
        return call_with_room(endless)

    with pytest.raises(RecursionError):
        endless()
