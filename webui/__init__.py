"""All that speaks HTTP: the page today, the API later. Nothing in `inference/` imports from here."""
