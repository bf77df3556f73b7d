"""Hundreds of hostile trials; what each kind ended in. Every defect is told on the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from common import PROJECT, describe_machine, markdown_table
from tqdm import tqdm

sys.path.insert(0, str(PROJECT))

from tests.hostile.address_space import address_spaces
from tests.hostile.crafted_files import crafted_headers, crafted_json
from tests.hostile.flips import flips
from tests.hostile.full_disk import full_disks, small_disks
from tests.hostile.interrupts import interrupts
from tests.hostile.kills import kills
from tests.hostile.links import links
from tests.hostile.outcome import DEFECTS, FINE, Outcome, tally
from tests.hostile.scenarios import SCENARIOS
from tests.hostile.scene import Scene, new_scene
from tests.hostile.truncations import truncations
from tests.hostile.watching import crashes, orphans

SEED = 1236
DISK_SIZES = {"generator": [*range(8, 400, 20)], "trainer": [*range(8, 400, 40)]}
"""In KiB."""

ADDRESS_SPACES = range(150, 3001, 150)
"""In MiB."""

TRIALS = {
    "bits flipped": partial(flips, number=400, seed=SEED),
    "files cut short": partial(truncations, number=200, seed=SEED),
    "crafted JSON": partial(crafted_json, number=100, seed=SEED),
    "crafted headers of tensors": partial(crafted_headers, number=60, seed=SEED),
    **{f"kills: {scenario.name}": partial(kills, scenario=scenario) for scenario in SCENARIOS},
    "full disk": partial(full_disks, number=60, seed=SEED),
    **{
        f"small disk: {scenario.name}": partial(small_disks, scenario=scenario, sizes=DISK_SIZES[scenario.name])
        for scenario in SCENARIOS
        if scenario.name in DISK_SIZES
    },
    "links": links,
    "Ctrl-C": partial(interrupts, number=100),
    "crash of the child": partial(crashes, number=8),
    "kill of the parent": partial(orphans, number=4),
    **{
        f"ulimit -v, {name}": partial(address_spaces, aggregator=name, mebibytes=ADDRESS_SPACES)
        for name in ("mean", "lstm")
    },
}


def told(trials: Iterator[Outcome], name: str) -> list[Outcome]:
    """The outcomes, with a line for every defect at once."""
    outcomes = []
    for outcome in tqdm(trials, name, leave=False):
        if outcome.is_defect:
            tqdm.write(str(outcome), sys.stderr)
        outcomes.append(outcome)
    return outcomes


def row(name: str, scene: Scene) -> list[object]:
    start = time.monotonic()
    try:
        outcomes = told(TRIALS[name](scene), name)
    except PermissionError as error:
        return [name, 0, *[f"not here: {error}"], *[""] * (len(FINE) + len(DEFECTS))]
    ends = tally(outcomes)
    seconds = time.monotonic() - start
    return [name, len(outcomes), *(ends[end] for end in (*FINE, *DEFECTS)), f"{seconds:.0f}"]


def main() -> None:
    names = [name for name in TRIALS if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    with TemporaryDirectory() as folder, new_scene(Path(folder)) as scene:
        rows = [row(name, scene) for name in names]
    print("### Hostile trials\n")
    print(markdown_table(["trial", "number", *FINE, *DEFECTS, "seconds"], rows))
    meanings = "; ".join(f"{end}: {meaning}" for end, meaning in (FINE | DEFECTS).items())
    print(f"\n{meanings}. From *{next(iter(DEFECTS))}* on they are defects. {describe_machine()}")


if __name__ == "__main__":
    main()
