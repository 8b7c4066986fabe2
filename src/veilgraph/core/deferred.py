"""Imports that wait until they are used: a command line begins at once, whatever its commands need.

A function that waits for its module imports it by ``import_quickly``, as does what finds modules by name.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import get_ident
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn


def import_quickly(module: str) -> ModuleType:
    """Import a module without collecting garbage meanwhile.

    PyTorch makes half a million objects that stay. Looking through them again and again takes a fifth of its import.
    """
    if module in sys.modules or not gc.isenabled():
        return import_module(module)
    gc.disable()
    try:
        return import_module(module)
    finally:
        if not gc.get_freeze_count():  # what the caller froze stays frozen
            gc.freeze()
            gc.unfreeze()  # now all objects count as old, and the next collection does not begin with these
        gc.enable()


class _Deferred:
    """Stands in for a function, class or module, which is imported whenever it is called or asked for an attribute."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _resolve(self) -> Any:  # noqa: ANN401
        """Import the module, and return its attribute or submodule of the name, or without a name itself."""
        module = import_quickly(self._module)
        if not self._name:
            return module
        if not hasattr(module, self._name):
            import_quickly(f"{self._module}.{self._name}")
        return getattr(module, self._name)

    def __call__(self, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        return self._resolve()(*args, **named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._resolve(), name)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._resolve())

    def _refuse_constant(self, *_other: object) -> NoReturn:
        name = f"{self._module}.{self._name}".rstrip(".")
        raise TypeError(f"{name} waits to be imported, and is no constant; import its module")

    __eq__ = __str__ = __iter__ = __bool__ = _refuse_constant
    __hash__ = object.__hash__


@contextmanager
def deferred() -> Iterator[None]:
    """Have every ``from module import name`` and ``import module`` of the block import the module when it is used.

    A name may be of a function, a class or a module. Of anything else, as a constant, import its module: the name
    itself is refused where it is compared or shown.
    """
    usual, thread = builtins.__import__, get_ident()

    def put_off(module: str, *rest: Any) -> Any:  # noqa: ANN401 - as the interpreter calls it: globals, locals, names
        if get_ident() != thread:
            return usual(module, *rest)
        if not rest[2]:
            return _Deferred(module, "")
        return SimpleNamespace(**{name: _Deferred(module, name) for name in rest[2]})

    vars(builtins)["__import__"] = put_off
    try:
        yield
    finally:
        vars(builtins)["__import__"] = usual
