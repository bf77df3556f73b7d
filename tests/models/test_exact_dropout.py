"""Masks that depend on the key, the node and the channel only, and look random in all of them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from betty import BettyError, ExactDropout, GraphSAGE, dropout_key
from betty.models.chunks import SERIAL_ELEMENTS
from betty.models.exact_dropout import exact_dropout, exact_edge_dropout
from betty.seeds import derive_seed

Masks = Callable[[Tensor, int, int], Tensor]
"""Makes signs: ``masks(node_ids, channels, key)`` is 1 where a channel is kept and -1 where it is dropped."""


def kept(node_ids: Tensor, channels: int, key: int, probability: float = 0.5) -> Tensor:
    return exact_dropout(torch.ones(len(node_ids), channels), node_ids, probability, key) != 0


def signs(node_ids: Tensor, channels: int, key: int) -> Tensor:
    return kept(node_ids, channels, key).double() * 2 - 1


def scrambled(values: Tensor) -> Tensor:
    """A random bit string for every value, for mixers that are bad for other reasons."""
    table = torch.randint(0, 2**31, (1 << 16,), generator=torch.Generator().manual_seed(0))
    return table[values % (1 << 16)]


BAD_MIXERS: dict[str, Masks] = {
    "node ^ channel": lambda ids, channels, key: ((ids[:, None] ^ torch.arange(channels) ^ key) & 1) * 2.0 - 1,
    "random node ^ random channel": lambda ids, channels, key: (
        ((scrambled(ids * 3 + key)[:, None] ^ scrambled(torch.arange(channels) * 5 + key)) >> 20 & 1) * 2.0 - 1
    ),
    "one multiplication": lambda ids, channels, key: (
        ((ids[:, None] * 2654435761 + torch.arange(channels) * 40503 + key) >> 20 & 1) * 2.0 - 1
    ),
}


def reference_kept(node_ids: list[int], channels: int, probability: float, key: int) -> np.ndarray:
    """The same masks in Python's integers."""

    def mix(word: int) -> int:
        for bits, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            word = (word ^ word >> bits) * multiplier % 2**64
        return word ^ word >> 31

    def hash_id(number: int) -> int:
        return mix((mix((number + 0x9E3779B97F4A7C15) % 2**64) + key) % 2**64)

    def shifted_with_sign(word: int, bits: int) -> int:
        return (word - (word >> 31 << 32)) >> bits & 0xFFFFFFFF

    def keeps(node: int, channel: int) -> bool:
        high, low = divmod(hash_id(node), 2**32)
        word = low ^ hash_id(channel - channels) % 2**32
        word = ((word ^ shifted_with_sign(word, 16)) * 0x7FEB352D + high) % 2**32
        word = (word ^ shifted_with_sign(word, 15)) * 0x846CA68B % 2**32
        return (word ^ 1 << 31) >= probability * 2**32

    return np.array([[keeps(node, channel) for channel in range(channels)] for node in node_ids])


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("key", [0, 12345, (1 << 62) - 1])
def test_masks_equal_the_same_computation_in_pythons_integers(probability, key):
    node_ids = [0, 1, 2, 3, 1000, 2**31 - 1, 2**31, 2**40 + 7, 2**63 - 1]
    expected = reference_kept(node_ids, 11, probability, key)
    assert np.array_equal(kept(torch.tensor(node_ids), 11, key, probability).numpy(), expected)


def z_of_chi_square(z: Tensor) -> float:
    """How far the sum of squares of independent standard normal numbers is from its mean, in standard deviations."""
    return abs(float(z.square().sum()) - z.numel()) / math.sqrt(2 * z.numel())


def correlations(a: Tensor, b: Tensor) -> Tensor:
    """Of every column with every column; standard normal where they are independent."""
    return a.T @ b / math.sqrt(len(a))


def of_different_pairs(matrix: Tensor) -> Tensor:
    return matrix[tuple(torch.triu_indices(*matrix.shape, offset=1))]


def worst_statistic(masks: Masks) -> float:
    """The largest of many statistics, each about standard normal if masks are random."""
    node_ids, channels = torch.arange(8192) + 300, 64
    first = masks(node_ids, channels, 7)
    other_step = masks(node_ids, channels, 8)
    statistics = [
        z_of_chi_square(first.sum(0) / math.sqrt(len(node_ids))),
        z_of_chi_square(first.sum(1) / math.sqrt(channels)),
        z_of_chi_square(of_different_pairs(correlations(first, first))),
        z_of_chi_square(correlations(first, other_step)),
        z_of_chi_square(of_different_pairs(correlations(first[:64].T, first[:64].T))),
    ]
    second_order = first * other_step
    statistics.append(z_of_chi_square(of_different_pairs(correlations(second_order, second_order))))
    for distance in (1, 2, 64, 4096):
        earlier, later = first[:-distance], first[distance:]
        pairs = earlier * later
        statistics.append(z_of_chi_square(correlations(earlier, later)))
        statistics.append(z_of_chi_square(of_different_pairs(correlations(pairs, pairs))))
    return max(statistics)


@pytest.mark.parametrize("seed", range(3))
def test_masks_are_independent_across_nodes_channels_and_steps(seed):
    assert worst_statistic(lambda ids, channels, key: signs(ids, channels, derive_seed(seed, "dropout", key))) < 5


def test_small_keys_are_as_good_as_large_ones():
    assert worst_statistic(signs) < 5


@pytest.mark.parametrize("masks", BAD_MIXERS.values(), ids=BAD_MIXERS.keys())
def test_the_statistics_see_a_bad_mixer(masks):
    assert worst_statistic(masks) > 50


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_is_right_in_all_and_in_every_node_and_channel(probability):
    node_ids, channels = torch.arange(16384), 128
    standardized = (kept(node_ids, channels, 3, probability).double() - (1 - probability)) / math.sqrt(
        probability * (1 - probability)
    )
    assert abs(float(standardized.sum())) / math.sqrt(standardized.numel()) < 4
    assert z_of_chi_square(standardized.sum(0) / math.sqrt(len(node_ids))) < 5
    assert z_of_chi_square(standardized.sum(1) / math.sqrt(channels)) < 5


def test_layers_steps_and_seeds_are_independent():
    """1,024 streams of 4,096 bits each: no two of them go together."""
    node_ids = torch.arange(64)
    streams = [
        signs(node_ids, 64, derive_seed(derive_seed(seed, "dropout", 0, epoch, 0), "dropout", layer)).flatten()
        for seed in range(8)
        for epoch in range(32)
        for layer in range(4)
    ]
    pairs = of_different_pairs(correlations(torch.stack(streams, dim=1), torch.stack(streams, dim=1)))
    assert z_of_chi_square(pairs) < 5
    assert float(pairs.abs().max()) < 6


def test_edges_are_independent_across_both_ends_and_heads():
    sources, destinations = (ids.flatten() for ids in torch.meshgrid(torch.arange(96), torch.arange(96), indexing="ij"))

    def edge_signs(key: int) -> Tensor:
        values = torch.ones(len(sources), 4)
        return (exact_edge_dropout(values, sources, destinations, 0.5, key) != 0).double().view(96, 96, 4) * 2 - 1

    first, other_step = edge_signs(5), edge_signs(6)
    by_source, by_destination = first.flatten(1).T, first.transpose(0, 1).flatten(1).T
    heads = first.flatten(0, 1)
    for statistic in (
        of_different_pairs(correlations(by_source, by_source)),
        of_different_pairs(correlations(by_destination, by_destination)),
        of_different_pairs(correlations(heads, heads)),
        correlations(heads, other_step.flatten(0, 1)),
        # The nodes on the diagonal are their own other direction.
        of_different_pairs(first[..., 0] * first[..., 0].T),
        (first[1:] * first[:-1]).mean((1, 2)) * math.sqrt(96 * 4),
    ):
        assert z_of_chi_square(statistic) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_node_loses_the_same_channels_in_any_row_chunk_and_dtype(dtype):
    num_nodes, channels = 3 * SERIAL_ELEMENTS // 100 + 17, 100
    node_ids = torch.randperm(10 * num_nodes, generator=torch.Generator().manual_seed(0))[:num_nodes]
    expected = kept(node_ids, channels, 9)
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(1))[: num_nodes // 2]
    assert torch.equal(kept(node_ids[order], channels, 9), expected[order])
    assert torch.equal(kept(node_ids[:1], channels, 9), expected[:1])
    in_dtype = exact_dropout(torch.ones(num_nodes, channels, dtype=dtype), node_ids, 0.5, 9)
    assert in_dtype.dtype == dtype
    assert torch.equal(in_dtype, expected.to(dtype) * 2)


def test_the_number_of_threads_changes_nothing():
    node_ids, threads = torch.arange(5000), torch.get_num_threads()
    expected = kept(node_ids, 64, 9)
    try:
        torch.set_num_threads(1)
        assert torch.equal(kept(node_ids, 64, 9), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_cuda_drops_what_the_cpu_drops(dtype):
    x = torch.randn(5000, 65, dtype=dtype, generator=torch.Generator().manual_seed(0))
    node_ids = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    on_device = exact_dropout(x.cuda(), node_ids.cuda(), 0.3, 9)
    torch.testing.assert_close(on_device.cpu(), exact_dropout(x, node_ids, 0.3, 9))


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_gradients_of_first_and_second_order(num_rows):
    x = torch.randn(num_rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ids = torch.arange(num_rows)
    for drop in (
        lambda values: exact_dropout(values, ids, 0.4, 1),
        lambda values: exact_edge_dropout(values, ids, ids + 1, 0.4, 1),
    ):
        assert drop(x).shape == x.shape
        assert torch.autograd.gradcheck(drop, x)
        assert torch.autograd.gradgradcheck(drop, x)


def test_the_gradient_is_dropped_and_scaled_as_the_values_are():
    x = torch.randn(500, 128).requires_grad_()
    result = exact_dropout(x, torch.arange(500), 0.25, 1)
    # With strides, as gradients may be.
    weights = torch.randn(128, 500).T
    (gradient,) = torch.autograd.grad(result, x, weights)
    mask = kept(torch.arange(500), 128, 1, 0.25) / 0.75
    torch.testing.assert_close(result, x * mask)
    torch.testing.assert_close(gradient, weights * mask)


def test_no_mask_is_kept_and_temporaries_are_small():
    x, node_ids = torch.randn(20_000, 128).requires_grad_(), torch.arange(20_000)
    result = exact_dropout(x, node_ids, 0.5, 1)
    assert [saved.numel() for saved in result.grad_fn.saved_tensors] == [20_000]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        exact_dropout(x, node_ids, 0.5, 1)
    sizes = [event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    largest, next_largest = sorted(sizes)[-1], sorted(sizes)[-2]
    assert largest == x.numel() * 4
    assert next_largest <= 8 * SERIAL_ELEMENTS


def test_dropping_nothing_returns_the_values():
    x = torch.randn(3, 4)
    assert exact_dropout(x, torch.arange(3), 0.0, 1) is x
    assert ExactDropout(0.0)(x, torch.arange(3)) is x
    assert ExactDropout(0.5).eval()(x, torch.arange(3)) is x


@pytest.mark.parametrize("probability", [-0.1, 1.0, math.nan])
def test_a_probability_out_of_range_is_refused(probability):
    for make in (
        lambda: ExactDropout(probability),
        lambda: exact_dropout(torch.ones(2, 2), torch.arange(2), probability, 1),
        lambda: exact_edge_dropout(torch.ones(2, 2), torch.arange(2), torch.arange(2), probability, 1),
    ):
        with pytest.raises(BettyError, match="is not a probability"):
            make()


class TwoDropouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ExactDropout(0.5), ExactDropout(0.5)

    def forward(self, x: Tensor, node_ids: Tensor) -> Tensor:
        return torch.stack([self.first(x, node_ids), self.second(x, node_ids)])


def test_calls_drop_the_same_inside_of_a_key_and_others_outside():
    model, x, node_ids = TwoDropouts(), torch.ones(50, 20), torch.arange(50)
    with dropout_key(model, 4):
        once, again = model(x, node_ids), model(x, node_ids)
    with dropout_key(model, 5):
        next_step = model(x, node_ids)
    outside, outside_again = model(x, node_ids), model(x, node_ids)
    assert torch.equal(once, again)
    results = [*once, *next_step, *outside, *outside_again]
    for i, result in enumerate(results):
        assert all(not torch.equal(result, other) for other in results[:i])


def test_outside_of_a_key_masks_follow_pytorchs_seed():
    dropout, x, node_ids = ExactDropout(0.5), torch.ones(50, 20), torch.arange(50)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(dropout(x, node_ids))
    assert torch.equal(*results)


def test_keys_nest_and_end_also_after_an_error():
    model, x, node_ids = TwoDropouts(), torch.ones(50, 20), torch.arange(50)
    with dropout_key(model, 1):
        expected = model(x, node_ids)
        with pytest.raises(RuntimeError, match="inside"), dropout_key(model, 2):
            raise RuntimeError("inside")
        assert torch.equal(model(x, node_ids), expected)
    assert model.first.key is None


def test_a_negative_key_is_refused():
    with pytest.raises(BettyError, match="it has to be 0 or above"), dropout_key(TwoDropouts(), -1):
        pass


def test_a_models_hidden_layers_have_masks_of_their_own():
    model = GraphSAGE(4, 8, 3, num_layers=3, dropout=0.5)
    with dropout_key(model, 0):
        assert len({dropout.key for dropout in model.dropouts} | {None}) == 3
