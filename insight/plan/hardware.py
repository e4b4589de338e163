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
        link: bytes a second that a device sends to devices of its node, or in one direction along an axis of a torus.
        node: how many devices are connected by this link.
        network: bytes a second that a device sends to other nodes.
        source: the source of the figures, with its address.
        derived: which figures are computed from others, and how.
        directions: how many directions of `link` a ring uses at once: 1 through a switch, 2 along an axis of a torus.

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
    directions: int = 1


_SHEET = "NVIDIA {} datasheet, https://www.nvidia.com/en-us/data-center/{}"
_RATES = (
    "flops and flops32 (TF32, JAX's default for float32) are without sparsity, where NVIDIA prints them with it their "
    "half"
)
_NVIDIA = (
    f"{_RATES}; link is half of NVLink's two directions; network is an InfiniBand adapter a GPU, as in NVIDIA's DGX"
)
_DGX = f"memory and bandwidth are an eighth of a DGX B200's; {_NVIDIA}"
_NVL72 = f"memory, bandwidth and flops are half of a superchip's, which has two GPUs; node is an NVL72 rack; {_NVIDIA}"
_PCIE = (
    f"{_RATES}; link is half of the 64 GB/s of PCIe Gen4 x16 in two directions; node and network are Google Cloud's "
    "g2-standard-96, eight GPUs with 100 Gbit/s together"
)
_AMD = (
    "flops32 is the matrix rate of float32; link is half of the two directions of seven Infinity Fabric links, all of "
    "which only a group of eight uses; network is a 400 Gbit/s adapter a GPU"
)
_CLOUD = "Google Cloud TPU {0} documentation, https://cloud.google.com/tpu/docs/{0}"
_TPU = (
    "flops32 is flops: JAX multiplies float32 in one pass of bfloat16 by default; link is one direction of the "
    "chip's interconnect over its links, for v6e 3,584 Gbit/s over four; a ring sends in both directions, which an "
    "axis without wrap-around cannot; network is from 'How to Scale Your Model', https://jax-ml.github.io/scaling-book"
)
_MI300X = "AMD Instinct MI300X datasheet, https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
_THROUGH_SWITCHES = (
    ("a100", 80e9, 2.039e12, 312e12, 156e12, 300e9, 8, 25e9, _SHEET.format("A100 80GB SXM", "a100"), _NVIDIA),
    ("a100-40", 40e9, 1.555e12, 312e12, 156e12, 300e9, 8, 25e9, _SHEET.format("A100 40GB SXM", "a100"), _NVIDIA),
    ("h100", 80e9, 3.35e12, 989e12, 494e12, 450e9, 8, 50e9, _SHEET.format("H100 SXM", "h100"), _NVIDIA),
    ("h200", 141e9, 4.8e12, 989e12, 494e12, 450e9, 8, 50e9, _SHEET.format("H200 SXM", "h200"), _NVIDIA),
    ("b200", 180e9, 8e12, 2250e12, 1125e12, 900e9, 8, 50e9, _SHEET.format("HGX B200", "hgx"), _DGX),
    ("gb200", 186e9, 8e12, 2500e12, 1250e12, 900e9, 72, 50e9, _SHEET.format("GB200 NVL72", "gb200-nvl72"), _NVL72),
    ("l4", 24e9, 300e9, 121e12, 60e12, 32e9, 8, 1.5625e9, _SHEET.format("L4", "l4"), _PCIE),
    ("mi300x", 192e9, 5.3e12, 1307.4e12, 163.4e12, 448e9, 8, 50e9, _MI300X, _AMD),
)
_ON_A_TORUS = (
    ("v5e", 16e9, 819e9, 197e12, 197e12, 50e9, 256, 3.125e9, _CLOUD.format("v5e"), _TPU),
    ("v5p", 95e9, 2.765e12, 459e12, 459e12, 100e9, 8960, 6.25e9, _CLOUD.format("v5p"), _TPU),
    ("v6e", 32e9, 1.64e12, 918e12, 918e12, 112e9, 256, 12.5e9, _CLOUD.format("v6e"), _TPU),
)
HARDWARE = {row[0]: Hardware(*row) for row in _THROUGH_SWITCHES}
HARDWARE |= {row[0]: Hardware(*row, directions=2) for row in _ON_A_TORUS}


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
