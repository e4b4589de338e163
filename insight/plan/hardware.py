"""What estimates of time rest on: accelerators by their public datasheets. Users add their own as a `Hardware`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.core.errors import MeshError


@dataclass(frozen=True)
class Hardware:
    """One device and its links.

    Args:
        name: as reports show it.
        memory: bytes on a device.
        bandwidth: bytes a second between the device and its memory.
        flops: operations a second in bfloat16 or float16, dense.
        flops32: the same in float32 (on NVIDIA's TF32).
        link: bytes a second that a device sends to those of its node (or along one axis of a torus).
        node: how many devices have this link between them.
        network: bytes a second that a device sends to other nodes.
        source: where the figures are from.

    >>> Hardware("ours", 16e9, 1e12, 1e14, 5e13, 1e11, 4, 1e10).node
    4
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    flops32: float
    link: float
    node: int
    network: float
    source: str = "the user"


_NVIDIA = "NVIDIA {} datasheet, SXM, NVLink in nodes of 8; {} Gbit/s InfiniBand a device between nodes"
_GOOGLE = "Google Cloud TPU documentation, {}; ICI in one slice, data centre network beyond it"

HARDWARE = {
    "a100": Hardware("a100", 80e9, 2.039e12, 312e12, 156e12, 300e9, 8, 25e9, _NVIDIA.format("A100 80GB", 200)),
    "h100": Hardware("h100", 80e9, 3.35e12, 989e12, 494e12, 450e9, 8, 50e9, _NVIDIA.format("H100", 400)),
    "h200": Hardware("h200", 141e9, 4.8e12, 989e12, 494e12, 450e9, 8, 50e9, _NVIDIA.format("H200", 400)),
    "b200": Hardware("b200", 180e9, 7.7e12, 2250e12, 1125e12, 900e9, 8, 50e9, _NVIDIA.format("DGX B200", 400)),
    "v5e": Hardware("v5e", 16e9, 0.819e12, 197e12, 98e12, 50e9, 256, 3e9, _GOOGLE.format("v5e")),
    "v5p": Hardware("v5p", 95e9, 2.765e12, 459e12, 229e12, 100e9, 8960, 6e9, _GOOGLE.format("v5p")),
    "v6e": Hardware("v6e", 32e9, 1.64e12, 918e12, 459e12, 100e9, 256, 12e9, _GOOGLE.format("v6e")),
}


def hardware_of(given: str | Hardware, table: Mapping[str, Hardware] = HARDWARE) -> Hardware:
    """A device by its name, or the user's own as it is.

    Raises:
        MeshError: for a name that the table has not.
    """
    if isinstance(given, Hardware):
        return given
    if given not in table:
        raise MeshError(f"no hardware is called {given!r}", fix=f"one of {', '.join(table)}, or a weft.plan.Hardware")
    return table[given]
