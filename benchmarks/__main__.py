"""``make bench``: run every comparison and print one table."""

from __future__ import annotations

if __name__ == "__main__":
    print("No comparisons yet.")
