"""The import of OGB, without what it does besides.

At its first import OGB starts a thread that asks PyPI for its newest version. That tells others that it runs, and
lets a machine without network wait at exit. Here OGB finds that the package it asks with is absent.
"""

import importlib
from types import ModuleType

# OGB imports DGL by itself, which this puts in place.
from betty.dgl_compat import absent
from betty.errors import BettyError


def import_ogb(module: str) -> ModuleType:
    """Import a module of OGB. The first takes half a second, so call this only where OGB is needed.

    Args:
        module: its full name, e.g. ``ogb.nodeproppred``.

    Raises:
        BettyError: OGB is not installed.
    """
    with absent("outdated"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != "ogb":
                raise
            raise BettyError("OGB is not installed; install it with: pip install ogb==1.3.6") from None
