"""What the paper and its artifact print (Betty, ASPLOS 2023; github.com/PASAUCMerced/Betty).

Sizes in GB and seconds as they are printed there.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "Published: the paper (ASPLOS 2023) or its artifact, ogbn-products on a GPU of 24 GB"

WHOLE_BATCH = {
    ("aggre", "mean"): "8.44 GB",
    ("aggre", "pool"): "11.27 GB",
    ("aggre", "lstm"): "out of memory",
    ("num_layers", "1"): "7.66 GB",
    ("num_layers", "2"): "8.45 GB",
    ("num_layers", "3"): "13.25 GB",
    ("num_layers", "4"): "22.11 GB, out of memory",
}
"""Figure 2, by what is varied: the artifact's peaks of 256 hidden channels, fan-outs 10,25,30,40."""

MICRO_BATCHES = {
    ("aggre", "lstm"): "9, about 21 GB",
    ("num_layers", "4"): "3, 15.99 GB",
}
"""Figure 10: the number of micro-batches and the peak."""


@dataclass(frozen=True)
class EstimateOfLstm:
    """Figure 5: a 1-layer LSTM on ogbn-arxiv, 128 hidden channels, fan-out 10."""

    estimate_gb: float = 4.40
    measured_gb: float = 4.25
    error: str = "+3.5"


IN_DEGREES = {1: 13428, 2: 11706, 3: 9277, 4: 7320, 5: 6222, 6: 4868, 7: 4045, 8: 3472, 9: 2976, 10: 27627}
"""Figure 5: output nodes of ogbn-arxiv by in-degree, fan-out 10."""

LARGEST_REDUCTION = "48.3 %"
"""Figure 11: "up to", of the peak memory."""


@dataclass(frozen=True)
class OfNumBatch:
    """Figure 12: a 1-layer LSTM on ogbn-products, 256 hidden channels, fan-out 10."""

    peak_gb: float
    redundancy: float
    epoch_s: float


BY_NUM_BATCH = {
    1: OfNumBatch(13.03, 1.00, 0.034),
    2: OfNumBatch(6.65, 1.04, 0.054),
    4: OfNumBatch(3.38, 1.12, 0.110),
    8: OfNumBatch(1.71, 1.20, 0.181),
    16: OfNumBatch(0.88, 1.28, 0.286),
    32: OfNumBatch(0.44, 1.35, 0.573),
}

EPOCH = (
    "Published for an epoch of a 2-layer LSTM on ogbn-products in 12 micro-batches: Betty's artifact 136 s, of it "
    "2.3 s training; Buffalo 19.2 s."
)
