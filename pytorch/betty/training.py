"""What both trainers share: runs, epochs, evaluation and what is recorded of them.

A trainer brings the function that trains one epoch; everything around it is here, top to bottom.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm.contrib.logging import logging_redirect_tqdm

from betty.datasets import Dataset, csc, graph_fingerprint
from betty.device_loader import LoadedBatch
from betty.errors import BettyError
from betty.evaluation import Scores, evaluate, layerwise_inference
from betty.full_batch.manifest import tensor_fingerprint
from betty.memory import PeakMemory
from betty.memory.live_bytes import storage_bytes
from betty.progress import progress_bar
from betty.run_folder import Checkpoint, RunFolder, describe_environment
from betty.seeds import seeded
from betty.whole_batch_loss import WholeBatchLoss

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchRecord:
    """One micro-batch's (or mini-batch's) share of an epoch: its size in nodes and edges, and its seconds."""

    output_nodes: int
    input_nodes: int
    edges: int
    compute_s: float


@dataclass(frozen=True)
class EpochRecord:
    """What training one epoch did. Times in seconds, memory in bytes; ``None`` where it is not known.

    Batches are made and copied in the background of the computation, so the times may sum to more than the epoch's.
    """

    loss: float
    redundancy: float | None
    estimated_peak_bytes: int | None
    sample_s: float
    partition_s: float
    split_s: float
    transfer_s: float
    batches: list[BatchRecord]
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class Schedule:
    """How long to train and when to look.

    Args:
        num_epochs: epochs of a run.
        num_runs: runs, which differ in initial weights, dropout and partition.
        eval_every: epochs between evaluations, the last epoch being evaluated too; ``None`` for none at all.
        log_every: epochs between lines of the log; what is evaluated and the last epoch are logged too.
        seed: of everything random.
    """

    num_epochs: int
    num_runs: int
    eval_every: int | None
    log_every: int
    seed: int

    def evaluates(self, epoch: int) -> bool:
        last = epoch + 1 == self.num_epochs
        return self.eval_every is not None and (last or (epoch + 1) % self.eval_every == 0)

    def logs(self, epoch: int) -> bool:
        return self.evaluates(epoch) or (epoch + 1) % self.log_every == 0 or epoch + 1 == self.num_epochs


TrainEpoch = Callable[[nn.Module, Optimizer, int, int], EpochRecord]
"""Trains one epoch: ``train_epoch(model, optimizer, run, epoch)``."""


def fit(
    new_model: Callable[[], nn.Module],
    new_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    train_epoch: TrainEpoch,
    dataset: Dataset,
    schedule: Schedule,
    folder: RunFolder,
    device: torch.device,
    memory_budget: int | None = None,
) -> list[dict[str, Any]]:
    """Train all runs, going on from the folder's checkpoint where it has one.

    Args:
        new_model: makes a model with fresh weights.
        new_optimizer: makes its optimizer, given the parameters.
        train_epoch: the trainer's own part.
        dataset: for the evaluation.
        schedule: how long, and when to evaluate.
        folder: where everything is written.
        device: where the model is.
        memory_budget: bytes on the device that evaluation may take, if they are bounded.

    Returns:
        The epochs' objects of ``metrics.jsonl``.
    """
    checkpoint = folder.open(describe_data(dataset), describe_environment(device))
    if checkpoint:
        if not 0 <= checkpoint.run < schedule.num_runs:
            raise folder.broken_checkpoint(ValueError(f"it is of run {checkpoint.run} of {schedule.num_runs}"))
        logger.info("going on after epoch %d of run %d", checkpoint.epoch, checkpoint.run)
    for run in range(checkpoint.run if checkpoint else 0, schedule.num_runs):
        with seeded(device, schedule.seed, "weights", run):
            model = new_model().to(device)
        optimizer = new_optimizer(model.parameters())
        first_epoch = 0
        if checkpoint and checkpoint.run == run:
            restore(model, optimizer, checkpoint, folder)
            first_epoch = checkpoint.epoch + 1
        for epoch in progress_bar(range(first_epoch, schedule.num_epochs), f"run {run}"):
            start = time.perf_counter()
            model.train()
            with seeded(device, schedule.seed, "dropout", run, epoch):
                record = train_epoch(model, optimizer, run, epoch)
            epoch_s = time.perf_counter() - start
            if not math.isfinite(record.loss):
                raise BettyError(f"the loss is {record.loss} in epoch {epoch} of run {run}; try a lower --lr")
            scores = Scores(None, None, None)
            if schedule.evaluates(epoch):
                scores = score(model, dataset, device, memory_budget)
            metrics = epoch_metrics(run, epoch, record, scores, epoch_s)
            folder.record(run, epoch, metrics, [asdict(batch) for batch in record.batches], model, optimizer)
            if schedule.logs(epoch):
                with logging_redirect_tqdm():
                    logger.info(epoch_line(metrics))
    folder.save_weights(model)
    return folder.epochs()


def restore(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint, folder: RunFolder) -> None:
    """Put a model and its optimizer in the state of a checkpoint.

    Raises:
        BettyError: the checkpoint is of another model, or broken.
    """
    try:
        model.load_state_dict(checkpoint.model)
        optimizer.load_state_dict(checkpoint.optimizer)
    except Exception as error:
        raise folder.broken_checkpoint(error) from error


def describe_data(dataset: Dataset) -> dict[str, str]:
    """Fingerprints of what a run is trained on; of the features of a thousand nodes, since all may be too many."""
    rows = torch.arange(0, dataset.num_nodes, max(1, dataset.num_nodes // 1000))
    features = dataset.features.index_select(0, rows)
    return {
        "name": dataset.name,
        "graph": graph_fingerprint(dataset.graph),
        "labels": tensor_fingerprint(dataset.labels),
        "train_ids": tensor_fingerprint(dataset.train_ids),
        "features": tensor_fingerprint(features),
    }


def score(model: nn.Module, dataset: Dataset, device: torch.device, memory_budget: int | None = None) -> Scores:
    """Evaluate a model on the data set's splits, layer by layer with full neighbourhoods."""
    indptr, indices = csc(dataset.graph)
    logits = layerwise_inference(model, indptr, indices, dataset.features, device, memory_budget=memory_budget)
    return evaluate(
        logits, dataset.labels, dataset.train_ids, dataset.val_ids, dataset.test_ids, dataset.evaluator_name
    )


def epoch_metrics(run: int, epoch: int, record: EpochRecord, scores: Scores, epoch_s: float) -> dict[str, Any]:
    """An epoch's object in ``metrics.jsonl``."""
    return {
        "run": run,
        "epoch": epoch,
        "loss": record.loss,
        "train_acc": scores.train_acc,
        "val_acc": scores.val_acc,
        "test_acc": scores.test_acc,
        "num_micro_batches": len(record.batches),
        "input_nodes": sum(batch.input_nodes for batch in record.batches),
        "redundancy": record.redundancy,
        "estimated_peak_bytes": record.estimated_peak_bytes,
        "peak_memory_bytes": record.peak_memory_bytes,
        "sample_s": record.sample_s,
        "partition_s": record.partition_s,
        "split_s": record.split_s,
        "transfer_s": record.transfer_s,
        "compute_s": sum(batch.compute_s for batch in record.batches),
        "epoch_s": epoch_s,
    }


def epoch_line(metrics: dict[str, Any]) -> str:
    """The same in one line of the log."""
    parts = [f"run {metrics['run']} epoch {metrics['epoch']}", f"loss {metrics['loss']:.4f}"]
    parts += [
        f"{split} {metrics[f'{split}_acc']:.4f}"
        for split in ("train", "val", "test")
        if metrics[f"{split}_acc"] is not None
    ]
    count = metrics["num_micro_batches"]
    parts += [f"{count} batch{'' if count == 1 else 'es'}", f"{metrics['input_nodes']:,} input nodes"]
    return ", ".join([*parts, f"{metrics['epoch_s']:.2f} s"])


def with_peak_memory(train_epoch: TrainEpoch, device: torch.device) -> TrainEpoch:
    """Training that records its peak memory: of what was alive before an epoch and of what it allocates.

    On CUDA these are all tensors on the device. On the CPU, which is the host of all data as well, what was there
    before is the model, its gradients and the optimizer's state; sampling and planning do not count.

    Args:
        train_epoch: a trainer's.
        device: where the model is.
    """

    def train_and_measure(model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        on_cuda = device.type == "cuda"
        before = torch.cuda.memory_allocated(device) if on_cuda else bytes_of_training_state(model, optimizer)
        with PeakMemory(device) as meter:
            record = train_epoch(model, optimizer, run, epoch)
        return replace(record, peak_memory_bytes=before + meter.peak_bytes)

    return train_and_measure


def bytes_of_training_state(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of a model, its gradients and its optimizer's state, each storage once."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return storage_bytes([*parameters, *model.buffers(), *gradients, *states])


def backward_on_share(model: nn.Module, loaded: LoadedBatch, num_outputs: int) -> tuple[Tensor, BatchRecord]:
    """Add a batch's share of the loss's gradient to the parameters'.

    The share is the sum of the losses of the batch's output nodes divided by ``num_outputs``, so that the shares of
    all micro-batches sum to the mean loss of the full batch, and their gradients to its gradient.

    Args:
        model: called as ``model(blocks, features)``.
        loaded: the batch.
        num_outputs: output nodes of the full batch.

    Returns:
        The share of the loss (a scalar, detached), and the batch's record.
    """
    start = time.perf_counter()
    logits = model(loaded.batch.blocks, loaded.features)
    loss = WholeBatchLoss(nn.CrossEntropyLoss(reduction="sum"), normalizer=num_outputs)(logits, loaded.labels)
    loss.backward()
    if loss.is_cuda:
        torch.cuda.synchronize(loss.device)
    batch = loaded.batch
    record = BatchRecord(
        batch.output_ids.numel(), batch.input_ids.numel(), batch.num_edges, time.perf_counter() - start
    )
    return loss.detach(), record
