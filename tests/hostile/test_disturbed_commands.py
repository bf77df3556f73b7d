"""Kills, full disks and links leave no mixture. ``scripts/benchmark.sh hostile`` tries every operation."""

import pytest

from tests.hostile.file_operations import Interference
from tests.hostile.full_disk import full_disks, small_disks
from tests.hostile.kills import kills
from tests.hostile.links import links
from tests.hostile.outcome import defects, tally
from tests.hostile.scenarios import SCENARIOS, Scenario
from tests.hostile.scene import Scene, generator, training


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_killed_command_goes_on_to_the_same_end(scene: Scene, scenario: Scenario) -> None:
    outcomes = list(kills(scene, scenario, step=29, first=7))
    assert defects(outcomes) == []
    assert tally(outcomes)["nothing"] < len(outcomes) / 2


def test_a_full_disk_is_told_in_one_line_and_nothing_is_lost(scene: Scene) -> None:
    outcomes = list(full_disks(scene, number=6, seed=1))
    assert defects(outcomes) == []
    assert tally(outcomes)["refused"] > 0


def test_a_small_file_system_is_told_in_one_line(scene: Scene) -> None:
    try:
        outcomes = list(small_disks(scene, SCENARIOS[0], [80, 160, 4096]))
    except PermissionError as error:
        pytest.skip(str(error))
    assert defects(outcomes) == []
    assert tally(outcomes)["refused"] > 0
    assert outcomes[-1].kind == "same"


def test_no_link_is_followed_for_writing(scene: Scene) -> None:
    assert defects(links(scene, step=9)) == []


def test_a_kill_happens_before_its_operation(scene: Scene) -> None:
    with scene.empty() as folder:
        operations = scene.run(folder, generator()).operations
    with scene.empty() as folder:
        ended = scene.run(folder, generator(), Interference("kill", 5))
        assert ended.was_killed
        assert ended.operations == operations[:6]


def test_a_torn_write_leaves_half_of_what_was_written(scene: Scene) -> None:
    with scene.empty() as folder:
        operations = scene.run(folder, training("new")).operations
        whole = (folder / "new" / "config.json").stat().st_size
    at = next(at for at, operation in enumerate(operations) if operation.startswith("os.rename new/config.json")) - 1
    with scene.empty() as folder:
        assert scene.run(folder, training("new"), Interference("tear", at)).was_killed
        torn = next((folder / "new").glob("*config.json*"))
        assert torn.stat().st_size == pytest.approx(whole / 2, abs=20)
