"""Training by mini-batches, the baseline: independent batches with an optimizer step each."""

from __future__ import annotations

import time

from torch import nn
from torch.optim import Optimizer

from betty.blocks import MicroBatch
from betty.device_loader import DeviceLoader, LoadedBatch, one_ahead
from betty.full_batch import FullBatchSource
from betty.models import dropout_key
from betty.seeds import derive_seed
from betty.training import EpochRecord, backward_on_share


class MiniBatchTrainer:
    """Trains on small sampled batches, each of which must fit on the device by itself.

    Args:
        mini_batches: of every epoch.
        device_loader: brings them to the device.
        seed: of exact dropout.
    """

    def __init__(self, mini_batches: FullBatchSource, device_loader: DeviceLoader, seed: int) -> None:
        self._mini_batches = mini_batches
        self._device_loader = device_loader
        self._seed = seed

    @property
    def learned(self) -> dict[str, float]:
        """Nothing: every epoch depends on the flags alone."""
        return {}

    def recall(self, learned: dict[str, float]) -> None:
        """There is nothing to recall."""

    def train_epoch(self, model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        """Train on every mini-batch of an epoch, the next one being sampled in the background."""
        loss, sample_s, transfer_s, batches = 0.0, 0.0, 0.0, []

        def load(batch: int) -> LoadedBatch:
            start = time.perf_counter()
            sampled = MicroBatch(self._mini_batches.load(epoch, batch).blocks, weight=1.0)
            return self._device_loader.load(sampled, prepare_s=time.perf_counter() - start)

        jobs = range(self._mini_batches.num_batches)
        # Not by enumerate, which would hold each batch until it has the next one.
        for loaded in one_ahead(load, jobs, self._device_loader.hand_over):
            num_outputs = loaded.target.numel()
            optimizer.zero_grad(set_to_none=True)
            with dropout_key(model, derive_seed(self._seed, "dropout", run, epoch, len(batches))):
                share, record = backward_on_share(model, loaded, num_outputs)
            optimizer.step()
            loss += share.item() * num_outputs
            sample_s += loaded.prepare_s
            transfer_s += loaded.transfer_s
            batches.append(record)
            # Now, and not by the next one taking its name: the one after that is loaded from then on.
            del loaded
        return EpochRecord(
            loss=loss / sum(record.output_nodes for record in batches),
            redundancy=None,
            estimated_peak_bytes=None,
            sample_s=sample_s,
            partition_s=0.0,
            split_s=0.0,
            transfer_s=transfer_s,
            batches=batches,
        )
