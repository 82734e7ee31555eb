"""Programs that play the Windows side of a WSL machine inside a lab host. They know nothing of the product; see docs/lab.md."""
