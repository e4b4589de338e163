"""Figures of devices from public datasheets, on which estimates of time rest. Users add their own as a `Hardware`."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.errors import MeshError


@dataclass(frozen=True)
class Hardware:
    """A device and its links.

    Args:
        name: as reports show it.
        memory: bytes on a device.
        bandwidth: bytes a second between the device and its memory.
        flops: operations a second in bfloat16 or float16, dense.
        flops32: the same for float32 arrays at JAX's default precision.
        link: bytes a second that a device sends to devices of its node, or along one axis of a torus.
        node: how many devices are connected by this link.
        network: bytes a second that a device sends to other nodes.
        source: the source of the figures, with its address.
        derived: which figures are computed from others, and how.

    >>> ours = Hardware("ours", 16e9, 1e12, 1e14, 5e13, 1e11, 4, 1e10)
    >>> ours.node, "nvidia.com" in HARDWARE["h100"].source
    (4, True)
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    flops32: float
    link: float
    node: int
    network: float
    source: str = "figures of the user"
    derived: str = ""


_SHEET = "NVIDIA {} datasheet, https://www.nvidia.com/en-us/data-center/{}"
_NVIDIA = (
    "flops and flops32 (TF32, JAX's default for float32) are without sparsity, where NVIDIA prints them with it their "
    "half; link is half of NVLink's two directions; network is an InfiniBand adapter a GPU, as in NVIDIA's DGX"
)
_CLOUD = "Google Cloud TPU {0} documentation, https://cloud.google.com/tpu/docs/{0}"
_TPU = (
    "flops32 is flops: JAX multiplies float32 in one pass of bfloat16 by default; link is the chip's interconnect over "
    "its links and two directions; network is from 'How to Scale Your Model', https://jax-ml.github.io/scaling-book"
)
_DGX = f"memory and bandwidth are an eighth of a DGX B200's; {_NVIDIA}"
_ROWS = (
    ("a100", 80e9, 2.039e12, 312e12, 156e12, 300e9, 8, 25e9, _SHEET.format("A100 80GB SXM", "a100"), _NVIDIA),
    ("h100", 80e9, 3.35e12, 989e12, 494e12, 450e9, 8, 50e9, _SHEET.format("H100 SXM", "h100"), _NVIDIA),
    ("h200", 141e9, 4.8e12, 989e12, 494e12, 450e9, 8, 50e9, _SHEET.format("H200 SXM", "h200"), _NVIDIA),
    ("b200", 180e9, 8e12, 2250e12, 1125e12, 900e9, 8, 50e9, _SHEET.format("HGX B200", "hgx"), _DGX),
    ("v5e", 16e9, 819e9, 197e12, 197e12, 50e9, 256, 3.125e9, _CLOUD.format("v5e"), _TPU),
    ("v5p", 95e9, 2.765e12, 459e12, 459e12, 100e9, 8960, 6.25e9, _CLOUD.format("v5p"), _TPU),
)
HARDWARE = {row[0]: Hardware(*row) for row in _ROWS}


def hardware_of(name: str | Hardware) -> Hardware:
    """Returns the hardware with a name; returns a `Hardware` unchanged.

    Raises:
        MeshError: if `HARDWARE` has no such name.
    """
    if isinstance(name, Hardware):
        return name
    if name not in HARDWARE:
        raise MeshError(f"no hardware is called {name!r}", fix=f"one of {', '.join(HARDWARE)}, or a weft.plan.Hardware")
    return HARDWARE[name]
