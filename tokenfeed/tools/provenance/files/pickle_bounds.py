"""What a pickle would make, bounded before it is made. Its opcodes are read, but not carried out.

Reading one takes as much memory as the largest number of its memo says, and the hash of a tuple
within a tuple within a tuple, and so on, as much of the C stack as there are tuples: the process
crashes. Both from a file of a few bytes, or of one megabyte.
"""

from __future__ import annotations

from pathlib import Path
from pickletools import OpcodeInfo, genops, markobject, opcodes
from typing import Any

from .checkpoint_file import problem_of

DEPTH_MAX = 1000
"""Containers within each other. JSON of Python has about the same limit."""
_CREATED = {
    *("DICT", "FROZENSET", "INST", "LIST", "NEWOBJ", "NEWOBJ_EX", "OBJ", "REDUCE"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
}
"""Opcodes that make a container of what they take from the stack."""
_CHANGED = {"ADDITEMS", "APPEND", "APPENDS", "BUILD", "SETITEM", "SETITEMS"}
"""Opcodes that put what they take from the stack into the container below it."""
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_SIZES = {*_PUTS, "FRAME"}
_PUSHES = {
    each.name
    for each in opcodes
    if not each.stack_before and each.stack_after not in ([], [markobject])
} - _GETS
"""Opcodes that take nothing, and put a value that contains none."""


def require_bounded(path: Path, content: bytes) -> None:
    """Raise InvalidRequest if reading a pickle takes far more memory than its size, or if its
    values are nested more than DEPTH_MAX deep.

    path: for errors.  content: begins with a pickle.  Raises: ValueError if it is damaged.
    """
    depths = _Depths()
    for opcode, argument, _ in genops(content):
        if opcode.name in _SIZES and (argument or 0) > len(content):
            problem = f"is refused: it has {len(content)} bytes, and asks for {argument}"
            raise problem_of(path, problem)
        if depths.after(opcode, argument or 0) > DEPTH_MAX:
            raise problem_of(path, f"is refused: it is nested more than {DEPTH_MAX} deep")


class _Depths:
    """How deep each value is that a pickle has on its stack and in its memo.

    Of a container that is changed later, what was made of it before is not corrected: that can only
    be a list, a dict, a set or an object, of which none is hashed by what it contains.
    """

    def __init__(self) -> None:
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}

    def after(self, opcode: OpcodeInfo, argument: Any) -> int:
        """Take what an opcode takes, and put what it puts.  Returns: how deep that is."""
        name = opcode.name
        if name in _PUSHES:
            self._stack.append(0)
            return 0
        if name in _PUTS:
            self._memo[argument] = self._top()
            return 0
        if name in _GETS:
            depth = self._memo.get(argument, 0)
            self._stack.append(depth)
            return depth
        if name == "MARK":
            self._marks.append(len(self._stack))
            return 0
        if name == "POP" and self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
            return 0
        taken = self._taken(opcode)
        depth = max(taken, default=0)
        if name in _CREATED:
            depth += 1
        elif name in _CHANGED:
            depth = max(taken[0], 1 + max(taken[1:], default=-1))
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = depth
        self._stack.extend([depth] * len(opcode.stack_after))
        return depth

    def _top(self) -> int:
        return self._stack[-1] if self._stack else 0

    def _taken(self, opcode: OpcodeInfo) -> list[int]:
        """Return what an opcode takes from the stack, in the order of the stack."""
        before, stack = opcode.stack_before, self._stack
        if markobject not in before:
            begin = len(stack) - len(before)
        elif self._marks:
            begin = self._marks.pop() - before.index(markobject)
        else:
            begin = -1
        if begin < 0:
            raise ValueError("takes more from its stack than there is")
        taken = stack[begin:]
        del stack[begin:]
        return taken
