"""Interrupts, crashes and limits end in one line. ``scripts/benchmark.sh hostile`` tries hundreds."""

import pytest

from betty import errors
from tests.hostile.address_space import address_spaces
from tests.hostile.interrupts import ended_before_betty, interrupts
from tests.hostile.outcome import Ended, defects, judge, tally
from tests.hostile.scene import Scene
from tests.hostile.watching import crashes, orphans


def test_an_interrupt_ends_in_one_line_at_any_time(scene: Scene) -> None:
    outcomes = list(interrupts(scene, number=4))
    assert defects(outcomes) == []
    assert tally(outcomes)["refused"] > 0


def test_a_crash_in_a_library_is_told_in_one_line(scene: Scene) -> None:
    outcomes = list(crashes(scene, number=1))
    assert defects(outcomes) == []
    assert tally(outcomes)["refused"] == 1


def test_no_process_outlives_its_command(scene: Scene) -> None:
    outcomes = list(orphans(scene, number=1))
    assert defects(outcomes) == []
    assert tally(outcomes)["same"] == 1


@pytest.mark.parametrize(("aggregator", "mebibytes"), [("mean", 640), ("lstm", 1050)])
def test_little_address_space_is_told_in_one_line(scene: Scene, aggregator: str, mebibytes: int) -> None:
    assert defects(address_spaces(scene, aggregator, [mebibytes])) == []


LINE = "python -m betty.full_batch: error: no room\n"


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (Ended(0, "", ""), "same"),
        (Ended(2, "", f"a log\n{LINE}"), "refused"),
        (Ended(1, "", LINE), "unclear"),
        (Ended(2, "", f"{LINE}more\n"), "unclear"),
        (Ended(2, "", 2 * LINE), "unclear"),
        (Ended(2, "", f"Traceback (most recent call last):\n{LINE}"), "traceback"),
        (Ended(-11, "", ""), "crash"),
        (Ended(None, "", ""), "hang"),
    ],
)
def test_ends_are_told_apart(ended: Ended, kind: str) -> None:
    assert judge("", ended, is_same=True).kind == kind


def test_another_result_and_silence_about_damage_are_defects() -> None:
    assert judge("", Ended(0, "", ""), is_same=False).kind == "different"
    assert judge("", Ended(0, "", "order is damaged and is made again"), is_same=True, mended="order").kind == "same"
    assert (
        judge("", Ended(0, "", "parts is damaged and is made again"), is_same=True, mended="order").kind == "unnoticed"
    )


def test_a_traceback_of_betty_is_not_blamed_on_python() -> None:
    of_python = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 1\nKeyboardInterrupt'
    assert ended_before_betty(Ended(-2, "", of_python))
    assert ended_before_betty(Ended(1, "", f"Fatal Python error: init_import_site: Failed\n{of_python}"))
    assert not ended_before_betty(Ended(1, "", of_python))
    assert ended_before_betty(Ended(-2, "", ""))
    assert not ended_before_betty(Ended(-2, "", of_python.replace("<frozen runpy>", errors.__file__)))
    assert not ended_before_betty(Ended(1, "", of_python))
