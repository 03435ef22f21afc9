"""Find the seam: where prompts part, why, and what a fix gives back."""
