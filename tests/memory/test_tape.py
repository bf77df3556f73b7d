import pytest
import torch

from betty.memory.tape import CUDA_GRANULARITY, Tape


def test_the_peak_is_the_most_that_is_alive_at_one_time() -> None:
    tape = Tape(torch.float32)
    first = tape.allocate("hidden", 10, 10)
    tape.touch("aggregator", 50)
    tape.free(first)
    tape.allocate("backward", 120)
    assert tape.peak == 400 + 200
    assert {kind: size for kind, size in tape.at_peak.items() if size} == {"hidden": 400, "aggregator": 200}


def test_what_is_shared_is_alive_until_the_last_holder_lets_go() -> None:
    tape = Tape(torch.float32)
    held = tape.share(tape.allocate("hidden", 5))
    tape.free(held)
    assert tape.alive["hidden"] == 20
    tape.free(held, None)
    assert tape.alive["hidden"] == 0


@pytest.mark.parametrize(("trains", "alive"), [(True, 20), (False, 0)])
def test_what_is_saved_is_held_only_if_a_backward_follows(trains: bool, alive: int) -> None:
    tape = Tape(torch.float32, trains=trains)
    held = tape.allocate("hidden", 5)
    tape.save(held)
    tape.free(held)
    assert tape.alive["hidden"] == alive


def test_a_gradient_is_replaced_while_the_one_before_is_alive() -> None:
    tape = Tape(torch.float64)
    tape.gradient = tape.allocate("backward", 10)
    tape.replace_gradient(5)
    assert tape.peak == 80 + 40
    assert tape.alive["backward"] == 40


@pytest.mark.parametrize(("num_bytes", "taken"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_on_cuda_a_tensor_takes_multiples_of_what_its_allocator_hands_out(num_bytes: int, taken: int) -> None:
    assert CUDA_GRANULARITY == 512
    tape = Tape(torch.float32, "cuda")
    tape.touch("hidden", num_bytes, dtype=torch.uint8)
    assert tape.peak == taken
