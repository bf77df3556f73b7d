"""What both trainers share: runs, epochs, evaluation and what is recorded of them.

A trainer brings the function that trains one epoch; everything around it is here, top to bottom.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm.contrib.logging import logging_redirect_tqdm

from betty.datasets import Dataset, csc
from betty.device_loader import LoadedBatch
from betty.errors import BettyError
from betty.evaluation import Scores, evaluate, layerwise_inference
from betty.memory import PeakMemory
from betty.memory.live_bytes import storage_bytes
from betty.progress import progress_bar
from betty.run_folder import BatchRecord, Best, Checkpoint, RunFolder, describe_environment
from betty.seeds import seeded
from betty.whole_batch_loss import WholeBatchLoss

logger = logging.getLogger(__name__)

LARGE_FEATURE = 1e3
"""Far above what features of unit scale reach."""


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


class Trainer(Protocol):
    """Trains one epoch, and learns on the way what later epochs need."""

    def train_epoch(self, model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        """Train an epoch of a run, both counted from 0."""
        ...

    @property
    def learned(self) -> dict[str, float]:
        """What later epochs depend on beside the flags and the model, as JSON can hold it."""
        ...

    def recall(self, learned: dict[str, float]) -> None:
        """Go on with what a trainer of the same flags had learned."""
        ...


def fit(
    new_model: Callable[[], nn.Module],
    new_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    trainer: Trainer,
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
        trainer: the trainer's own part.
        dataset: for the evaluation.
        schedule: how long, and when to evaluate.
        folder: where everything is written.
        device: where the model is.
        memory_budget: bytes on the device that evaluation may take, if they are bounded.

    Returns:
        The epochs' objects of ``metrics.jsonl``.
    """
    data = {"name": dataset.name, "split": dataset.split_origin, **dataset.fingerprints()}
    checkpoint = folder.open(data, describe_environment(device))
    first_run = 0
    if checkpoint:
        first_run = checkpoint.progress.run
        if not (0 <= first_run < schedule.num_runs and 0 <= checkpoint.progress.epoch < schedule.num_epochs):
            where = f"epoch {checkpoint.progress.epoch} of run {first_run}"
            raise folder.broken_checkpoint(ValueError(f"it is of {where}, which there is none of"))
        logger.info("going on after epoch %d of run %d", checkpoint.progress.epoch, first_run)
    for run in range(first_run, schedule.num_runs):
        with seeded(device, schedule.seed, "weights", run):
            model = new_model().to(device)
        optimizer = new_optimizer(model.parameters())
        first_epoch, best = 0, None
        if checkpoint and run == first_run:
            restore(model, optimizer, trainer, checkpoint, folder)
            first_epoch, best = checkpoint.progress.epoch + 1, checkpoint.best
        for epoch in progress_bar(range(first_epoch, schedule.num_epochs), f"run {run}"):
            start = time.perf_counter()
            model.train()
            with seeded(device, schedule.seed, "dropout", run, epoch):
                record = trainer.train_epoch(model, optimizer, run, epoch)
            epoch_s = time.perf_counter() - start
            if not math.isfinite(record.loss):
                advice = advice_for_divergence(dataset.features)
                raise BettyError(f"the loss is {record.loss} in epoch {epoch} of run {run}; {advice}")
            scores = Scores(None, None, None)
            if schedule.evaluates(epoch):
                scores = score(model, dataset, device, memory_budget)
                best = better(best, epoch, scores, model)
            metrics = epoch_metrics(run, epoch, record, scores, epoch_s)
            folder.record(run, epoch, metrics, record.batches, model, optimizer, trainer.learned, best)
            if schedule.logs(epoch):
                with logging_redirect_tqdm():
                    logger.info(epoch_line(metrics))
        folder.save_weights(run, model, best)
    return folder.epochs()


def advice_for_divergence(features: Tensor) -> str:
    """What to do where the loss is not a number."""
    largest = max(abs(float(value)) for value in features.aminmax())
    scale = f"scale the node features, which reach {largest:.2g}, or " if largest > LARGE_FEATURE else ""
    return f"{scale}try a lower --lr"


def better(best: Best | None, epoch: int, scores: Scores, model: nn.Module) -> Best | None:
    """The best weights of a run so far: a copy of the model's, where its validation accuracy is better than before."""
    if scores.val_acc is None or (best is not None and scores.val_acc <= best.val_acc):
        return best
    return Best(epoch, scores.val_acc, {name: value.cpu().clone() for name, value in model.state_dict().items()})


def restore(
    model: nn.Module, optimizer: Optimizer, trainer: Trainer, checkpoint: Checkpoint, folder: RunFolder
) -> None:
    """Put a model, its optimizer and its trainer in the state of a checkpoint.

    Raises:
        BettyError: the checkpoint is of another model, or broken.
    """
    parameters = list(model.parameters())
    try:
        for position, state in checkpoint.optimizer.items():
            for name, value in state.items():
                if value.dim() and value.shape != parameters[position].shape:
                    raise ValueError(f"{name} of parameter {position} is {list(value.shape)}")
        model.load_state_dict(checkpoint.model)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": checkpoint.optimizer})
        trainer.recall(checkpoint.progress.learned)
    # PyTorch has an exception of its own for every way in which states do not fit.
    except Exception as error:
        raise folder.broken_checkpoint(error) from error


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


class WithPeakMemory:
    """A trainer that records its peak memory: of what was alive before an epoch and of what it allocates.

    On CUDA these are all tensors on the device. On the CPU, which is the host of all data as well, what was there
    before is the model, its gradients and the optimizer's state; sampling and planning do not count.

    Args:
        trainer: what trains.
        device: where the model is.
    """

    def __init__(self, trainer: Trainer, device: torch.device) -> None:
        self._trainer = trainer
        self._device = device
        self.recall = trainer.recall

    @property
    def learned(self) -> dict[str, float]:
        """What the trainer learned."""
        return self._trainer.learned

    def train_epoch(self, model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        """Train an epoch, and measure."""
        on_cuda = self._device.type == "cuda"
        before = torch.cuda.memory_allocated(self._device) if on_cuda else bytes_of_training_state(model, optimizer)
        with PeakMemory(self._device) as meter:
            record = self._trainer.train_epoch(model, optimizer, run, epoch)
        return replace(record, peak_memory_bytes=before + meter.peak_bytes)


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
    loss = share_of_loss(logits, loaded.target, num_outputs)
    loss.backward()
    batch = loaded.batch
    sizes = (batch.output_ids.numel(), batch.input_ids.numel(), batch.num_edges)
    return loss.detach(), BatchRecord(*sizes, seconds_since(start, loss.device))


def share_of_loss(logits: Tensor, labels: Tensor, num_outputs: int) -> Tensor:
    """A batch's share of the mean cross entropy of ``num_outputs`` nodes: a scalar."""
    return WholeBatchLoss(nn.CrossEntropyLoss(reduction="sum"), normalizer=num_outputs)(logits, labels)


def seconds_since(start: float, device: torch.device) -> float:
    """Seconds from a time of ``time.perf_counter`` until a device has computed what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
