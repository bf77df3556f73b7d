"""``python -m betty.mini_batch_train``: train by mini-batches, the baseline."""

from betty.watch import watched

if __name__ == "__main__":
    watched("betty.mini_batch_train")
