"""Every figure at a scale of seconds: its files, its numbers, and that it repeats nothing."""

import json
import math
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import betty
from betty.files import read_json
from betty.memory import parse_size, size_text
from tests.scripts.figure_scripts import FIGURES, SCRIPTS, call_main, commands, draw, environment, script_module

CAPACITY = 700 * 1024
Cells = dict[str, str]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "results"
    for figure in FIGURES:
        draw(figure, folder)
    return folder


def tables(folder: Path) -> list[list[Cells]]:
    """The tables of ``table.md``; every row by its header."""
    blocks = [block.splitlines() for block in (folder / "table.md").read_text().split("\n\n") if block[0] == "|"]
    cells = [[[cell.strip() for cell in line.strip("|").split("|")] for line in block] for block in blocks]
    return [[dict(zip(header, row, strict=True)) for row in rows] for header, _, *rows in cells]


def epochs(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def run_folder(folder: Path, name: str) -> Path:
    return folder / "runs" / f"synthetic-tiny-{name}"


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_leaves_its_picture_its_table_and_its_runs(results: Path, figure: str) -> None:
    folder = results / figure
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert tables(folder)
    assert all((run / "outcome.json").exists() for run in (folder / "runs").iterdir())
    assert [path.name for path in folder.rglob("*.partial")] == []
    assert [path.name for path in folder.rglob("full-batches")] == []


def test_figure_2_marks_what_exceeds_the_capacity(results: Path) -> None:
    (rows,) = tables(results / "figure02")
    for row in rows:
        name = f"{row['aggregator']}-{row['hidden']}-hidden-fan-out-{row['fan-outs'].replace(',', '-')}"
        peak = read_json(run_folder(results / "figure02", name) / "summary.json")["peak_memory_bytes"]
        assert row["measured peak"] == size_text(peak)
        assert row["out of memory"] == ("yes" if peak > CAPACITY else "no")
    assert {row["out of memory"] for row in rows} == {"yes", "no"}


def test_figure_10_trains_all_of_that_inside_the_capacity(results: Path) -> None:
    (rows,) = tables(results / "figure10")
    for row in rows:
        name = f"{row['aggregator']}-{row['hidden']}-hidden-fan-out-{row['fan-outs'].replace(',', '-')}"
        run = epochs(run_folder(results / "figure10", name))
        peak = max(epoch["peak_memory_bytes"] for epoch in run)
        assert row["measured peak"] == size_text(peak)
        assert row["micro-batches"] == str(run[-1]["num_micro_batches"])
        assert row["redundancy"] == f"{run[-1]['redundancy']:.2f}"
        assert row["inside the capacity"] == "yes"
        assert peak <= CAPACITY
    too_large = len({tuple(row.values())[1:5] for row in rows if row["out of memory"] == "yes"})
    assert f"of these {too_large} trained inside" in (results / "figure10" / "table.md").read_text()


def test_figure_4_tells_mean_and_deviation_over_runs(results: Path) -> None:
    (rows,) = tables(results / "figure04")
    for row, name in zip(rows, ["full-batch", "mini-batches-of-100"], strict=True):
        run = epochs(run_folder(results / "figure04", name))
        last = [epoch for epoch in run if epoch["epoch"] == 3]
        losses, accuracies = [epoch["loss"] for epoch in last], [100 * epoch["test_acc"] for epoch in last]
        assert len(last) == 2
        assert row["final loss"] == f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}"
        spread = f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
        assert row["final test accuracy (%)"] == spread
    assert [row["steps an epoch"] for row in rows] == ["1", "6"]


def test_figure_5_compares_the_estimate_with_what_was_measured(results: Path) -> None:
    rows, degrees = tables(results / "figure05")
    for row in rows[:-1]:
        last = epochs(run_folder(results / "figure05", f"lstm-{row['K']}-micro-batches"))[-1]
        estimate, peak = last["estimated_peak_bytes"], last["peak_memory_bytes"]
        assert (row["estimate"], row["measured peak"]) == (size_text(estimate), size_text(peak))
        assert row["error (%)"] == f"{100 * (estimate - peak) / peak:+.2f}"
        parts = list(row)[2 : list(row).index("estimate")]
        assert sum(parse_size(row[part]) for part in parts if row[part] != "0 B") == pytest.approx(estimate, rel=0.01)
    assert rows[-1]["error (%)"] == "+3.5"
    assert sum(int(count) for count in list(degrees[0].values())[1:]) == 600


def test_figure_9_counts_in_degrees(results: Path) -> None:
    (rows,) = tables(results / "figure09")
    dataset = betty.load_dataset("synthetic-tiny", results.parent / "data")
    full_batch = betty.sample_full_batch(dataset.graph, dataset.train_ids, [-1], seed=1236)
    degrees = dataset.graph.in_degrees(full_batch.output_ids).double()
    assert rows[0]["mean in-degree"] == f"{degrees.mean():.2f}"
    assert rows[0]["largest"] == f"{int(degrees.max())}"
    assert sum(int(row["output nodes"]) for row in rows[1:]) == int(rows[0]["output nodes"]) == 600
    assert max(int(row["largest"]) for row in rows[1:]) == int(rows[0]["largest"])


def test_figure_11_compares_with_the_worst_and_the_best_baseline(results: Path) -> None:
    rows, reductions = tables(results / "figure11")
    peaks = {}
    for row in rows:
        run = epochs(run_folder(results / "figure11", f"{row['method']}-4-micro-batches"))
        of_runs = [max(epoch["peak_memory_bytes"] for epoch in run if epoch["run"] == number) for number in (0, 1)]
        peaks[row["method"]] = statistics.mean(of_runs)
        assert row["peak memory"] == f"{size_text(peaks[row['method']])} ± {size_text(statistics.stdev(of_runs))}"
        redundancy = statistics.mean(epoch["redundancy"] for epoch in run)
        assert row["redundancy"].startswith(f"{redundancy:.3f}")
    (reduction,) = reductions
    percent = 100 * (peaks["random"] - peaks["REG"]) / peaks["random"]
    assert reduction["method"] == "REG"
    assert reduction["less than the worst baseline (%)"] == f"{percent:.1f} (random)"


def test_figure_12_has_published_numbers_beside_ours(results: Path) -> None:
    (rows,) = tables(results / "figure12")
    for row in rows:
        run = epochs(run_folder(results / "figure12", f"lstm-{row['K']}-micro-batches"))
        assert row["peak memory"] == size_text(max(epoch["peak_memory_bytes"] for epoch in run))
        assert row["redundancy"] == f"{run[-1]['redundancy']:.2f}"
        assert row["epoch (s)"] == f"{run[-1]['epoch_s']:.3f}"
    assert [row["published peak"] for row in rows] == ["13.03 GB", "6.65 GB"]
    assert [row["published redundancy"] for row in rows] == ["1.00", "1.04"]


def test_figure_13_tells_the_largest_difference(results: Path) -> None:
    (rows,) = tables(results / "figure13")
    whole, parts = (epochs(run_folder(results / "figure13", f"{count}-micro-batches")) for count in (1, 4))
    largest = max(abs(a["loss"] - b["loss"]) for a, b in zip(whole, parts, strict=True))
    assert rows[1]["largest difference of a loss"] == f"{largest:.1e}"
    assert largest < 1e-5
    assert f"from the whole batch's is {largest:.1e}, of K = 4" in (results / "figure13" / "table.md").read_text()


def test_the_breakdown_sums_what_an_epoch_is_made_of(results: Path) -> None:
    (rows,) = tables(results / "breakdown")
    first, later = epochs(run_folder(results / "breakdown", "REG-4-micro-batches"))
    columns = ("sampling (s)", "partition (s)", "split (s)", "transfer (s)", "compute (s)", "sum (s)", "epoch (s)")
    for row, epoch in zip(rows, (first, later), strict=True):
        times = [epoch[f"{stage}_s"] for stage in ("sample", "partition", "split", "transfer", "compute")]
        assert [row[name] for name in columns] == [f"{time:.3f}" for time in (*times, sum(times), epoch["epoch_s"])]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_second_run_repeats_nothing_but_the_drawing(results: Path, figure: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in results.rglob("runs/*/*")}
    assert draw(figure, results) == [f"{figure}.py"]
    assert {path: path.stat().st_mtime_ns for path in results.rglob("runs/*/*")} == before


def test_a_run_whose_flags_have_changed_is_made_anew(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "figure12", tmp_path / "results" / "figure12")
    variables = {"DATA_ROOT": str(results.parent / "data"), "FULL_BATCH_ROOT": str(results.parent / "full-batches")}
    assert draw("figure12", tmp_path / "results", **variables) == ["figure12.py"]
    executed = draw("figure12", tmp_path / "results", LR="0.02", NUM_BATCHES="2", **variables)
    run = run_folder(tmp_path / "results" / "figure12", "lstm-2-micro-batches")
    assert executed == [run.name, run.name, "figure12.py"]
    assert read_json(run / "config.json")["flags"]["lr"] == 0.02
    assert read_json(run / "config.json")["flags"]["overwrite"]


def interrupted_after(record: Callable, num_epochs: int) -> Callable:
    """``RunFolder.record``, which is broken off after some epochs of the run with 4 micro-batches."""

    def record_and_stop(folder, run: int, epoch: int, *rest) -> None:
        record(folder, run, epoch, *rest)
        if folder.path.name.startswith("synthetic-tiny-4") and epoch + 1 == num_epochs:
            raise KeyboardInterrupt

    return record_and_stop


def test_an_interrupted_figure_goes_on_where_it_was(results: Path, tmp_path: Path, monkeypatch) -> None:
    variables = {"DATA_ROOT": str(results.parent / "data"), "FULL_BATCH_ROOT": str(results.parent / "full-batches")}
    with monkeypatch.context() as patch:
        patch.setattr(betty.run_folder.RunFolder, "record", interrupted_after(betty.run_folder.RunFolder.record, 2))
        with pytest.raises(KeyboardInterrupt):
            draw("figure13", tmp_path / "results", **variables)
    folder = tmp_path / "results" / "figure13"
    finished, interrupted = (run_folder(folder, f"{count}-micro-batches") for count in (1, 4))
    before = {run: (run / "metrics.jsonl").read_bytes() for run in (finished, interrupted)}
    assert not (folder / "table.md").exists()
    assert draw("figure13", tmp_path / "results", **variables) == ["betty.full_batch", interrupted.name, "figure13.py"]
    assert (finished / "metrics.jsonl").read_bytes() == before[finished]
    assert (interrupted / "metrics.jsonl").read_bytes().startswith(before[interrupted])
    assert len(before[interrupted].splitlines()) == 2
    unbroken = epochs(run_folder(results / "figure13", "4-micro-batches"))
    assert [epoch["loss"] for epoch in epochs(interrupted)] == [epoch["loss"] for epoch in unbroken]


OUT_OF_MEMORY = "python -m betty.micro_batch_train: error: the device is out of memory; make smaller batches"


def test_a_configuration_that_ran_out_of_memory_is_marked_and_not_tried_again(tmp_path: Path) -> None:
    executed = []

    def too_small_for_lstm(command) -> tuple[int, str]:
        executed.append(command.name)
        return (2, OUT_OF_MEMORY) if "lstm" in command.words else call_main(command)

    lines = commands("figure02", tmp_path / "results", AGGREGATORS="mean lstm", HIDDEN_SIZES="", LAYERS_FAN_OUTS="")
    for _ in range(2):
        script_module("run").run_all("figure02", lines, too_small_for_lstm)
    assert len(executed) == 4
    (rows,) = tables(tmp_path / "results" / "figure02")
    assert [(row["aggregator"], row["measured peak"] != "", row["out of memory"]) for row in rows] == [
        ("mean", True, "no"),
        ("lstm", False, "yes"),
    ]


@pytest.mark.parametrize("message", ["error: the loss is nan", "WARNING out of memory: split in two\nerror: no space"])
def test_other_failures_end_the_figure_and_are_tried_again(tmp_path: Path, message: str) -> None:
    lines = commands("figure02", tmp_path / "results")
    executed = []
    for _ in range(2):
        with pytest.raises(betty.BettyError, match="failed with exit code 2"):
            script_module("run").run_all(
                "figure02", lines, lambda command: executed.append(command.name) or (2, message)
            )
    assert executed == 2 * executed[:1]


def test_a_whole_batch_that_the_trainer_had_to_split_is_out_of_memory(results: Path, tmp_path: Path) -> None:
    source = run_folder(results / "figure02", "mean-16-hidden-fan-out-3-5")
    runs = script_module("runs")
    assert not runs.read_run(source).ran_out_of_memory
    split = shutil.copytree(source, tmp_path / source.name)
    lines = [json.dumps(epoch | {"num_micro_batches": 2}) for epoch in epochs(split)]
    (split / "metrics.jsonl").write_text("\n".join(lines))
    assert runs.read_run(split).ran_out_of_memory


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("scale", ["laptop", "paper", "test"])
def test_a_dry_run_prints_commands_and_does_nothing(tmp_path: Path, figure: str, scale: str) -> None:
    lines = commands(figure, tmp_path / "results", SCALE=scale)
    assert list(tmp_path.iterdir()) == []
    interpreter = f"PYTHONPATH={SCRIPTS.parent / 'pytorch'} {SCRIPTS.parent / '.venv' / 'bin' / 'python'} "
    assert all(line.startswith(interpreter) for line in lines)
    assert f"scripts/figures/{figure}.py" in lines[-1]
    trained = [line for line in lines if "betty.micro_batch_train" in line]
    assert all("--selection-method" in line for line in trained)
    assert trained or figure == "figure09"


def test_a_printed_command_can_be_pasted(tmp_path: Path) -> None:
    spaced = tmp_path / "a folder's name"
    (line, *_) = commands("figure13", spaced / "results")
    assert "betty.full_batch" in line
    subprocess.run(["bash", "-c", line], cwd="/", env=environment(spaced), check=True)
    assert list((spaced / "full-batches").rglob("*.safetensors"))


def test_a_wrong_argument_or_scale_is_one_line(tmp_path: Path) -> None:
    for arguments, variables in ((["--dyr-run"], {}), ([], {"SCALE": "huge"})):
        done = subprocess.run(
            [str(SCRIPTS / "figure02.sh"), *arguments],
            env=environment(tmp_path / "results", **variables),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


def test_all_figures_go_on_after_one_that_fails_and_name_it(results: Path) -> None:
    variables = {"FIGURES": "figure11 figure09", "DATASETS": "cora"}
    done = subprocess.run(
        [str(SCRIPTS / "all_figures.sh")], env=environment(results, **variables), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "all_figures: failed: figure11"
    assert "finished before" in done.stdout
    page = (results / "index.html").read_text()
    assert page.count("data:image/png;base64,") == len(FIGURES)
    assert page.count("<table>") >= len(FIGURES)
    assert 'src="figure' not in page


def test_publishing_puts_tables_and_pictures_into_the_document(results: Path, tmp_path: Path) -> None:
    document, publish = tmp_path / "figures.md", script_module("publish")
    arguments = ["--results", str(results), "--document", str(document), "--figures", "figure12", "figure13"]
    publish.main(arguments)
    text = document.read_text()
    assert (results / "figure12" / "table.md").read_text() in text
    assert "![figure13](figures/figure13.png)" in text
    assert (tmp_path / "figures" / "figure13.png").read_bytes() == (results / "figure13" / "figure.png").read_bytes()
    assert (results / "figure04" / "table.md").read_text() not in text
    with pytest.raises(SystemExit):
        publish.main(["--results", str(tmp_path), "--document", str(document), "--figures", "figure02"])
    assert document.read_text() == text


def test_quantiles_and_tails_of_in_degrees() -> None:
    degrees = script_module("figure09").Degrees.of("some", [[1, 5], [4, 3], [10, 2]])
    assert degrees.mean == pytest.approx((5 + 12 + 20) / 10)
    assert [degrees.quantile(share) for share in (0.5, 0.51, 0.8, 0.99)] == [1, 4, 4, 10]
    assert degrees.shares_at_least.tolist() == [1.0, 0.5, 0.2]
    assert not math.isnan(degrees.mean)
