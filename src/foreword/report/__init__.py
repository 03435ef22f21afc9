"""Reports that stand alone: one HTML file, no network, safe to hand on."""
