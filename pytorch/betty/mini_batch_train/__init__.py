"""The baseline: independent mini-batches with an optimizer step each."""
