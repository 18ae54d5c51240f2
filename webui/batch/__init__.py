"""Many texts at once: rows in, files out. Knows nothing of Gradio; the page and the API both use it."""
