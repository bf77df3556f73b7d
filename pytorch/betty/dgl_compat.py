"""The only module that imports DGL.

DGL's CPU wheel on PyPI (2.1.0) loads two parts at import that Betty never uses and that need an older PyTorch:
``dgl.graphbolt`` wants ``torchdata.datapipes`` and a library compiled for PyTorch 2.0 to 2.2, and ``dgl.distributed``
builds on it. Where the plain ``import dgl`` fails, it is tried again with these two replaced by empty modules; the
C++ core below them (graphs, sampling, ``to_block``, message passing) works beside a current PyTorch. Where DGL and
PyTorch match, nothing is changed.

Import DGL from here, ``from betty.dgl_compat import dgl``, never directly.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# DGL builds on PyTorch's import; and a replaced module must not be there while PyTorch inspects sys.modules.
import torch

from betty.errors import BettyError

REPLACED = ("dgl.graphbolt", "dgl.distributed")


def _placeholder(module: str, name: str) -> type:
    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise ImportError(f"{module}.{name} is not available: this DGL was built for another PyTorch")

    return type(name, (), {"__module__": module, "__init__": refuse})


def _empty_module(name: str) -> ModuleType:
    """A module in which every public name is a class that nothing is an instance of."""
    module = ModuleType(name)

    def find(attribute: str) -> type:
        if attribute.startswith("_"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        value = _placeholder(name, attribute)
        setattr(module, attribute, value)
        return value

    module.__getattr__ = find
    return module


@contextmanager
def absent(module: str) -> Iterator[None]:
    """Let the import of a module fail for a while."""
    present = sys.modules.get(module)
    sys.modules[module] = None
    try:
        yield
    finally:
        del sys.modules[module]
        if present is not None:
            sys.modules[module] = present


def import_dgl() -> ModuleType:
    """Import DGL, without the parts that cannot load beside this PyTorch where there are such.

    Raises:
        BettyError: DGL is not installed, or its core does not load.
    """
    # Without a choice of backend DGL prints a notice and writes a file into the home folder.
    os.environ.setdefault("DGLBACKEND", "pytorch")
    # DGL imports OGB where it is installed, and OGB asks PyPI for its newest version with this package if it finds it.
    with absent("outdated"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import dgl
        except (ImportError, OSError) as error:
            if getattr(error, "name", None) == "dgl":
                raise BettyError("DGL is not installed; install it with: pip install dgl==2.1.0") from None
            dgl = _import_without_replaced()
    # Warns of CPU affinity and of formats at every use; nothing in it is for Betty's users.
    warnings.filterwarnings("ignore", module=r"dgl\b")
    return dgl


def _import_without_replaced() -> ModuleType:
    for name in [name for name in sys.modules if name.split(".")[0] == "dgl"]:
        del sys.modules[name]
    for name in REPLACED:
        sys.modules[name] = _empty_module(name)
    try:
        import dgl
    except (ImportError, OSError) as error:
        raise BettyError(f"DGL does not load beside PyTorch {torch.__version__}: {error}") from error
    return dgl


dgl = import_dgl()
