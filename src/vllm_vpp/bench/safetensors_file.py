"""Writes arrays as a safetensors file, bfloat16 included, with nothing but numpy.

The format: the header's length (8 bytes, little endian), a JSON header (dtype, shape and byte
range of each tensor), then the bytes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.errors import InputError

F32 = NDArray[np.float32]
TAGS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ALIGNMENT = 8


def encode(array: F32, dtype: str) -> NDArray[Any]:
    """`array` in `dtype`; bfloat16 as bit patterns in uint16, rounded to nearest, ties to even."""
    if dtype == "float32":
        return array
    if dtype == "float16":
        return array.astype(np.float16)
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write(path: Path, tensors: Mapping[str, F32], dtype: str) -> None:
    """Writes `tensors` to `path`, all in `dtype` (float32, float16 or bfloat16)."""
    if dtype not in TAGS:
        raise InputError(f"dtype is {dtype!r}; use one of {', '.join(TAGS)}")
    encoded = {name: encode(np.ascontiguousarray(array), dtype) for name, array in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in encoded.items():
        end = offset + array.nbytes
        header[name] = {
            "dtype": TAGS[dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in encoded.values():
            array.tofile(file)
