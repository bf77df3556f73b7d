"""What the README says is there."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import betty
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


def test_the_python_examples_run_and_train_as_the_whole_batch_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    saving, training, *others = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    own_graph = {
        "edges": torch.tensor([[0, 1], [1, 2]]),
        "features": torch.ones(3, 2),
        "labels": torch.tensor([0, 1, 0]),
    }
    exec(saving, {name: tensor.numpy() for name, tensor in own_graph.items()})
    assert torch.equal(betty.load_dataset("my-graph.npz").features, own_graph["features"])

    names: dict = {}
    exec(training.replace("synthetic-arxiv", "synthetic-tiny"), names)
    model, fb, ds = names["model"], names["fb"], names["ds"]
    assert len(names["parts"]) > 1
    assert names["class_weights"].unique().numel() > 1
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with betty.dropout_key(model, names["step"]):
        logits = model(fb.blocks, ds.features[fb.input_ids])
    cross_entropy(logits, ds.labels[fb.output_ids], names["class_weights"]).backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        assert (gradient - parameter.grad).norm() <= 1e-5 * parameter.grad.norm()

    for example in others:
        exec(example, names)
    assert names["meter"].peak_bytes > 0
