"""Streams of random numbers that do not depend on each other."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from betty.seeds import derive_seed, generator, random_state_kept, seeded

CPU = torch.device("cpu")


def test_the_same_keys_give_the_same_seed_on_every_machine() -> None:
    assert derive_seed(1236, "sampling", 3, 0) == derive_seed(1236, "sampling", 3, 0) == 673450238


def test_seeds_differ_by_seed_purpose_and_position() -> None:
    keys = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1), (0, "a"), (0,)]
    assert len({derive_seed(*key) for key in keys}) == len(keys)


def test_seeds_fit_what_libraries_take() -> None:
    assert all(0 <= derive_seed(seed, "x") < 2**31 for seed in [0, 1, 2**31, 2**63, 2**64 - 1])


def test_generators_repeat() -> None:
    assert torch.equal(torch.rand(5, generator=generator(7, "x")), torch.rand(5, generator=generator(7, "x")))


def test_seeded_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with seeded(CPU, 5, "weights"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(CPU, 5, "weights"):
        assert torch.equal(torch.rand(3), inside)


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), np.random.rand(), random.random()


def test_what_is_drawn_where_the_state_is_kept_is_drawn_again_afterwards() -> None:
    with random_state_kept(CPU):
        inside = draws()
    assert draws() == inside


def test_another_thread_takes_back_nothing_that_the_main_one_has_drawn() -> None:
    def keep_state() -> None:
        with random_state_kept(CPU):
            drawn.append(draws())

    drawn: list[tuple[float, float, float]] = []
    with ThreadPoolExecutor(1) as other:
        other.submit(keep_state).result()
    assert draws() not in drawn
