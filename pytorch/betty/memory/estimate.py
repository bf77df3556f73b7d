"""Estimating the peak memory of a training step from the shapes of its blocks, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import nn

from betty.blocks import Block
from betty.errors import BettyError
from betty.memory.dry_run import dry_run
from betty.memory.tape import Held, Tape

CUBLAS_WORKSPACE = 32 << 20
"""Bytes that PyTorch gives cuBLAS on CUDA by default, on the devices on which it gives the most (8 MiB elsewhere)."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of tensors that are alive when a training step on a micro-batch takes the most, by what they are for.

    The first eight are the parts of the paper (Betty, ASPLOS 2023, section 5). They sum to :attr:`peak`.

    Args:
        parameters: of the model.
        input_features: of the micro-batch's input nodes.
        labels: of its output nodes; in a stage before the last one the gradients of their results.
        blocks: their tensors.
        hidden: what layers return and what the backward needs of it.
        aggregator: what layers make on the way and keep for the backward.
        gradients: of the parameters.
        optimizer: its state.
        backward: gradients of hidden states, what layers make on the way back, and the workspace of CUDA's libraries.
    """

    parameters: int
    input_features: int
    labels: int
    blocks: int
    hidden: int
    aggregator: int
    gradients: int
    optimizer: int
    backward: int

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return self.loaded + self.static + self.hidden + self.aggregator + self.backward

    @property
    def loaded(self) -> int:
        """Bytes of the micro-batch itself, which it takes as soon as it is on the device."""
        return self.input_features + self.labels + self.blocks

    @property
    def static(self) -> int:
        """Bytes that every micro-batch of the model takes."""
        return self.parameters + self.gradients + self.optimizer


def estimate_memory(
    model: nn.Module,
    blocks: Sequence[Block],
    *,
    optimizer_states: int = 2,
    accumulates: bool = True,
    num_features: int | None = None,
    device: torch.device | str = "cpu",
    layers: range | None = None,
) -> MemoryEstimate:
    """Estimate what a forward and a backward on a micro-batch take at their peak, from shapes and degrees alone.

    Every layer states what it allocates and when it lets go, next to its code (``memory``, see
    :class:`~betty.memory.tape.Tape`); the peak is the largest sum of what is alive at any moment. Where a model or one
    of its layers does not, :func:`~betty.memory.dry_run` goes through the step, which takes some hundred times as long,
    has earlier gradients whether or not there are any, and sees nothing of what kernels allocate for themselves.

    Args:
        model: called as ``model(blocks, x)``.
        blocks: of the micro-batch, on any device.
        optimizer_states: numbers that the optimizer keeps per parameter: two for Adam.
        accumulates: whether parameters have gradients from earlier micro-batches.
        num_features: channels of the features; needed for a model without ``widths``, of which the first is that.
        device: where it is to run; CUDA's allocator rounds up, and kernels differ.
        layers: of a stage, which the blocks are of, where it is one of several.

    Raises:
        BettyError: ``num_features`` is needed, or the dry run fails.
    """
    if not states_its_memory(model):
        return _dry_run_estimate(model, blocks, optimizer_states, num_features, layers)
    tape = Tape(next(model.parameters()).dtype, torch.device(device).type)
    _hold_model(tape, model, optimizer_states, accumulates)
    first, stop = (0, len(blocks)) if layers is None else (layers.start, layers.stop)
    features = _load(tape, blocks, model.widths[first])
    is_last = stop == len(model.widths) - 1
    num_outputs = blocks[-1].num_dst
    if is_last:
        tape.allocate("labels", num_outputs, dtype=torch.int64)
    else:
        of_results = tape.share(tape.allocate("labels", num_outputs, model.widths[stop]))
    whole = layers is None or len(layers) == len(model.widths) - 1
    memory = model.memory(tape, blocks, features) if whole else model.stage_memory(tape, layers, blocks, features)
    with memory as results:
        if is_last:
            _cross_entropy_memory(tape, num_outputs, model.widths[-1])
        else:
            tape.gradient = of_results
    tape.free(results)
    return MemoryEstimate(**{field.name: tape.at_peak.get(field.name, 0) for field in fields(MemoryEstimate)})


def states_its_memory(model: nn.Module) -> bool:
    """Whether a model is estimated without a dry run: it has a method ``memory``, and so have its layers."""
    return hasattr(model, "memory") and all(hasattr(layer, "memory") for layer in getattr(model, "layers", ()))


def _dry_run_estimate(
    model: nn.Module,
    blocks: Sequence[Block],
    optimizer_states: int,
    num_features: int | None,
    layers: range | None,
) -> MemoryEstimate:
    if num_features is None:
        if not hasattr(model, "widths"):
            raise BettyError(
                f"how many features a {type(model).__name__} takes is not known; give num_features= or the model widths"
            )
        num_features = model.widths[0]
    found = asdict(dry_run(model, blocks, num_features, layers))
    optimizer = optimizer_states * sum(parameter.nbytes for parameter in model.parameters())
    return MemoryEstimate(**found, aggregator=0, optimizer=optimizer)


def estimate_optimizer_step(model: nn.Module, *, optimizer_states: int = 2, device: torch.device | str = "cpu") -> int:
    """Estimate the bytes that are alive while the optimizer makes its step, when no micro-batch is.

    Adam makes three tensors on the way: on CUDA for all parameters at once, on the CPU for one after the other, when
    something of the one before is still there.
    """
    tape = Tape(torch.float32, torch.device(device).type)
    _hold_model(tape, model, optimizer_states, accumulates=True)
    sizes = [parameter.nbytes for parameter in model.parameters()]
    in_step = 3 * sum(sizes) if tape.device_type == "cuda" else 4 * max(sizes, default=0)
    tape.touch("optimizer", in_step, dtype=torch.uint8)
    return tape.peak


def estimate_inference(
    model: nn.Module,
    layer_index: int,
    block: Block,
    *,
    optimizer_states: int = 2,
    device: torch.device | str = "cpu",
) -> int:
    """Estimate the peak bytes of one layer's forward without gradients, in the middle of training.

    The layer's block, input and result are counted, and the model with its gradients and the optimizer's state.

    Args:
        model: with a method ``layer_memory``, as all of Betty's have.
        layer_index: 0 is the input layer.
        block: the layer's block, on any device.
        optimizer_states: numbers that the optimizer keeps per parameter: two for Adam.
        device: where it is to run.
    """
    tape = Tape(next(model.parameters()).dtype, torch.device(device).type, trains=False)
    _hold_model(tape, model, optimizer_states, accumulates=True)
    x = _load(tape, [block], model.widths[layer_index])
    tape.allocate("labels", block.num_dst, dtype=torch.int64)
    # Entered only: there is no backward to come.
    forward = model.layer_memory(tape, layer_index, block, x)
    forward.__enter__()
    return tape.peak


def _hold_model(tape: Tape, model: nn.Module, optimizer_states: int, accumulates: bool) -> None:
    sizes = [parameter.nbytes for parameter in model.parameters()]
    tape.hold_tensors("parameters", sizes)
    tape.hold_tensors("optimizer", (optimizer_states * size for size in sizes))
    if accumulates:
        tape.hold_tensors("gradients", sizes)
    if tape.device_type == "cuda":
        tape.allocate("backward", CUBLAS_WORKSPACE, dtype=torch.uint8)


def _load(tape: Tape, blocks: Sequence[Block], num_features: int) -> Held:
    """The blocks, which share their node ids, with features; holds these."""
    for block in blocks:
        for tensor in (block.indptr, block.indices):
            tape.allocate("blocks", tensor.numel(), dtype=tensor.dtype)
    tape.allocate("blocks", blocks[0].num_src, dtype=torch.int64)
    return tape.share(tape.allocate("input_features", blocks[0].num_src, num_features))


def _cross_entropy_memory(tape: Tape, num_outputs: int, num_classes: int) -> None:
    """The loss of the logits and its gradient."""
    log_softmax = tape.allocate("hidden", num_outputs, num_classes)
    tape.gradient = tape.allocate("backward", num_outputs, num_classes)
    tape.replace_gradient(num_outputs, num_classes)
    tape.free(log_softmax)
