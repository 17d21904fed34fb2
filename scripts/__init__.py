"""Entry points: read a configuration, build its parts, run, report."""
