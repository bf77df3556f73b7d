import itertools

import pytest
import torch
from torch import nn

from betty import GAT, MLP, BettyError, FullBatch, GraphSAGE, PeakMemory, estimate_memory, partition, split
from betty.device_loader import LoadedBatch
from betty.memory import estimate_inference, estimate_optimizer_step
from betty.memory.estimate import CUBLAS_WORKSPACE
from betty.micro_batch_train.out_of_memory import all_gradients_or_none
from betty.models import AGGREGATORS
from betty.training import backward_on_share
from tests.random_blocks import random_full_batch

FULL_BATCHES = {
    "wide": random_full_batch([6000, 4000, 2500, 1500], 8, seed=0),
    "few sources, many edges": random_full_batch([700, 650, 600, 600], 30, seed=1),
}

MODELS = dict.fromkeys(AGGREGATORS, GraphSAGE) | {"gat": GAT, "mlp": MLP}


def make_model(kind: str, widths: tuple[int, int, int], num_layers: int = 3, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    if kind in AGGREGATORS:
        settings["aggre"] = kind
    return MODELS[kind](*widths, num_layers, **settings)


def measured_bytes(model: nn.Module, batch: FullBatch, accumulates: bool) -> int:
    """What training on a batch takes: what is there before, and what is allocated on the way."""
    dtype = next(model.parameters()).dtype
    features = torch.randn(batch.input_ids.numel(), model.widths[0], dtype=dtype)
    labels = torch.randint(model.widths[-1], (batch.output_ids.numel(),))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if accumulates else None
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    blocks = sum(block.indptr.nbytes + block.indices.nbytes for block in batch.blocks) + batch.input_ids.nbytes
    loaded = LoadedBatch(batch, features, labels, 0.0, 0.0)
    with PeakMemory() as meter, all_gradients_or_none(model.parameters()):
        backward_on_share(model, loaded, labels.numel())
    # Parameters, two numbers each of Adam's, and gradients of earlier micro-batches.
    return (3 + accumulates) * parameters + features.nbytes + labels.nbytes + blocks + meter.peak_bytes


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
@pytest.mark.parametrize("widths", [(30, 16, 5), (8, 64, 3), (150, 32, 40)], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_the_estimate_is_what_a_step_takes(kind: str, widths: tuple[int, int, int], full_batch: FullBatch) -> None:
    model = make_model(kind, widths, dropout=0.5)
    estimate = estimate_memory(model, full_batch.blocks)
    assert estimate.peak == pytest.approx(measured_bytes(model, full_batch, accumulates=True), rel=0.03)


@pytest.mark.parametrize(
    "settings",
    [{"dropout": 0.0}, {"dropout_mode": "torch"}, {"accumulates": False}, {"num_layers": 1}, {"dtype": torch.float64}],
    ids=str,
)
@pytest.mark.parametrize("kind", MODELS)
def test_every_setting_is_estimated(kind: str, settings: dict[str, object]) -> None:
    settings = dict(settings)
    accumulates, dtype = settings.pop("accumulates", True), settings.pop("dtype", torch.float32)
    model = make_model(kind, (20, 32, 7), **settings).to(dtype)
    blocks = FULL_BATCHES["wide"].blocks[-model.num_layers :]
    estimate = estimate_memory(model, blocks, accumulates=accumulates)
    assert estimate.peak == pytest.approx(measured_bytes(model, FullBatch(blocks), accumulates), rel=0.04)


@pytest.mark.parametrize("kind", ["mean", "sum", "gcn"])
def test_what_sums_in_float64_note_of_every_edge_is_estimated(kind: str) -> None:
    full_batch, model = random_full_batch([3000, 800, 50], 300, seed=0), make_model(kind, (8, 2, 3), 2).double()
    estimate = estimate_memory(model, full_batch.blocks)
    assert estimate.peak == pytest.approx(measured_bytes(model, full_batch, accumulates=True), rel=0.05)


@pytest.mark.parametrize("channels", [1, 8])
def test_inference_of_a_narrow_lstm_is_estimated(channels: int) -> None:
    block = random_full_batch([3000, 2000], 8, seed=0).blocks[0]
    model, x = make_model("lstm", (channels, 16, 2), 1).eval(), torch.randn(3000, channels)
    with torch.no_grad(), PeakMemory() as meter:
        model.layer_forward(0, block, x)
    before = 4 * sum(parameter.nbytes for parameter in model.parameters()) + x.nbytes
    before += block.indptr.nbytes + block.indices.nbytes + block.src_ids.nbytes + 8 * block.num_dst
    assert estimate_inference(model, 0, block) == pytest.approx(before + meter.peak_bytes, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("settings", [{"norm": "layer"}, {"norm": "batch"}, {"residual": True}], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_norms_and_residuals_are_estimated(kind: str, settings: dict[str, object], dtype: torch.dtype) -> None:
    if kind == "mlp" and "residual" in settings:
        pytest.skip("there are none")
    model, full_batch = make_model(kind, (20, 32, 7), **settings).to(dtype), FULL_BATCHES["wide"]
    estimate = estimate_memory(model, full_batch.blocks)
    assert estimate.peak == pytest.approx(measured_bytes(model, full_batch, accumulates=True), rel=0.02)


@pytest.mark.parametrize("projects_first", [True, False])
def test_residuals_and_dropout_of_attention_are_estimated(projects_first: bool) -> None:
    widths = (100, 8, 4) if projects_first else (20, 16, 30)
    model = make_model("gat", widths, attention_dropout=0.3, residual=True, num_heads=3)
    full_batch = FULL_BATCHES["wide"]
    estimate = estimate_memory(model, full_batch.blocks)
    assert estimate.peak == pytest.approx(measured_bytes(model, full_batch, accumulates=True), rel=0.05)


def test_the_parts_sum_to_the_peak_and_are_what_they_are_called() -> None:
    model, full_batch = make_model("mean", (30, 16, 5)), FULL_BATCHES["wide"]
    estimate = estimate_memory(model, full_batch.blocks)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert estimate.peak == sum(vars(estimate).values())
    assert estimate.parameters == parameters
    assert estimate.optimizer == 2 * parameters
    assert parameters <= estimate.gradients <= 2 * parameters
    assert estimate.input_features == 4 * 30 * 6000
    assert estimate.labels == 8 * 1500
    tensors = itertools.chain.from_iterable((block.indptr, block.indices) for block in full_batch.blocks)
    assert estimate.blocks == 8 * 6000 + sum(tensor.nbytes for tensor in tensors)
    assert estimate.loaded == estimate.input_features + estimate.labels + estimate.blocks


def test_micro_batches_are_estimated_as_well_as_the_full_batch() -> None:
    full_batch, model = FULL_BATCHES["wide"], make_model("lstm", (30, 16, 5))
    for micro_batch in split(full_batch, partition(full_batch, 5, "range")):
        measured = measured_bytes(model, micro_batch, accumulates=True)
        assert estimate_memory(model, micro_batch.blocks).peak == pytest.approx(measured, rel=0.03)


def test_cuda_rounds_up() -> None:
    # In float64, so that on the CPU there is no scratch memory, which depends on the threads.
    model, blocks = make_model("mean", (3, 4, 2)).double(), random_full_batch([9, 7, 5, 3], 3, seed=0).blocks
    on_cuda = estimate_memory(model, blocks, device="cuda").peak - CUBLAS_WORKSPACE
    assert on_cuda % 512 == 0
    assert on_cuda > 3 * estimate_memory(model, blocks).peak


@pytest.mark.parametrize("layer_index", [0, 1, 2])
@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_estimate_of_inference_is_what_a_layer_takes(kind: str, norm: str, layer_index: int) -> None:
    model = make_model(kind, (30, 16, 5), norm=norm).eval()
    block = FULL_BATCHES["wide"].blocks[layer_index]
    x = torch.randn(block.num_src, model.widths[layer_index])
    with torch.no_grad(), PeakMemory() as meter:
        model.layer_forward(layer_index, block, x)
    block_bytes = block.indptr.nbytes + block.indices.nbytes + block.src_ids.nbytes
    before = 4 * sum(parameter.nbytes for parameter in model.parameters()) + x.nbytes + block_bytes
    # Of the labels, which are not there, 8 bytes a destination are counted.
    estimate = estimate_inference(model, layer_index, block)
    assert estimate == pytest.approx(before + meter.peak_bytes, rel=0.05)


def test_the_estimate_of_the_optimizer_s_step_is_what_it_takes() -> None:
    model = make_model("mean", (100, 64, 10))
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    with PeakMemory() as meter:
        optimizer.step()
    before = 4 * sum(parameter.nbytes for parameter in model.parameters())
    assert estimate_optimizer_step(model) == pytest.approx(before + meter.peak_bytes, rel=0.03)


def test_blocks_without_edges_and_without_nodes_are_estimated() -> None:
    for sizes in ([4, 3, 2], [1, 1, 1]):
        full_batch = random_full_batch(sizes, 1, seed=0)
        for kind in MODELS:
            assert estimate_memory(make_model(kind, (3, 4, 2), 2), full_batch.blocks).peak > 0


def test_blocks_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(BettyError, match="2 blocks for a model of 3 layers"):
        estimate_memory(make_model("mean", (3, 4, 2)), FULL_BATCHES["wide"].blocks[:2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", MODELS)
def test_on_a_gpu_the_estimate_is_what_a_step_takes(kind: str) -> None:
    model, full_batch = make_model(kind, (128, 256, 40)).cuda(), random_full_batch([60000, 40000, 25000, 15000], 8, 0)
    batch = split(full_batch, [torch.arange(15000)])[0].to("cuda")
    features = torch.randn(60000, 128, device="cuda")
    loaded = LoadedBatch(batch, features, torch.randint(40, (15000,), device="cuda"), 0.0, 0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = torch.cuda.memory_allocated() + 2 * sum(parameter.nbytes for parameter in model.parameters())
    with PeakMemory("cuda") as meter, all_gradients_or_none(model.parameters()):
        backward_on_share(model, loaded, 15000)
    assert estimate_memory(model, batch.blocks, device="cuda").peak == pytest.approx(before + meter.peak_bytes, rel=0.1)
