"""Runs a command under a seccomp profile that forbids process_vm_writev, as old containers do.

Run: python -m tests.support.seccomp COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

PREFIX = (sys.executable, "-m", "tests.support.seccomp")

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER = {"x86_64": 311, "aarch64": 271}
"""process_vm_writev, by machine."""


def forbid() -> None:
    """Make process_vm_writev fail with EPERM, in this process and all that it starts."""
    instructions = [
        (_LOAD_WORD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_EQUAL, 0, 1, _NUMBER[platform.machine()]),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = b"".join(struct.pack("HBBI", *one) for one in instructions)
    held = ctypes.create_string_buffer(program)
    profile = struct.pack("HP", len(instructions), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, profile, 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
