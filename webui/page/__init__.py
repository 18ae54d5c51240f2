"""The studio's page, in Gradio blocks."""
