import itertools

import pytest
import torch

from betty.cost import Operations, Speed, Work, measured_speed
from betty.cost.measured_speed import _with_kind, rounded
from betty.cost.work import KINDS
from betty.models import GraphSAGE
from tests.random_blocks import random_block


@pytest.fixture(scope="module")
def speed():
    return measured_speed(torch.device("cpu"))


def test_seconds_are_amounts_times_seconds_per_unit_of_their_own_direction():
    speed = Speed(Operations(sum=2.0, gate=0.5), Operations(sum=10.0))
    work = Work(Operations(sum=3, gate=4, draw=100), Operations(sum=7))
    assert speed.seconds_forward(work) == 2 * 3 + 0.5 * 4
    assert speed.seconds_backward(work) == 10 * 7


def test_every_kind_is_measured_in_both_directions_but_for_what_there_is_nothing_of(speed):
    for seconds in (speed.forward, speed.backward):
        assert seconds.transfer == 0
        assert all(0 < getattr(seconds, kind) < 1e-3 for kind in KINDS if kind not in ("transfer", "draw"))
    # Backward of PyTorch's dropout nothing is drawn.
    assert 0 == speed.backward.draw < speed.forward.draw < 1e-3


def test_what_other_kinds_take_of_a_probe_is_subtracted_down_to_a_share():
    known = Operations(call=2.0)
    amounts = Operations(call=3, sum=2)
    assert _with_kind(known, "sum", amounts, seconds=8.0) == Operations(call=2.0, sum=1.0)
    assert _with_kind(known, "sum", amounts, seconds=4.0) == Operations(call=2.0, sum=0.5)
    assert _with_kind(known, "sum", Operations(call=3), seconds=4.0) == known


def test_measuring_leaves_random_numbers_threads_and_gradients_alone():
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        measured_speed(torch.device("cpu"))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_larger_block_and_more_channels_are_estimated_to_take_longer(speed):
    sizes = itertools.product((100, 1000), (16, 128))
    seconds = [
        speed.seconds_forward(work) + speed.seconds_backward(work)
        for size, width in sizes
        for work in [GraphSAGE(width, width, width, 2, "pool").layer_work(1, random_block(size, 4 * size, 10, seed=0))]
    ]
    small_narrow, small_wide, large_narrow, large_wide = seconds
    assert small_narrow < small_wide < large_wide
    assert small_narrow < large_narrow < large_wide


def test_seconds_are_rounded_to_powers_of_the_fourth_root_of_two():
    assert rounded(0.0) == rounded(-1e-9) == 0
    for power in (-123, -40, -3, 0, 5):
        exact = 2 ** (power / 4)
        assert rounded(exact) == exact
        # Within an eighth of a doubling to both sides.
        assert rounded(exact * 1.08) == rounded(exact / 1.08) == exact
        assert rounded(exact * 1.1) == 2 ** ((power + 1) / 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_of_a_gpu_are_measured_there():
    speed = measured_speed(torch.device("cuda"))
    for kind in ("call", "stream", "multiply", "sum", "transfer", "cut"):
        assert 0 < getattr(speed.forward, kind) < 1e-3
