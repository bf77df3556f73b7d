"""``python -m betty.full_batch``: sample full batches and store them."""

from betty.watch import watched

if __name__ == "__main__":
    watched("betty.full_batch")
