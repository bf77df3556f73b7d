"""All benchmarks of memory: estimates, plans for budgets, and a job that is far larger than its budget."""

import memory_budgets
import memory_estimates
import memory_lstm


def main() -> None:
    for section in (memory_estimates, memory_budgets, memory_lstm):
        section.main()
        print(flush=True)


if __name__ == "__main__":
    main()
