"""DGL imports beside a current PyTorch, and is left alone where it loads by itself. Each test is a fresh process."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "pytorch"


def run_python(code: str, tmp_path: Path, *search_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DGL")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, [*search_path, SOURCE])),
        "HOME": str(tmp_path),
        "PYTHONWARNINGS": "default",
    }
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)


WORK = """
from betty.dgl_compat import dgl
import torch

graph = dgl.graph((torch.arange(9), torch.arange(1, 10)))
sampler = dgl.dataloading.NeighborSampler([2, 2])
for _, _, blocks in dgl.dataloading.DataLoader(graph, torch.arange(10), sampler, batch_size=5):
    layer = dgl.nn.SAGEConv(3, 2, "mean")
    assert layer(blocks[0], torch.rand(blocks[0].num_src_nodes(), 3)).shape == (blocks[0].num_dst_nodes(), 2)
"""


def test_installed_versions_import_and_work_silently(tmp_path: Path) -> None:
    done = run_python(WORK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


def test_nothing_is_written_into_the_home_folder(tmp_path: Path) -> None:
    run_python("import betty.dgl_compat", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_imports_where_torchdata_has_no_datapipes(tmp_path: Path) -> None:
    package = tmp_path / "fake" / "torchdata"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.99'\n")
    check = "import importlib.util; assert importlib.util.find_spec('torchdata.datapipes') is None\n"
    done = run_python(check + WORK, tmp_path, tmp_path / "fake")
    assert done.returncode == 0, done.stderr


def test_a_replaced_module_refuses_use_and_names_the_reason(tmp_path: Path) -> None:
    code = """
from betty.dgl_compat import REPLACED, dgl
import sys

if all(getattr(sys.modules[name], "__file__", None) for name in REPLACED):
    raise SystemExit("DGL loads by itself here")
assert not isinstance(dgl.graph(([0], [0])), dgl.distributed.DistGraph)
dgl.distributed.DistGraph("name")
"""
    done = run_python(code, tmp_path)
    if "loads by itself" not in done.stderr:
        assert "dgl.distributed.DistGraph is not available" in done.stderr


def make_matching_dgl(folder: Path) -> None:
    """A package that loads as DGL does beside a PyTorch that it was built for."""
    package = folder / "dgl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import distributed, graphbolt\nattempts = graphbolt.attempts\n")
    (package / "graphbolt.py").write_text(
        "import builtins\nattempts = builtins.attempts = getattr(builtins, 'attempts', 0) + 1\nworks = True\n"
    )
    (package / "distributed.py").write_text("class DistGraph:\n    pass\n")


def test_a_matching_pair_is_left_alone(tmp_path: Path) -> None:
    make_matching_dgl(tmp_path / "fake")
    code = """
from betty.dgl_compat import dgl

assert dgl.attempts == 1
assert dgl.graphbolt.works
assert dgl.graphbolt.__file__.endswith("graphbolt.py")
assert not hasattr(dgl.graphbolt, "anything")
dgl.distributed.DistGraph()
"""
    done = run_python(code, tmp_path, tmp_path / "fake")
    assert done.returncode == 0, done.stderr


def test_a_missing_dgl_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys

sys.modules["dgl"] = None
import betty.dgl_compat
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 1
    assert "BettyError: DGL is not installed; install it with: pip install dgl" in done.stderr.splitlines()[-1]


def test_a_core_that_does_not_load_says_so(tmp_path: Path) -> None:
    package = tmp_path / "fake" / "dgl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise OSError('libdgl.so: wrong ELF class')\n")
    done = run_python("import betty.dgl_compat", tmp_path, tmp_path / "fake")
    assert "libdgl.so: wrong ELF class" in done.stderr.splitlines()[-1]
