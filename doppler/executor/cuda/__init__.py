"""Devices that are streams of GPUs."""
