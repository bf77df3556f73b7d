"""Packages that import nothing until they are asked."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "pytorch"
LAZY = ["betty", "betty.full_batch", "betty.memory", "betty.micro_batch_train"]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\n{code}"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


def test_the_import_of_packages_loads_no_library() -> None:
    packages = ", ".join([*LAZY, "betty.mini_batch_train", "betty.compare"])
    loaded = run(f"import {packages}; print(*sys.modules)").split()
    assert "betty.micro_batch_train" in loaded
    assert {"torch", "numpy", "scipy", "dgl", "pymetis", "typing"}.isdisjoint(loaded)


def names_for_type_checkers(package: str) -> list[str]:
    tree = ast.parse((SOURCE / package.replace(".", "/") / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return sorted(alias.name for statement in block.body for alias in statement.names)


@pytest.mark.parametrize("package", LAZY)
def test_all_names_are_there_and_known_to_type_checkers(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == names_for_type_checkers(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is getattr(importlib.import_module(module.module_of[name]), name)


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = """
import betty.micro_batch_train.redundancy, betty.memory.dry_run
from betty.micro_batch_train import redundancy
from betty.memory import dry_run
print(type(redundancy).__name__, type(dry_run).__name__)
"""
    assert run(code) == "function function\n"


def test_modules_are_there_by_name() -> None:
    assert run("import betty; print(betty.memory.sizes.size_text(1))") == "1 B\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import betty

    with pytest.raises(AttributeError, match="module 'betty' has no attribute 'no_such_thing'"):
        _ = betty.no_such_thing


def test_a_library_that_a_module_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "lazy").mkdir()
    (tmp_path / "lazy" / "__init__.py").write_text(
        "from betty.lazy_package import offer\n__all__ = offer(__name__, {'lazy.module': ['name']})\n"
    )
    (tmp_path / "lazy" / "module.py").write_text("import no_such_library\n")
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
import lazy
for name in ("name", "module"):
    try:
        getattr(lazy, name)
    except ModuleNotFoundError as error:
        print(error.name)
"""
    assert run(code) == "no_such_library\n" * 2
