"""What the kernels of `lockstep.linalg` take for granted about XLA's FFI."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from lockstep.linalg import _cpu_kernels
from processes import captured

FFI = Path(__file__).parents[2] / "native" / "linalg" / "ffi.h"

# Ours, jaxlib's, and pairs of members that must lie at the same place.
STRUCTS = {
    ("Extension", "XLA_FFI_Extension_Base"): {"type": "type", "next": "next"},
    ("Version", "XLA_FFI_Api_Version"): {"major": "major_version", "minor": "minor_version"},
    ("Metadata", "XLA_FFI_Metadata"): {"version": "api_version", "traits": "traits"},
    ("MetadataExtension", "XLA_FFI_Metadata_Extension"): {"metadata": "metadata"},
    ("Buffer", "XLA_FFI_Buffer"): {"type": "dtype", "data": "data", "rank": "rank", "dims": "dims"},
    ("ErrorArgs", "XLA_FFI_Error_Create_Args"): {"message": "message", "code": "errc"},
    ("Api", "XLA_FFI_Api"): {"version": "api_version", "create_error": "XLA_FFI_Error_Create"},
    ("Buffers", "XLA_FFI_Args"): {"size": "size", "buffers": "args"},
    ("Buffers", "XLA_FFI_Rets"): {"size": "size", "buffers": "rets"},
    ("Frame", "XLA_FFI_CallFrame"): {
        "extensions": "extension_start",
        "api": "api",
        "stage": "stage",
        "arguments": "args",
        "results": "rets",
    },
}
CONSTANTS = {
    "static_cast<int>(lockstep::ffi::Type::kS32)": "XLA_FFI_DataType_S32",
    "static_cast<int>(lockstep::ffi::Type::kF32)": "XLA_FFI_DataType_F32",
    "static_cast<int>(lockstep::ffi::Type::kF64)": "XLA_FFI_DataType_F64",
    "static_cast<int>(lockstep::ffi::Type::kC64)": "XLA_FFI_DataType_C64",
    "static_cast<int>(lockstep::ffi::Type::kC128)": "XLA_FFI_DataType_C128",
    "lockstep::ffi::kMetadata": "XLA_FFI_Extension_Metadata",
    "lockstep::ffi::kInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "lockstep::ffi::kMajor": "XLA_FFI_API_MAJOR",
}


def test_structs_are_those_of_the_header_of_jaxlib(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "the engine was built with a compiler, and this needs one too"
    lines = ['#include "xla/ffi/api/c_api.h"', f'#include "{FFI}"']
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    if "XLA_FFI_InternalExtension" in header:  # its later name
        lines.append("#define XLA_FFI_Extension_Base XLA_FFI_InternalExtension")
    for (ours, theirs), members in STRUCTS.items():
        for mine, other in members.items():
            place = f"offsetof(lockstep::ffi::{ours}, {mine}) == offsetof({theirs}, {other})"
            lines.append(f'static_assert({place}, "{theirs}.{other}");')
    lines += [f'static_assert({x} == {y}, "{y}");' for x, y in CONSTANTS.items()]
    program = tmp_path / "program.cc"
    program.write_text("\n".join(lines))
    command = [compiler, "-std=c++20", "-fsyntax-only", "-w", "-I", jax.ffi.include_dir()]
    done = captured([*command, str(program)], timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_kernel_is_registered_and_its_words_reach_the_program() -> None:
    assert _cpu_kernels.available("cpu")
    a, v = jnp.zeros((4, 2, 4)), jnp.zeros((2, 4))
    two, nine = jnp.int32(2), jnp.int32(9)
    with pytest.raises(jax.errors.JaxRuntimeError, match="tile, top or device is out of range"):
        jax.block_until_ready(_cpu_kernels.hemv(a, v, 2, two, nine))


def test_no_kernels_for_other_platforms() -> None:
    assert not _cpu_kernels.available("gpu")
