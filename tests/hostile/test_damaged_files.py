"""A damaged file gives no other numbers and no traceback. ``scripts/benchmark.sh hostile`` tries hundreds more."""

import json

from tests.hostile.crafted_files import crafted_headers, crafted_json
from tests.hostile.flips import flips
from tests.hostile.outcome import defects, tally
from tests.hostile.readers import Case, cases
from tests.hostile.scene import Scene
from tests.hostile.seals import sealed, sealed_head, with_head
from tests.hostile.truncations import truncations


def test_a_flipped_bit_is_noticed(scene: Scene) -> None:
    outcomes = list(flips(scene, number=16, seed=0))
    assert defects(outcomes) == []
    assert tally(outcomes)["nothing"] == 0


def test_a_file_cut_short_is_noticed(scene: Scene) -> None:
    outcomes = list(truncations(scene, number=12, seed=0))
    assert defects(outcomes) == []
    assert tally(outcomes)["nothing"] == 0


def test_json_of_any_depth_size_and_type_is_refused_or_read(scene: Scene) -> None:
    outcomes = list(crafted_json(scene, number=12, seed=0))
    assert defects(outcomes) == []
    assert tally(outcomes)["refused"] > 0


def test_headers_of_tensors_that_say_something_else_are_noticed(scene: Scene) -> None:
    assert defects(crafted_headers(scene, number=8, seed=0)) == []


def of_summary(scene: Scene) -> Case:
    return cases(scene, lambda name: name == "summary.json")[0]


def test_a_trial_without_damage_counts_for_nothing(scene: Scene) -> None:
    case = of_summary(scene)
    assert case.with_content(case.content, "no damage").kind == "nothing"


def test_seals_are_forged_as_betty_makes_them(scene: Scene) -> None:
    summary = json.loads(of_summary(scene).content)
    assert sealed(summary) == summary
    content = cases(scene, lambda name: name.startswith("checkpoint"))[0].content
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    head = sealed_head(header)
    assert sealed_head(with_head(header, head)) == head


def test_a_result_that_changes_in_silence_is_a_defect(scene: Scene) -> None:
    case = cases(scene, lambda name: name.startswith("epoch-0000"))[-1]
    with scene.copy() as folder:
        ended = scene.run(folder, case.reader.command.plus("--seed", "7"))
        assert case.reader.command.result(folder, ended) != scene.expected(case.reader.command)
