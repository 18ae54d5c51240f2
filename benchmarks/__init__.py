"""Measurements: one request, the pool beside the naive path, and hours of mixed use."""
