"""Measurements, to be run by hand; see CONTRIBUTING.md."""
