"""What the README says is there."""

import re
from pathlib import Path

import pytest

from betty.full_batch import command_line as full_batch
from betty.micro_batch_train import command_line as micro_batch_train
from betty.mini_batch_train import command_line as mini_batch_train

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [full_batch, micro_batch_train, mini_batch_train])
def test_every_flag_is_in_the_table(command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    flags = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    table = README[README.index("## Flags") : README.index("## What is written where")]
    assert flags
    assert flags - set(re.findall(r"--[a-z][a-z-]+", table)) == set()


def test_every_file_and_folder_that_it_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    layout = README[README.index("pytorch/betty/\n") : README.index("scripts/    ")]
    files = re.findall(r"[\w/]+(?:\.py|/)(?= )", layout)
    assert links
    assert files
    assert [link for link in links if not (PROJECT / link).exists()] == []
    package = PROJECT / "pytorch" / "betty"
    assert [file for file in files if not list(package.rglob(file.rstrip("/")))] == []


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "betty.split" in block)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example.replace("synthetic-arxiv", "synthetic-tiny"), names)
    assert all(parameter.grad is not None for parameter in names["model"].parameters())
