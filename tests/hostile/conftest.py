"""The scene of the hostile trials, made once."""

from collections.abc import Iterator

import pytest

from tests.hostile.scene import Scene, new_scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with new_scene(tmp_path_factory.mktemp("hostile")) as scene:
        yield scene
