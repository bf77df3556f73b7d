"""How much memory is free, told by the files of made-up systems."""

from pathlib import Path

import pytest
import torch

from betty import BettyError
from betty.memory import available_memory

CPU = torch.device("cpu")


def system(root: Path, available_kib: int, cgroup: dict[str, str]) -> Path:
    (root / "proc").mkdir()
    (root / "proc" / "meminfo").write_text(f"MemTotal: 99999 kB\nMemAvailable:   {available_kib} kB\n")
    for name, content in cgroup.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_tenth_of_the_hosts_available_memory_is_left_alone(tmp_path: Path) -> None:
    assert available_memory(CPU, system(tmp_path, 1000, {})) == 1000 * 1024 * 9 // 10


def test_a_containers_limit_counts_less_what_it_uses_but_for_files_contents(tmp_path: Path) -> None:
    cgroup = {"memory.max": "100000\n", "memory.current": "60000\n", "memory.stat": "anon 1\ninactive_file 20000\n"}
    assert available_memory(CPU, system(tmp_path, 1000, cgroup)) == (100000 - 60000 + 20000) * 9 // 10


def test_a_limit_in_the_older_form_counts_too(tmp_path: Path) -> None:
    cgroup = {
        "memory/memory.limit_in_bytes": "100000",
        "memory/memory.usage_in_bytes": "60000",
        "memory/memory.stat": "total_inactive_file 0",
    }
    assert available_memory(CPU, system(tmp_path, 1000, cgroup)) == 40000 * 9 // 10


@pytest.mark.parametrize("limit", ["max", str(2**62)])
def test_a_container_without_a_limit_has_what_the_host_has(tmp_path: Path, limit: str) -> None:
    cgroup = {"memory.max": limit, "memory.current": "60000", "memory.stat": "inactive_file 0"}
    assert available_memory(CPU, system(tmp_path, 1000, cgroup)) == 1000 * 1024 * 9 // 10


def test_a_system_that_does_not_tell_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BettyError, match="give a size like 20GiB instead of auto"):
        available_memory(CPU, tmp_path)


def test_another_kind_of_device_does_not_tell() -> None:
    with pytest.raises(BettyError, match="meta does not tell"):
        available_memory(torch.device("meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_pytorch_holds_unused_on_a_gpu_is_free() -> None:
    device = torch.device("cuda")
    torch.empty(2**28, dtype=torch.uint8, device=device)
    before = torch.cuda.mem_get_info(device)[0]
    assert available_memory(device) >= int((before + 2**28) * 0.9) - 2**20
