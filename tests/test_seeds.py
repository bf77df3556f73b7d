"""Streams of random numbers that do not depend on each other."""

import torch

from betty.seeds import derive_seed, generator, seeded

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
