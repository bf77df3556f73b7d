"""``python -m betty.compare``: finished runs side by side, as a Markdown table."""

from betty.watch import watched

if __name__ == "__main__":
    watched("betty.compare")
