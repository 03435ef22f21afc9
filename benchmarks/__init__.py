"""Side-by-side runs against the named peers. Each prints ratios: medians over interleaved runs on one machine."""
