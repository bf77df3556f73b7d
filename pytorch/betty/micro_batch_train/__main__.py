"""``python -m betty.micro_batch_train``: train by micro-batches."""

from betty.watch import watched

if __name__ == "__main__":
    watched("betty.micro_batch_train")
