"""Devices that are CPU threads."""
