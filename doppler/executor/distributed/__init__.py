"""Devices that are processes."""
