"""Links that lie where Betty writes, to a file outside that is nobody's business."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hostile.outcome import Outcome, judge
from tests.hostile.scenarios import SCENARIOS, Stage
from tests.hostile.scene import Scene


def links(scene: Scene, step: int = 1) -> Iterator[Outcome]:
    """A link in the place of every ``step``-th file that is written, to a file and to nothing in turn."""
    for scenario in SCENARIOS:
        stage = Stage(scene, scenario)
        opened = [words[1] for words in map(str.split, stage.operations) if words[0] == "open"]
        for number, name in enumerate(dict.fromkeys(opened)):
            if number % step == 0:
                yield _linked(stage, name, is_dangling=False)
                yield _linked(stage, name, is_dangling=True)


def _linked(stage: Stage, name: str, is_dangling: bool) -> Outcome:
    trial = f"{stage.scenario.name}, {name} is a link to {'nothing' if is_dangling else 'a file'}"
    with stage.start() as folder, TemporaryDirectory(dir=folder.parent) as outside:
        link, target = folder / name, Path(outside) / "precious"
        content = None if is_dangling else link.read_bytes() if link.exists() else b"precious"
        if content is not None:
            target.write_bytes(content)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        ended = stage.scene.run(folder, stage.scenario.command)
        if (target.read_bytes() if target.exists() else None) != content:
            return Outcome("outside", trial)
        if link.is_symlink():
            link.unlink()
        if ended.exit_code == 0:
            return stage.has_the_result(folder, ended, trial)
        return judge(trial, ended, is_same=False)
