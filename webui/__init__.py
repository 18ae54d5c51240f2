"""All that speaks HTTP: the page and the API. Nothing in `inference/` imports from here."""
