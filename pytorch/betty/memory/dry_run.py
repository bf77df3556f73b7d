"""The memory that a training step of any model takes, by going through the step with tensors that hold no data."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from betty.blocks import Block
from betty.errors import BettyError
from betty.memory.live_bytes import LiveBytes, storage_bytes
from betty.seeds import random_state_kept

FAKE_TENSOR_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
ADVICE = (
    "give the model a memory method, call betty.plan_micro_batches, which measures steps, or choose --num-batch by hand"
)


class DryRunError(BettyError):
    """A dry run cannot follow the model."""


@dataclass(frozen=True)
class DryRun:
    """Bytes alive at the moment of the peak of a training step, by kind; they sum to :attr:`peak`.

    Args:
        parameters: parameters and buffers of the model.
        input_features: of the blocks' input nodes.
        labels: of their output nodes.
        blocks: their tensors; the ids of all blocks are views of the first one's, as in a :class:`~betty.FullBatch`.
        hidden: what the forward pass and the loss made.
        backward: what the backward pass made.
        gradients: of the parameters, which are there from the micro-batch before.
    """

    parameters: int
    input_features: int
    labels: int
    blocks: int
    hidden: int
    backward: int
    gradients: int

    @property
    def peak(self) -> int:
        return sum(astuple(self))


def dry_run(model: nn.Module, blocks: Sequence[Block], num_features: int, layers: range | None = None) -> DryRun:
    """Go through forward, loss and backward of a training step with fake tensors, and note what is alive.

    Nothing is computed, no data is read and nothing of the size of the data is allocated; it takes some 0.1 ms an
    operation, and some seconds more the first time. What kernels allocate for themselves is not seen, which matters
    where an operation sorts. Random numbers and the model stay as they are; its hooks are called.

    Args:
        model: called as ``model(blocks, x)``, on the device to estimate for; returns logits
            ``[num_outputs, num_classes]``.
        blocks: one per layer, input layer first, on any device.
        num_features: channels of the features, whose dtype is that of the model's first floating parameter.
        layers: of a stage, which the blocks are of, where it is one of several; the channels of what it reads are found
            by a step through the layers before.

    Raises:
        DryRunError: the step fails, or depends on what is in a tensor.
    """
    # Imported here and not above: models know this package.
    from betty.models.exact_dropout import dropout_key

    device = model_device(model)
    with _failures_of(model), random_state_kept(device):
        fake_mode = FakeTensorMode()
        with FakeCopyMode(fake_mode):
            model = training_copy(model)
        with dropout_key(model, 0), fake_mode:
            fake_blocks = [_fake_block(block, fake_mode, device) for block in blocks]
            return _fake_step(model, fake_blocks, num_features, layers or range(len(blocks)))


def training_copy(model: nn.Module) -> nn.Module:
    """A copy in training mode. Where the model is in that, layers that are not, which are frozen, remain so."""
    copied = copy.deepcopy(model)
    return copied if copied.training else copied.train()


def model_device(model: nn.Module) -> torch.device:
    """Where a model's first parameter is; the CPU for a model without any."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def feature_dtype(model: nn.Module) -> torch.dtype:
    """That of a model's first floating parameter."""
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(dtypes, torch.get_default_dtype())


def _fake_step(model: nn.Module, blocks: Sequence[Block], num_features: int, layers: range) -> DryRun:
    # Imported here and not above, as is what knows this package.
    from betty.micro_batch_train.stages import compute_layers

    device = model_device(model)
    features = torch.empty(blocks[0].num_src, num_features, dtype=feature_dtype(model), device=device)
    if layers.start > 0:
        with torch.no_grad():
            for layer_index in range(layers.start):
                features = model.layer_forward(layer_index, _self_loops(features.shape[0], device), features)
        features = torch.empty_like(features).requires_grad_()
    if layers.stop == getattr(model, "num_layers", layers.stop):
        labels = torch.empty(blocks[-1].num_dst, dtype=torch.int64, device=device)
    else:
        with torch.no_grad():
            labels = torch.empty_like(compute_layers(model, layers, blocks, features))

    weights = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    block_tensors = [tensor for block in blocks for tensor in (block.indptr, block.indices, block.src_ids)]

    with LiveBytes([*weights, *gradients, *block_tensors, features, labels]) as made:
        results = compute_layers(model, layers, blocks, features)
        if labels.dtype == torch.int64:
            loss = nn.functional.cross_entropy(results, labels, reduction="sum")
            made.in_backward = True
            loss.backward()
        else:
            made.in_backward = True
            results.backward(labels)
    hidden, backward = made.at_peak
    return DryRun(
        parameters=storage_bytes(weights),
        input_features=storage_bytes([features]),
        labels=storage_bytes([labels]),
        blocks=blocks[0].src_ids.nbytes + sum(block.indptr.nbytes + block.indices.nbytes for block in blocks),
        hidden=hidden,
        backward=backward,
        gradients=storage_bytes(gradients),
    )


def _self_loops(num_nodes: int, device: torch.device) -> Block:
    """A block in which every node has itself as a neighbour."""
    ids = torch.arange(num_nodes + 1, device=device)
    return _FakeBlock(ids, ids[:-1].int(), ids[:-1])


class _FakeBlock(Block):
    """A block that DGL, which reads memory by its address, must not see."""

    def to_dgl(self) -> NoReturn:
        raise BettyError("block.to_dgl() is not possible in it, since DGL reads what is in a block")


def _fake_block(block: Block, fake_mode: FakeTensorMode, device: torch.device) -> Block:
    def fake(tensor: Tensor) -> Tensor:
        return fake_mode.from_tensor(tensor).to(device)

    return _FakeBlock(fake(block.indptr), fake(block.indices), fake(block.src_ids))


@contextmanager
def _failures_of(model: nn.Module) -> Iterator[None]:
    """Turn whatever goes wrong in a dry run into one line that says what."""
    was_disabled, FAKE_TENSOR_LOGGER.disabled = FAKE_TENSOR_LOGGER.disabled, True  # it prints what is raised as well
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        raise DryRunError(
            f"a dry run of {type(model).__name__} cannot follow {error.func}, which needs to know what is in its "
            f"tensors; {ADVICE}"
        ) from error
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DryRunError(f"the dry run of {type(model).__name__} failed: {reason}; {ADVICE}") from error
    finally:
        FAKE_TENSOR_LOGGER.disabled = was_disabled
