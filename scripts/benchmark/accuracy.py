"""Test accuracy of micro-batch, full-batch and mini-batch training, and how closely the first follows the second."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from common import REAL_GRAPHS, describe_machine, load_graph, markdown_table, spread
from tqdm import tqdm

from betty import MLP, GraphSAGE
from betty.datasets import Dataset, csc
from betty.device_loader import DeviceLoader
from betty.evaluation import accuracy, layerwise_inference, roc_auc
from betty.full_batch import SampledFullBatches
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning
from betty.mini_batch_train.trainer import MiniBatchTrainer
from betty.models import LayeredModel
from betty.seeds import seeded
from betty.training import TrainEpoch

SEEDS = (0, 1, 2)
FAN_OUTS = [10, 25]
NUM_PARTS = 8
NUM_HIDDEN = 64
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Setting:
    """How a graph is trained: epochs, learning rate, dropout, and the size of a mini-batch."""

    num_epochs: int
    lr: float
    dropout: float
    mini_batch_size: int


SETTINGS = {
    "cora": Setting(40, 0.01, 0.5, 256),
    "citeseer": Setting(40, 0.01, 0.5, 256),
    "tolokers": Setting(200, 0.01, 0.2, 1024),
    "synthetic-arxiv": Setting(20, 0.01, 0.2, 4096),
}


def new_model(dataset: Dataset, setting: Setting, model: str, seed: int) -> LayeredModel:
    sizes = (dataset.num_features, NUM_HIDDEN, dataset.num_classes, len(FAN_OUTS))
    with seeded(CPU, seed, "weights", 0):
        return MLP(*sizes, setting.dropout) if model == "mlp" else GraphSAGE(*sizes, "mean", setting.dropout)


def micro_batch_trainer(dataset: Dataset, num_parts: int, seed: int) -> TrainEpoch:
    full_batches = SampledFullBatches(dataset.graph, dataset.train_ids, FAN_OUTS, seed)
    loader = DeviceLoader(dataset.features, dataset.labels, CPU)
    return MicroBatchTrainer(full_batches, Partitioning("REG", num_parts, 0, "REG"), loader, seed).train_epoch


def mini_batch_trainer(dataset: Dataset, batch_size: int, seed: int) -> TrainEpoch:
    mini_batches = SampledFullBatches(dataset.graph, dataset.train_ids, FAN_OUTS, seed, batch_size)
    return MiniBatchTrainer(mini_batches, DeviceLoader(dataset.features, dataset.labels, CPU), seed).train_epoch


def train(model: LayeredModel, train_epoch: TrainEpoch, dataset: Dataset, setting: Setting, seed: int) -> dict:
    """Train, and score the epoch with the best validation score (ROC-AUC for two classes, else accuracy)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, weight_decay=5e-4)
    indptr, indices = csc(dataset.graph)
    select = roc_auc if dataset.num_classes == 2 else accuracy
    best = {"val": -1.0}
    losses = []
    for epoch in range(setting.num_epochs):
        model.train()
        with seeded(CPU, seed, "dropout", 0, epoch):
            losses.append(train_epoch(model, optimizer, 0, epoch).loss)
        if (epoch + 1) % 5:
            continue
        logits = layerwise_inference(model, indptr, indices, dataset.features, CPU)
        val = select(logits, dataset.labels, dataset.val_ids)
        if val > best["val"]:
            best = {"val": val, "acc": accuracy(logits, dataset.labels, dataset.test_ids)}
            if dataset.num_classes == 2:
                best["auc"] = roc_auc(logits, dataset.labels, dataset.test_ids)
    return best | {"losses": losses}


def accuracy_rows(name: str) -> list[list[str]]:
    dataset, setting = load_graph(name), SETTINGS[name]
    trainers = {
        "full batch": lambda seed: ("sage", micro_batch_trainer(dataset, 1, seed)),
        f"{NUM_PARTS} micro-batches": lambda seed: ("sage", micro_batch_trainer(dataset, NUM_PARTS, seed)),
        f"mini-batches of {setting.mini_batch_size}": lambda seed: (
            "sage",
            mini_batch_trainer(dataset, setting.mini_batch_size, seed),
        ),
        "MLP, full batch": lambda seed: ("mlp", micro_batch_trainer(dataset, 1, seed)),
    }
    rows = []
    for label, make in trainers.items():
        results = []
        for seed in tqdm(SEEDS, f"{name}, {label}", leave=False):
            model, train_epoch = make(seed)
            results.append(train(new_model(dataset, setting, model, seed), train_epoch, dataset, setting, seed))
        auc = spread([100 * r["auc"] for r in results], 1) if "auc" in results[0] else ""
        rows.append([name, label, setting.num_epochs, spread([100 * r["acc"] for r in results], 1), auc])
    return rows


def exactness_row(name: str) -> list[str]:
    """20 epochs without dropout: the largest difference of the two losses."""
    dataset, setting = load_graph(name), Setting(20, 0.01, 0.0, 0)
    whole, micro = (
        train(
            new_model(dataset, setting, "sage", seed=0),
            micro_batch_trainer(dataset, num_parts, seed=0),
            dataset,
            setting,
            seed=0,
        )["losses"]
        for num_parts in (1, NUM_PARTS)
    )
    largest = max(abs(a - b) for a, b in zip(whole, micro, strict=True))
    return [name, f"{whole[0]:.4f}", f"{whole[-1]:.4f}", f"{micro[-1]:.4f}", f"{largest:.1e}"]


def main() -> None:
    print(f"### Test accuracy of 2-layer mean GraphSAGE in %, {len(SEEDS)} seeds, fan-outs {FAN_OUTS}\n")
    rows = [row for name in SETTINGS for row in accuracy_rows(name)]
    print(markdown_table(["graph", "training", "epochs", "test accuracy", "test ROC-AUC"], rows))
    print(f"\n### Loss in float32 over 20 epochs, dropout 0, full batch against {NUM_PARTS} micro-batches\n")
    header = ["graph", "first loss", "last loss, full batch", "last loss, micro-batches", "largest difference"]
    print(markdown_table(header, [exactness_row(name) for name in (*REAL_GRAPHS, "synthetic-arxiv")]))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
