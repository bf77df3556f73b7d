"""Packages whose names come from their modules when somebody asks for them: importing such a package imports nothing.

A command that is about to start, and a program that wants one thing of many, do not wait for all the libraries. The
import of :mod:`typing` alone takes longer than that of such a package, so they do without.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class LazyPackage(ModuleType):
    """A package that looks its names up in its modules, once each, and imports those modules themselves by name too."""

    module_of: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.module_of:
            return self._submodule(name)
        value = getattr(import_module(self.module_of[name]), name)
        self.__dict__[name] = value
        return value

    def _submodule(self, name: str) -> ModuleType:
        path = f"{self.__name__}.{name}"
        try:
            return import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        # An imported module becomes an attribute of its package, where a function may have the same name.
        if not (isinstance(value, ModuleType) and name in self.module_of):
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self.module_of})


def offer(package: str, names_of: Mapping[str, Iterable[str]]) -> list[str]:
    """Make a package, which is being imported, lazy.

    Args:
        package: its ``__name__``.
        names_of: module → the names that the package offers from it.

    Returns:
        All names, for the package's ``__all__``.
    """
    module = sys.modules[package]
    module.module_of = {name: source for source, names in names_of.items() for name in names}
    module.__class__ = LazyPackage
    return sorted(module.module_of)
